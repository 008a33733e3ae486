#!/usr/bin/env python3
# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""Checks the size budget: files, classes, functions and parameters.

Usage: check_sizes.py [ROOT]. Over the soft limit is a remark, over the hard limit an error (exit status 1). A class
has the lines of its definition and of all its methods, wherever they stand.
"""

import ast
import pathlib
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import class_sizes  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent.parent

SOURCE_SOFT, SOURCE_HARD, HEADER_HARD = 400, 600, 200
FUNCTION_SOFT, FUNCTION_HARD = 60, 80
PARAMETERS_HARD = 6
CLASS_SOFT, CLASS_HARD = 300, 400
PRODUCT = ("include/", "src/", "softnet/", "nixl/", "weights/", "python/src/", "tools/")

# Signatures that a foreign ABI dictates.
FOREIGN_SIGNATURES = ("src/drivers/nccl_net/", "src/drivers/verbs/", "softnet/", "include/tcpx/interface.h",
                      "src/tcpx/interface.cc", "tests/tcpx/shy_plugin.cc", "nixl/",
                      "tests/softnet/abi_shim.cc", "bench/micro/counting_net_plugin.cc")

TOKEN = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(?P<tag>[^()\s\\]{0,16})\(.*?\)(?P=tag)"|"(?:[^"\\\n]|\\.)*"'
    r"|'(?:[^'\\\n]|\\.)+'", re.DOTALL)
CONTROL = re.compile(r"\b(if|for|while|switch|catch|do|else|try|return|co_return|throw)\b")
TYPE_OR_SCOPE = re.compile(r"^\s*(template\s*<.*>\s*)?(inline\s+)?(namespace|class|struct|union|enum|extern\s*$)\b",
                           re.DOTALL)


def blank(match):
    """Blanks out a comment or literal but keeps its line breaks, so that positions stay true."""
    text = match.group(0)
    if text.startswith("'") and match.start() > 0 and match.string[match.start() - 1].isalnum():
        return text  # a digit separator: 1'000'000
    return re.sub(r"[^\n]", " ", text)


def strip(text):
    text = re.sub(r"(?<=\d)'(?=\d)", "0", text)
    text = TOKEN.sub(blank, text)
    return re.sub(r"^[ \t]*#(?:[^\n\\]|\\.|\\\n)*", lambda m: re.sub(r"[^\n]", " ", m.group(0)), text, flags=re.M)


def parameter_list(head):
    """The text between the parentheses of a function's head, or None if it has no such parentheses."""
    depth, angle, start = 0, 0, None
    for i, c in enumerate(head):
        if c == "<":
            angle += 1
        elif c == ">" and angle:
            angle -= 1
        elif c == "(" and not angle:
            depth += 1
            if depth == 1 and start is None and re.search(r"[\w\]>=!+\-*/<(,&|^%~]\s*$", head[:i]):
                start = i + 1
        elif c == ")" and not angle:
            depth -= 1
            if depth == 0 and start is not None:
                return head[start:i]
    return None


def parameters(text):
    depth, count = 0, 1
    for c in text:
        depth += (c in "(<[{") - (c in ")>]}")
        count += c == "," and depth == 0
    return 0 if text.strip() in ("", "void") else count


def function_heads(text):
    """Yields (head, start, end) of each outermost function body: positions of the head's start and the `}`."""
    stack, last, parens, i = [], 0, 0, 0
    while i < len(text):
        c = text[i]
        if c == "(":
            parens += 1
        elif c == ")":
            parens -= 1
        elif c == "{":
            head = text[last:i]
            inside = any(kind == "function" for kind, _, _ in stack)
            kind = "value" if re.search(r"[\w>]$", head) else "other"
            if kind == "other" and not parens and not inside and is_function(head):
                kind = "function"
            stack.append((kind, last + len(head) - len(head.lstrip()), parens))
            if kind == "function" or (not parens and TYPE_OR_SCOPE.match(head)):
                last = i + 1
            parens = 0
        elif c == "}":
            if not stack:
                return
            kind, start, parens = stack.pop()
            if kind == "function":
                yield text[start:i + 1], start, i
            if not parens and kind != "value":  # y_{1} in a constructor's head ends nothing
                last = i + 1
        elif c == ";" and not parens:
            last = i + 1
        i += 1


