# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""Writes aio.pyi, the types of uccl.aio: the calls of the extension module's stub, by the rows of aio.py.

Usage: aio_stub.py aio.py _p2p.pyi aio.pyi
"""

import ast
import sys
from pathlib import Path

HEAD = """# Made by aio_stub.py.
from collections.abc import Sequence
from typing import Any, overload

import numpy

from uccl import p2p
from uccl._p2p import FloatType, SharedBuffer, Strides, XferDesc

"""


def endpoint_of(path):
    tree = ast.parse(Path(path).read_text(encoding="utf-8"))
    return tree, next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Endpoint")


def rows_of(tree):
    """The rows of calls: _CONNECT and so on."""
    return {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple)
    }


def answer(returns):
    """What is left of (ok, value) and of a bool. Of (ok, value) the types are those two."""
    text = ast.unparse(returns)
    if text == "bool":
        return "None"
    if text.startswith("tuple[bool, "):
        return text.removeprefix("tuple[bool, ").removesuffix("]")
    return text


def translated(function, rows, transfers):
    """The call of uccl.aio for one of p2p.Endpoint."""
    name, waits = function.name, True
    if name in transfers or name in rows["_TRANSFERS"] or name in rows["_CONNECT"]:
        returns = "int"
    else:
        waits = name in rows["_THREAD"]
        unchanged = name in rows["_UNCHANGED"] or function.decorator_list and ast.unparse(function.decorator_list[0]) in (
            "property", "staticmethod",
        )  # fmt: skip
        returns = ast.unparse(function.returns) if unchanged else answer(function.returns)
    return signature(function, returns, waits)


def signature(function, returns, waits):
    decorators = [f"    @{ast.unparse(one)}\n" for one in function.decorator_list]
    kind = "async def" if waits else "def"
    return f"{''.join(decorators)}    {kind} {function.name}({ast.unparse(function.args)}) -> {returns}: ...\n"


def written(node, by_name):
    """What aio.py itself has: a function, or a second name of one."""
    if isinstance(node, ast.Assign):
        by_name[node.targets[0].id] = by_name[node.value.id].replace(f" {node.value.id}(", f" {node.targets[0].id}(")
    elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and (
        not node.name.startswith("_") or node.name.startswith("__")
    ):
        by_name[node.name] = signature(node, ast.unparse(node.returns), isinstance(node, ast.AsyncFunctionDef))


def main(aio, plain, out):
    tree, ours = endpoint_of(aio)
    _, theirs = endpoint_of(plain)
    rows, by_name = rows_of(tree), {}
    for node in ours.body:
        written(node, by_name)
    functions = [node for node in theirs.body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")]
    names = {function.name for function in functions}
    transfers = {name for name in names if f"{name}_async" in names}
    lines = [translated(one, rows, transfers) for one in functions if one.name not in by_name]
    Path(out).write_text(f"{HEAD}class Endpoint:\n    sync: p2p.Endpoint\n{''.join([*by_name.values(), *lines])}", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
