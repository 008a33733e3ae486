# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""How many lines the classes of the product have: the class itself and the bodies of its methods in all files."""

import collections
import re

SCOPE = re.compile(r"\b(namespace|class|struct)\s+(?:P2P_\w+(?:\([^)]*\))?\s+|alignas\([^)]*\)\s*)*"
                   r"([\w:]+)?(?:\s+final)?\s*(?::[^:].*)?$", re.DOTALL)
METHOD = re.compile(r"\b((?:\w+::)+)(?:~?\w+|operator\s*[^\w\s(]+)\s*\(")


def scopes(code):
    """Yields (kind, qualified name, start, end) of each namespace and class in code without comments."""
    stack, last = [], 0
    for i, c in enumerate(code):
        if c == "{":
            head = code[last:i]
            match = SCOPE.search(head)
            named = match and "(" not in head[:match.start()] and "enum" not in head[:match.start()].split()
            if named and match.group(1) == "namespace":
                stack.append(("namespace", match.group(2) or "", i))
            elif named and match.group(2):
                stack.append(("class", match.group(2), last + match.start()))
            else:
                stack.append(("other", "", i))
            last = i + 1
        elif c == "}" and stack:
            kind, name, start = stack.pop()
            if kind != "other":
                outer = [n for k, n, _ in stack if k != "other" and n]
                yield kind, "::".join(outer + ([name] if name else [])), start, i
            last = i + 1
        elif c == ";":
            last = i + 1


def lines(code, start, end):
    return code.count("\n", start, end) + 1


def methods(code, functions):
    """Yields (namespace, the class that it is named with, lines) of each method outside of its class."""
    spaces = list(scopes(code))
    for body, start, end in functions(code):
        named = METHOD.search(body.split("{")[0])
        if named is None or any(kind == "class" and a < start < b for kind, _, a, b in spaces):
            continue
        around = [name for kind, name, a, b in spaces if kind == "namespace" and a < start < b]
        yield max(around, key=len, default=""), named.group(1)[:-2], lines(code, start, end)


def class_sizes(sources, functions):
    """{class: lines} of sources, which are texts without comments; `functions` yields (text, start, end)."""
    sizes = collections.Counter()
    for code in sources:
        for kind, name, start, end in scopes(code):
            if kind == "class":
                sizes[name] += lines(code, start, end)
    known = set(sizes)
    for code in sources:
        for space, owner, length in methods(code, functions):
            parts = space.split("::") if space else []
            for depth in range(len(parts), -1, -1):
                name = "::".join([*parts[:depth], owner])
                if name in known:
                    sizes[name] += length
                    break
    return sizes
