#!/usr/bin/env python3
# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""What code one transfer runs, by the counters of gcov: modules, functions and lines of both sides.

Usage: write_reach.py [p2p-perf's options], after `cmake --preset coverage && cmake --build build/coverage --target
p2p-perf`; by default `--transport tcp --op write --size 64K`. Measures twice, one transfer at a time, the second time for
longer: what has run about as much more often as there were more transfers is a transfer's. What runs once for several,
or only where threads sleep, is not counted. A module is a header and its source.
"""

import collections
import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "coverage"
SHARE = 0.7  # of the transfers, from which on something belongs to each


def measure(options, seconds):
    """The counts of each function and line of src/ and include/, and how many transfers there were."""
    for old in BUILD.rglob("*.gcda"):
        old.unlink()
    command = [BUILD / "tools/perf/p2p-perf", "local", *options, "--depth", "1", "--no-verify", "--duration",
               str(seconds)]
    subprocess.run(command, check=True, capture_output=True)
    counters = sorted(str(file) for file in (BUILD / "src").rglob("*.gcda"))
    told = subprocess.run(["gcov", "--json-format", "--stdout", *counters], check=True, capture_output=True, cwd=BUILD).stdout
    functions, lines = collections.Counter(), collections.Counter()
    for report in filter(None, told.splitlines()):
        for file in json.loads(report)["files"]:
            path = pathlib.Path(BUILD, file["file"]).resolve()
            if not path.is_relative_to(ROOT / "src") and not path.is_relative_to(ROOT / "include"):
                continue
            name = path.relative_to(ROOT).as_posix()
            for function in file["functions"]:
                functions[name, function["demangled_name"], function["start_line"]] += function["execution_count"]
            for line in file["lines"]:
                lines[name, line["line_number"]] += line["count"]
    calls = sum(count for (name, function, _), count in functions.items()
                if name == "src/api/connection.cc" and re.match(r"p2p::Connection::(write|read|send)\(", function))
    return functions, lines, calls


def main():
    options = sys.argv[1:] or ["--transport", "tcp", "--op", "write", "--size", "64K"]
    before, after = measure(options, 0.2), measure(options, 4)
    more = after[2] - before[2]
    if more < 1000:
        sys.exit(f"write_reach.py: only {more} transfers more in the longer measurement; the machine is busy, try again")
    functions, lines = ({key for key, count in after[kind].items() if count - before[kind][key] >= SHARE * more}
                        for kind in (0, 1))
    modules = collections.defaultdict(lambda: [0, 0])
    for name, *_ in functions:
        modules[name.rsplit(".", 1)[0]][0] += 1
    for name, _ in lines:
        if name.rsplit(".", 1)[0] in modules:
            modules[name.rsplit(".", 1)[0]][1] += 1
    run_lines = sorted((run for _, run in modules.values()), reverse=True)
    print(f"one transfer of `{' '.join(options)}`, by {more} of them: {len(modules)} modules, {len(functions)} functions, "
          f"{sum(run_lines)} lines run, {sum(run_lines[:30])} of them in 30 modules")
    for module, (entered, run) in sorted(modules.items(), key=lambda item: -item[1][1]):
        print(f"{run:5} lines {entered:4} functions  {module}")


if __name__ == "__main__":
    main()
