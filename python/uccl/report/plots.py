# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""Lines over the sizes of transfers, drawn by matplotlib."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Callable
from typing import Any

from uccl.report.results import Limit, Point, medians, size_text

# Of lines, told apart by people who see colours differently, on light and on dark.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6bb1", "#7f7f7f")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")

# Stands for the page's own colour of text while matplotlib draws.
_INK = "#123456"


class Plots:
    """Draws with matplotlib, as SVG that takes its colours from the page."""

    def __init__(self) -> None:
        self._number = 0
        self._places: dict[str, int] = {}  # of series: each looks the same in all plots

    @staticmethod
    def letter(number: int) -> str:
        """What stands at a line in place of its name."""
        return chr(ord("a") + number) if number < 26 else str(number)

    def draw(self, by_series: dict[str, list[Point]], figures: list[tuple[str, Callable[[Point], float]]],
             limits: list[Limit], label: str, logarithmic: bool) -> str:  # fmt: skip
        """One plot over size; of several figures, each with a line of its own kind. Empty if there is nothing."""
        import matplotlib

        matplotlib.use("svg")
        from matplotlib import pyplot
        from matplotlib.ticker import FuncFormatter

        self._number += 1
        drawn = 0
        style: Any = {
            "svg.fonttype": "none", "svg.hashsalt": f"plot{self._number}", "font.family": "sans-serif", "font.size": 12,
            "axes.edgecolor": _INK, "axes.labelcolor": _INK, "xtick.color": _INK, "ytick.color": _INK,
            "text.color": _INK, "axes.spines.top": False, "axes.spines.right": False,
        }  # fmt: skip
        with matplotlib.rc_context(style):
            figure, axes = pyplot.subplots(figsize=(5.2, 3.9), layout="constrained")
            for series, points in by_series.items():
                number = self._places.setdefault(series, len(self._places))
                for dashes, (name, of) in zip(("-", ":"), figures, strict=False):
                    sizes, values = medians(points, of)
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
                    self.letter(number), (0.02 + 0.05 * (number % 19), limit.value), xycoords=("axes fraction", "data"),
                    xytext=(0, 1), textcoords="offset points", fontsize=11,
                )  # fmt: skip
            axes.set_xscale("log", base=2)
            if logarithmic:
                axes.set_yscale("log")
            else:
                axes.set_ylim(bottom=0)
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: size_text(value)))
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.7g}"))
            pyplot.setp(axes.get_xticklabels(), rotation=35, ha="right", rotation_mode="anchor")
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
