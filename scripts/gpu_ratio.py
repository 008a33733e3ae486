#!/usr/bin/env python3
# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""Prints how fast net plugins carry GPU memory against tcp, by the logs of gpu_tcpx.sh.

Usage: gpu_ratio.py OUT WANTED. One line for each work and operation, the better of the rounds of each transport.
One below WANTED is marked and no failure; exits with 1 if a row is missing.
"""

import json
import pathlib
import sys

WORKS = (("256 MiB", "engine"), ("40 960 blocks of 4 KiB", "engine_blocks"))


def best(out, work, transport, operation):
    """GB/s of the best round; None where there is none."""
    rates = []
    for log in sorted(out.glob(f"{work}_{transport}_[0-9].log")):
        rows = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
        rates += [row["gbytes_per_second"] for row in rows if row["op"] == operation]
    return max(rates, default=None)


def main(out, wanted):
    missing = False
    for name, work in WORKS:
        for operation in ("write", "read"):
            ours, tcp = (best(out, work, transport, operation) for transport in ("tcpx", "tcp"))
            if not ours or not tcp:
                print(f"figure ratio {name}, {operation}: a row is missing")
                missing = True
                continue
            verdict = "reached" if ours >= wanted * tcp else "below"
            print(f"figure ratio {name}, {operation}: nccl_net {ours:.1f}, tcp {tcp:.1f} GB/s, "
                  f"{ours / tcp:.2f} of {wanted}: {verdict}")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1]), float(sys.argv[2])))
