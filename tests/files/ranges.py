"""File systems that behave as others across a network do, without the network."""

from __future__ import annotations

from typing import Any

from fsspec.asyn import AsyncFileSystem
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

__all__ = ["HandleFileSystem", "RangeFileSystem"]


class RangeFileSystem(AsyncFileSystem):  # type: ignore[misc]  # fsspec has no types
    """An object store: counts requests, and remembers listings until it must forget them.

    Folders exist only as parts of keys; a range past the end is refused.
    """

    protocol = "ranges"
    cachable = False

    objects: dict[str, bytes] = {}  # noqa: RUF012  # one store, seen by unpickled copies too
    requests: list[tuple[str, int, int]] = []  # noqa: RUF012
    listings: list[str] = []  # noqa: RUF012

    async def _info(self, path: str, **_kwargs: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        if path in self.objects:
            return {"name": path, "size": len(self.objects[path]), "type": "file"}
        if any(key.startswith(path + "/") for key in self.objects):
            return {"name": path, "size": 0, "type": "directory"}
        raise FileNotFoundError(path)

    async def _ls(self, path: str, detail: bool = True, **_kwargs: Any) -> list[Any]:
        path = self._strip_protocol(path)
        self.listings.append(path)
        if path in self.objects:
            return [await self._info(path)]
        names = {
            key[len(path) + 1 :].split("/")[0] for key in self.objects if key.startswith(path + "/")
        }
        if not names:
            raise FileNotFoundError(path)
        if path not in self.dircache:
            infos = [await self._info(f"{path}/{name}") for name in sorted(names)]
            self.dircache[path] = infos
        found = self.dircache[path]
        return found if detail else [info["name"] for info in found]

    def invalidate_cache(self, path: str | None = None) -> None:
        self.dircache.clear()

    async def _find(
        self,
        path: str,
        maxdepth: int | None = None,
        withdirs: bool = False,
        detail: bool = False,
        **_kwargs: Any,
    ) -> Any:
        assert maxdepth is None
        assert withdirs
        assert detail
        path = self._strip_protocol(path)
        self.listings.append(path)
        keys = [key for key in sorted(self.objects) if key.startswith(path + "/")]
        return {key: await self._info(key) for key in keys}

    async def _cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **_kwargs: Any
    ) -> bytes:
        path = self._strip_protocol(path)
        if path not in self.objects:
            raise FileNotFoundError(path)
        data = self.objects[path]
        start, end = start or 0, len(data) if end is None else end
        self.requests.append((path, start, end))
        if start >= len(data):
            raise OSError("416 Requested Range Not Satisfiable")
        return data[start:end]


class HandleFileSystem(AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Files behind handles that read ahead, as FTP and WebHDFS have; one that can change."""

    protocol = "handles"
    cachable = False

    contents: dict[str, bytearray] = {}  # noqa: RUF012  # shared by all instances

    def info(self, path: str, **_kwargs: Any) -> dict[str, Any]:
        return {"name": path, "size": len(self.contents[path]), "type": "file"}

    def _open(self, path: str, mode: str = "rb", **kwargs: Any) -> AbstractBufferedFile:
        return _Handle(self, path, mode, **kwargs)


class _Handle(AbstractBufferedFile):  # type: ignore[misc]
    def _fetch_range(self, start: int, end: int) -> bytes:
        return bytes(self.fs.contents[self.path][start:end])
