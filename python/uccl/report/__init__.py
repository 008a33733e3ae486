# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""One page without outside resources from the JSON of p2p-perf, tcpx, p2p-doctor, compare_perf.py, the benchmark
scripts and iperf3.

A file may be given as LABEL=FILE; the label then stands for what was measured in it. Lines need matplotlib.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from uccl.report.page import page
from uccl.report.results import NotOurs, read

__all__ = ["NotOurs", "main", "page", "read"]


def main(words: list[str] | None = None) -> int:
    """The command ``p2p-perf report``."""
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
        print(
            f"p2p-perf report: lines over several sizes need {error.name}, which is not installed: "
            "pip install 'uccl-p2p[report]'", file=sys.stderr,
        )  # fmt: skip
        return 1
    except (NotOurs, OSError, UnicodeDecodeError) as error:
        print(f"p2p-perf report: {error}", file=sys.stderr)
        return 1
    Path(arguments.output).write_text(text, encoding="utf-8")
    return 0
