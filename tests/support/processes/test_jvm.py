"""Programs of the tests start a quick JVM, wherever Spark's settings are."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.pipelines.processes import SPARK_SUBMIT, environment
from tests.support.processes.jvm import ARCHIVE, quick_java


@pytest.mark.skipif(
    not ARCHIVE.exists() or ARCHIVE.stat().st_size == 0, reason=f"there is no {ARCHIVE}"
)
@pytest.mark.parametrize("program", ["SparkSubmit", "SparkPipelines"])
def test_classes_come_from_the_archive_beside_a_folder_of_settings(
    tmp_path: Path, program: str
) -> None:
    """Spark has a variable for options of the first one, and none for the second one's."""
    settings = tmp_path / "conf"
    settings.mkdir()
    (settings / "log4j2.properties").write_text("rootLogger.level = off\n")
    log = f"-Xlog:class+load:file={tmp_path}/loaded-%p"
    subprocess.run(
        [f"{SPARK_SUBMIT.removesuffix('-submit')}-class", f"org.apache.spark.deploy.{program}"],
        check=False, capture_output=True,
        env=environment() | quick_java(log) | {"SPARK_CONF_DIR": str(settings)},
    )  # fmt: skip
    # Another JVM has found the command.
    loaded = next(
        text
        for text in (path.read_text() for path in tmp_path.glob("loaded-*"))
        if f" org.apache.spark.deploy.{program} " in text
    )
    assert "source: shared objects file (top)" in loaded


def test_only_the_folder_of_settings_moves(tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    java.chmod(0o755)

    def passed_on(*words: str, options: str = "") -> list[str]:
        started = Path(__file__).with_name("java") / "bin" / "java"
        return subprocess.run(
            [started, *words], check=True, capture_output=True, text=True,
            env={
                "PATH": os.defpath, "TESTS_JAVA_HOME": str(tmp_path), "TESTS_JAVA_OPTIONS": options,
            },
        ).stdout.splitlines()  # fmt: skip

    rest = ["-Da=b c", "Main", "-x", "d/:e", ""]
    assert passed_on("-cp", "conf/:a.jar:b.jar", *rest) == ["-cp", "a.jar:b.jar:conf/", *rest]
    assert passed_on("-cp", "a.jar:b.jar", *rest) == ["-cp", "a.jar:b.jar", *rest]
    assert passed_on("-version") == ["-version"]
    assert passed_on("-version", options="-Da=b c\n-X*") == ["-Da=b c", "-X*", "-version"]
