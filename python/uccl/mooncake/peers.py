# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""Peers by "host:port": their connections, what they have registered, and notifications.

An engine tells whoever connects where its list of regions lies. The list is read on first use, and again when an
address is not in it or what it said is refused.
"""

import contextlib
import logging
import struct
import threading
import time

import numpy as np
from numpy.typing import NDArray

from uccl import _p2p, p2p
from uccl._errors import from_code

from .regions import ENTRY, HEAD, MAGIC, MOST_REGIONS, Entries, Numbers, Refused, find

log = logging.getLogger("uccl.mooncake")

SECONDS = 30.0  # for a list: to be told where it lies, by an interpreter that may be busy, and to read it

_LIST, _NOTE, _ALIVE = b"L", b"N", b"A"  # the first byte of a notification
_NOTE_HEAD = struct.Struct("<cI")  # and how long the name is


def failure() -> p2p.Error:
    """Why this thread's latest call answered False."""
    return from_code(*_p2p._last_failure())


def finish(endpoint: p2p.Endpoint, transfer: int, seconds: float) -> None:
    """Waits. However it ends, the memory is free: what takes longer is cancelled, and TimedOut raised."""
    try:
        endpoint.wait(transfer, max(0.0, seconds))
    except BaseException:
        if endpoint.cancel(transfer):  # False: it has ended, and what was raised says how
            with contextlib.suppress(p2p.Error):
                endpoint.wait(transfer)  # it ends with its peer at the latest
        raise


def place_of(name: str) -> tuple[str, int]:
    """The host and the port of "host:port" or "[address]:port"."""
    host, _, port = name.rpartition(":")
    if not host or not port.isdecimal():
        raise Refused(f"{name!r} names no peer: not host:port")
    return host.strip("[]"), int(port)


