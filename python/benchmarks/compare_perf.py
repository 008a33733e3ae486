# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""Writes from Python against the same writes by p2p-perf: both in turns, medians, and their ratio.

    python compare_perf.py build/release/tools/perf/p2p-perf

Each side of each measurement is a process of its own with memory of its own. Blocks lie in shuffled order in both
programs, and lists are given anew with each transfer. All bytes of the last transfers are checked.
"""

from __future__ import annotations

import argparse
import json
import mmap
import multiprocessing
import statistics
import subprocess
import time
from collections import deque
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection

import numpy as np
from report import parse_size, size_text

from uccl import p2p

_SECONDS = 60.0
_WARM_UP = 0.02  # as p2p-perf


@dataclass(frozen=True)
class Work:
    """What both programs do in one measurement."""

    transport: str
    size: int  # of a block
    blocks: int
    depth: int  # transfers in flight; with 1 the blocking call is used

    @property
    def bytes(self) -> int:
        return self.size * self.blocks

    @property
    def stride(self) -> int:
        """Memory of one transfer: an eighth of the places stays free."""
        return self.size * (self.blocks + self.blocks // 8)

    def places(self, seed: int) -> np.ndarray:
        """Offsets of the blocks within their transfer's memory."""
        shuffled = np.random.default_rng(seed).permutation(self.stride // self.size)
        return shuffled[: self.blocks].astype(np.uint64) * np.uint64(self.size)

    def __str__(self) -> str:
        return f"{self.transport:>4} write {self.blocks:>5} x {size_text(self.size):>7}, {self.depth} in flight"


_HERE, _THERE = 1, 2  # seeds: the blocks' order differs between the two sides


class Memory:
    """Registered pages with room for each transfer in flight."""

    def __init__(self, endpoint: p2p.Endpoint, work: Work) -> None:
        # The pages that p2p-perf takes, so that allocators are not compared.
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
        self.array = np.frombuffer(mmap.mmap(-1, work.depth * work.stride, flags), np.uint8)
        self.address = self.array.ctypes.data
        ok, self.mr_id = endpoint.reg(self.address, self.array.nbytes)
        check(ok)

    def blocks(self, work: Work, seed: int) -> list[np.ndarray]:
        """Every block of every transfer, in the order in which they are written."""
        starts = [slot * work.stride + int(at) for slot in range(work.depth) for at in work.places(seed)]
        return [self.array[start : start + work.size] for start in starts]


def check(ok: bool) -> None:
    if not ok:
        raise p2p.Error(p2p.last_error())


def open_endpoint(index: int, work: Work) -> p2p.Endpoint:
    return p2p.Endpoint(index, transports=[work.transport], listen_address="127.0.0.1")


def serve(pipe: Connection, work: Work) -> None:
    """The owner of the memory: it calls nothing while it is written."""
    with open_endpoint(1, work) as endpoint:
        pipe.send_bytes(endpoint.get_metadata())
        ok, _, _, connection = endpoint.accept(timeout=_SECONDS)
        check(ok)
        memory = Memory(endpoint, work)
        ok, blob = endpoint.advertise(connection, memory.mr_id, memory.address, memory.array.nbytes)
        check(ok)
        pipe.send_bytes(blob)
        pipe.recv_bytes()  # the client is through
        right = [(block == index % 251 + 1).all() for index, block in enumerate(memory.blocks(work, _THERE))]
        pipe.send(all(right))


def arguments_of(work: Work, memory: Memory, connection: int, blob: bytes, slot: int) -> tuple:
    """The arguments of one call: the region's blob with the address and size of each block edited in."""
    here = work.places(_HERE) + np.uint64(memory.address + slot * work.stride)
    there = work.places(_THERE) + np.uint64(int.from_bytes(blob[:8], "little") + slot * work.stride)
    blobs = np.tile(np.frombuffer(blob, np.uint8), (work.blocks, 1))
    blobs[:, :8] = there.reshape(-1, 1).view(np.uint8)
    blobs[:, 8:12] = np.full((work.blocks, 1), work.size, np.uint32).view(np.uint8)
    if work.blocks == 1:
        return connection, memory.mr_id, int(here[0]), work.size, blobs[0].tobytes()
    regions = np.full(work.blocks, memory.mr_id, np.uint64)
    return connection, regions, here, np.full(work.blocks, work.size, np.uint64), blobs, work.blocks


def gigabytes_per_second(endpoint: p2p.Endpoint, work: Work, calls: list[tuple], seconds: float) -> float:
    """From the first call to the last acknowledgement, for at least ``seconds`` and one call of each."""
    write, write_async = endpoint.write, endpoint.write_async
    if work.blocks > 1:
        write, write_async = endpoint.writev, endpoint.writev_async
    flying: deque[int] = deque()
    started = done = 0
    start = time.perf_counter()
    while started < len(calls) or time.perf_counter() - start < seconds:
        if work.depth == 1:
            check(write(*calls[0]))
            started = done = started + 1
            continue
        while len(flying) < work.depth:
            ok, transfer = write_async(*calls[started % len(calls)])
            check(ok)
            flying.append(transfer)
            started += 1
        endpoint.wait(flying.popleft())
        done += 1
    for transfer in flying:
        endpoint.wait(transfer)
        done += 1
    return done * work.bytes / (time.perf_counter() - start) / 1e9


def measure_python(work: Work, seconds: float) -> float:
    pipe, theirs = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs, work))
    server.start()
    theirs.close()
    try:
        with open_endpoint(0, work) as endpoint:
            address, port, gpu = endpoint.parse_metadata(pipe.recv_bytes())
            ok, connection = endpoint.connect(address, gpu, port)
            check(ok)
            memory, blob = Memory(endpoint, work), pipe.recv_bytes()
            for index, block in enumerate(memory.blocks(work, _HERE)):
                block[:] = index % 251 + 1
            calls = [arguments_of(work, memory, connection, blob, slot) for slot in range(work.depth)]
            gigabytes_per_second(endpoint, work, calls, _WARM_UP)
            speed = gigabytes_per_second(endpoint, work, calls, seconds)
            pipe.send_bytes(b"through")
            if not (pipe.poll(_SECONDS) and pipe.recv()):
                raise SystemExit(f"{work}: wrong bytes arrived")
        server.join(_SECONDS)
        return speed
    finally:
        server.kill()


