# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""The class TransferEngine: Mooncake's calls, answered by this engine."""

from __future__ import annotations

import ctypes
import enum
import functools
import itertools
import logging
import os
import socket
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Concatenate, NoReturn, ParamSpec

import numpy as np

from uccl import p2p

from .peers import SECONDS, Callers, Peer, failure, finish, place_of
from .regions import INVALID, Numbers, Refused, Registry

log = logging.getLogger("uccl.mooncake")

# Names of ways for which the engine's own choice of routes stands in. Others are of hardware that it does not serve.
PROTOCOLS = ("", "rdma", "tcp", "efa", "barex", "nvlink", "nvlink_intra")
UNREACHABLE = -102
UNDER_WAY, DONE, FAILED, TIMED_OUT = 0, 1, -1, -2  # of transfer_check_status()

# A peer's memory is not, or no longer, what its list said; a connection has ended.
_STALE = (p2p.NotFound, p2p.PermissionDenied, p2p.OutOfRange)
_ENDED = (p2p.PeerGone, p2p.Cancelled)
_BYTES_A_SECOND = 1 << 30  # which a transfer may be slower than for MC_TRANSFER_TIMEOUT seconds


class TransferOpcode(enum.IntEnum):
    """What a transfer does to the peer's memory."""

    Read = 0
    Write = 1


@dataclass
class TransferNotify:
    """A notification that follows a transfer."""

    name: str = ""
    msg: str = ""


@dataclass
class _Batch:
    peer: Peer
    connection: int
    transfer: int | None  # None: there was nothing to move
    deadline: float
    late: bool = False


_Rest = ParamSpec("_Rest")
_Call = Callable[Concatenate["TransferEngine", _Rest], int]


def _answers(failed: int) -> Callable[[_Call[_Rest]], _Call[_Rest]]:
    """Failures become a line in the log and ``failed``; -1 stands for the code of the reason, where it has one."""

    def decorate(method: _Call[_Rest]) -> _Call[_Rest]:
        @functools.wraps(method)
        def call(self: TransferEngine, /, *arguments: _Rest.args, **keywords: _Rest.kwargs) -> int:
            try:
                return method(self, *arguments, **keywords)
            except (Refused, p2p.Error, OSError, OverflowError) as error:
                on = [one for one in (*arguments, *keywords.values()) if isinstance(one, str)]
                log.error("%s(%s): %s", method.__name__, on[0] if on else "", error)
                return error.code if isinstance(error, Refused) and failed == INVALID else failed

        return call

    return decorate


def _pieces(call: Callable[..., int], opcode: TransferOpcode) -> Callable[..., int]:
    def move(self: TransferEngine, target_hostname: str, buffers: Sequence[int], peer_buffer_addresses: Sequence[int],
             lengths: Sequence[int], transport_hint: str = "") -> int:  # fmt: skip
        return call(self, target_hostname, buffers, peer_buffer_addresses, lengths, opcode)

    move.__doc__ = f"{call.__name__}() with the opcode {opcode.name}."
    return move


def _piece(call: Callable[..., int], opcode: TransferOpcode) -> Callable[..., int]:
    def move(self: TransferEngine, target_hostname: str, buffer: int, peer_buffer_address: int, length: int,
             transport_hint: str = "") -> int:  # fmt: skip
        return call(self, target_hostname, [buffer], [peer_buffer_address], [length], opcode)

    move.__doc__ = f"{call.__name__}() of one piece, with the opcode {opcode.name}."
    return move


