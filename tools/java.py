"""Find a Java on which Spark runs, or install one.

As a program:

    python -m tools.java                 prints its home
    python -m tools.java COMMAND ...     runs a command with JAVA_HOME and PYSPARK_PYTHON set
"""

from __future__ import annotations

import glob
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

__all__ = ["JavaNotFoundError", "bring_java", "find_java", "java_version", "main"]

OLDEST = 17
PREFERRED = (17, 21, 25)
"""Versions with long-term support, in the order of preference."""

NEEDED_MODULE = "jdk.incubator.vector"
"""Spark's launcher requires it; small runtimes lack it."""

HOW_TO_INSTALL = (
    "Install one (Debian, Ubuntu: apt-get install openjdk-17-jre-headless; "
    "Fedora: dnf install java-17-openjdk-headless; macOS: brew install openjdk@17) "
    "or set JAVA_HOME."
)

BROUGHT = Path(sys.prefix) / "jdk"
"""Folder of a Java that was installed into the virtual environment."""

FOLDERS = (
    f"{BROUGHT}/*",
    f"{BROUGHT}/*/Contents/Home",
    "/usr/lib/jvm/*",
    "/usr/lib64/jvm/*",
    "/usr/java/*",
    "/opt/*",
    "/opt/java/*",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
    "/opt/homebrew/opt/openjdk*/libexec/openjdk.jdk/Contents/Home",
    "/usr/local/opt/openjdk*/libexec/openjdk.jdk/Contents/Home",
    "~/.jdk/*",
    "~/.jdks/*",
    "~/.sdkman/candidates/java/*",
    "~/.asdf/installs/java/*",
)


class JavaNotFoundError(Exception):
    """There is no Java on which Spark runs."""

    def __init__(self, cause: str = "") -> None:
        tried = f", and none could be brought ({cause})" if cause else ""
        super().__init__(
            f"Spark needs Java {OLDEST} or newer; none was found{tried}. {HOW_TO_INSTALL}"
        )


def java_version(home: Path) -> int | None:
    """Return the major version of the Java at `home`, or None if Spark does not run on it.

    Reads the `release` file that every Java since 8 has. A few packagers leave it out; then this
    runs Java to ask it.
    """
    java = home / "bin" / "java"
    if not os.access(java, os.X_OK):
        return None
    try:
        text = (home / "release").read_text(errors="replace")
    except OSError:
        text = _properties_of(java)
        found = re.search(r"java\.specification\.version = (?:1\.)?(\d+)", text)
    else:
        found = re.search(r'^JAVA_VERSION="(?:1\.)?(\d+)', text, re.MULTILINE)
        modules = re.search(r'^MODULES="(.*)"', text, re.MULTILINE)
        if modules and NEEDED_MODULE not in modules[1].split():
            return None
    version = int(found[1]) if found else 0
    return version if version >= OLDEST else None


def _properties_of(java: Path) -> str:
    command = [str(java), "-XshowSettings:properties", "-version"]
    try:
        return subprocess.run(
            command, capture_output=True, check=False, errors="replace", text=True, timeout=30
        ).stderr
    except (OSError, subprocess.SubprocessError):
        return ""


def _home_on_path(path: str) -> Path | None:
    java = shutil.which("java", path=path)
    # macOS has a stub there, which opens a dialog when no Java is installed.
    if java is None or (sys.platform == "darwin" and java == "/usr/bin/java"):
        return None
    home = Path(java).resolve().parents[1]
    if (home / "release").is_file():
        return home
    # A version manager's shim: the Java that it starts prints its home.
    found = re.search(r"java\.home = (.+)", _properties_of(Path(java)))
    return Path(found[1].strip()) if found else None


def find_java(env: Mapping[str, str] | None = None, folders: Iterable[str] = FOLDERS) -> Path:
    """Find a Java for Spark: JAVA_HOME, then PATH, then the usual folders.

    Args:
        env: environment to search, by default this process's.
        folders: patterns of folders that may be a Java's home.

    Returns:
        The folder to set as JAVA_HOME.

    Raises:
        JavaNotFoundError: no suitable Java was found.
    """
    env = os.environ if env is None else env
    if (given := env.get("JAVA_HOME")) and java_version(Path(given)):
        return Path(given)
    if (home := _home_on_path(env.get("PATH", os.defpath))) and java_version(home):
        return home
    found: dict[int, Path] = {}
    for pattern in folders:
        for match in sorted(glob.glob(os.path.expanduser(pattern))):
            if version := java_version(Path(match)):
                found.setdefault(version, Path(match))
    for version in (*PREFERRED, *sorted(found)):
        if version in found:
            return found[version]
    raise JavaNotFoundError


def bring_java() -> Path:
    """Install a Java: into the virtual environment, else with apt if the user is root.

    Raises:
        JavaNotFoundError: neither worked.
    """
    causes = []
    for way in (_bring_into_environment, _bring_with_apt):
        try:
            way()
            return find_java()
        except Exception as error:  # noqa: BLE001 - whatever it is, the next way may work
            first_line = (str(error).splitlines() or [type(error).__name__])[0]
            causes.append(f"{way.__name__.removeprefix('_bring_').replace('_', ' ')}: {first_line}")
    raise JavaNotFoundError("; ".join(causes))


def _bring_into_environment() -> None:
    import jdk  # an extra that only this function needs

    if sys.prefix == sys.base_prefix:
        raise RuntimeError("not in a virtual environment")
    _say(f"No Java {OLDEST} found: downloading one into {sys.prefix} (about 190 MB) ...")
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(60)  # a network that drops packets must not hang `make`
    try:
        with tempfile.TemporaryDirectory(dir=sys.prefix) as half_made:
            # The full kit: the smaller runtime may lack the module that Spark requires.
            jdk.install(str(OLDEST), path=str(Path(half_made) / "jdk"))
            shutil.rmtree(BROUGHT, ignore_errors=True)
            (Path(half_made) / "jdk").rename(BROUGHT)
    finally:
        socket.setdefaulttimeout(before)


def _bring_with_apt() -> None:
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        raise RuntimeError("not root on a Debian")
    package = f"openjdk-{OLDEST}-jre-headless"
    _say(f"Installing {package} with apt-get ...")
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "-y", "-qq", package]
    if subprocess.run(install, env=env, capture_output=True, check=False).returncode:
        # A fresh container has no package lists.
        subprocess.run(["apt-get", "update", "-qq"], env=env, capture_output=True, check=False)
        done = subprocess.run(install, env=env, capture_output=True, check=False, text=True)
        if done.returncode:
            raise RuntimeError((done.stderr.strip() or "it failed").splitlines()[-1])


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main(arguments: list[str]) -> int:
    """Print Java's home, or run a command with it; see the module."""
    try:
        try:
            home = find_java()
        except JavaNotFoundError:
            home = bring_java()
    except JavaNotFoundError as error:
        _say(str(error))
        return 1
    if arguments:
        os.environ["JAVA_HOME"] = str(home)
        # Otherwise workers start `python3`, which may lack this environment's packages.
        os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        os.execvp(arguments[0], arguments)
    print(home)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
