# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""A directory in the store of keys that a Ray cluster has for its own use."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from uccl.directory.base import Directory, DirectoryError, Entry

_NAMESPACE = "uccl"


class RayDirectory(Directory):
    """``where`` may name a part of the store, for those who are to meet: ``decoders``. Any driver, task or actor of the
    cluster may use it, after ``ray.init()``. The store forgets nothing: what is not renewed counts as gone by the wall
    clock."""

    def __init__(self, where: str = "", lease: float = 6.0) -> None:
        super().__init__(lease)
        self._prefix = f"{where.strip('/') or 'endpoints'}/"

    def _ask(self, what: str, call: Callable[[Any], Any]) -> Any:
        try:
            ray: Any = import_module("ray")
            internal_kv: Any = import_module("ray.experimental.internal_kv")
        except ImportError as error:
            raise DirectoryError(f"{what} in Ray's store: {error}") from error
        if not ray.is_initialized():
            raise DirectoryError(f"{what} in Ray's store: this process is in no cluster (ray.init)")
        try:
            return call(internal_kv)
        except (ray.exceptions.RayError, RuntimeError, OSError, ValueError) as error:
            raise DirectoryError(f"{what} in Ray's store: {error}") from error

    def _key(self, name: str) -> bytes:
        return (self._prefix + name).encode()

    def _put(self, entry: Entry) -> None:
        text = entry.text(until=self._until()).encode()
        self._ask(
            f"publish {entry.name!r}",
            lambda kv: kv._internal_kv_put(self._key(entry.name), text, overwrite=True, namespace=_NAMESPACE),
        )

    def _remove(self, name: str) -> None:
        self._ask(f"withdraw {name!r}", lambda kv: kv._internal_kv_del(self._key(name), namespace=_NAMESPACE))

    def _read(self, kv: Any, name: str) -> Entry | None:
        text = kv._internal_kv_get(self._key(name), namespace=_NAMESPACE)
        return Entry.parse(name, text.decode()) if text else None

    def _get(self, name: str) -> Entry | None:
        found: Entry | None = self._ask(f"look {name!r} up", lambda kv: self._read(kv, name))
        return found

    def _all(self) -> dict[str, Entry]:
        def every(kv: Any) -> dict[str, Entry]:
            keys = kv._internal_kv_list(self._prefix.encode(), namespace=_NAMESPACE)
            names = [key.decode()[len(self._prefix) :] for key in keys]
            read = {name: self._read(kv, name) for name in names}
            return {name: entry for name, entry in read.items() if entry is not None}

        found: dict[str, Entry] = self._ask("list endpoints", every)
        return found

