# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""What all directories have in common: the calls of a program, and the thread that renews what it has published."""

import json
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from uccl import p2p

_log = logging.getLogger("uccl.directory")

# Seconds between two looks of who waits for a name.
_LOOK_SECONDS = 0.2


class DirectoryError(Exception):
    """The directory cannot be reached, or does not do what it was asked for."""


@dataclass(frozen=True)
class Entry:
    """Where a named endpoint listens. ``note`` is what its program says of it."""

    name: str
    address: str
    port: int
    gpu: int | str = 0
    note: str = ""

    def connect(self, endpoint: p2p.Endpoint) -> int:
        """Connects to it and returns the conn_id. Raises ConnectionError with the reason."""
        ok, connection = endpoint.connect(self.address, self.gpu, self.port)
        if not ok:
            raise ConnectionError(f"connect to {self.name}: {p2p.last_error()}")
        return connection

    @classmethod
    def of(cls, name: str, endpoint: p2p.Endpoint | bytes | str) -> "Entry":
        """Of an endpoint, of its metadata, or of ``host:port``. Raises ValueError."""
        if isinstance(endpoint, str):
            host, colon, port = endpoint.rpartition(":")
            if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
                raise ValueError(f"publish {name!r}: {endpoint!r} is no host:port")
            return cls(name, host.strip("[]"), int(port))
        metadata = endpoint if isinstance(endpoint, bytes) else endpoint.get_metadata()
        return cls(name, *p2p.Endpoint.parse_metadata(metadata))

    def text(self, **more: Any) -> str:
        note = {"note": self.note} if self.note else {}
        return json.dumps({"address": self.address, "port": self.port, "gpu": self.gpu, **note, **more})

    @classmethod
    def parse(cls, name: str, text: str | bytes) -> "Entry | None":
        """None for what is no entry, or one whose time is over."""
        try:
            fields = json.loads(text)
            if fields.get("until", float("inf")) < time.time():
                return None
            port, gpu = int(fields["port"]), fields["gpu"]
            if not 0 < port < 65536 or not isinstance(gpu, int | str):
                return None
            return cls(name, str(fields["address"]), port, gpu, str(fields.get("note", "")))
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            return None


@dataclass(frozen=True)
class Change:
    """An entry that has come, or has changed, or is gone."""

    entry: Entry
    gone: bool = False


class Directory(ABC):
    """Any thread may make any call. What a driver has to do is at the end."""

    def __init__(self, lease: float) -> None:
        if not 1 <= lease <= 10:
            raise ValueError(f"a lease of {lease} seconds: from 1 to 10")
        self.lease = lease
        self._lock = threading.Lock()
        self._published: dict[str, Entry] = {}
        self._writing = threading.Lock()  # what is renewed is not what has just been changed or withdrawn
        self._closing = threading.Event()
        self._keeper: threading.Thread | None = None

    def publish(self, name: str, endpoint: p2p.Endpoint | bytes | str, note: str = "") -> Entry:
        """Lists an endpoint, its metadata or ``host:port`` under ``name``, in place of what had it. Raises
        DirectoryError if the directory cannot be reached; where nothing but the note changes, the thread only tries
        again."""
        if not name or "\n" in name:
            raise ValueError(f"publish {name!r}: a name is one line")
        entry = replace(Entry.of(name, endpoint), note=note)
        with self._writing:
            try:
                self._put(entry)
            except DirectoryError as error:
                known = self._published.get(name)
                if known is None or replace(known, note=note) != entry:
                    raise
                _log.warning("what is published changes once the directory is back: %s", error)
            with self._lock:
                self._published[name] = entry
                if self._keeper is None:
                    self._keeper = threading.Thread(target=self._keep, name="uccl-directory", daemon=True)
                    self._keeper.start()
        return entry

    def withdraw(self, name: str) -> None:
        """Takes back what this object has published. A directory that is down forgets it with the lease."""
        with self._writing:
            with self._lock:
                known = self._published.pop(name, None)
            if known is not None:
                try:
                    self._remove(name)
                except DirectoryError as error:
                    _log.info("%s stays for %s s: %s", name, self.lease, error)

    def lookup(self, name: str, timeout: float = 0.0) -> Entry:
        """Where ``name`` listens; one that is not there yet is waited for, and so is a directory that is down. Raises
        LookupError once ``timeout``, in seconds, is over; DirectoryError if the directory was down then."""
        end = time.monotonic() + timeout
        while True:
            left = end - time.monotonic()
            try:
                found = self._get(name)
                if found is not None:
                    return found
                if left <= 0:
                    raise LookupError(f"nobody is listed as {name!r}")
            except DirectoryError:
                if left <= 0:
                    raise
            time.sleep(min(_LOOK_SECONDS, max(left, 0)))

    def entries(self) -> list[Entry]:
        """All that is listed now, by names. Raises DirectoryError."""
        found = self._all()
        return [found[name] for name in sorted(found)]

    def watch(self, stop: threading.Event | None = None) -> Iterator[Change]:
        """What is listed, then each change of it, until ``stop`` is set or the directory is closed. Looks once a second;
        while the directory is down nothing changes."""
        known: dict[str, Entry] = {}
        while not self._closing.is_set() and not (stop is not None and stop.is_set()):
            try:
                now = self._all()
            except DirectoryError as error:
                _log.info("watch: %s", error)
                now = known
            yield from [Change(entry) for name, entry in now.items() if known.get(name) != entry]
            yield from [Change(entry, gone=True) for name, entry in known.items() if name not in now]
            known = now
            (stop or self._closing).wait(1.0)

    def close(self) -> None:
        """Withdraws all and ends the thread."""
        self._closing.set()
        with self._lock:
            keeper, names = self._keeper, list(self._published)
        if keeper is not None:
            keeper.join(timeout=self.lease)
        for name in names:
            self.withdraw(name)

    def __enter__(self) -> "Directory":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _keep(self) -> None:
        reached = True
        while not self._closing.wait(self.lease / 3):
            try:
                with self._writing:
                    with self._lock:
                        entries = list(self._published.values())
                    self._renew(entries)
                reached = True
            except DirectoryError as error:
                if reached:
                    _log.warning("what this process has published cannot be renewed, and is tried again: %s", error)
                reached = False

    def _renew(self, entries: list[Entry]) -> None:
        for entry in entries:
            self._put(entry)

    def _until(self) -> float:
        """For a directory that forgets nothing by itself: the end of a lease that begins now, by the wall clock, which
        hosts of a cluster share to a second or so."""
        return time.time() + self.lease

    @abstractmethod
    def _put(self, entry: Entry) -> None:
        """Lists it for the time of a lease."""

    @abstractmethod
    def _remove(self, name: str) -> None:
        """What is not there is removed already."""

    @abstractmethod
    def _get(self, name: str) -> Entry | None: ...

    @abstractmethod
    def _all(self) -> dict[str, Entry]: ...
