#!/usr/bin/env python3
# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""Checks that what docs/migrating.md names in its columns "here" exists. Usage: check_migrating.py ROOT"""

import pathlib
import re
import sys

VARIABLE = re.compile(r"[A-Z][A-Z0-9]+_[A-Z0-9_]+")


def cells_here(page):
    """(line number, what stands in backquotes in the second column) of every row of the tables there | here."""
    inside = False
    for number, line in enumerate(page.splitlines(), 1):
        if not line.startswith("|"):
            inside = False
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[:2] == ["there", "here"]:
            inside = True
        elif inside and not set(cells[0]) <= {"-"}:
            for name in re.findall(r"`([^`]+)`", cells[1]):
                yield number, name


class Repository:
    """What a name may stand for."""

    def __init__(self, root):
        self.root = root
        self.makefile = self.text("Makefile")
        pages = (path for path in (root / "docs").glob("*.md") if path.name != "migrating.md")
        self.variables = "".join(path.read_text(encoding="utf-8") for path in pages)
        self.benchmarks = root / "python/benchmarks"
        self.options = "".join(path.read_text() for path in self.benchmarks.glob("*.py"))
        self.programs = {
            "tcpx": "".join(path.read_text() for path in (root / "tools/tcpx").glob("*.cc")),
            "p2p-perf": "".join(path.read_text() for path in (root / "tools/perf").glob("*.cc")),
        }
        self.interface = self.text("include/tcpx/interface.h")
        self.builds = "".join(path.read_text() for path in (root / "src").rglob("CMakeLists.txt"))

    def text(self, path):
        return (self.root / path).read_text(encoding="utf-8")

    def has(self, name):
        first, *rest = name.split()
        if first == "make":
            return re.search(rf"^{re.escape(rest[0])}:", self.makefile, re.MULTILINE) is not None
        if first == "pip":
            return rest[0] == "install"
        if first in self.programs and rest:
            words = [rest[0], *(word for word in rest if word.startswith("--"))]  # the subcommand first
            return not rest[0].startswith("-") and all(re.search(f'"{word}[",]', self.programs[first]) for word in words)
        if first.startswith("benchmark_") and rest:
            options = [word for word in rest if word.startswith("--")]
            return (self.benchmarks / first).is_file() and all(f'"{word}"' in self.options for word in options)
        if VARIABLE.fullmatch(name):
            return name in self.variables
        if name.startswith("tcpx_"):
            return f"{name}(" in self.interface
        if name.startswith("lib"):
            return re.search(rf"OUTPUT_NAME {name.removeprefix('lib')}\b", self.builds) is not None
        if name.startswith("uccl."):
            return (self.root / "python" / (name.replace(".", "/") + ".py")).is_file()
        return (self.root / name).exists()


def main():
    root = pathlib.Path(sys.argv[1])
    repository = Repository(root)
    names = list(cells_here(repository.text("docs/migrating.md")))
    missing = [(number, name) for number, name in names if not repository.has(name)]
    for number, name in missing:
        print(f"docs/migrating.md:{number}: `{name}` does not exist here")
    # The check can tell: names that no repository has.
    nonsense = ("make nothing", "tcpx nothing", "p2p-perf --depth", "benchmark_uccl.py --nothing", "UCCL_P2P_NOTHING", "tcpx_nothing", "libnothing", "uccl.no", "no")
    believed = [name for name in nonsense if repository.has(name)]
    if believed:
        print(f"the check takes for existing: {believed}")
    if not names:
        print("docs/migrating.md has no tables there | here")
    return 1 if missing or believed or not names else 0


if __name__ == "__main__":
    sys.exit(main())