class Peer:
    """One that memory is moved to or from. Any thread."""

    def __init__(self, endpoint: p2p.Endpoint, name: str) -> None:
        self.name = name
        self._endpoint = endpoint
        self._lock = threading.Lock()
        self._connection: int | None = None
        self._list = b""  # describes it
        self._entries: Entries | None = None

    def connection(self) -> int:
        """Connects on first use and after drop(). Raises p2p.Error."""
        with self._lock:
            if self._connection is None:
                host, port = place_of(self.name)
                ok, connection = self._endpoint.connect(host, 0, port)
                if not ok:
                    raise failure()
                self._list = self._told(connection)
                self._entries, self._connection = None, connection
            return self._connection

    def _told(self, connection: int) -> bytes:
        start, pause, asked = time.monotonic(), 0.0002, 0.0
        try:
            while (waited := time.monotonic() - start) < SECONDS:  # no call waits for a notification
                for message in self._endpoint.take_notifications(connection):
                    if message[:1] == _LIST:
                        return message[1:]
                if waited > asked + 1:  # whether it is there still
                    asked = waited
                    if not self._endpoint.notify(connection, _ALIVE):
                        raise failure()
                time.sleep(pause)
                pause = min(2 * pause, 0.01)
            raise p2p.TimedOut(f"it did not tell its regions within {SECONDS:.0f} s: is it an engine of uccl.mooncake?")
        except BaseException:
            self._endpoint.remove_remote_endpoint(connection)
            raise

    def drop(self, connection: int) -> None:
        """That has ended."""
        with self._lock:
            if self._connection == connection:
                self._connection = None
                self._endpoint.remove_remote_endpoint(connection)

    def forget_regions(self) -> None:
        """They have changed."""
        self._entries = None

    def blobs(self, connection: int, addresses: Numbers, sizes: Numbers) -> NDArray[np.uint8]:
        """A description of each piece of its memory. Refused if it has not registered one."""
        entries = self.entries(connection)
        found = find(entries, addresses, sizes)
        if isinstance(found, str):
            found = find(self.entries(connection, but=entries), addresses, sizes)
        if isinstance(found, str):
            raise Refused(f"it has registered no region with {found}")
        blobs: NDArray[np.uint8] = found["blob"].copy()
        blobs[:, :8] = addresses.astype("<u8").view(np.uint8).reshape(-1, 8)  # a blob begins with its address
        return blobs

    def entries(self, connection: int, but: Entries | None = None) -> Entries:
        """What it has registered, and not ``but``, which is old."""
        with self._lock:
            if self._entries is None or self._entries is but:
                self._entries = self._read_list(connection)
            return self._entries

    def _read_list(self, connection: int) -> Entries:
        deadline, size = time.monotonic() + SECONDS, HEAD.size + 64 * ENTRY.itemsize
        while time.monotonic() < deadline:
            read = self.read(connection, size, deadline)
            magic, state, count = HEAD.unpack_from(read.data)
            if magic != MAGIC or count > MOST_REGIONS:
                raise p2p.ProtocolError("what it says to be its regions is no list of them")
            if size < HEAD.size + count * ENTRY.itemsize:
                size = HEAD.size + count * ENTRY.itemsize
            elif state % 2 == 0 and state == HEAD.unpack_from(self.read(connection, HEAD.size, deadline).data)[1]:
                entries: Entries = np.frombuffer(read, ENTRY, count, HEAD.size)
                return np.sort(entries, order="start")
        raise p2p.TimedOut(f"its list of regions changed for {SECONDS:.0f} s whenever it was read")

    def read(self, connection: int, size: int, deadline: float) -> NDArray[np.uint8]:
        """The beginning of the list."""
        into = np.empty(size, np.uint8)
        ok, region = self._endpoint.reg(into)
        if not ok:
            raise failure()
        try:
            ok, transfer = self._endpoint.read_async(connection, region, into.ctypes.data, size, self._list)
            if not ok:
                raise failure()
            finish(self._endpoint, transfer, deadline - time.monotonic())
        finally:
            self._endpoint.dereg(region)
        return into

    def notify(self, connection: int, name: str, text: str) -> None:
        words = name.encode(), text.encode()
        if not self._endpoint.notify(connection, _NOTE_HEAD.pack(_NOTE, len(words[0])) + b"".join(words)):
            raise failure()


class Callers:
    """Those that have connected here. Any thread."""

    def __init__(self, endpoint: p2p.Endpoint, blob: bytes) -> None:
        self._endpoint = endpoint
        self._connections: set[int] = set()
        # Two, so that one who stands still while it is told keeps no others waiting.
        for _ in range(2):
            threading.Thread(target=_serve, args=(endpoint, blob, self._connections), daemon=True).start()

    def notes(self) -> list[tuple[str, str]]:
        """(name, text) of what has come since the last call."""
        found = []
        for connection in list(self._connections):
            try:
                messages = self._endpoint.take_notifications(connection)
            except p2p.NotFound:  # it has ended, and is forgotten
                self._connections.discard(connection)
                continue
            for message in messages:
                if len(message) >= _NOTE_HEAD.size and message[:1] == _NOTE:
                    end = _NOTE_HEAD.size + _NOTE_HEAD.unpack_from(message)[1]
                    words = message[_NOTE_HEAD.size : end], message[end:]
                    found.append((words[0].decode(errors="replace"), words[1].decode(errors="replace")))
        return found


def _serve(endpoint: p2p.Endpoint, blob: bytes, connections: set[int]) -> None:
    """Tells who connects where the list lies, until the endpoint is closed."""
    with contextlib.suppress(p2p.Error):  # every call of a closed one raises
        while (answer := endpoint.accept())[0]:
            connections.add(answer[3])
            if not endpoint.notify(answer[3], _LIST + blob):
                log.info("a peer that connected is gone again: %s", p2p.last_error())
    if not endpoint.closed:
        log.error("no more peers are accepted: %s", p2p.last_error())
