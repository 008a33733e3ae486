# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""The page: a headline, bars of single figures, lines where there are several sizes, and all rows."""

from __future__ import annotations

import html
from collections.abc import Callable
from datetime import date

from uccl.report.plots import Plots
from uccl.report.results import Limit, Point, Results, Work, size_text

_SEVERAL = 3  # sizes that make a line
_MESSAGE = 64 << 10  # smaller transfers are told in messages a second

_Figure = tuple[Work, str, Point]

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
.best { font-size: 1.15rem; color: var(--ink); margin: .2rem 0 .6rem; }
.bar { display: grid; grid-template-columns: minmax(12rem, 16rem) 1fr 23rem; gap: 0 .8rem; align-items: center;
  padding: .25rem 0; font-size: .9rem; }
.bar .track { height: 1.1rem; background: var(--card); border: 1px solid var(--line); border-radius: .2rem; }
.bar .fill { display: block; height: 100%; background: #0072b2; border-radius: .15rem 0 0 .15rem; }
.bar .track { position: relative; } .bar .mark { position: absolute; top: -.2rem; bottom: -.2rem; width: 2px;
  background: var(--ink); }
.bar .figure { font-variant-numeric: tabular-nums; } .bar small { color: var(--soft); display: block; }
@media (max-width: 50rem) { .bar { grid-template-columns: 1fr 1fr; } .bar .name { grid-column: 1 / 3; } }
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


def _time(microseconds: float) -> str:
    return f"{_number(microseconds)} us" if microseconds < 1000 else f"{_number(microseconds / 1000)} ms"


def _what(work: Work, point: Point) -> str:
    """A figure's work in words: 'write 64 MiB, 2 in flight'."""
    size = size_text(point.size)
    if work.many:
        size = f"{point.blocks} x {size_text(point.size / point.blocks)}"
    return f"{work.operation} {size}, {work.at_once}"


def _bar(name: str, by: str, part: float, figure: str, below: str, mark: float = 0) -> str:
    """A bar of a part of its width, with a mark at another (0: none)."""
    line = f'<span class="mark" style="left:{mark * 100:.1f}%"></span>' if mark else ""
    return (
        f'<div class="bar"><span class="name">{html.escape(name)} <small>{html.escape(by)}</small></span>'
        f'<span class="track"><span class="fill" style="width:{part * 100:.1f}%"></span>{line}</span>'
        f'<span class="figure">{html.escape(figure)}<small>{html.escape(below)}</small></span></div>'
    )


def _shares(figures: list[_Figure]) -> str:
    """Bars of what part of the machine's limit each work reaches."""
    known = [one for one in figures if one[2].share > 0]
    if not known:
        return ""
    bars, most = [], max(1.0, *(point.share for _, _, point in known))
    for work, series, point in sorted(known, key=lambda one: one[2].raw is not None and one[2].raw.unit == "us"):
        assert point.raw is not None
        value = f"{_time(point.p50)}; the machine {_time(point.raw.value)}"
        if point.raw.unit != "us":
            value = f"{_number(point.gigabytes)} of {_number(point.raw.value)} GB/s"
        text = f"{point.share:.0%}: {value}"
        bars.append(_bar(_what(work, point), series, point.share / most, text, point.raw.name, 1 / most))
    return (
        "<section><h2>Share of what the machine gives</h2><p>The mark is what the machine does without an engine.</p>"
        + "".join(bars) + "</section>"
    )  # fmt: skip


def _bars(title: str, note: str, figures: list[_Figure], value: Callable[[Point], float], unit: str) -> str:
    """Bars beside each other: a full one is the largest."""
    if not figures:
        return ""
    most = max(value(point) for _, _, point in figures) or 1
    bars = []
    for work, series, point in figures:
        below = f"p50 {_time(point.p50)}, p99 {_time(point.p99)}" if point.p50 else ""
        text = f"{_number(value(point))} {unit}"
        bars.append(_bar(_what(work, point), series, value(point) / most, text, below))
    return f"<section><h2>{title}</h2><p>{note}</p>{''.join(bars)}</section>"


def _drawn(by_series: dict[str, list[Point]]) -> dict[str, list[Point]]:
    """The series that have several sizes."""
    return {name: points for name, points in by_series.items() if len({point.size for point in points}) >= _SEVERAL}


def _lines(work: Work, by_series: dict[str, list[Point]], limits: list[Limit], plots: Plots) -> str:
    speeds = [limit for limit in limits if limit.unit == "GB/s" and (work.many or "blocks" not in limit.key)]
    figure, unit = (lambda point: point.gigabytes), "GB/s"
    if max(point.size for points in by_series.values() for point in points) < _MESSAGE:
        figure, unit, speeds = (lambda point: point.messages), "messages a second", []
    latencies = [("p50", lambda point: point.p50), ("p99", lambda point: point.p99)]
    drawn = (
        (unit, plots.draw(by_series, [("", figure)], speeds, unit, False)),
        ("us, p50 and p99", plots.draw(by_series, latencies, [], "us", True)),
    )
    names = "; ".join(f"<b>{plots.letter(number)}</b> {html.escape(limit.name)}" for number, limit in enumerate(speeds))
    figures = "".join(
        f"<figure><figcaption>{caption}, over bytes of a transfer</figcaption>{svg}"
        + (f"<figcaption>{names}</figcaption>" if names and caption == unit else "")
        + "</figure>"
        for caption, svg in drawn
        if svg
    )
    note = "<p>Medians of what was measured at a size; dashed lines are what the machine does without an engine.</p>"
    return f'<section><h2>{html.escape(work.title)}</h2>{note}<div class="plots">{figures}</div></section>'


def _all_rows(results: Results) -> str:
    rows = []
    for work, by_series in results.works.values():
        for series, points in by_series.items():
            for point in points:
                checked = {None: "-", True: "yes", False: '<span class="bad">NO</span>'}[point.verified]
                figures = [point.gigabytes, point.messages, point.p50, point.p99]
                rows.append((-point.size, [html.escape(_what(work, point)), html.escape(series),
                                           *map(_number, figures), checked]))  # fmt: skip
    heads = ["what", "by", "GB/s", "a second", "p50 us", "p99 us", "checked"]
    table = _table(heads, [row for _, row in sorted(rows, key=lambda one: one[0])])
    return f"<details><summary>All rows</summary>{table}</details>"


def _headline(results: Results, figures: list[_Figure]) -> str:
    """The machine, the day, and the best path of this engine with its share of what the machine gives."""
    day = date.fromisoformat(results.date)
    where = [*map(html.escape, results.machines), f"{day.day} {day:%B %Y}"]
    lines = [f"<p>{' &middot; '.join(where)}</p>"]
    ours = [one for one in figures if one[2].transport] or figures
    best = max(ours, key=lambda one: (one[2].raw is not None and one[2].raw.unit == "GB/s", one[2].gigabytes), default=None)
    if best is not None:
        work, series, point = best
        text = f"Best path: <b>{html.escape(series)}, {_number(point.gigabytes)} GB/s</b> ({html.escape(_what(work, point))})"
        if point.raw is not None and point.raw.unit == "GB/s":
            text += f", <b>{point.share:.0%}</b> of the machine's {_number(point.raw.value)} GB/s ({html.escape(point.raw.name)})"
        lines.append(f'<p class="best">{text}</p>')
    wrong = sum(point.verified is False for _, _, point in figures)
    if wrong:
        lines.append(f'<p class="bad">Of {wrong} figure{"s" if wrong > 1 else ""} the bytes arrived wrong.</p>')
    return "".join(lines)


def page(results: Results, title: str) -> str:
    """The whole page."""
    plots = Plots()
    figures = results.typical()
    works = [(work, _drawn(by_series)) for work, by_series in results.works.values()]
    works = sorted(
        ((work, drawn) for work, drawn in works if drawn),
        key=lambda one: (-max(point.size for points in one[1].values() for point in points), one[0].order()),
    )
    in_lines = {(work.key(), series) for work, drawn in works for series in drawn}
    single = [one for one in figures if (one[0].key(), one[1]) not in in_lines]
    big = [one for one in single if one[2].size >= _MESSAGE and not one[2].share]
    least = {(work.key(), series): point.size for work, series, point in figures}  # the last one is the smallest
    small = [
        (work, series, point) for work, series, point in figures
        if point.size < _MESSAGE and ((work.key(), series) not in in_lines or point.size == least[work.key(), series])
    ]  # fmt: skip
    sections = [
        _shares(figures),
        *(_lines(work, drawn, results.limits, plots) for work, drawn in works),
        _bars("Other big transfers", "A full bar is the fastest.", big, lambda point: point.gigabytes, "GB/s"),
        _bars("Small messages", "Messages a second. A full bar is the most.", small, lambda point: point.messages, "a second"),
    ]
    if results.limits:
        rows = [[html.escape(one.name), _number(one.value), html.escape(one.unit)] for one in results.limits]
        sections.append("<section><h2>The machine without an engine</h2>" + _table(["what", "figure", "unit"], rows) + "</section>")
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head><body><h1>{html.escape(title)}</h1>"
        f"{_headline(results, figures)}{''.join(sections)}{_all_rows(results)}</body></html>\n"
    )
