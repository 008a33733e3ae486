# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""What every benchmark script prints and writes: one table, one JSON form, one picture."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

DEFAULT_SIZES = "256,1K,4K,16K,64K,256K,1M,10M,16M,100M"
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def parse_size(text: str) -> int:
    """Bytes of '64K', '1M', '100' (powers of 1024)."""
    text = text.strip().upper().removesuffix("IB").removesuffix("B")
    unit = text[-1] if text[-1:] in _UNITS and text[-1:] else ""
    number = text.removesuffix(unit) if unit else text
    size = int(number) * _UNITS[unit]
    if size <= 0:
        raise ValueError(f"{text!r} is not a size")
    return size


def parse_sizes(text: str) -> list[int]:
    """The sizes of a list such as '4K,1M'."""
    return [parse_size(part) for part in text.split(",")]


def parse_list(text: str) -> list[tuple[int, int]]:
    """Counts and sizes of a list such as '10000x16K,40960x4K'."""
    shapes = []
    for part in text.split(",") if text else []:
        count, _, size = part.partition("x")
        if not count.isdecimal() or int(count) == 0:
            raise ValueError(f"{part!r} is not a number of blocks and their size")
        shapes.append((int(count), parse_size(size)))
    return shapes


def size_text(size: int) -> str:
    """The shortest exact form: 65536 is '64 KiB'."""
    for unit in ("GiB", "MiB", "KiB"):
        scale = _UNITS[unit[0]]
        if size >= scale and size % scale == 0:
            return f"{size // scale} {unit}"
    return f"{size} B"


@dataclass(frozen=True)
class Row:
    """One size: bytes of one operation over all its pieces, and how long operations took."""

    size: int
    iovs: int
    iters: int
    seconds: float  # of one operation, mean
    median: float
    p99: float

    @property
    def gigabytes(self) -> float:
        """GB/s (10^9 bytes)."""
        return self.size / self.seconds / 1e9


def measure(size: int, iovs: int, iters: int, operation: Callable[[], None], warmup: int = 3) -> Row:
    """Runs an operation and keeps the time of each run; each must be complete when it returns."""
    for _ in range(min(warmup, iters)):
        operation()
    times = []
    for _ in range(iters):
        start = time.perf_counter()
        operation()
        times.append(time.perf_counter() - start)
    ordered = sorted(times)
    return Row(
        size=size,
        iovs=iovs,
        iters=iters,
        seconds=statistics.fmean(times),
        median=statistics.median(times),
        p99=ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))],
    )


def progress(sizes: Iterable[int], label: str, quiet: bool) -> Iterable[int]:
    """The sizes, with a bar on a terminal's standard error (where tqdm is installed)."""
    if quiet:
        return sizes
    try:
        from tqdm import tqdm
    except ImportError:
        return sizes
    return tqdm(list(sizes), desc=label, file=sys.stderr, disable=None, leave=False)


class Report:
    """Collects the rows of one side of one run."""

    def __init__(self, name: str, settings: dict[str, Any]) -> None:
        self.name = name
        self.settings = settings
        self.rows: list[Row] = []
        self.extra: dict[str, Any] = {}  # further members of the JSON

    def add(self, row: Row) -> None:
        self.rows.append(row)

    def table(self) -> str:
        """The rows as text: size, GB/s, and mean, median and 99th percentile in microseconds."""
        settings = ", ".join(f"{key}={value}" for key, value in self.settings.items())
        lines = [f"{self.name} ({settings})"]
        lines.append(f"{'size':>10} {'iovs':>7} {'iters':>6} {'GB/s':>9} {'mean us':>11} {'median us':>11} {'p99 us':>11}")
        for row in self.rows:
            lines.append(
                f"{size_text(row.size):>10} {row.iovs:>7} {row.iters:>6} {row.gigabytes:>9.3f} "
                f"{row.seconds * 1e6:>11.1f} {row.median * 1e6:>11.1f} {row.p99 * 1e6:>11.1f}"
            )
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        rows = [{**asdict(row), "gigabytes_per_second": row.gigabytes} for row in self.rows]
        return {"benchmark": self.name, "settings": self.settings, "rows": rows, **self.extra}

    def plot(self, path: str) -> None:
        """Writes bandwidth over size as a PNG; needs matplotlib."""
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot

        figure, axes = pyplot.subplots(figsize=(8, 5), layout="constrained")
        axes.plot([row.size for row in self.rows], [row.gigabytes for row in self.rows], marker="o")
        axes.set_xscale("log", base=2)
        axes.set_xlabel("bytes of one operation")
        axes.set_ylabel("GB/s")
        axes.set_title(self.name)
        axes.grid(True, alpha=0.3)
        figure.savefig(path, dpi=120)
        pyplot.close(figure)

    def finish(self, arguments: argparse.Namespace) -> None:
        """Prints the table and writes what the command line asks for."""
        print(self.table(), flush=True)
        if arguments.json:
            with open(arguments.json, "w", encoding="utf-8") as file:
                json.dump(self.to_json(), file, indent=2)
        if arguments.plot:
            self.plot(arguments.plot)


def default_device() -> str:
    """The GPU where torch sees one."""
    try:
        import torch
    except ModuleNotFoundError:
        return "cpu"
    return "gpu" if torch.cuda.is_available() else "cpu"


def announce(backend: str, device: str, transport: str) -> None:
    """The first line of a run: what is about to be measured."""
    memory = "GPU memory" if device == "gpu" else "host memory, pageable"
    print(f"backend {backend}, device {device}, transport {transport}, {memory}", flush=True)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that all benchmarks share."""
    parser.add_argument(
        "--sizes", type=parse_sizes, default=DEFAULT_SIZES, help="bytes of one operation, e.g. 4K,1M"
    )
    parser.add_argument("--iters", type=int, default=10, help="operations of each size")
    parser.add_argument(
        "--device", choices=("cpu", "gpu"), default=default_device(), help="where the memory is; here %(default)s"
    )
    parser.add_argument("--local-gpu-idx", type=int, default=None, help="default: LOCAL_RANK")
    parser.add_argument("--json", metavar="FILE", help="write the rows as JSON")
    parser.add_argument("--plot", metavar="FILE.png", help="draw bandwidth over size")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
