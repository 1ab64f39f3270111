"""Name servers for tests: in the test's event loop, behind real sockets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmqstore_spark.namesrv.config import NamesrvConfig


@pytest.fixture
def config(tmp_path: Path) -> Callable[..., NamesrvConfig]:
    """Give `config(**attributes)`: the configuration of a name server with files of its own."""

    def make(**given: Any) -> NamesrvConfig:
        return NamesrvConfig(
            **{
                "listen_port": 0,
                "kv_config_path": str(tmp_path / "kv" / "kvConfig.json"),
                "config_store_path": str(tmp_path / "namesrv.properties"),
                **given,
            }
        )

    return make
