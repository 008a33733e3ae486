#!/usr/bin/env python3
# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""`make docs`: the pages and the public headers as HTML, in build/docs/html. Doxygen's warnings and links that lead
nowhere are failures."""

import html
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGES = ROOT / "build" / "docs" / "html"


def dead_links(pages):
    for page in sorted(pages.glob("*.html")):
        links = set(re.findall(r'href="([^"]+)"', page.read_text(encoding="utf-8")))
        for link in sorted(links):
            target = html.unescape(link).split("#")[0]
            if target and not re.match(r"[a-z]+:", target) and not (pages / target).exists():
                yield f"{page.name} leads to {link}, which is not there"


def main():
    shutil.rmtree(PAGES.parent, ignore_errors=True)
    PAGES.parent.mkdir(parents=True)
    done = subprocess.run(["doxygen", "docs/Doxyfile"], cwd=ROOT, check=False)
    if done.returncode != 0:
        return 1
    shutil.copytree(ROOT / "examples", PAGES / "examples")  # the pages lead there
    dead = list(dead_links(PAGES))
    print("\n".join(dead) if dead else f"docs: {PAGES / 'index.html'}")
    return 1 if dead else 0


if __name__ == "__main__":
    sys.exit(main())
