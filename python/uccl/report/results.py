# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""What the files tell: works by who did them, and what machines reach without an engine."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

_UNITS = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))

@dataclass(frozen=True)
class Limit:
    """A figure that needs no engine: what the machine gives."""

    name: str
    value: float
    unit: str
    key: str = ""  # tells what was measured; empty: the name


@dataclass(frozen=True)
class Point:
    """One row of a benchmark: transfers of so many bytes."""

    size: int
    blocks: int
    gigabytes: float  # GB/s
    p50: float  # of one transfer, in microseconds; 0: not measured
    p99: float
    verified: bool | None = None  # None: nobody looked
    transport: str = ""  # of this engine; empty: unknown
    raw: Limit | None = None  # what the machine gives for the same work

    @property
    def messages(self) -> float:
        """Transfers a second."""
        return self.gigabytes * 1e9 / self.size if self.size else 0

    @property
    def share(self) -> float:
        """Of what the machine gives; 0: unknown."""
        if self.raw is None:
            return 0
        if self.raw.unit == "us":
            return self.raw.value / self.p50 if self.p50 else 0
        return self.gigabytes / self.raw.value if self.raw.value else 0


@dataclass
class Work:
    """What can be compared: one operation, with one number of transfers at once, in one or in many blocks."""

    operation: str
    depth: int
    many: bool

    @property
    def at_once(self) -> str:
        return "one at a time" if self.depth == 1 else f"{self.depth} in flight"

    @property
    def title(self) -> str:
        return f"{self.operation}, {self.at_once}{', in blocks' if self.many else ''}"

    def order(self) -> tuple[bool, int, int]:
        """Among works of one size."""
        known = ("write", "read", "send", "notify")
        return self.many, known.index(self.operation) if self.operation in known else len(known), -self.depth

    def key(self) -> tuple[str, int, bool]:
        return self.operation, self.depth, self.many


