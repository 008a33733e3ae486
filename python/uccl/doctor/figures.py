# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""How fast something is, and how fast the machine does the like without the engine."""

from __future__ import annotations

import ctypes
import multiprocessing
import re
import socket
import time
from collections.abc import Callable

from uccl.doctor.finding import NOTE, OK, Finding
from uccl.doctor.memory import BYTES, GPU_BYTES, GpuPages, Memories

_SECONDS = 0.4  # of each measurement
_LEAST = 3  # rounds, where one takes long
_PATIENCE = 20.0
_FINE = 0.6  # of what the machine does without the engine


def judge(name: str, figure: float, what: str, raw: float, size: int = BYTES) -> Finding:
    """A figure beside the one that the machine reaches without the engine; 0 where that is not known."""
    slow = raw > 0 and figure < _FINE * raw
    text = f"{_figure(figure)} GB/s"
    if raw > 0:
        text += f"; {what} reaches {_figure(raw)}: {'slow' if slow else 'fine'}"
    remedy = "is the machine busy? see UCCL_P2P_WORKERS and UCCL_P2P_STREAMS in docs/options.md" if slow else ""
    return Finding("measured", name, text, NOTE if slow else OK, remedy, size, figure, what if raw > 0 else "", raw)


def _figure(value: float) -> str:
    return f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def gigabytes_per_second(operation: Callable[[], object], size: int, seconds: float = _SECONDS) -> float:
    """The best third of what fits into the time: what comes between is other programs'."""
    operation()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or (len(times) < _LEAST and time.perf_counter() < end + seconds):
        start = time.perf_counter()
        operation()
        times.append(time.perf_counter() - start)
    best = sorted(times)[: max(1, len(times) // 3)]
    return size / (sum(best) / len(best)) / 1e9


class Limits:
    """What this machine does without the engine, each measured when it is asked for, and once. ``other`` is the process
    at the other end, and ``target`` host memory of it."""

    def __init__(self, memories: Memories, other: int, target: int) -> None:
        self._memories, self._other, self._target = memories, other, target
        self._known: dict[str, float] = {}

    def of(self, transport: str, local: str, remote: str, detail: str) -> tuple[str, float]:
        """What stands beside a transport's figure between these kinds of memory: its name and GB/s, 0 if unknown."""
        gpu = self._memories.gpu
        if transport == "rdma":
            return "the rate of the ports", ports_rate(detail)
        if transport == "cma":
            source = self._memories.by_kind["host"].address
            copy = self._once("process_vm_writev alone", lambda: raw_copy(self._other, source, self._target))
            if local == "host" or gpu is None:
                return copy
            return min(copy, self._once("the driver's copy to host memory", lambda: _to_host(gpu)), key=lambda it: it[1])
        if transport == "cuda_ipc" and gpu is not None:
            if local == "host":
                return self._once("the driver's copy from host memory", lambda: _from_host(gpu))
            return self._once("the driver's copy between GPUs", lambda: _between_gpus(gpu))
        return self._once("a raw socket", raw_socket)

    def _once(self, what: str, measure: Callable[[], float]) -> tuple[str, float]:
        if what not in self._known:
            try:
                self._known[what] = measure()
            except RuntimeError:  # the driver gives no memory for it
                self._known[what] = 0.0
        return what, self._known[what]


def _between_gpus(near: GpuPages) -> float:
    driver = near.driver
    far = 1 if driver.count() > 1 else 0
    target = driver.allocate(far, GPU_BYTES)
    try:
        driver.reach(near.device, far)
        return gigabytes_per_second(
            lambda: driver.copy_between(near.device, near.address, far, target, GPU_BYTES), GPU_BYTES
        )
    finally:
        driver.free(far, target)


def _to_host(gpu: GpuPages) -> float:
    with gpu.driver.pinned(gpu.device, BYTES) as host:
        return gigabytes_per_second(lambda: gpu.driver.copy_to_host(gpu.device, host, gpu.address, BYTES), BYTES)


def _from_host(gpu: GpuPages) -> float:
    with gpu.driver.pinned(gpu.device, BYTES) as host:
        return gigabytes_per_second(lambda: gpu.driver.copy_from_host(gpu.device, gpu.address, host, BYTES), BYTES)


def ports_rate(detail: str) -> float:
    """GB/s of all RDMA ports that a route's detail names."""
    return sum(float(rate) for rate in re.findall(r"([\d.]+) Gb/s", detail)) / 8


class _Vector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))


def raw_copy(process: int, source: int, target: int) -> float:
    """The system's copy between processes; 0 where it is refused."""
    library = ctypes.CDLL(None, use_errno=True)
    library.process_vm_writev.restype = ctypes.c_ssize_t
    mine, theirs = _Vector(source, BYTES), _Vector(target, BYTES)
    one = ctypes.c_ulong(1)
    arguments = (process, ctypes.byref(mine), one, ctypes.byref(theirs), one, ctypes.c_ulong(0))
    if library.process_vm_writev(*arguments) != BYTES:
        return 0.0
    return gigabytes_per_second(lambda: library.process_vm_writev(*arguments), BYTES)


def acknowledge_blocks(connection: socket.socket, size: int) -> None:
    """Takes what comes until its end, and answers one byte for every ``size`` bytes."""
    room = memoryview(bytearray(1 << 20))
    came = 0
    while taken := connection.recv_into(room):
        came += taken
        while came >= size:
            came -= size
            connection.sendall(b"x")


def stream_speed(connection: socket.socket, patience: float = _PATIENCE) -> float:
    """One TCP stream whose other end acknowledges blocks of ``BYTES``."""
    connection.settimeout(patience)
    block = memoryview(bytearray(BYTES))

    def move() -> None:
        connection.sendall(block)
        connection.recv(1)

    return gigabytes_per_second(move, BYTES)


def _drain(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=_PATIENCE) as connection:
        acknowledge_blocks(connection, BYTES)


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
            with connection:
                return stream_speed(connection)
        except OSError:
            return 0.0
        finally:
            reader.kill()
            reader.join(_PATIENCE)
