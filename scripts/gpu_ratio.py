#!/usr/bin/env python3
# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""Prints how fast net plugins carry GPU memory against tcp, by the logs of gpu_tcpx.sh.

Usage: gpu_ratio.py OUT WANTED. One line for each build, work and operation: the medians of the rounds of nccl_net and of
tcp, and their ratio; what all rounds reached stands behind it. One below WANTED is marked and no failure; exits with 1
if a row is missing.
"""

import json
import pathlib
import re
import statistics
import sys

WORKS = (("256 MiB", "engine"), ("40 960 blocks of 4 KiB", "engine_blocks"))


def rates(out, work, label, operation):
    """GB/s of each round, in their order."""
    found = []
    logs = [log for log in out.glob(f"{work}_{label}_*.log") if re.fullmatch(rf"{work}_{label}_\d+", log.stem)]
    for log in sorted(logs, key=lambda log: int(log.stem.rsplit("_", 1)[1])):
        rows = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
        found += [row["gbytes_per_second"] for row in rows if row["op"] == operation]
    return found


def listed(numbers):
    return " ".join(f"{number:.1f}" for number in numbers)


def main(out, wanted):
    others = {match[1] for log in out.glob("engine_against*_1.log")
              if (match := re.fullmatch(r"engine_(against\d+)_1", log.stem))}
    missing = False
    for name, work in WORKS:
        for operation in ("write", "read"):
            tcp = rates(out, work, "tcp", operation)
            for label in ("tcpx", *sorted(others)):
                ours = rates(out, work, label, operation)
                row = f"figure ratio {name}, {operation}{'' if label == 'tcpx' else ', ' + label}"
                if not ours or not tcp:
                    print(f"{row}: a row is missing")
                    missing = True
                    continue
                here, there = statistics.median(ours), statistics.median(tcp)
                verdict = "reached" if here >= wanted * there else "below"
                print(f"{row}: nccl_net {here:.1f}, tcp {there:.1f} GB/s, {here / there:.2f} of {wanted}: {verdict} "
                      f"({listed(ours)}; {listed(tcp)})")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1]), float(sys.argv[2])))