class TransferEngine:
    """Mooncake's TransferEngine. Any thread; the GIL is free in every wait.

    Calls answer 0, or a negative number and a line in the log ``uccl.mooncake``, unless they say otherwise.
    Addresses are integers, sizes are bytes. A peer is "host:port": what it gave to initialize() and what its
    get_rpc_port() answers. Memory is free when a call has returned, whatever it answers.
    """

    def __init__(self) -> None:
        self._seconds = max(5.0, float(os.environ.get("MC_TRANSFER_TIMEOUT") or 30))
        self._endpoint: p2p.Endpoint | None = None
        self._peers: dict[str, Peer] = {}
        self._batches: dict[int, _Batch] = {}
        self._numbers = itertools.count(1)

    @_answers(INVALID)
    def initialize(self, local_hostname: str, metadata_server: str, protocol: str, device_name: str) -> int:
        """Starts the engine. ``local_hostname`` is the address, or name, at which peers reach this host."""
        if self._endpoint is not None:
            raise Refused("this engine was initialized before")
        if metadata_server.rpartition("://")[2] != "P2PHANDSHAKE":
            raise Refused(f"metadata server {metadata_server!r}: only P2PHANDSHAKE, peers are found by host:port")
        if protocol not in PROTOCOLS:
            raise Refused(f"protocol {protocol!r} is of hardware that this engine does not serve")
        if device_name:
            log.info("devices %s: not used, UCCL_P2P_RDMA_DEVICES names those of rdma", device_name)
        endpoint = p2p.Endpoint(**_place(local_hostname))
        try:
            self._registry = Registry(endpoint)
        except BaseException:
            endpoint.close(0)
            raise
        self._callers = Callers(endpoint, self._registry.blob)
        self._port = p2p.Endpoint.parse_metadata(endpoint.get_metadata())[1]
        self._closing = weakref.finalize(self, endpoint.close)
        self._closing.atexit = False  # uccl.p2p closes all
        self._endpoint = endpoint
        return 0

    def initialize_ext(
        self, local_hostname: str, metadata_server: str, protocol: str, device_name: str, metadata_type: str
    ) -> int:
        """The same; ``metadata_type`` changes nothing."""
        return self.initialize(local_hostname, metadata_server, protocol, device_name)

    def close(self) -> None:
        """Ends all. So does the end of the object."""
        if self._endpoint is not None:
            self._closing()

    def _started(self) -> p2p.Endpoint:
        if self._endpoint is None:
            raise Refused("call initialize() first")
        return self._endpoint

    @_answers(0)
    def get_rpc_port(self) -> int:
        """The port of this engine; 0 before initialize()."""
        self._started()
        return self._port

    # Memory.

    def register_memory(self, buffer_addr: int, capacity: int, location: str = "*") -> int:
        """Lets peers read and write memory, which must stay allocated. -7: it overlaps registered memory."""
        return self.batch_register_memory([buffer_addr], [capacity], location)

    @_answers(INVALID)
    def batch_register_memory(
        self, buffer_addresses: Sequence[int], capacities: Sequence[int], location: str = "*"
    ) -> int:
        """All of them, or none. ``location`` changes nothing: the engine finds out whose memory it is."""
        self._started()
        self._registry.add(buffer_addresses, capacities)
        return 0

    def unregister_memory(self, buffer_addr: int) -> int:
        """Ends the registration that begins there. -3: there is none."""
        return self.batch_unregister_memory([buffer_addr])

    @_answers(INVALID)
    def batch_unregister_memory(self, buffer_addresses: Sequence[int]) -> int:
        """All that can be; then the code of the first that could not."""
        self._started()
        refused: list[Refused] = []
        for address in buffer_addresses:
            try:
                self._registry.remove(address)
            except Refused as error:
                refused.append(error)
        if refused:
            raise refused[0]
        return 0

    def _registered(self, address: int, length: int) -> None:
        self._started()
        self._registry.covering(np.array([address], np.uint64), np.array([length], np.uint64))

    @_answers(INVALID)
    def write_bytes_to_buffer(self, address: int, data: str | bytes, length: int) -> int:
        """The first ``length`` bytes of ``data`` into registered host memory."""
        self._registered(address, length)
        source = data.encode() if isinstance(data, str) else data
        if length > len(source):
            raise Refused(f"{length} bytes of data that has {len(source)}")
        ctypes.memmove(address, source, length)
        return 0

    def read_bytes_from_buffer(self, address: int, length: int) -> bytes:
        """Bytes of registered host memory. Raises ValueError for other memory."""
        try:
            self._registered(address, length)
        except Refused as error:
            raise ValueError(f"read_bytes_from_buffer: {error}") from None
        return ctypes.string_at(address, length)

    @_answers(0)
    def get_first_buffer_address(self, segment_name: str) -> int:
        """Where the oldest of a peer's regions begins; 0 if it has none or does not answer."""
        peer = self._peer(segment_name)
        peer.forget_regions()
        entries = peer.entries(peer.connection())
        return int(entries["start"][np.argmin(entries["region"])]) if len(entries) else 0

    # Transfers.

    def _peer(self, name: str) -> Peer:
        return self._peers.setdefault(name, Peer(self._started(), name))

    def _start(self, name: str, opcode: TransferOpcode, *pieces: Sequence[int]) -> _Batch:
        """Twice, if what is known of the peer turns out to be old."""
        if len({len(one) for one in pieces}) != 1:
            raise Refused("{} buffers, {} addresses of the peer and {} lengths".format(*map(len, pieces)))
        here, there, sizes = (np.asarray(one, np.uint64) for one in pieces)
        if not sizes.all():
            here, there, sizes = (one[sizes > 0] for one in (here, there, sizes))
        peer = self._peer(name)
        connection = peer.connection()
        try:
            return self._post(peer, connection, opcode, here, there, sizes)
        except _STALE:
            peer.forget_regions()
        except _ENDED:
            peer.drop(connection)
        return self._post(peer, peer.connection(), opcode, here, there, sizes)

    def _post(
        self, peer: Peer, connection: int, opcode: TransferOpcode, here: Numbers, there: Numbers, sizes: Numbers
    ) -> _Batch:
        endpoint = self._started()
        deadline = time.monotonic() + self._seconds + float(sizes.sum()) / _BYTES_A_SECOND
        if not len(sizes):
            return _Batch(peer, connection, None, deadline)
        regions = self._registry.covering(here, sizes)["region"].copy()
        post = endpoint.writev_async if opcode == TransferOpcode.Write else endpoint.readv_async
        ok, transfer = post(connection, regions, here, sizes, peer.blobs(connection, there, sizes))
        if not ok:
            raise failure()
        return _Batch(peer, connection, transfer, deadline)

    def _finish(self, batch: _Batch) -> None:
        if batch.transfer is not None:
            try:
                finish(self._started(), batch.transfer, batch.deadline - time.monotonic())
            except p2p.Error as error:
                _learn(batch, error)
                raise

    @_answers(INVALID)
    def batch_transfer_sync(
        self, target_hostname: str, buffers: Sequence[int], peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int], opcode: TransferOpcode, notify: TransferNotify | None = None, transport_hint: str = "",
    ) -> int:  # fmt: skip
        """Moves many pieces, waits, and then sends a notification. ``transport_hint`` changes nothing."""
        batch = self._start(target_hostname, opcode, buffers, peer_buffer_addresses, lengths)
        try:
            self._finish(batch)
        except _STALE:  # it was registered anew meanwhile
            batch = self._start(target_hostname, opcode, buffers, peer_buffer_addresses, lengths)
            self._finish(batch)
        if notify is not None:
            batch.peer.notify(batch.connection, notify.name, notify.msg)
        return 0

    def transfer_sync(
        self, target_hostname: str, buffer: int, peer_buffer_address: int, length: int, opcode: TransferOpcode,
        notify: TransferNotify | None = None, transport_hint: str = "",
    ) -> int:  # fmt: skip
        """The same of one piece."""
        return self.batch_transfer_sync(target_hostname, [buffer], [peer_buffer_address], [length], opcode, notify)

    @_answers(0)
    def batch_transfer_async(
        self, target_hostname: str, buffers: Sequence[int], peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int], opcode: TransferOpcode, transport_hint: str = "",
    ) -> int:  # fmt: skip
        """Starts to move many pieces: a number for the calls below, or 0."""
        batch = self._start(target_hostname, opcode, buffers, peer_buffer_addresses, lengths)
        self._batches[number := next(self._numbers)] = batch
        return number

    batch_transfer_sync_read = _pieces(batch_transfer_sync, TransferOpcode.Read)
    batch_transfer_sync_write = _pieces(batch_transfer_sync, TransferOpcode.Write)
    batch_transfer_async_read = _pieces(batch_transfer_async, TransferOpcode.Read)
    batch_transfer_async_write = _pieces(batch_transfer_async, TransferOpcode.Write)
    transfer_sync_read = _piece(batch_transfer_sync, TransferOpcode.Read)
    transfer_sync_write = _piece(batch_transfer_sync, TransferOpcode.Write)
    transfer_submit_write = _piece(batch_transfer_async, TransferOpcode.Write)

    @_answers(FAILED)
    def transfer_check_status(self, batch_id: int) -> int:
        """1: done, 0: under way, -1: failed, -2: given up as too slow. An end is told once."""
        if (batch := self._batches.get(batch_id)) is None:
            raise Refused(f"no batch has the number {batch_id}, or its end was told")
        endpoint, error = self._started(), None
        if batch.transfer is not None:
            ok, done = endpoint.poll_async(batch.transfer)
            error = None if ok else failure()
            if not done:
                if time.monotonic() > batch.deadline and not batch.late:
                    batch.late = endpoint.cancel(batch.transfer)
                return UNDER_WAY
        self._batches.pop(batch_id, None)
        if error is None:
            return DONE
        _learn(batch, error)
        log.error("transfer_check_status(%s): %s", batch.peer.name, error)
        return TIMED_OUT if batch.late else FAILED

    @_answers(FAILED)
    def get_batch_transfer_status(self, batch_ids: Sequence[int]) -> int:
        """Waits for all of them. 0: all are done."""
        errors: list[Exception] = []
        for number in batch_ids:
            try:
                if (batch := self._batches.pop(number, None)) is None:
                    raise Refused(f"no batch has the number {number}, or its end was told")
                self._finish(batch)
            except (Refused, p2p.Error) as error:
                errors.append(error)
        if errors:
            raise errors[0]
        return 0

    # Peers.

    def get_notifies(self) -> list[TransferNotify]:
        """The notifications that have come since the last call."""
        return [TransferNotify(*note) for note in self._callers.notes()] if self._endpoint else []

    @_answers(UNREACHABLE)
    def send_probe(self, peer_server_name: str) -> int:
        """0: the peer answers."""
        peer = self._peer(peer_server_name)
        connection = peer.connection()
        try:
            peer.read(connection, 1, time.monotonic() + SECONDS)
        except _ENDED:
            peer.drop(connection)
            peer.connection()  # which takes an answer, too
        return 0

    def warmup_efa_segment(self, segment_name: str) -> int:
        """0: there is nothing to do."""
        return 0

    def get_local_topology(self, device_name: str | None = None) -> str:
        """JSON without entries: the engine chooses devices by itself."""
        return "{}\n"

    def get_engine(self) -> NoReturn:
        """Raises Unavailable: Mooncake's own C++ object, which its Store and process group want."""
        raise p2p.Unavailable("get_engine: there is no C++ engine of Mooncake's here that its Store or pg could share")

    get_engine_ptr = get_engine


def _learn(batch: _Batch, error: p2p.Error) -> None:
    """What a failure says of the peer, for the next time."""
    if isinstance(error, _STALE):
        batch.peer.forget_regions()
    elif isinstance(error, _ENDED) and not batch.late:
        batch.peer.drop(batch.connection)


def _place(hostname: str) -> dict[str, Any]:
    """Where to listen: at that address if it is this host's, else as by default, and peers are told that name."""
    if os.environ.get("UCCL_P2P_LISTEN_ADDRESS") or os.environ.get("UCCL_P2P_ANNOUNCE"):
        return {}
    host = hostname.strip("[]")
    if host.count(":") == 1 or "]:" in host:
        host = place_of(hostname)[0]  # its port is not used: get_rpc_port() tells which is
    family, _, _, _, place = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(place)
        except OSError:
            return {"announce": host}
    return {"listen_address": str(place[0])}
