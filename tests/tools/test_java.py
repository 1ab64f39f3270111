"""Which Java of a machine is chosen."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tools.java import NEEDED_MODULE, JavaNotFoundError, find_java, java_version


def make_java(home: Path, version: str, modules: str | None = NEEDED_MODULE) -> Path:
    """Make a folder that looks like a Java's home."""
    release = f'IMPLEMENTOR="Nobody"\nJAVA_VERSION="{version}"\n'
    if modules is not None:
        release += f'MODULES="java.base {modules}"\n'
    (home / "bin").mkdir(parents=True)
    (home / "release").write_text(release)
    java = home / "bin" / "java"
    java.write_text("#!/bin/sh\nexit 1\n")
    java.chmod(0o755)
    return home


@pytest.mark.parametrize(
    ("version", "major"),
    [
        ("17.0.15", 17),
        ("21", 21),
        ("25-ea", 25),
        ("16.0.2", None),
        ("1.8.0_402", None),
        ("nonsense", None),
    ],
)
def test_version_is_read_from_the_release_file(
    tmp_path: Path, version: str, major: int | None
) -> None:
    assert java_version(make_java(tmp_path / "java", version)) == major


def test_a_java_without_the_module_that_spark_asks_for_is_none(tmp_path: Path) -> None:
    assert java_version(make_java(tmp_path / "lacks", "17.0.1", modules="java.sql")) is None
    # An old file without a list of modules is not a reason against it.
    assert java_version(make_java(tmp_path / "silent", "17.0.1", modules=None)) == 17


def test_without_a_release_file_java_is_asked(tmp_path: Path) -> None:
    home = make_java(tmp_path / "java", "1.8")
    (home / "release").unlink()
    (home / "bin" / "java").write_text(
        "#!/bin/sh\necho '    java.specification.version = 21' >&2\n"
    )
    assert java_version(home) == 21


def test_a_folder_without_java_is_none(tmp_path: Path) -> None:
    assert java_version(tmp_path) is None
    home = make_java(tmp_path / "java", "17.0.1")
    (home / "bin" / "java").chmod(0o644)
    assert java_version(home) is None


def test_java_home_comes_first_then_path_then_folders(tmp_path: Path) -> None:
    given = make_java(tmp_path / "given", "21.0.1")
    on_path = make_java(tmp_path / "on-path", "25.0.1")
    in_folder = make_java(tmp_path / "jvm" / "java-17", "17.0.1")
    shims = tmp_path / "shims"
    shims.mkdir()
    (shims / "java").symlink_to(on_path / "bin" / "java")
    env = {"JAVA_HOME": str(given), "PATH": str(shims)}
    folders = [f"{tmp_path}/jvm/*"]

    assert find_java(env, folders) == given
    (given / "release").write_text('JAVA_VERSION="11.0.2"\n')
    assert find_java(env, folders) == on_path
    (on_path / "release").write_text('JAVA_VERSION="11.0.2"\n')
    assert find_java(env, folders) == in_folder


def test_a_shim_on_path_is_asked_where_it_leads(tmp_path: Path) -> None:
    home = make_java(tmp_path / "real", "17.0.1")
    shim = tmp_path / "shims" / "java"
    shim.parent.mkdir()
    shim.write_text(f"#!/bin/sh\necho '    java.home = {home}' >&2\n")
    shim.chmod(0o755)
    path = f"{shim.parent}{os.pathsep}{os.defpath}"
    assert find_java({"PATH": path}, folders=[]) == home


def test_of_many_in_a_folder_one_with_long_support_is_taken(tmp_path: Path) -> None:
    for version in ("8", "18", "21", "26"):
        make_java(tmp_path / f"java-{version}", f"{version}.0.1")
    env = {"PATH": str(tmp_path)}
    assert find_java(env, [f"{tmp_path}/*"]).name == "java-21"


def test_no_java_says_how_to_install_one_in_one_line(tmp_path: Path) -> None:
    make_java(tmp_path / "java-11", "11.0.1")
    with pytest.raises(JavaNotFoundError, match=r"Java 17 or newer.*apt-get install") as error:
        find_java({"PATH": str(tmp_path), "JAVA_HOME": str(tmp_path)}, [f"{tmp_path}/*"])
    assert "\n" not in str(error.value)
