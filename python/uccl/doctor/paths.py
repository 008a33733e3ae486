# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""Which way each pair of memories takes between two processes of this machine, why not a better one, and how
fast it is beside what the machine does without the engine."""

from __future__ import annotations

import ctypes
import mmap
import multiprocessing
import socket
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

from uccl import p2p
from uccl.doctor.finding import NOTE, OK, PROBLEM, Finding

_SECTION = "paths on this machine"
_BYTES = 32 << 20
_SECONDS = 0.7  # of each measurement
_PATIENCE = 20.0
_FINE = 0.6  # of what the machine does without the engine

_CHOSEN = "unset UCCL_P2P_DISABLE_IPC"  # a setting, and so no problem by itself

# What stands in the engine's reasons -> what to do. The first that fits counts.
REMEDIES = (
    ("yama.ptrace_scope", "run both as one user; sysctl kernel.yama.ptrace_scope=0, or CAP_SYS_PTRACE"),
    ("not permitted", "allow process_vm_readv: in a container --cap-add=SYS_PTRACE or another seccomp profile"),
    ("another PID namespace", "one PID namespace for both: --pid=host, or shareProcessNamespace in a pod"),
    ("another network namespace", "one network namespace for both: --network=host, or hostNetwork in a pod"),
    ("left out: only transports", _CHOSEN),
    ("CUDA_VISIBLE_DEVICES", "let both processes see both GPUs and choose by cudaSetDevice"),
    ("built without CUDA", "install again where nvcc of CUDA 12.3 or newer is in PATH"),
    ("Function not implemented", "the kernel refuses the call: a sandbox (gVisor) or Linux before 5.3"),
)


def remedy_of(reason: str) -> str:
    """What to do about a reason of the engine's; nothing where it is as it should be."""
    return next((remedy for sign, remedy in REMEDIES if sign in reason), "")


