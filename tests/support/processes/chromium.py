"""A headless Chromium, told what to do over a pipe (the DevTools protocol).

with Chromium(folder) as browser:
    browser.open("http://127.0.0.1:5557/status")
    browser.value("document.title")
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

__all__ = ["Chromium", "find_chromium"]

NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "chrome")
PATIENCE: Final = 60.0
# The browser reads commands from 3 and writes to 4.
_START: Final = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.dup2(int(sys.argv[2]), 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
_HIGH: Final = 20
_KEYS: Final = {"Tab": (9, ""), "Enter": (13, "\r")}


def find_chromium() -> str | None:
    """Return the path of a Chromium; None if none is installed."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Chromium:
    """A browser with one tab.

    Args:
        folder: for its profile.
        size: of the window.

    Attributes:
        requested: the addresses that it has asked for.
        said: what it wrote to its console, violations of a policy among it, and its dialogs.
    """

    def __init__(self, folder: Path, size: tuple[int, int] = (1180, 860)) -> None:
        program = find_chromium()
        assert program is not None
        self.requested: list[str] = []
        self.said: list[str] = []
        self._answers: dict[int, Any] = {}
        self._events: list[str] = []
        self._number = 0
        self._buffer = b""
        reads, self._write = _pipe()
        self._read, writes = _pipe()
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-c", _START, str(reads), str(writes), program),
                *("--headless=new", "--remote-debugging-pipe", f"--user-data-dir={folder}"),
                *("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
                *("--disable-background-networking", "--hide-scrollbars", "--lang=en"),
                *("--disable-component-update", "--disable-default-apps", "--disable-sync"),
                f"--window-size={size[0]},{size[1]}",
            ],
            pass_fds=(reads, writes), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(reads)
        os.close(writes)
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        attached = self._ask("Target.attachToTarget", targetId=target, flatten=True)
        self._session: str = attached["sessionId"]
        for domain in ("Page", "Network", "Log", "Runtime"):
            self.ask(f"{domain}.enable")
        self.ask(
            "Emulation.setDeviceMetricsOverride", width=size[0], height=size[1],
            deviceScaleFactor=1, mobile=False,
        )  # fmt: skip

    def __enter__(self) -> Chromium:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._read)
        os.close(self._write)

    def open(self, address: str) -> None:
        """Open an address, and wait until the page and its style are there."""
        self._follow(lambda: self.ask("Page.navigate", url=address))

    def press(self, key: str, *, follows: bool = False) -> None:
        """Press a key: Tab or Enter.

        Args:
            key: its name.
            follows: whether another page comes of it, which is waited for.
        """
        code, text = _KEYS[key]

        def press() -> None:
            given = {"key": key, "code": key, "windowsVirtualKeyCode": code}
            self.ask("Input.dispatchKeyEvent", type="keyDown", text=text, **given)
            self.ask("Input.dispatchKeyEvent", type="keyUp", **given)

        self._follow(press) if follows else press()

    def write(self, text: str) -> None:
        """Write a text where the focus is."""
        self.ask("Input.insertText", text=text)

    def value(self, expression: str) -> Any:
        """Return the value of an expression in the page, as JSON has it."""
        found = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def dark(self, wanted: bool) -> None:
        """Want dark pages, or light ones."""
        scheme = "dark" if wanted else "light"
        self.ask(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": scheme}],
        )

    def picture(self) -> bytes:
        """Return what the window shows, as PNG; where the page ends before, only the page."""
        width, height = self.value(
            "[innerWidth, Math.min(innerHeight, document.body.getBoundingClientRect().bottom)]"
        )
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        return base64.b64decode(self.ask("Page.captureScreenshot", clip=clip)["data"])

    def ask(self, method: str, **given: Any) -> Any:
        """Send a command for the tab; return its result."""
        return self._ask(method, self._session, **given)

    def _follow(self, act: Callable[[], object]) -> None:
        before = self._events.count("Page.loadEventFired")
        act()
        self._wait(lambda: self._events.count("Page.loadEventFired") > before)

    def _ask(self, method: str, session: str | None = None, **given: Any) -> Any:
        self._number += 1
        number = self._number
        command = {"id": number, "method": method, "params": given}
        if session is not None:
            command["sessionId"] = session
        os.write(self._write, json.dumps(command).encode() + b"\0")
        self._wait(lambda: number in self._answers)
        answer = self._answers.pop(number)
        assert "error" not in answer, (method, answer["error"])
        return answer["result"]

    def _wait(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            left = deadline - time.monotonic()
            assert left > 0, "Chromium did not answer in time"
            if not select.select([self._read], [], [], left)[0]:
                continue
            data = os.read(self._read, 1 << 20)
            assert data, "Chromium has ended"
            *messages, self._buffer = (self._buffer + data).split(b"\0")
            for message in messages:
                self._take(json.loads(message))

    def _take(self, message: dict[str, Any]) -> None:
        if "id" in message:
            self._answers[message["id"]] = message
            return
        method, told = message["method"], message["params"]
        self._events.append(method)
        if method == "Network.requestWillBeSent":
            self.requested.append(told["request"]["url"])
        elif method == "Log.entryAdded":
            self.said.append(told["entry"]["text"])
        elif method in ("Runtime.consoleAPICalled", "Page.javascriptDialogOpening"):
            self.said.append(f"{method}: {told}")


def _pipe() -> tuple[int, int]:
    """Return the ends of a pipe, with numbers that are not those of the browser's."""
    ends = []
    for end in os.pipe():
        ends.append(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, _HIGH))
        os.close(end)
    return ends[0], ends[1]
