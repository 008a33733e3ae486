# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""One publisher and some subscribers, processes of this machine: shows progress, and a table at the end."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np

from uccl.weights import Publisher, Subscriber

_ROWS = 1 << 20  # bytes of a row of the demo's tensors


def _tensors(mib: int, fill: bool) -> dict[str, Any]:
    made = {}
    for layer in range(8):
        shape = (max(1, mib // 8), _ROWS)
        made[f"layer{layer}"] = np.full(shape, layer + 1, np.uint8) if fill else np.zeros(shape, np.uint8)
    return made


def _subscribe(place: str, mib: int, pipe: Connection) -> None:
    """A subscriber's process: sends (bytes, total) and at last its row of the table."""
    tensors = _tensors(mib, fill=False)
    with Subscriber(place, tensors, listen_address="127.0.0.1") as subscriber:
        pipe.send(("ready", 0, 1))
        pipe.recv()
        start = time.monotonic()
        done = subscriber.stage(1, progress=lambda now: pipe.send(("at", now.bytes, now.total_bytes)))
        staged = time.monotonic()
        subscriber.commit()
        committed = time.monotonic()
        right = all((tensor == layer + 1).all() for layer, tensor in enumerate(tensors.values()))
        pipe.send(("done", done, staged - start, committed - staged, right))
        pipe.recv()  # gives on until all have it


def _show(done: int, total: int, start: float) -> None:
    share = done / total if total else 0.0
    bar = "#" * int(40 * share)
    rate = done / max(time.monotonic() - start, 1e-9) / 1e9
    print(f"\r[{bar:<40}] {100 * share:3.0f} %  {rate:6.2f} GB/s in all", end="", file=sys.stderr, flush=True)


def demo(subscribers: int, mib: int) -> int:
    """0 if all have got every byte."""
    spawn = multiprocessing.get_context("spawn")
    tensors = _tensors(mib, fill=True)
    size = sum(tensor.nbytes for tensor in tensors.values())
    with Publisher(listen_address="127.0.0.1") as publisher:
        publisher.publish(1, tensors)
        pipes, processes = [], []
        for _ in range(subscribers):
            mine, theirs = spawn.Pipe()
            processes.append(spawn.Process(target=_subscribe, args=(publisher.place, mib, theirs), daemon=True))
            processes[-1].start()
            theirs.close()
            pipes.append(mine)
        for pipe in pipes:
            pipe.recv()
        start = time.monotonic()
        for pipe in pipes:
            pipe.send("go")
        rows: dict[Any, Any] = {}
        come = dict.fromkeys(pipes, 0)
        while len(rows) < len(pipes):
            wait([pipe for pipe in pipes if pipe not in rows])
            for pipe in pipes:
                if pipe in rows or not pipe.poll():
                    continue
                word, *values = pipe.recv()
                come[pipe] = values[0].bytes if word == "done" else values[0]
                if word == "done":
                    rows[pipe] = values
                _show(sum(come.values()), size * subscribers, start)
        took = time.monotonic() - start
        print(file=sys.stderr)
        for pipe in pipes:
            pipe.send("end")
        for process in processes:
            process.join()
    print(f"{'subscriber':>10} {'GB/s':>6} {'stage':>8} {'commit':>8} {'of it from the publisher':>25} {'bytes':>6}")
    for number, pipe in enumerate(pipes):
        done, stage, commit, right = rows[pipe]
        print(f"{number:>10} {size / stage / 1e9:6.2f} {stage:6.2f} s {commit:6.3f} s "
              f"{done.publisher_bytes / size:>24.0%} {'right' if right else 'WRONG':>6}")
    print(f"{size / 2**20:.0f} MiB to {subscribers} in {took:.2f} s: {subscribers * size / took / 1e9:.2f} GB/s in all")
    return 0 if all(row[3] for row in rows.values()) else 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m uccl.weights", description=__doc__)
    parser.add_argument("what", choices=["demo"])
    parser.add_argument("--subscribers", type=int, default=4)
    parser.add_argument("--mib", type=int, default=256, help="of the set of weights (256)")
    args = parser.parse_args()
    return demo(max(1, args.subscribers), max(8, args.mib))