@dataclass
class Results:
    """All that the files tell: points by work and by who did it, and limits."""

    works: dict[tuple[str, int, bool], tuple[Work, dict[str, list[Point]]]] = field(default_factory=dict)
    limits: list[Limit] = field(default_factory=list)
    machines: list[str] = field(default_factory=list)
    date: str = ""  # of the newest figure, as 2026-11-27

    def note(self, machine: str, date: str) -> None:
        """Where and when something was measured; either may be unknown."""
        if machine and machine not in self.machines:
            self.machines.append(machine)
        self.date = max(self.date, date)

    def typical(self) -> list[tuple[Work, str, Point]]:
        """Of what was measured again and again the middle one, big transfers first."""
        found = []
        for work, by_series in self.works.values():
            for series, points in by_series.items():
                same: dict[tuple[int, int], list[Point]] = {}
                for point in points:
                    same.setdefault((point.size, point.blocks), []).append(point)
                for group in same.values():
                    found.append((work, series, sorted(group, key=lambda point: point.gigabytes)[len(group) // 2]))
        return sorted(found, key=lambda one: (-one[2].size, one[0].order(), one[1]))

    def add(self, work: Work, series: str, point: Point) -> None:
        _, by_series = self.works.setdefault(work.key(), (work, {}))
        by_series.setdefault(series, []).append(point)


class NotOurs(ValueError):
    """A file that no tool of ours, and no peer that we know, writes."""


def _perf_row(results: Results, label: str, row: dict[str, Any]) -> None:
    size, blocks = int(row["size_bytes"]), int(row["blocks"])
    streams = f", {row['streams']} streams" if row.get("streams") else ""
    series = label or f"uccl_p2p {row['transport']}{streams}"
    point = Point(
        size * blocks, blocks, float(row["gbytes_per_second"]), float(row["latency_us_p50"]),
        float(row["latency_us_p99"]), bool(row["verified"]), str(row["transport"]),
    )  # fmt: skip
    results.note(str(row.get("machine", "")), str(row.get("date", "")))
    results.add(Work(str(row["op"]), int(row["depth"]), blocks > 1), series, point)


def _benchmark(results: Results, label: str, report: dict[str, Any]) -> None:
    """The form of python/benchmarks."""
    settings = report.get("settings", {})
    name = str(report["benchmark"])
    words = name.split()
    operation = str(settings.get("op") or (words[-1] if words[-1] in ("write", "read", "send/recv") else "transfer"))
    operation = {"WRITE": "write", "READ": "read", "send/recv": "send"}.get(operation, operation)
    if name.startswith("torch.distributed"):
        operation = "send"
    series = label or " ".join(str(part) for part in (name, settings.get("backend")) if part)
    for row in report["rows"]:
        point = Point(
            int(row["size"]), int(row["iovs"]), float(row["gigabytes_per_second"]), float(row["median"]) * 1e6,
            float(row["p99"]) * 1e6,
        )  # fmt: skip
        results.add(Work(operation, int(settings.get("depth", 1)), point.blocks > 1), series, point)


def _tcpx(results: Results, label: str, row: dict[str, Any]) -> None:
    size, channels = int(row["bytes"]), int(row["channels"])
    series = label or f"tcpx, {channels} channel{'s' if channels > 1 else ''}"
    point = Point(size, 1, float(row["gb_per_s"]), float(row["median_us"]), 0, bool(row["verified"]))
    results.add(Work("send", 1, False), series, point)


def _comparison(results: Results, label: str, row: dict[str, Any]) -> None:
    """A row of compare_perf.py: the same work by two programs."""
    blocks, depth = int(row["blocks"]), int(row["depth"])
    for by in ("python", "perf"):
        series = f"{label or row['transport']}, {'Python' if by == 'python' else 'p2p-perf'}"
        point = Point(int(row["size_bytes"]) * blocks, blocks, float(row[by]), 0, 0)
        results.add(Work("write", depth, blocks > 1), series, point)


def _doctor(results: Results, label: str, report: dict[str, Any]) -> None:
    """What it measured, and what the machine reached without the engine."""
    for finding in report["findings"]:
        if finding.get("bytes"):
            point = Point(int(finding["bytes"]), 1, float(finding["gbytes_per_second"]), 0, 0, raw=_doctors_raw(label, finding))
            results.add(Work("write", 1, False), label or f"p2p-doctor, {finding['name']}", point)
        if raw := _doctors_raw(label, finding):
            results.limits.append(raw)


def _doctors_raw(label: str, finding: dict[str, Any]) -> Limit | None:
    if not finding.get("raw_gbytes_per_second"):
        return None
    name = str(finding["raw"])
    return Limit(label or name, float(finding["raw_gbytes_per_second"]), "GB/s", name)


def _iperf(results: Results, label: str, report: dict[str, Any]) -> None:
    received = report["end"]["sum_received"]
    streams = len(report["start"].get("connected", [])) or 1
    name = label or f"iperf3, {streams} stream{'s' if streams > 1 else ''}"
    results.limits.append(Limit(name, float(received["bits_per_second"]) / 8e9, "GB/s"))


def _take(results: Results, label: str, value: Any) -> None:
    if not isinstance(value, dict):
        raise NotOurs("it is no JSON object")
    if "gbytes_per_second" in value and "size_bytes" in value:
        _perf_row(results, label, value)
    elif {"name", "value", "unit"} <= value.keys():
        name = label or str(value.get("text") or value["name"]).rstrip()
        results.limits.append(Limit(name, float(value["value"]), str(value["unit"]), str(value["name"])))
    elif {"benchmark", "rows"} <= value.keys():
        _benchmark(results, label, value)
    elif "gb_per_s" in value and "channels" in value:
        _tcpx(results, label, value)
    elif {"python", "perf", "ratio"} <= value.keys():
        _comparison(results, label, value)
    elif {"healthy", "findings"} <= value.keys():
        _doctor(results, label, value)
    elif "end" in value and "sum_received" in value["end"]:
        _iperf(results, label, value)
    else:
        raise NotOurs(f"an object with {', '.join(sorted(value)[:5])} is of no tool that is known here")


def read(arguments: Iterable[str]) -> Results:
    """What is in files, each given as FILE or LABEL=FILE; NotOurs if one cannot be understood."""
    results = Results()
    for argument in arguments:
        label, _, path = argument.rpartition("=") if not Path(argument).exists() else ("", "", argument)
        text = Path(path).read_text(encoding="utf-8")
        try:
            try:
                values = [json.loads(text)]
            except json.JSONDecodeError:
                values = [json.loads(line) for line in text.splitlines() if line.strip()]
            for value in values:
                for one in value if isinstance(value, list) and value else [value]:
                    _take(results, label, one)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise NotOurs(f"{path}: {error!r}" if isinstance(error, (KeyError, TypeError)) else f"{path}: {error}") from None
        written = datetime.fromtimestamp(Path(path).stat().st_mtime, timezone.utc).date().isoformat()
        results.note("", "" if '"date"' in text else written)
    for _, by_series in results.works.values():
        for points in by_series.values():
            points.sort(key=lambda point: (point.size, point.blocks))
    results.limits = _medians_of_limits(results.limits)
    _compare(results)
    return results


# What the machine was measured to give for lists of blocks of one size: by transport and size.
_RAW_OF_LISTS = {
    ("tcp", 4096): "tcp_blocks_4k",
    ("tcp", 16384): "tcp_blocks_16k",
    ("cma", 4096): "process_vm_writev_blocks",
}
_RAW_OF_STREAMS = {"tcp": "tcp_stream", "cma": "process_vm_writev"}
_STREAM_BYTES = 16 << 20  # from here on a cache does not hold them, as it does not where the machine was measured


def _compare(results: Results) -> None:
    """Tells each point what the machine gives for its work."""
    limits = {limit.key or limit.name: limit for limit in results.limits}
    for work, by_series in results.works.values():
        for points in by_series.values():
            for number, point in enumerate(points):
                raw = limits.get(_raw_key(work, point))
                if raw is not None and point.raw is None:
                    points[number] = replace(point, raw=raw)


def _raw_key(work: Work, point: Point) -> str:
    if work.operation not in ("write", "read"):
        return ""
    if work.many:
        return _RAW_OF_LISTS.get((point.transport, point.size // point.blocks), "")
    if point.size >= _STREAM_BYTES:
        return _RAW_OF_STREAMS.get(point.transport, "")
    once = work.operation == "write" and work.depth == 1 and point.size == 4096
    return "tcp_round_trip_4k" if once and point.transport == "tcp" else ""


def _medians_of_limits(limits: list[Limit]) -> list[Limit]:
    """One of each: what is measured again in each round of a sweep."""
    by_key: dict[tuple[str, str], list[Limit]] = {}
    for limit in limits:
        by_key.setdefault((limit.key or limit.name, limit.unit), []).append(limit)
    return [sorted(same, key=lambda limit: limit.value)[len(same) // 2] for same in by_key.values()]


def size_text(size: float) -> str:
    """65536 is '64 KiB'."""
    for unit, scale in _UNITS:
        if size >= scale:
            return f"{size / scale:.4g} {unit}"
    return f"{size:.0f} B"


def medians(points: list[Point], figure: Callable[[Point], float]) -> tuple[list[int], list[float]]:
    """Of each size, the median of what was measured: sweeps are repeated."""
    by_size: dict[int, list[float]] = {}
    for point in points:
        if figure(point) > 0:
            by_size.setdefault(point.size, []).append(figure(point))
    sizes = sorted(by_size)
    return sizes, [sorted(by_size[size])[len(by_size[size]) // 2] for size in sizes]
