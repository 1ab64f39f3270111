"""Fixtures of the layout's tests."""

from __future__ import annotations

import pytest

from rmqstore_spark.layout import kernel, plain


@pytest.fixture(params=["compiled", "plain"])
def each_kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run the test with each of the two implementations."""
    if request.param == "plain":
        monkeypatch.setattr(kernel, "active", plain)
    elif not kernel.COMPILED:
        pytest.skip("the compiled kernel was not built on this machine")
    return str(request.param)
