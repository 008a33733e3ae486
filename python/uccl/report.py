# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""One page of tables and plots, without outside resources, from the JSON of p2p-perf, tcpx, p2p-doctor, compare_perf.py,
the benchmark scripts and iperf3.

A file may be given as LABEL=FILE; the label then stands for what was measured in it. Plots need matplotlib.
"""

from __future__ import annotations

import argparse
import html
import io
import json
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_UNITS = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))

# Of lines, told apart by people who see colours differently, on light and on dark.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6bb1", "#7f7f7f")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")

# Stands for the page's own colour of text while matplotlib draws.
_INK = "#123456"


@dataclass(frozen=True)
class Point:
    """One row of a benchmark: transfers of so many bytes."""

    size: int
    blocks: int
    gigabytes: float  # GB/s
    p50: float  # of one transfer, in microseconds; 0: not measured
    p99: float
    verified: bool | None = None  # None: nobody looked


@dataclass(frozen=True)
class Limit:
    """A figure that needs no engine: what the machine gives."""

    name: str
    value: float
    unit: str
    key: str = ""  # tells what was measured; empty: the name


@dataclass
class Work:
    """What can be compared: one operation, with one number of transfers at once, in one or in many blocks."""

    operation: str
    depth: int
    many: bool

    @property
    def title(self) -> str:
        at_once = "one at a time" if self.depth == 1 else f"{self.depth} in flight"
        return f"{self.operation}, {at_once}{', in blocks' if self.many else ''}"

    def key(self) -> tuple[str, int, bool]:
        return self.operation, self.depth, self.many


@dataclass
class Results:
    """All that the files tell: points by work and by who did it, and limits."""

    works: dict[tuple[str, int, bool], tuple[Work, dict[str, list[Point]]]] = field(default_factory=dict)
    limits: list[Limit] = field(default_factory=list)

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
        float(row["latency_us_p99"]), bool(row["verified"]),
    )  # fmt: skip
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
            point = Point(int(finding["bytes"]), 1, float(finding["gbytes_per_second"]), 0, 0)
            results.add(Work("write", 1, False), label or f"p2p-doctor, {finding['name']}", point)
        if finding.get("raw_gbytes_per_second"):
            name = str(finding["raw"])
            results.limits.append(Limit(label or name, float(finding["raw_gbytes_per_second"]), "GB/s", name))


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
        name = label or str(value.get("text") or value["name"])
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
    for _, by_series in results.works.values():
        for points in by_series.values():
            points.sort(key=lambda point: (point.size, point.blocks))
    results.limits = _medians_of_limits(results.limits)
    return results


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


def _medians(points: list[Point], figure: Callable[[Point], float]) -> tuple[list[int], list[float]]:
    """Of each size, the median of what was measured: sweeps are repeated."""
    by_size: dict[int, list[float]] = {}
    for point in points:
        if figure(point) > 0:
            by_size.setdefault(point.size, []).append(figure(point))
    sizes = sorted(by_size)
    return sizes, [sorted(by_size[size])[len(by_size[size]) // 2] for size in sizes]


def _letter(number: int) -> str:
    """What stands at a line in place of its name."""
    return chr(ord("a") + number) if number < 26 else str(number)


class Plots:
    """Draws with matplotlib, as SVG that takes its colours from the page."""

    def __init__(self) -> None:
        import matplotlib

        matplotlib.use("svg")
        self._matplotlib = matplotlib
        self._number = 0
        self._places: dict[str, int] = {}  # of series: each looks the same in all plots

    def draw(self, by_series: dict[str, list[Point]], figures: list[tuple[str, Callable[[Point], float]]],
             limits: list[Limit], label: str, logarithmic: bool) -> str:  # fmt: skip
        """One plot over size; of several figures, each with a line of its own kind. Empty if there is nothing."""
        from matplotlib import pyplot
        from matplotlib.ticker import FuncFormatter

        self._number += 1
        drawn = 0
        style: Any = {
            "svg.fonttype": "none", "svg.hashsalt": f"plot{self._number}", "font.family": "sans-serif", "font.size": 12,
            "axes.edgecolor": _INK, "axes.labelcolor": _INK, "xtick.color": _INK, "ytick.color": _INK,
            "text.color": _INK, "axes.spines.top": False, "axes.spines.right": False,
        }  # fmt: skip
        with self._matplotlib.rc_context(style):
            figure, axes = pyplot.subplots(figsize=(5.2, 3.9), layout="constrained")
            for series, points in by_series.items():
                number = self._places.setdefault(series, len(self._places))
                for dashes, (name, of) in zip(("-", ":"), figures, strict=False):
                    sizes, values = _medians(points, of)
                    if not sizes:
                        continue
                    drawn += 1
                    axes.plot(
                        sizes, values, dashes, marker=_MARKERS[number % len(_MARKERS)], markersize=4.5,
                        color=_COLOURS[number % len(_COLOURS)], label=f"{series} {name}".strip(),
                    )  # fmt: skip
            if not drawn:
                pyplot.close(figure)
                return ""
            for number, limit in enumerate(limits):
                axes.axhline(limit.value, linestyle="--", linewidth=1, color=_INK, alpha=0.6)
                # Each at a place of its own: lines may lie close together.
                axes.annotate(
                    _letter(number), (0.02 + 0.05 * (number % 19), limit.value), xycoords=("axes fraction", "data"),
                    xytext=(0, 1), textcoords="offset points", fontsize=11,
                )  # fmt: skip
            axes.set_xscale("log", base=2)
            if logarithmic:
                axes.set_yscale("log")
            else:
                axes.set_ylim(bottom=0)
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: size_text(value)))
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axes.tick_params(axis="x", labelrotation=35)
            axes.set_ylabel(label)
            axes.grid(True, color=_INK, alpha=0.15)
            figure.legend(loc="outside lower center", ncols=2 if drawn > 3 else 1, frameon=False, fontsize=11)
            out = io.StringIO()
            figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
            pyplot.close(figure)
        return self._own(out.getvalue(), label)

    def _own(self, svg: str, label: str) -> str:
        """As a part of the page: its colours, names of its own, as wide as there is room."""
        svg = svg[svg.index("<svg") :]
        svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
        svg = svg.replace(_INK, "currentColor")
        svg = re.sub(r'(<svg [^>]*?)\s(?:width|height)="[^"]*"', r"\1", svg, count=1)
        svg = re.sub(r'(<svg [^>]*?)\s(?:width|height)="[^"]*"', r"\1", svg, count=1)
        svg = re.sub(r'\bid="', f'id="p{self._number}_', svg)
        svg = re.sub(r'href="#', f'href="#p{self._number}_', svg)
        svg = re.sub(r"url\(#", f"url(#p{self._number}_", svg)
        return svg.replace("<svg ", f'<svg role="img" aria-label="{html.escape(label)} over size" ', 1)


_STYLE = """
:root { color-scheme: light dark; --ink: #1c1e21; --page: #ffffff; --soft: #5f6670; --line: #d9dce1; --card: #f6f7f9; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e8eb; --page: #14161a; --soft: #9aa2ad; --line: #343a43; --card: #1c2026; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 78rem; padding: 1rem; color: var(--ink); background: var(--page);
  font: 16px/1.45 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
h1 { font-size: 1.5rem; margin: .4rem 0; } h2 { font-size: 1.15rem; margin: 2rem 0 .6rem; }
p { margin: .4rem 0; color: var(--soft); }
.plots { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); }
figure { margin: 0; padding: .6rem; background: var(--card); border: 1px solid var(--line); border-radius: .5rem; }
figcaption { font-size: .9rem; color: var(--soft); } figure svg { display: block; width: 100%; height: auto; }
.wide { overflow-x: auto; margin-top: .8rem; }
table { border-collapse: collapse; font-size: .875rem; font-variant-numeric: tabular-nums; min-width: 100%; }
th, td { padding: .3rem .6rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; white-space: normal; } th { font-weight: 600; color: var(--soft); }
.bad { color: #c62828; font-weight: 600; } summary { cursor: pointer; color: var(--soft); margin-top: .8rem; }
"""


def _table(heads: list[str], rows: list[list[str]]) -> str:
    head = "".join(f"<th>{html.escape(text)}</th>" for text in heads)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _number(value: float) -> str:
    if value <= 0:
        return "-"
    return f"{value:.2f}" if value < 100 else f"{value:,.0f}"


def _points_table(by_series: dict[str, list[Point]]) -> str:
    rows = []
    for series, points in by_series.items():
        for point in points:
            checked = {None: "-", True: "yes", False: '<span class="bad">NO</span>'}[point.verified]
            rows.append(
                [html.escape(series), size_text(point.size), str(point.blocks), _number(point.gigabytes),
                 _number(point.p50), _number(point.p99), checked]
            )  # fmt: skip
    return _table(["by", "size", "blocks", "GB/s", "p50 us", "p99 us", "checked"], rows)


def _section(work: Work, by_series: dict[str, list[Point]], limits: list[Limit], plots: Plots) -> str:
    speeds = [limit for limit in limits if limit.unit == "GB/s"]
    drawn = (
        ("GB/s", plots.draw(by_series, [("", lambda point: point.gigabytes)], speeds, "GB/s", False)),
        (
            "us, p50 and p99",
            plots.draw(by_series, [("p50", lambda point: point.p50), ("p99", lambda point: point.p99)], [], "us", True),
        ),
    )
    names = "; ".join(f"<b>{_letter(number)}</b> {html.escape(limit.name)}" for number, limit in enumerate(speeds))
    figures = "".join(
        f"<figure><figcaption>{caption}, over bytes of a transfer</figcaption>{svg}"
        + (f"<figcaption>{names}</figcaption>" if names and caption == "GB/s" else "")
        + "</figure>"
        for caption, svg in drawn
        if svg
    )
    return (
        f'<section><h2>{html.escape(work.title)}</h2><div class="plots">{figures}</div>'
        f"<details><summary>All rows</summary>{_points_table(by_series)}</details></section>"
    )


def page(results: Results, title: str) -> str:
    """The whole page."""
    plots = Plots()
    sections = "".join(
        _section(work, by_series, results.limits, plots)
        for _, (work, by_series) in sorted(results.works.items(), key=lambda entry: entry[0])
    )
    limits = ""
    if results.limits:
        rows = [[html.escape(one.name), _number(one.value), html.escape(one.unit)] for one in results.limits]
        limits = "<section><h2>The machine without an engine</h2>" + _table(["what", "figure", "unit"], rows) + "</section>"
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head><body><h1>{html.escape(title)}</h1>"
        "<p>Lines are medians of what was measured at a size; dashed lines are what the machine does without an engine."
        "</p>"
        f"{sections}{limits}</body></html>\n"
    )


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="p2p-perf report", description=__doc__)
    parser.add_argument("files", nargs="+", metavar="FILE", help="JSON, as FILE or LABEL=FILE")
    parser.add_argument("-o", "--output", required=True, metavar="FILE.html", help="the page")
    parser.add_argument("--title", default="Transfers, measured")
    arguments = parser.parse_args(words)
    try:
        results = read(arguments.files)
        if not results.works and not results.limits:
            raise NotOurs("there is nothing in the files")
        text = page(results, arguments.title)
    except ModuleNotFoundError as error:
        print(f"p2p-perf report: {error.name} is not installed (pip install matplotlib)", file=sys.stderr)
        return 1
    except (NotOurs, OSError, UnicodeDecodeError) as error:
        print(f"p2p-perf report: {error}", file=sys.stderr)
        return 1
    Path(arguments.output).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
