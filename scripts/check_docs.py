#!/usr/bin/env python3
# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""Checks that pages tell the truth where a script can know it.

Usage: check_docs.py [ROOT]. Links and named paths exist, C++ shown in pages is part of a compiled example,
the wire's page has the code's messages, folders' READMEs are short, and every source file names its license.
"""

import pathlib
import re
import subprocess
import sys

LICENSE = "Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0"
README_LINES = 40
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")
NAMED_PATH = re.compile(r"`((?:src|include|tests|scripts|docs|examples|tools|cmake|fuzz|python|bench|nixl|softnet|weights)/"
                        r"[\w./-]*)`")
MESSAGES = "src/wire/encode.cc"
MESSAGE_NAMES = re.compile(r"\bkNames = \{(.*?)\}", re.DOTALL)
MESSAGE_ROW = re.compile(r"^\| (\d+) \| `(\w+)` \|", re.MULTILINE)
CODE_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def tracked(root):
    listing = subprocess.run(["git", "-C", str(root), "ls-files", "--cached", "--others", "--exclude-standard"],
                             check=True, capture_output=True, text=True)
    return sorted(p for p in listing.stdout.splitlines() if (root / p).is_file())


def normalised(text):
    return "\n".join(line.strip() for line in text.splitlines() if line.strip())


def line_of(text, position):
    return text.count("\n", 0, position) + 1


def check_page(root, page, text, examples):
    prose = CODE_BLOCK.sub(lambda m: "\n" * m.group(0).count("\n"), text)
    for match in LINK.finditer(prose):
        target = match.group(1)
        if not re.match(r"[a-z]+:", target) and not (root / page).parent.joinpath(target).exists():
            yield line_of(prose, match.start()), f"links to {target}, which does not exist"
    for match in NAMED_PATH.finditer(prose):
        if not (root / match.group(1)).exists():
            yield line_of(prose, match.start()), f"names {match.group(1)}, which does not exist"
    for match in CODE_BLOCK.finditer(text):
        if match.group(1) in ("cpp", "c++") and not any(normalised(match.group(2)) in code for code in examples):
            yield line_of(text, match.start()), "shows C++ that is in no file of examples/"
    if re.fullmatch(r"src/[\w/]+/README\.md", page) and text.count("\n") > README_LINES:
        yield 1, f"has {text.count(chr(10))} lines (at most {README_LINES})"


def check_messages(text, code):
    names = re.findall(r'"(\w+)"', MESSAGE_NAMES.search(code).group(1))
    rows = list(MESSAGE_ROW.finditer(text))
    for number, (row, name) in enumerate(zip(rows, names), start=1):
        if row.groups() != (str(number), name):
            yield line_of(text, row.start()), f"has message {row.group(1)}, {row.group(2)}, where {MESSAGES} has {number}, {name}"
    if len(rows) != len(names):
        yield 1, f"has {len(rows)} messages, {MESSAGES} {len(names)}"


def check_license(path, text):
    if path.endswith((".h", ".cc", ".cu", ".cuh", ".py", ".sh")) or text.startswith("#!"):
        if text.strip() and LICENSE not in "\n".join(text.splitlines()[:2]):
            yield 1, "does not begin with the license line"


def breaches(root, paths):
    examples = [normalised((root / p).read_text(encoding="utf-8")) for p in paths
                if p.startswith("examples/") and p.endswith(".cc")]
    for path in paths:
        try:
            text = (root / path).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # a seed of a fuzzer
        if path.endswith(".md"):
            found = list(check_page(root, path, text, examples))
            if path == "docs/wire.md" and (root / MESSAGES).exists():
                found += check_messages(text, (root / MESSAGES).read_text(encoding="utf-8"))
        elif not path.startswith("fuzz/corpus/"):
            found = check_license(path, text)
        else:
            continue
        for line, what in found:
            yield f"{path}:{line}: {what}"


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent).resolve()
    paths = tracked(root)
    found = list(breaches(root, paths))
    print("\n".join(found) if found else f"docs: {len(paths)} files, nothing wrong")
    return 1 if found or not paths else 0


if __name__ == "__main__":
    sys.exit(main())
