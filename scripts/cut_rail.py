#!/usr/bin/env python3
# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""Cuts one of several rails that carry bytes, and tells from the kernel's counters when the others carry theirs and
when all do again. For scripts/rails.sh, in the network namespace of a host.

Usage: cut_rail.py LOST,OTHER,... CUT_COMMAND BACK_COMMAND
"""
import subprocess
import sys
import time
from pathlib import Path

STEP = 0.1  # seconds between looks
WINDOW = 10  # looks over which a rate is taken, the least
STEADY = 2.0  # seconds of the rates before
AWAY = 6.0  # seconds for which the rail is gone
PATIENCE = 20.0
ENOUGH = 0.95


class Rails:
    """What interfaces carry, look by look."""

    def __init__(self, names: list[str]) -> None:
        self.files = [Path(f"/sys/class/net/{name}/statistics/{way}_bytes") for name in names for way in ("rx", "tx")]
        self.looks: list[tuple[float, list[int]]] = []

    def look(self) -> None:
        counts = [int(file.read_text()) for file in self.files]
        self.looks.append((time.monotonic(), [a + b for a, b in zip(counts[::2], counts[1::2])]))

    def rates(self, first: int, last: int = -1) -> list[float]:
        """Bytes a second of each, from one look to another."""
        (begin, before), (end, after) = self.looks[first], self.looks[last]
        return [(b - a) / (end - begin) for a, b in zip(before, after)]

    def watch(self, seconds: float) -> int:
        """Looks for so long; how many looks there were."""
        count, end = 0, time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(STEP)
            self.look()
            count += 1
        return count

    def first(self, since: int, until: int, least: list[float]) -> float | None:
        """How long after a look the last rails began to carry the sum of `least`, at first and up to another look."""
        for i in range(since, until - WINDOW + 1):
            if all(sum(self.rates(i, end)[-len(least) :]) >= ENOUGH * sum(least) for end in (i + WINDOW, until)):
                return self.looks[i][0] - self.looks[since][0]
        return None


def flowing(rails: Rails) -> list[float]:
    """The rates, once all rails have carried about the same for a while."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        count = rails.watch(STEADY)
        half = rails.rates(-count // 2)
        rates = rails.rates(-count)
        if all(rate > 1e5 and abs(now - rate) < rate / 20 for now, rate in zip(half, rates)):
            return rates
    sys.exit(f"cut_rail: no steady rates within {PATIENCE:.0f} s")


def describe(when: float | None) -> str:
    return "never" if when is None else f"after {max(when, 0):.1f} s"


def main() -> None:
    names, (cut, back) = sys.argv[1].split(","), sys.argv[2:]
    rails = Rails(names)
    rails.look()
    before = flowing(rails)
    others = before[1:]
    lost_at = len(rails.looks) - 1
    subprocess.run(cut, shell=True, check=True)
    rails.watch(AWAY)
    subprocess.run(back, shell=True, check=True)
    rails.look()
    back_at = len(rails.looks) - 1
    rails.watch(AWAY)
    apart = rails.first(lost_at, back_at, others)
    together = rails.first(back_at, len(rails.looks) - 1, before)
    print(
        f"{sum(before) * 8e-6:.0f} Mbit/s; without {names[0]} the others carry {ENOUGH} of theirs {describe(apart)},"
        f" {sum(rails.rates(lost_at, back_at)[1:]) / sum(others):.3f} over all; all again {describe(together)}"
    )


if __name__ == "__main__":
    main()