def measure_perf(program: str, work: Work, seconds: float, prepared: bool) -> float:
    command = [program, "local", "--op", "write", "--transport", work.transport, "--json", "-"]
    command += ["--size", str(work.size), "--blocks", str(work.blocks), "--depth", str(work.depth)]
    command += ["--duration", str(seconds)]
    if work.blocks > 1:
        command.append("--prepared" if prepared else "--fresh")
    done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS + 4 * seconds, check=True)
    row = json.loads(done.stdout)
    if not row["verified"]:
        raise SystemExit(f"{work}: p2p-perf saw wrong bytes")
    return row["gbytes_per_second"]


@dataclass(frozen=True)
class Row:
    """Medians over the rounds: GB/s of each program, and the ratio within a round."""

    work: str
    transport: str
    size_bytes: int  # of a block
    blocks: int
    depth: int
    python: float
    perf: float
    ratio: float
    ratios: list[float]


def compare(arguments: argparse.Namespace, work: Work) -> Row:
    """The two programs of a round follow each other at once, and take turns in going first: what else the
    machine does changes slowly and favours neither."""
    python, perf = [], []
    for turn in range(2 * arguments.rounds):
        if turn % 4 in (0, 3):
            perf.append(measure_perf(arguments.perf, work, arguments.seconds, arguments.prepared))
        else:
            python.append(measure_python(work, arguments.seconds))
    ratios = [one / other for one, other in zip(python, perf, strict=True)]
    median = statistics.median
    what = (str(work), work.transport, work.size, work.blocks, work.depth)
    return Row(*what, median(python), median(perf), median(ratios), sorted(ratios))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("perf", help="the program p2p-perf")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each program for each row")
    parser.add_argument("--seconds", type=float, default=0.5, help="length of one measurement")
    parser.add_argument("--transports", default="cma,tcp")
    parser.add_argument("--depth", default="1,2", help="transfers in flight")
    parser.add_argument("--shapes", default="1x64M,8192x4K", help="blocks x bytes")
    parser.add_argument("--prepared", action="store_true", help="p2p-perf prepares its lists once")
    parser.add_argument("--json", metavar="FILE", help="write the rows as JSON")
    arguments = parser.parse_args()
    rows = []
    print(f"{'':42} {'Python':>8} {'p2p-perf':>8} {'ratio':>6}  of the rounds")
    for transport in arguments.transports.split(","):
        for shape in arguments.shapes.split(","):
            blocks, size = shape.lower().split("x")
            for depth in arguments.depth.split(","):
                row = compare(arguments, Work(transport, parse_size(size), int(blocks), int(depth)))
                rows.append(row)
                spread = f"{row.ratios[0]:.2f} to {row.ratios[-1]:.2f}"
                print(f"{row.work:42} {row.python:8.2f} {row.perf:8.2f} {row.ratio:6.3f}  {spread}", flush=True)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump([asdict(row) for row in rows], file, indent=2)


if __name__ == "__main__":
    main()
