"""Integers between Arrow and NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from rmqstore_spark.layout.spans import int_array, numbers_of


@pytest.mark.parametrize("kind", [np.int32, np.int64])
@pytest.mark.parametrize("count", [0, 1, 1000])
def test_integers_go_to_arrow_and_back(kind: Any, count: int) -> None:
    numbers: npt.NDArray[Any] = (np.arange(count) - 7).astype(kind)
    array = int_array(numbers)
    array.validate(full=True)
    assert array.equals(pa.array(numbers))
    assert array.null_count == 0
    found = numbers_of(array)
    assert found.dtype == kind
    assert found.tolist() == numbers.tolist()


def test_every_second_one() -> None:
    assert int_array(np.arange(10)[::2]).to_pylist() == [0, 2, 4, 6, 8]


def test_a_slice() -> None:
    assert numbers_of(pa.array([1, 2, 3, 4], pa.int32()).slice(1, 2)).tolist() == [2, 3]


def test_an_array_without_memory() -> None:
    assert numbers_of(pa.nulls(0, pa.int64())).tolist() == []
