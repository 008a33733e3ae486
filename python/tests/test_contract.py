# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""The package has what contract.txt says, and the stub says what the package has."""

import ast
import importlib
import inspect
import operator
import re
import textwrap
from pathlib import Path
from typing import NamedTuple

import pytest

from uccl import _p2p, p2p

HERE = Path(__file__).parent
REQUIRED = inspect.Parameter.empty


class Signature(NamedTuple):
    """One way to call something, without self."""

    defaults: dict[str, object]  # by argument, in order
    returns: str  # empty: not said


def parse(definition, default_of):
    """A ``def`` line; ``default_of`` turns what it has for a default into the value."""
    function = ast.parse(f"{definition}: ...").body[0]
    arguments = [argument.arg for argument in function.args.args + function.args.kwonlyargs]
    written = [None] * (len(function.args.args) - len(function.args.defaults))
    written += [*function.args.defaults, *function.args.kw_defaults]
    values = [REQUIRED if default is None else default_of(ast.unparse(default)) for default in written]
    defaults = {name: value for name, value in zip(arguments, values, strict=True) if name != "self"}
    return Signature(defaults, ast.unparse(function.returns) if function.returns else "")


def contract():
    owner = ""
    for line in (HERE / "contract.txt").read_text().splitlines():
        if line.startswith("["):
            owner = line.strip("[]")
        elif line and not line.startswith("#"):
            yield owner, line


def owner_of(name):
    module, _, inner = name.partition(".")
    owner = importlib.import_module(f"uccl.{module}")
    return operator.attrgetter(inner)(owner) if inner else owner


def attributes(owner):
    """Of a module or class, and of its objects what the class' own code sets."""
    names = set(dir(owner)) | set(getattr(owner, "__dataclass_fields__", ()))
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(owner)))
    except (OSError, TypeError):
        return names  # compiled
    return names | {
        node.attr for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self"
    }  # fmt: skip


def signatures(value):
    """Every overload of a function of the package."""
    if hasattr(value, "__nb_signature__"):
        # Defaults are written \0, \1, ... and stand in a tuple beside the text.
        return [
            parse(text.replace("\\", ""), lambda index, values=values: values[int(index)])
            for text, _, values in value.__nb_signature__
        ]
    signature = inspect.signature(value)
    defaults = {name: p.default for name, p in signature.parameters.items() if name != "self"}
    returned = signature.return_annotation
    return [Signature(defaults, "" if returned is REQUIRED else inspect.formatannotation(returned))]


def satisfies(actual, wanted):
    """The same arguments in the same order, and nothing more that must be given."""
    if list(actual.defaults)[: len(wanted.defaults)] != list(wanted.defaults):
        return False
    for name, default in actual.defaults.items():
        if default != wanted.defaults.get(name, default):
            if wanted.defaults[name] is not REQUIRED:
                return False
        if default is REQUIRED and name not in wanted.defaults:
            return False
    plain = [re.sub(r"[\w.]+\.", "", text) for text in (actual.returns, wanted.returns)]
    return plain[0].startswith(plain[1])


@pytest.mark.parametrize(("owner", "signature"), list(contract()), ids=lambda part: part.split("(")[0])
def test_contract(owner, signature):
    if owner.startswith(("collective", "transfer")):
        pytest.importorskip("torch")
    if signature.startswith("."):
        wanted = {name.removeprefix(".") for name in signature.split()}
        assert wanted <= attributes(owner_of(owner))
        return
    have = signatures(getattr(owner_of(owner), signature.split("(")[0]))
    wanted = parse(f"def {signature}", lambda text: eval(text, vars(p2p).copy()))  # noqa: S307 - our own file
    assert any(satisfies(actual, wanted) for actual in have), f"{signature} is none of {have}"


def test_kinds_of_floats():
    for name in ("kUndefined", "kFloat16", "kBFloat16", "kFloat32", "kFloat8E4M3FN", "kFloat8E5M2"):
        assert getattr(p2p, name) is getattr(p2p.FloatType, name)


def in_stub(body):
    """How often each function is defined, and the same for each class."""
    names = {}
    for node in body:
        if isinstance(node, ast.ClassDef):
            names[node.name] = in_stub(node.body)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if any(ast.unparse(one).endswith(".setter") for one in node.decorator_list):
                continue
            names[node.name] = names.get(node.name, 0) + 1
    return names


def in_module(owner):
    names = {}
    for name, value in vars(owner).items():
        if inspect.isclass(value):
            names[name] = in_module(value)
        elif hasattr(value, "__nb_signature__"):
            names[name] = len(value.__nb_signature__)
        elif isinstance(value, property):
            names[name] = 1
    return names


def test_the_stub_and_the_module_agree():
    stub = ast.parse((Path(_p2p.__file__).parent / "_p2p.pyi").read_text())
    there, here = in_stub(stub.body), in_module(_p2p)
    assert there.pop("FloatType") is not None and here.pop("FloatType") is not None
    assert there == here
    assigned = [node.targets for node in ast.walk(stub) if isinstance(node, ast.Assign)]
    assert set(p2p.FloatType.__members__) <= {ast.unparse(target) for targets in assigned for target in targets}
