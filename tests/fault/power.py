"""A small ext4 file system on a loop device whose power can be cut.

`EXT4_IOC_SHUTDOWN` with NOLOGFLUSH ends the file system where it stands: what was not flushed to
the device is gone, as after a power cut; mounting it again replays its journal.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Final

_EXT4_IOC_SHUTDOWN: Final = 0x8004587D
_NOLOGFLUSH: Final = 2


def why_no_loop_mounts() -> str:
    """Why this machine cannot mount a file as a disk; empty if it can."""
    if os.geteuid() != 0:
        return "mounting a loop device needs root"
    if _mkfs() is None:
        return "mkfs.ext4 is not installed (e2fsprogs)"
    if not Path("/dev/loop-control").exists():
        return "this machine has no loop devices"
    return ""


def _mkfs() -> str | None:
    """Where mkfs.ext4 is; a PATH need not name the folders of the administrator's commands."""
    return shutil.which("mkfs.ext4", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


class PoweredDisk:
    """A mounted ext4 file system of its own.

    Args:
        folder: where the image and the mount point are made.
        size: bytes of the image.
        inodes: how many files and folders it has room for; 0 for what mkfs chooses.
    """

    def __init__(self, folder: Path, size: int = 128 << 20, *, inodes: int = 0) -> None:
        self._image, self.path = folder / "disk.img", folder / "disk"
        self.path.mkdir(parents=True)
        with open(self._image, "wb") as image:
            image.truncate(size)
        given = ["-N", str(inodes)] if inodes else []
        subprocess.run([str(_mkfs()), "-q", "-F", *given, str(self._image)], check=True)
        self._mount()

    def __enter__(self) -> PoweredDisk:
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run(["umount", str(self.path)], check=True)

    def cut_power(self) -> None:
        """Lose what was not flushed, and start again. No process may use the disk."""
        self.lose_power()
        self.start_again()

    def lose_power(self) -> None:
        """Lose what was not flushed; who still uses the disk gets errors."""
        fd = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, _EXT4_IOC_SHUTDOWN, struct.pack("I", _NOLOGFLUSH))
        finally:
            os.close(fd)

    def start_again(self) -> None:
        """Mount it again after it lost its power. No process may use it."""
        subprocess.run(["umount", str(self.path)], check=True)
        self._mount()

    def _mount(self) -> None:
        subprocess.run(["mount", "-o", "loop", str(self._image), str(self.path)], check=True)