def is_function(head):
    head = re.sub(r"^\s*(public|private|protected)\s*:", "", head)
    if TYPE_OR_SCOPE.match(head) or CONTROL.match(head.strip()) or "(" not in head:
        return False
    before = re.sub(r"operator\s*[^\w\s(]+", "operator", head[:head.index("(")])
    return re.search(r"(?<![=!<>])=(?!=)", before) is None and parameter_list(head) is not None


def check_cxx(path, text):
    code = strip(text)
    for body, start, end in function_heads(code):
        head = body.split("{")[0]
        line = code.count("\n", 0, start) + 1
        length = code.count("\n", start, end) + 1
        name = re.sub(r"\s+", " ", head.split("(")[0]).strip().split(" ")[-1] or "function"
        if length > FUNCTION_SOFT:
            yield line, f"{name} has {length} lines", FUNCTION_SOFT, FUNCTION_HARD, length > FUNCTION_HARD
    for match in re.finditer(r"([\w:~]+)\s*\(([^();{}]*)\)\s*(const|noexcept|override|final|->|\{|;|= 0|: )", code):
        count = parameters(match.group(2))
        typed = re.search(r"\w[\s&*>]+\w", match.group(2)) is not None
        if count > PARAMETERS_HARD and typed and not path.startswith(FOREIGN_SIGNATURES):
            line = code.count("\n", 0, match.start()) + 1
            yield line, f"{match.group(1)} has {count} parameters", PARAMETERS_HARD, PARAMETERS_HARD, True


def check_python(_path, text):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            length = node.end_lineno - node.lineno + 1
            if length > FUNCTION_SOFT:
                yield (node.lineno, f"{node.name} has {length} lines", FUNCTION_SOFT, FUNCTION_HARD,
                       length > FUNCTION_HARD)


def check_file(root, path):
    text = (root / path).read_text(encoding="utf-8")
    lines = text.count("\n")
    header = path.endswith((".h", ".cuh"))
    soft, hard = (HEADER_HARD, HEADER_HARD) if header else (SOURCE_SOFT, SOURCE_HARD)
    if lines > soft:
        yield 1, f"the file has {lines} lines", soft, hard, lines > hard
    yield from (check_python if path.endswith(".py") else check_cxx)(path, text)


def check_classes(sizes):
    """Yields (class, what, whether it is an error)."""
    for name, size in sorted(sizes.items()):
        if size > CLASS_SOFT:
            what = f"has {size} lines with its methods (soft {CLASS_SOFT}, hard {CLASS_HARD})"
            yield name, what, size > CLASS_HARD


def sizes_of_classes(root, paths):
    product = [path for path in paths
               if path.startswith(PRODUCT) and path.endswith((".h", ".cc")) and "_test" not in path]
    return class_sizes.class_sizes([strip((root / path).read_text(encoding="utf-8")) for path in product],
                                   function_heads)


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else HERE).resolve()
    listing = subprocess.run(["git", "-C", str(root), "ls-files", "--cached", "--others", "--exclude-standard"],
                             check=True, capture_output=True, text=True)
    paths = sorted(p for p in listing.stdout.splitlines()
                   if p.endswith((".h", ".cc", ".cu", ".cuh", ".py")) and (root / p).is_file())
    errors = 0
    for path in paths:
        for line, what, soft, hard, is_error in check_file(root, path):
            errors += is_error
            print(f"{path}:{line}: {'error' if is_error else 'remark'}: {what} (soft {soft}, hard {hard})")
    for name, what, is_error in check_classes(sizes_of_classes(root, paths)):
        errors += is_error
        print(f"{name}: {'error' if is_error else 'remark'}: {what}")
    print(f"sizes: {len(paths)} files, {errors} over a hard limit")
    return 1 if errors or not paths else 0


if __name__ == "__main__":
    sys.exit(main())
