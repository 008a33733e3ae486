#!/usr/bin/env python3
# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""Prints what gpu_check.sh measured as tables, each figure against what is to be reached.

Usage: gpu_table.py OUT. Reads perf.json (gpu_perf.sh), parts.json (gpu_copy_bench) and what there is of nccl.json,
python.json and python_ipc.json. The figures to reach are those of two H200 of one host. Exits with 1 if a row is
missing or was not verified; one that is below its figure is marked and no failure.
"""

import json
import pathlib
import sys
from typing import NamedTuple, Optional

KIB, MIB = 1 << 10, 1 << 20


class Work(NamedTuple):
    """Rows of perf.json from GPU to GPU, one for each operation, and the GB/s of payload to reach."""

    name: str
    transport: str
    size: int  # bytes of a block
    blocks: int
    depth: int  # transfers in flight
    reach: Optional[float] = None
    operations: tuple = ("write", "read")


WORKS = (
    Work("tcp, 256 MiB", "tcp", 256 * MIB, 1, 2, 40),
    Work("tcp, 40 960 blocks of 4 KiB", "tcp", 4 * KIB, 40960, 2, 35),
    Work("tcp, 10 000 blocks of 16 KiB", "tcp", 16 * KIB, 10000, 2, 38),
    Work("tcp, sends of 16 MiB", "tcp", 16 * MIB, 1, 4, operations=("send",)),
    Work("cuda_ipc, 256 MiB", "cuda_ipc", 256 * MIB, 1, 4, 380),
    Work("cuda_ipc, 1 MiB, one at a time, p50", "cuda_ipc", MIB, 1, 1, 100),
    Work("cuda_ipc, 64 KiB, one at a time, p50", "cuda_ipc", 64 * KIB, 1, 1, 10),
    Work("cuda_ipc, 40 960 blocks of 4 KiB", "cuda_ipc", 4 * KIB, 40960, 2, 330),
    Work("cuda_ipc, 10 000 blocks of 16 KiB", "cuda_ipc", 16 * KIB, 10000, 2, 330),
    Work("cuda_ipc, sends of 64 KiB, one at a time, p50", "cuda_ipc", 64 * KIB, 1, 1, operations=("send",)),
    Work("cuda_ipc, sends of 1 MiB, one at a time, p50", "cuda_ipc", MIB, 1, 1, operations=("send",)),
    Work("tcp, 1 MiB, one at a time, p50", "tcp", MIB, 1, 1),
    Work("cuda_ipc, sends of 16 MiB", "cuda_ipc", 16 * MIB, 1, 4, operations=("send",)),
)
# The first transfer between two regions takes so many times the tenth at most.
FIRST_AGAINST_TENTH = 2
# GB/s of blocks of 4 KiB to and from pinned host memory.
PARTS = {"gather kernel": 0.95 * 52.5, "scatter kernel": 0.95 * 51.3}
PYTHON = (("nccl", "NCCL (torch.distributed)"), ("python", "this package, send and recv"),
          ("python_ipc", "this package, write_ipc"), ("python_lists", "this package, writev_ipc_async"),
          ("uccl", "UCCL's package, writev_ipc_async"))


def read_lines(path):
    """The file's rows; none is what the caller counts as missing."""
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    if not rows:
        print(f"{path.name}: {'empty' if path.exists() else 'missing'}")
    return rows


def rate(row):
    """GB/s; of single transfers the median's, as it is what a caller sees."""
    if row["depth"] == 1:
        return row["size_bytes"] * row["blocks"] / row["latency_us_p50"] / 1e3
    return row["gbytes_per_second"]


def verdict(reached):
    return "reached" if reached else "below"


def between_gpus(row):
    return row["local"].startswith("cuda") and row["remote"].startswith("cuda")


def rows_of(work, perf):
    """The first row of each operation, None where there is none."""
    found = []
    for operation in work.operations:
        shape = {"op": operation, "transport": work.transport, "size_bytes": work.size, "blocks": work.blocks,
                 "depth": work.depth}
        found.append(next((row for row in perf if between_gpus(row) and shape.items() <= row.items()), None))
    return found


