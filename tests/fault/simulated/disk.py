"""A disk in memory: what of a recorded program is on it, and what a crash can leave.

A flush of a file keeps its bytes and its size; a flush of a folder keeps its names. Of what was not
flushed, a crash leaves any sector as it was at some time since, any earlier size, and the names
that a folder had at some time since. A rename between folders has been done in both or in neither.
"""

from __future__ import annotations

import copy
import os
import random
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.fault.simulated.calls import Change, Event, Flushed, Made, Named, Renamed, Said

SECTOR: Final = 512
"""Bytes that a disk writes as a whole."""
FATES: Final = ("killed", "flushed only", "at an earlier time", "in part")
"""What a crash leaves of what was not flushed: all, nothing, all before some time, or any part."""


class _File:
    def __init__(self, data: bytes = b"") -> None:
        self.data = data
        self.named = 0  # number of the event that gave it its last name
        self.pending: list[tuple[int, Change]] = []

    def copy(self) -> _File:
        new = _File(self.data)
        new.named, new.pending = self.named, list(self.pending)
        return new

    @property
    def least(self) -> int:
        """How many changes were at least seen, once there is a name."""
        lengths = [
            at
            for at, (number, change) in enumerate(self.pending)
            if number < self.named and change.data is None
        ]
        return lengths[-1] + 1 if lengths else 0


class _Folder:
    def __init__(self) -> None:
        self.names: dict[str, int] = {}
        self.pending: list[tuple[int, Named | Renamed]] = []

    def copy(self) -> _Folder:
        new = _Folder()
        new.names, new.pending = dict(self.names), list(self.pending)
        return new


class Disk:
    """What a folder holds, and what has been done to it since.

    Args:
        root: the folder, all of which is on disk.
    """

    def __init__(self, root: Path) -> None:
        self._inodes: dict[int, _File | _Folder] = {}
        self._root = root.stat().st_ino
        self._read(root)
        self._count = 0

    def _read(self, path: Path) -> None:
        folder = self._inodes[path.stat().st_ino] = _Folder()
        for entry in os.scandir(path):
            inode = entry.inode()
            folder.names[entry.name] = inode
            if entry.is_dir(follow_symlinks=False):
                self._read(Path(entry.path))
            elif inode not in self._inodes:
                self._inodes[inode] = _File(Path(entry.path).read_bytes())

    def copy(self) -> Disk:
        """Return one to which other things can be done."""
        new = copy.copy(self)
        new._inodes = {number: each.copy() for number, each in self._inodes.items()}
        return new

    def do(self, events: Sequence[Event]) -> None:
        """Carry out what was recorded, from where the last call of this ended."""
        for event in events:
            if isinstance(event, Made):
                self._inodes[event.inode] = _Folder() if event.is_folder else _File()
            elif isinstance(event, Change):
                self._file(event.inode).pending.append((self._count, event))
            elif isinstance(event, Named):
                self._folder(event.folder).pending.append((self._count, event))
                named = self._inodes.get(event.inode)
                if isinstance(named, _File):
                    named.named = self._count
            elif isinstance(event, Renamed):
                for folder in {event.folder, event.to_folder}:
                    self._folder(folder).pending.append((self._count, event))
            elif isinstance(event, Flushed):
                self._flush(event.inode, event.begun)
            else:
                assert isinstance(event, Said)
            self._count += 1

    def _file(self, inode: int) -> _File:
        found = self._inodes[inode]
        assert isinstance(found, _File)
        return found

    def _folder(self, inode: int) -> _Folder:
        found = self._inodes[inode]
        assert isinstance(found, _Folder)
        return found

    def _flush(self, inode: int, begun: int) -> None:
        found = self._inodes[inode]
        if isinstance(found, _File):
            done = [change for number, change in found.pending if number < begun]
            found.data = _with(found.data, done)
            del found.pending[: len(done)]
            return
        ends = self._ends({inode: begun})
        names = {each: self._names(each, self._folder(each), end) for each, end in ends.items()}
        for each, end in ends.items():
            folder = self._folder(each)
            folder.names = names[each]
            folder.pending = [one for one in folder.pending if one[0] >= end]

    def _ends(self, ends: dict[int, int]) -> dict[int, int]:
        """Let folders have what they had before some numbers; others with which they share renames.

        Where one has a rename, the other has it too, and what came before.
        """
        waiting = list(ends)
        while waiting:
            inode = waiting.pop()
            for number, event in self._folder(inode).pending:
                if number < ends[inode] and isinstance(event, Renamed):
                    for other in (event.folder, event.to_folder):
                        if ends.get(other, 0) <= number:
                            ends[other] = number + 1
                            waiting.append(other)
        return ends

    def _names(self, inode: int, folder: _Folder, end: int) -> dict[str, int]:
        names = dict(folder.names)
        for number, event in folder.pending:
            if number >= end:
                break
            if isinstance(event, Named):
                if event.inode:
                    names[event.name] = event.inode
                else:
                    names.pop(event.name, None)
                continue
            if event.to_folder == inode:
                names[event.to_name] = self._moved(event, number)
                assert names[event.to_name], f"{event.name} was not there"
            if event.folder == inode:
                names.pop(event.name, None)
        return names

    def _moved(self, event: Renamed, number: int) -> int:
        """Return the inode that a rename has moved."""
        source = self._folder(event.folder)
        inode = source.names.get(event.name, 0)
        for at, before in source.pending:
            if at >= number:
                break
            if isinstance(before, Named) and before.name == event.name:
                inode = before.inode
            elif isinstance(before, Renamed):
                if (before.to_folder, before.to_name) == (event.folder, event.name):
                    inode = self._moved(before, at)
                elif (before.folder, before.name) == (event.folder, event.name):
                    inode = 0
        return inode

    # ---- crashes --------------------------------------------------------------------------------

    def crash(self, chance: random.Random, fate: str, to: Path) -> None:
        """Write what a crash leaves into a new folder.

        Args:
            chance: draws it.
            fate: one of `FATES`.
            to: the folder, which is not there yet.
        """
        until = self._count if fate == "killed" else 0
        if fate == "at an earlier time":
            pending = [number for each in self._inodes.values() for number, _ in each.pending]
            until = chance.choice(pending) if pending else 0
        folders = {
            number: each for number, each in self._inodes.items() if isinstance(each, _Folder)
        }
        ends = dict.fromkeys(folders, until)
        if fate == "in part":
            for inode, folder in folders.items():
                ends[inode] = _cut_anywhere(chance, [number for number, _ in folder.pending])
        self._ends(ends)
        self._lay_out(chance, self._root, to, ends, until, {}, in_part=fate == "in part")

    def _lay_out(
        self,
        chance: random.Random,
        inode: int,
        to: Path,
        ends: dict[int, int],
        until: int,
        places: dict[int, Path],
        *,
        in_part: bool,
    ) -> None:
        to.mkdir()
        folder = self._folder(inode)
        for name, number in self._names(inode, folder, ends[inode]).items():
            found = self._inodes[number]
            if isinstance(found, _Folder):
                self._lay_out(chance, number, to / name, ends, until, places, in_part=in_part)
            elif number in places:
                os.link(places[number], to / name)
            else:
                places[number] = to / name
                changes = [change for _, change in found.pending]
                kept = max(sum(at < until for at, _ in found.pending), found.least)
                if in_part and changes:
                    data = _torn(found.data, changes, found.least, chance)
                else:
                    data = _with(found.data, changes[:kept])
                with open(to / name, "wb") as file:
                    file.write(data.rstrip(b"\0"))
                    file.truncate(len(data))


