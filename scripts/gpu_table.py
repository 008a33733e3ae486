#!/usr/bin/env python3
# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""Prints what gpu_check.sh measured as one table, with the limits measured in the same run.

Usage: gpu_table.py OUT. Reads perf.json (gpu_perf.sh), parts.json (gpu_copy_bench) and what is there of nccl.json.
Exits with 1 if a row is missing or was not verified.
"""

import json
import pathlib
import sys

GPU, MIB = "cuda", 1 << 20

# work, transport, bytes of a block, blocks, in flight, GB/s to reach between two H200s of one host
ROWS = (
    ("tcp, 256 MiB", "tcp", 256 * MIB, 1, 2, 40),
    ("tcp, 40 960 blocks of 4 KiB", "tcp", 4096, 40960, 2, 35),
    ("tcp, 10 000 blocks of 16 KiB", "tcp", 16384, 10000, 2, 38),
    ("cuda_ipc, 256 MiB", "cuda_ipc", 256 * MIB, 1, 4, 380),
    ("cuda_ipc, 1 MiB, one at a time, p50", "cuda_ipc", MIB, 1, 1, 100),
    ("cuda_ipc, 64 KiB, one at a time, p50", "cuda_ipc", 65536, 1, 1, 10),
    ("cuda_ipc, 40 960 blocks of 4 KiB", "cuda_ipc", 4096, 40960, 2, 330),
    ("cuda_ipc, 10 000 blocks of 16 KiB", "cuda_ipc", 16384, 10000, 2, 330),
)


def read_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def rate(row):
    """GB/s; of single transfers the median's, as it is what a caller sees."""
    if row["depth"] == 1:
        return row["size_bytes"] * row["blocks"] / row["latency_us_p50"] / 1e3
    return row["gbytes_per_second"]


def between_gpus(rows):
    return [row for row in rows if row["local"].startswith(GPU) and row["remote"].startswith(GPU)]


def print_firsts(rows):
    """The first transfer after registration against the tenth, of all rows; 2 is the most that it should be."""
    print(f"\n{'first against tenth, us':58} {'first':>9} {'tenth':>9} {'ratio':>6}")
    for row in rows:
        work = (f"{row['transport']} {row['local']} -> {row['remote']} {row['op']} {row['blocks']} x"
                f" {row['size_bytes']}, depth {row['depth']}")
        ratio = row["first_us"] / row["tenth_us"]
        print(f"{work:58} {row['first_us']:9.1f} {row['tenth_us']:9.1f} {ratio:6.1f}{'' if ratio <= 2 else '  above 2'}")
    print()


def main():
    out = pathlib.Path(sys.argv[1])
    everything = read_lines(out / "perf.json")
    perf = between_gpus(everything)
    parts = read_lines(out / "parts.json")
    missing = 0
    print(f"{'work':42} {'write':>9} {'read':>9} {'reach':>6}  {'first/tenth':>13}  verified")
    for work, transport, size, blocks, depth, reach in ROWS:
        cells, verified, starts = [], True, []
        for operation in ("write", "read"):
            shape = {"op": operation, "transport": transport, "size_bytes": size, "blocks": blocks, "depth": depth}
            row = next((row for row in perf if shape.items() <= row.items()), None)
            cells.append(f"{rate(row):9.1f}" if row else f"{'missing':>9}")
            verified = verified and bool(row and row["verified"])
            starts += [f"{row['first_us'] / row['tenth_us']:.1f}"] if row else []
        missing += not verified
        print(f"{work:42} {cells[0]} {cells[1]} {reach:6}  {' / '.join(starts):>13}  {'yes' if verified else 'NO'}")
    print_firsts(everything)
    for part in parts:
        print(f"{part['what']:24} {part['from']:>10} -> {part['to']:10} {part['block']:>10} {part['us']:10.2f} us"
              f" {part['gbytes_per_second']:8.1f}  {'yes' if part['verified'] else 'NO'}")
        missing += not part["verified"]
    for name in ("nccl", "uccl", "uccl_ipc"):
        path = out / f"{name}.json"
        for row in json.loads(path.read_text())["rows"] if path.exists() else ():
            print(f"{name + ' (Python), ' + str(row['size']) + ' bytes':42} {row['gigabytes_per_second']:9.2f} mean,"
                  f" median {row['median'] * 1e6:.1f} us")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
