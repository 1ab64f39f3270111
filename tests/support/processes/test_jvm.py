"""Programs of the tests start a quick JVM, wherever Spark's settings are."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.pipelines.processes import SPARK_SUBMIT, environment
from tests.support.processes.jvm import ARCHIVE, QUICK_JVM


@pytest.mark.skipif("SharedArchiveFile" not in QUICK_JVM, reason=f"there is no {ARCHIVE}")
def test_classes_come_from_the_archive_beside_a_folder_of_settings(tmp_path: Path) -> None:
    settings, loaded = tmp_path / "conf", tmp_path / "loaded"
    settings.mkdir()
    (settings / "log4j2.properties").write_text("rootLogger.level = off\n")
    options = f"{QUICK_JVM} -Xlog:class+load:file={loaded}"
    subprocess.run(
        [SPARK_SUBMIT, "--version"], check=True, capture_output=True,
        env=environment() | {"SPARK_CONF_DIR": str(settings), "SPARK_SUBMIT_OPTS": options},
    )  # fmt: skip
    (line,) = (
        line
        for line in loaded.read_text().splitlines()
        if " org.apache.spark.deploy.SparkSubmit " in line
    )
    assert line.endswith("source: shared objects file (top)")


def test_only_the_folder_of_settings_moves(tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    java.chmod(0o755)

    def passed_on(*words: str) -> list[str]:
        started = Path(__file__).with_name("java") / "bin" / "java"
        return subprocess.run(
            [started, *words], check=True, capture_output=True, text=True,
            env={"PATH": os.defpath, "TESTS_JAVA_HOME": str(tmp_path)},
        ).stdout.splitlines()  # fmt: skip

    rest = ["-Da=b c", "Main", "-x", "d/:e", ""]
    assert passed_on("-cp", "conf/:a.jar:b.jar", *rest) == ["-cp", "a.jar:b.jar:conf/", *rest]
    assert passed_on("-cp", "a.jar:b.jar", *rest) == ["-cp", "a.jar:b.jar", *rest]
    assert passed_on("-version") == ["-version"]