def _with(data: bytes, changes: Sequence[Change]) -> bytes:
    """Return a file's bytes after changes."""
    if not changes:
        return data
    new = bytearray(data)
    for _, offset, written in changes:
        if written is None:
            del new[offset:]
            new.extend(bytes(offset - len(new)))
        else:
            new.extend(bytes(max(offset - len(new), 0)))
            new[offset : offset + len(written)] = written
    return bytes(new)


def _torn(data: bytes, changes: Sequence[Change], least: int, chance: random.Random) -> bytes:
    """Return a file's bytes of which each sector has seen some of the changes, in their order.

    Its length has seen the first `least` of them.
    """
    kept = max(_cut_anywhere(chance, range(len(changes))), least)
    if chance.random() < 0.4:
        return _with(data, changes[:kept])
    touched: defaultdict[int, list[int]] = defaultdict(list)
    versions = [data]
    for at, change in enumerate(changes):
        before = versions[-1]
        after = _with(before, [change])
        versions.append(after)
        _, offset, written = change
        end = max(len(before), len(after)) if written is None else offset + len(written)
        for sector in range(offset // SECTOR, -(-end // SECTOR)):
            touched[sector].append(at + 1)
    size = len(versions[max(_cut_anywhere(chance, range(len(changes))), least)])
    new = bytearray(data.ljust(max(map(len, versions)) + SECTOR, b"\0"))
    for sector, numbers in touched.items():
        part = slice(sector * SECTOR, (sector + 1) * SECTOR)
        new[part] = versions[chance.choice([0, *numbers, numbers[-1]])][part].ljust(SECTOR, b"\0")
    return bytes(new[:size])


def _cut_anywhere(chance: random.Random, numbers: Sequence[int]) -> int:
    """Return how far a sequence of numbers is kept: none, all, or up to any of them."""
    if not numbers or chance.random() < 0.2:
        return 0
    if chance.random() < 0.3:
        return numbers[-1] + 1
    return chance.choice(numbers) + 1
