#!/usr/bin/env python3
# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""Usage: check_exports.py LIBRARY HEADERS

The library exports p2p:: names only, and those that HEADERS promise, and can be loaded late.
"""

import pathlib
import re
import subprocess
import sys


def symbols(library, *options):
    listing = subprocess.run(["nm", "-D", "-C", *options, library], check=True, capture_output=True, text=True)
    return [line.split(maxsplit=2 if "--defined-only" in options else 1)[-1] for line in listing.stdout.splitlines()]


def promised(headers):
    """Classes and functions marked with P2P_API. A class counts if any of its members is exported."""
    for header in sorted(pathlib.Path(headers).glob("*.h")):
        text = header.read_text(encoding="utf-8")
        for match in re.finditer(r"^(?:class|struct) P2P_API (\w+)|^P2P_API .*?(\w+)\(", text, re.MULTILINE):
            yield match.group(1) or match.group(2)


def main():
    library, headers = sys.argv[1:]
    exported = symbols(library, "--defined-only")
    problems = [f"exports {name}" for name in exported
                if not re.match(r"((typeinfo|typeinfo name|vtable) for )?p2p::(?!engine::|wire::|tcp::|cma::)", name)]
    problems += [f"lacks p2p::{name}, which a header promises" for name in promised(headers)
                 if not any(re.match(rf"p2p::{name}(::|\(|\[|$)", symbol) for symbol in exported)]
    undefined = symbols(library, "--undefined-only")
    problems += [f"needs {name}, which nothing defines" for name in undefined if re.match(r"U p2p::", name)]
    dynamic = subprocess.run(["readelf", "-W", "-d", library], check=True, capture_output=True, text=True).stdout
    # The address sanitizer's own code has such variables.
    if "STATIC_TLS" in dynamic and not any("__asan_" in name for name in undefined):
        problems.append("needs room of static TLS, which may be gone where other libraries are loaded first")
    print("\n".join(problems) if problems else f"exports: {len(exported)} names, all of p2p")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
