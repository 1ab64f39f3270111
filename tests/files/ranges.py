"""A file system that answers range requests as an object store does, and counts them."""

from __future__ import annotations

from typing import Any

from fsspec.asyn import AsyncFileSystem

__all__ = ["RangeFileSystem"]


class RangeFileSystem(AsyncFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Objects by key. Folders exist only as parts of keys; a range past the end is refused."""

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
        found = [await self._info(f"{path}/{name}") for name in sorted(names)]
        return found if detail else [info["name"] for info in found]

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
