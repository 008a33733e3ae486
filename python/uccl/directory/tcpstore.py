# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""A directory in a ``torch.distributed.TCPStore``, such as the one of a job's launcher."""

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from importlib import import_module
from typing import Any

from uccl.directory.base import Directory, DirectoryError, Entry

_PREFIX = "uccl/endpoints/"
_NAMES = "uccl/endpoint-names"  # a store does not list its keys

# For reaching the store; and seconds between two attempts, in which calls fail at once.
_PATIENCE = timedelta(seconds=3)
_PAUSE = 1.0


class TcpStoreDirectory(Directory):
    """``where`` is ``host:port``, or a store that the program has. The store forgets nothing: what is not renewed
    counts as gone by the wall clock."""

    def __init__(self, where: Any, lease: float = 6.0) -> None:
        super().__init__(lease)
        self._place: tuple[str, int] | None = None
        self._store: Any = None
        if isinstance(where, str):
            place = Entry.of("the store", where)
            self._place = (place.address, place.port)
        else:
            self._store = where
        self._listed: set[str] = set()
        self._asking = threading.Lock()
        self._again = 0.0  # when the store is dialled again

    def _reach(self) -> Any:
        if self._store is None and self._place is not None:
            distributed: Any = import_module("torch.distributed")
            if time.monotonic() < self._again:
                raise OSError("it could not be reached a moment ago")
            try:
                self._store = distributed.TCPStore(
                    *self._place, is_master=False, wait_for_workers=False, timeout=_PATIENCE
                )
            except (RuntimeError, OSError, ValueError):
                self._again = time.monotonic() + _PAUSE
                raise
        return self._store

    def _ask(self, what: str, call: Callable[[Any], Any]) -> Any:
        with self._asking:
            try:
                return call(self._reach())
            except (RuntimeError, OSError, ValueError) as error:
                # A client that has lost its connection does not dial again.
                if self._place is not None:
                    self._store = None
                    self._listed.clear()
                raise DirectoryError(f"{what} in the TCPStore: {str(error).splitlines()[0]}") from error

    def _put(self, entry: Entry) -> None:
        def put(store: Any) -> None:
            store.set(_PREFIX + entry.name, entry.text(until=self._until()))
            if entry.name not in self._listed:
                store.append(_NAMES, f"{entry.name}\n")
                self._listed.add(entry.name)

        self._ask(f"publish {entry.name!r}", put)

    def _remove(self, name: str) -> None:
        self._ask(f"withdraw {name!r}", lambda store: store.delete_key(_PREFIX + name))

    @staticmethod
    def _read(store: Any, name: str) -> Entry | None:
        key = _PREFIX + name
        return Entry.parse(name, store.get(key)) if store.check([key]) else None

    def _get(self, name: str) -> Entry | None:
        found: Entry | None = self._ask(f"look {name!r} up", lambda store: self._read(store, name))
        return found

    def _all(self) -> dict[str, Entry]:
        def every(store: Any) -> dict[str, Entry]:
            names = store.get(_NAMES).decode().split("\n") if store.check([_NAMES]) else []
            read = {name: self._read(store, name) for name in set(names)}
            return {name: entry for name, entry in read.items() if entry is not None}

        found: dict[str, Entry] = self._ask("list endpoints", every)
        return found