def print_works(perf):
    """How many are missing or unverified."""
    wrong = 0
    print(f"{'work, GB/s':42} {'write':>9} {'read':>9} {'to reach':>9}  {'reach':8} verified")
    for work in WORKS:
        rows = rows_of(work, perf)
        rates = [rate(row) for row in rows if row]
        cells = [f"{rate(row):9.1f}" if row else f"{'missing':>9}" for row in rows] + [f"{'':9}"]
        complete = len(rates) == len(rows)
        verified = complete and all(row["verified"] for row in rows)
        wrong += not verified
        reach = f"{work.reach:9}" if work.reach else f"{'':9}"
        mark = verdict(min(rates) >= work.reach) if work.reach and complete else ""
        print(f"{work.name:42} {cells[0]} {cells[1]} {reach}  {mark:8} {'yes' if verified else 'NO'}")
    return wrong


def print_with_host(perf):
    """How many are unverified of those that begin or end in host memory, for which no figure is set."""
    print(f"\n{'host memory at one end or both':62} {'GB/s':>9}  verified")
    rows = [row for row in perf if not between_gpus(row)]
    for row in rows:
        print(f"{work_of(row):62} {rate(row):9.1f}  {'yes' if row['verified'] else 'NO'}")
    return sum(not row["verified"] for row in rows)


def work_of(row):
    return (f"{row['transport']} {row['local']} -> {row['remote']} {row['op']} {row['blocks']} x {row['size_bytes']},"
            f" depth {row['depth']}")


def print_firsts(perf):
    """Of every row, also those between host and GPU."""
    print(f"\n{'first / tenth, us':62} {'first':>9} {'tenth':>9} {'ratio':>6}  reach")
    for row in perf:
        work = work_of(row)
        if row["pause_ms"]:
            work += f", {row['pause_ms']} ms apart"
        if row["awake"]:
            work += ", in use before"
        if not row["tenth_us"]:
            print(f"{work:62} {row['first_us']:9.1f} {'none':>9}")
            continue
        ratio = row["first_us"] / row["tenth_us"]
        print(f"{work:62} {row['first_us']:9.1f} {row['tenth_us']:9.1f} {ratio:6.1f}"
              f"  {'reached' if ratio <= FIRST_AGAINST_TENTH else 'above'}")


def print_parts(parts):
    """How many are missing or unverified. Kernels to and from the host stand beside the copy engine of that way."""
    engine = {(part["from"], part["to"]): part["gbytes_per_second"] for part in parts if part["what"] == "copy engine"}
    wrong = len(PARTS)
    print(f"\n{'without the engine':24} {'from':>10} -> {'to':10} {'block':>10} {'us':>10} {'GB/s':>8}"
          f" {'of engine':>9} {'to reach':>9}  {'reach':8} verified")
    for part in parts:
        speed, reach = part["gbytes_per_second"], PARTS.get(part["what"])
        limit = engine.get((part["from"], part["to"]))
        ratio = f"{speed / limit:9.2f}" if reach and limit else f"{'':9}"
        cells = f"{'':9}  {'':8}"
        if reach and part["block"] == 4 * KIB:
            wrong -= 1
            cells = f"{reach:9.1f}  {verdict(speed >= reach):8}"
        print(f"{part['what']:24} {part['from']:>10} -> {part['to']:10} {part['block']:>10} {part['us']:10.2f}"
              f" {speed:8.1f} {ratio} {cells} {'yes' if part['verified'] else 'NO'}")
        wrong += not part["verified"]
    return wrong


def print_python(out):
    for name, label in PYTHON:
        path = out / f"{name}.json"
        for row in json.loads(path.read_text())["rows"] if path.exists() else ():
            work = f"{label}, Python, {row['iovs']} x {row['size'] // row['iovs']} bytes"
            print(f"{work:62} {row['gigabytes_per_second']:9.2f} mean, median {row['median'] * 1e6:.1f} us")


def main():
    out = pathlib.Path(sys.argv[1])
    perf = read_lines(out / "perf.json")
    parts = read_lines(out / "parts.json")
    wrong = print_works(perf)
    wrong += print_with_host(perf)
    print_firsts(perf)
    wrong += print_parts(parts)
    print()
    print_python(out)
    if wrong:
        print(f"\n{wrong} rows are missing or were not verified")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
