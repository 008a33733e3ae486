# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""What type checkers (mypy, and pyright by basedpyright) say about the package and about programs that use it."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

import uccl

pytestmark = pytest.mark.timeout(240)
needs_mypy = pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="mypy is not installed")
needs_pyright = pytest.mark.skipif(
    importlib.util.find_spec("basedpyright") is None, reason="basedpyright is not installed"
)

CONFIGURATION = """
[mypy]
strict = True
# torch, Ray, SGLang, verl, vLLM and NIXL need not be installed, and are none of ours.
[mypy-torch.*]
follow_imports = skip
[mypy-ray.*]
follow_imports = skip
ignore_missing_imports = True
[mypy-sglang.*]
follow_imports = skip
ignore_missing_imports = True
[mypy-verl.*]
follow_imports = skip
ignore_missing_imports = True
[mypy-vllm.*]
follow_imports = skip
ignore_missing_imports = True
[mypy-uccl._p2p]
# Keywords of Endpoint() are options by name, of any type.
disallow_untyped_defs = False
disallow_incomplete_defs = False
[mypy-uccl.collective]
# torch's classes are unknown there when torch is left out.
disallow_any_unimported = False
[mypy-uccl.ray]
# Ray's, too.
disallow_any_unimported = False
disallow_subclassing_any = False
[mypy-uccl.weights.verl]
disallow_any_unimported = False
disallow_subclassing_any = False
disallow_untyped_decorators = False
[mypy-uccl.weights.vllm]
disallow_any_unimported = False
disallow_subclassing_any = False
"""

GOOD = """
from typing import assert_type
from uccl import aio, p2p
ep = p2p.Endpoint(0, 2, transports=["tcp"])
address, port, gpu = p2p.Endpoint.parse_metadata(ep.get_metadata())
assert_type(address, str)
ok, conn = ep.connect(address, gpu, port)
assert_type(conn, int)
assert_type(ep.write(conn, 1, 2, 3, b""), bool)
assert_type(ep.write_async(conn, 1, 2, 3, b""), tuple[bool, int])
assert_type(ep.write(conn, 1, 2, 3, b"", stream=7, priority="low", rate=1000, verify=True), bool)
assert_type(ep.write(conn, bytearray(8), b""), bool)
assert_type(ep.write_async(conn, 1, bytearray(8), b"", stream=None), tuple[bool, int])
assert_type(ep.send(conn, bytearray(8)), bool)
assert_type(ep.reg(bytearray(8)), tuple[bool, int])
assert_type(ep.advertise(1, 2, 3), tuple[bool, bytes])
assert_type(ep.advertise(0, 1, 2, 3, bytearray(64)), bool)
assert_type(ep.stats(), dict[str, int])
assert_type(ep.deserialize_descs(b""), list[p2p.XferDesc])

async def move() -> None:
    async with aio.Endpoint() as there:
        assert_type(await there.accept(), int)
        assert_type(await there.write(1, 2, 3, 4, b""), int)
        assert_type(await there.write(1, 2, 3, 4, b"", stream=7), int)
"""

WRONG = """
from uccl import p2p
ep = p2p.Endpoint("first")
ep.connect(7, 0)
ep.write(0, 1, 2, "size", b"")
ep.sent(0)
"""


def mypy(tmp_path, *words):
    (tmp_path / "mypy.ini").write_text(CONFIGURATION)
    command = [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "--cache-dir", str(tmp_path / "cache"), *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=220, check=False)
    return done.returncode, done.stdout + done.stderr


WRONG_LINES = {3, 4, 5, 6}


@needs_mypy
def test_the_package(tmp_path):
    code, said = mypy(tmp_path, "-p", "uccl")
    assert code == 0, said


@needs_mypy
def test_programs(tmp_path):
    (tmp_path / "good.py").write_text(GOOD)
    (tmp_path / "wrong.py").write_text(WRONG)
    code, said = mypy(tmp_path, "good.py", "wrong.py")
    complaints = [line for line in said.splitlines() if ": error:" in line]
    lines = {int(line.split(":")[1]) for line in complaints if Path(line.split(":")[0]).name == "wrong.py"}
    assert code == 1 and lines == WRONG_LINES, said
    assert not [line for line in complaints if "good.py" in line], said


def pyright(folder):
    """What it takes for errors in the programs of a folder, as (file, line)."""
    settings = {
        "typeCheckingMode": "standard", "include": ["."], "extraPaths": [str(Path(uccl.__file__).parents[1])],
        "reportMissingImports": "none",  # torch, Ray and NIXL need not be installed
    }  # fmt: skip
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    done = subprocess.run(
        [sys.executable, "-m", "basedpyright", "--pythonpath", sys.executable, "--outputjson"], cwd=folder,
        capture_output=True, text=True, timeout=220, check=False,
    )  # fmt: skip
    said = json.loads(done.stdout)
    assert said["summary"]["filesAnalyzed"] > 0, said
    errors = [one for one in said["generalDiagnostics"] if one["severity"] == "error"]
    return {(Path(one["file"]).name, one["range"]["start"]["line"] + 1) for one in errors}, said


@needs_pyright
def test_the_package_by_pyright(tmp_path):
    for source in Path(uccl.__file__).parent.rglob("*.py*"):
        if source.suffix not in (".py", ".pyi") and source.name != "py.typed":
            continue
        copy = tmp_path / "uccl" / source.relative_to(Path(uccl.__file__).parent)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(source.read_bytes())
    errors, said = pyright(tmp_path)
    assert errors == set(), said


@needs_pyright
def test_programs_by_pyright(tmp_path):
    (tmp_path / "good.py").write_text(GOOD)
    (tmp_path / "wrong.py").write_text(WRONG)
    errors, said = pyright(tmp_path)
    assert errors == {("wrong.py", line) for line in WRONG_LINES}, said
