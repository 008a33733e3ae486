#!/usr/bin/env python3
# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""Usage: slowest.py JUNIT_XML [COUNT]: prints the tests of CTest's report that took longest, in seconds."""

import pathlib
import sys
import xml.etree.ElementTree


def main() -> int:
    try:
        suite = xml.etree.ElementTree.parse(sys.argv[1]).getroot()
    except (OSError, xml.etree.ElementTree.ParseError) as error:
        print(f"slowest.py: cannot read {sys.argv[1]}: {error}", file=sys.stderr)
        return 1
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 20
    cases = [(float(case.get("time", 0)), case.get("name")) for case in suite.iter("testcase")]
    for seconds, name in sorted(cases, reverse=True)[:count]:
        print(f"slowest: {seconds:6.1f} s  {pathlib.Path(sys.argv[1]).stem}  {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