class Pages:
    """Memory of this process, written once, as long as this lives."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _BYTES)
        self._memory.write(b"\x01" * _BYTES)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))

    def registered(self, endpoint: p2p.Endpoint) -> int:
        ok, mr_id = endpoint.reg(self.address, _BYTES)
        if not ok:
            raise p2p.Error(p2p.last_error())
        return mr_id


def _other_process(pipe: Connection, options: dict[str, Any]) -> None:
    try:
        pages = Pages()
        with p2p.Endpoint(1, port=0, **options) as endpoint:
            blob = endpoint.advertise(pages.registered(endpoint), pages.address, _BYTES)[1]
            pipe.send((endpoint.get_metadata(), blob, pages.address))
            pipe.poll(_PATIENCE * 2)
    except (p2p.Error, OSError) as error:
        pipe.send(str(error))


class Partner:
    """A second process with an endpoint and memory; None of it outlives the ``with``."""

    def __init__(self, **options: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(target=_other_process, args=(theirs, options), daemon=True)
        self.process.start()
        theirs.close()
        try:
            answer = self._pipe.recv() if self._pipe.poll(_PATIENCE) else "the second process says nothing"
        except EOFError:
            answer = "the second process ended"
        if isinstance(answer, str):
            self.__exit__()
            raise p2p.Error(answer)
        self.metadata, self.blob, self.address = answer

    def __enter__(self) -> Partner:
        return self

    def __exit__(self, *_: object) -> None:
        self._pipe.close()
        self.process.join(1)
        self.process.kill()
        self.process.join(_PATIENCE)


def examine() -> list[Finding]:
    """Routes and figures; a problem where no two processes can be connected at all."""
    try:
        # At ports of their own: that of UCCL_P2P_PORT may be in use.
        with Partner() as partner, p2p.Endpoint(0, port=0) as endpoint:
            findings = list(_transports(endpoint))
            ok, connection = endpoint.add_remote_endpoint(partner.metadata)
            if not ok:
                raise p2p.Error(p2p.last_error())
            findings += _routes(endpoint, connection)
            findings += _figures(endpoint, connection, partner)
    except p2p.Error as error:
        return [Finding(_SECTION, "two processes", str(error), PROBLEM, remedy_of(str(error)))]
    return findings


def _transports(endpoint: p2p.Endpoint) -> Iterator[Finding]:
    for name, reason in endpoint.transports().items():
        yield Finding("transports", name, reason or "usable", NOTE if reason else OK, remedy_of(reason))


def _routes(endpoint: p2p.Endpoint, connection: int) -> Iterator[Finding]:
    cuda = any(name.startswith("cuda") and not reason for name, reason in endpoint.transports().items())
    for row in endpoint.routes(connection):
        name = f"{row['local']} to {row['remote']}"
        if "cuda" in name and not cuda:
            continue
        remedy = remedy_of(row["reason"])
        lost = not row["transport"] or (bool(remedy) and remedy != _CHOSEN)
        yield Finding(
            _SECTION, name, f"{row['transport'] or 'no path'}: {row['reason']}", PROBLEM if lost else OK, remedy
        )


def _figures(endpoint: p2p.Endpoint, connection: int, partner: Partner) -> Iterator[Finding]:
    host = next(row for row in endpoint.routes(connection) if row["local"] == row["remote"] == "host")
    yield from _compare(endpoint, connection, f"{host['transport']}, host memory", partner)
    if host["transport"] == "tcp":
        return
    try:
        with Partner(transports=["tcp"]) as other, p2p.Endpoint(0, port=0, transports=["tcp"]) as over_tcp:
            ok, connection = over_tcp.add_remote_endpoint(other.metadata)
            if not ok:
                raise p2p.Error(p2p.last_error())
            yield from _compare(over_tcp, connection, "tcp, host memory", other)
    except p2p.Error as error:
        yield Finding(_SECTION, "tcp", str(error), PROBLEM, remedy_of(str(error)))


def _compare(
    endpoint: p2p.Endpoint, connection: int, name: str, partner: Partner
) -> Iterator[Finding]:
    pages = Pages()
    mr_id = pages.registered(endpoint)

    def write() -> None:
        if not endpoint.write(connection, mr_id, pages.address, _BYTES, partner.blob):
            raise p2p.Error(p2p.last_error())

    figure = gigabytes_per_second(write, _BYTES)
    if name.startswith("tcp"):
        yield judge(name, figure, "a raw socket", raw_socket())
    else:
        raw = raw_copy(partner.process.pid or 0, pages.address, partner.address)
        yield judge(name, figure, "process_vm_writev alone", raw)
    endpoint.dereg(mr_id)


def judge(name: str, figure: float, what: str, raw: float) -> Finding:
    """A figure beside the one that the machine reaches without the engine."""
    slow = raw > 0 and figure < _FINE * raw
    text = f"{figure:.1f} GB/s; {what} reaches {raw:.1f}: {'slow' if slow else 'fine'}" if raw > 0 else f"{figure:.1f} GB/s"
    remedy = "is the machine busy? see UCCL_P2P_WORKERS and UCCL_P2P_STREAMS in docs/options.md" if slow else ""
    return Finding("measured", name, text, NOTE if slow else OK, remedy, _BYTES, figure, what, raw)


def gigabytes_per_second(operation: Callable[[], object], size: int, seconds: float = _SECONDS) -> float:
    """The best third of what fits into the time: what comes between is other programs'."""
    operation()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while not times or time.perf_counter() < end:
        start = time.perf_counter()
        operation()
        times.append(time.perf_counter() - start)
    best = sorted(times)[: max(1, len(times) // 3)]
    return size / (sum(best) / len(best)) / 1e9


class _Vector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))


def raw_copy(process: int, source: int, target: int) -> float:
    """The system's copy between processes; 0 where it is refused."""
    library = ctypes.CDLL(None, use_errno=True)
    library.process_vm_writev.restype = ctypes.c_ssize_t
    mine, theirs = _Vector(source, _BYTES), _Vector(target, _BYTES)
    one = ctypes.c_ulong(1)
    arguments = (process, ctypes.byref(mine), one, ctypes.byref(theirs), one, ctypes.c_ulong(0))
    if library.process_vm_writev(*arguments) != _BYTES:
        return 0.0
    return gigabytes_per_second(lambda: library.process_vm_writev(*arguments), _BYTES)


def acknowledge_blocks(connection: socket.socket, size: int) -> None:
    """Takes what comes until its end, and answers one byte for every ``size`` bytes."""
    room = memoryview(bytearray(1 << 20))
    came = 0
    while taken := connection.recv_into(room):
        came += taken
        while came >= size:
            came -= size
            connection.sendall(b"x")


def _drain(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=_PATIENCE) as connection:
        acknowledge_blocks(connection, _BYTES)


def raw_socket() -> float:
    """One TCP stream to another process over loopback, each block acknowledged; 0 where that fails."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(_PATIENCE)
        reader = multiprocessing.get_context("spawn").Process(
            target=_drain, args=(server.getsockname()[1],), daemon=True
        )
        reader.start()
        try:
            connection, _ = server.accept()
            block = memoryview(bytearray(_BYTES))

            def move() -> None:
                connection.sendall(block)
                connection.recv(1)

            with connection:
                connection.settimeout(_PATIENCE)
                return gigabytes_per_second(move, _BYTES)
        except OSError:
            return 0.0
        finally:
            reader.kill()
            reader.join(_PATIENCE)
