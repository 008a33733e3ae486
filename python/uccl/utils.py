# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""Control traffic between processes (sockets with retries, messages of JSON and bytes), and intervals."""

import bisect
import json
import resource
import socket
import struct
import time
from collections.abc import Iterator
from typing import Any

# A message: one letter for its form, the length as u64 little endian, that many bytes.
_HEAD = struct.Struct("<cQ")
_JSON = b"j"
_BYTES = b"b"
_MAX_BYTES = 64 << 20


def set_files_limit() -> None:
    """Raises the soft limit on open files to the hard one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def create_socket_and_connect(
    host: str,
    port: int,
    max_retries: int | None = None,
    initial_delay: float = 0.5,
    backoff: float = 2,
    max_delay: float = 10,
    timeout: float | None = None,
) -> socket.socket:
    """Connects, trying again with growing pauses (seconds) until it works.

    Gives up with the last OSError after ``max_retries`` further tries or ``timeout`` seconds in all; with
    neither, after 60 seconds.
    """
    if max_retries is None and timeout is None:
        timeout = 60.0
    deadline = None if timeout is None else time.monotonic() + timeout
    delay = initial_delay
    tries = 0
    while True:
        left = None if deadline is None else max(deadline - time.monotonic(), 0.001)
        try:
            connected = socket.create_connection((host, port), timeout=left)
            connected.settimeout(None)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return connected
        except OSError:
            tries += 1
            late = deadline is not None and time.monotonic() + delay >= deadline
            if late or (max_retries is not None and tries > max_retries):
                raise
        time.sleep(delay)
        delay = min(delay * backoff, max_delay)


def send_obj(sock: socket.socket, obj: Any, *, protocol: object = None) -> None:
    """Sends bytes as they are, and anything else as JSON (TypeError for what JSON cannot hold).

    ``protocol`` was the pickle protocol of older versions; it is accepted and not used. Nothing is pickled.
    """
    del protocol
    if isinstance(obj, (bytes, bytearray, memoryview)):
        form, payload = _BYTES, bytes(obj)
    else:
        form, payload = _JSON, json.dumps(obj, separators=(",", ":")).encode()
    if len(payload) > _MAX_BYTES:
        raise ValueError(f"a message of {len(payload)} bytes is longer than {_MAX_BYTES}")
    sock.sendall(_HEAD.pack(form, len(payload)) + payload)


def recv_obj(sock: socket.socket) -> Any:
    """Receives what send_obj() sent: bytes, or the JSON value (tuples come back as lists).

    Raises ConnectionError when the peer closes, ValueError for anything that send_obj() does not send. Waits
    as long as the socket's timeout says.
    """
    form, size = _HEAD.unpack(_receive_exactly(sock, _HEAD.size))
    if form not in (_JSON, _BYTES) or size > _MAX_BYTES:
        raise ValueError("the peer sent something that is not a message")
    payload = _receive_exactly(sock, size)
    try:
        return payload if form == _BYTES else json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the peer sent something that is not a message: {error}") from error


def _receive_exactly(sock: socket.socket, size: int) -> bytes:
    buffer = bytearray(size)
    view = memoryview(buffer)
    while view:
        got = sock.recv_into(view)
        if got == 0:
            raise ConnectionError("the peer closed the connection in the middle of a message")
        view = view[got:]
    return bytes(buffer)


class ClosedIntervalTree:
    """Data by intervals of integers that include both ends and may overlap.

    Queries answer with (start, end, data), lowest start first; they look at each interval that starts early enough.
    """

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._entries: list[tuple[int, int, Any]] = []

    def add(self, start: int, end: int, data: Any) -> None:
        """Adds an interval; one that is there already, with equal data, stays one. ValueError if end < start."""
        if end < start:
            raise ValueError(f"the interval [{start}, {end}] ends before it starts")
        if (start, end, data) in self.query_exact_match(start, end):
            return
        at = bisect.bisect_right(self._starts, start)
        self._starts.insert(at, start)
        self._entries.insert(at, (start, end, data))

    def remove(self, start: int, end: int, data: Any = None) -> int:
        """Removes the intervals with these ends (and this data, if given) and returns how many."""
        gone = self.query_exact_match(start, end, data)
        for entry in gone:
            at = self._entries.index(entry)
            del self._entries[at], self._starts[at]
        return len(gone)

    def query_containing(self, query_start: int, query_end: int) -> list[tuple[int, int, Any]]:
        """The intervals that hold all of [query_start, query_end]."""
        early = bisect.bisect_right(self._starts, query_start)
        return [entry for entry in self._entries[:early] if entry[1] >= query_end]

    def query_overlap(self, query_start: int, query_end: int) -> list[tuple[int, int, Any]]:
        """The intervals that share an integer with [query_start, query_end]."""
        early = bisect.bisect_right(self._starts, query_end)
        return [entry for entry in self._entries[:early] if entry[1] >= query_start]

    def query_exact_match(self, query_start: int, query_end: int, data: Any = None) -> list[tuple[int, int, Any]]:
        """The intervals with exactly these ends (and this data, if given)."""
        same = slice(bisect.bisect_left(self._starts, query_start), bisect.bisect_right(self._starts, query_start))
        return [e for e in self._entries[same] if e[1] == query_end and (data is None or e[2] == data)]

    def __iter__(self) -> Iterator[tuple[int, int, Any]]:
        return iter(list(self._entries))

    def __str__(self) -> str:
        return "\n".join(f"[{start}, {end}] -> {data}" for start, end, data in self)

    def clear(self) -> None:
        """Removes all intervals."""
        self._starts.clear()
        self._entries.clear()
