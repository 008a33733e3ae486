# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""What a type checker says about the package and about a program that uses it."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mypy")
pytestmark = pytest.mark.timeout(240)

CONFIGURATION = """
[mypy]
strict = True
# torch, Ray and NIXL need not be installed, and are none of ours.
[mypy-torch.*]
follow_imports = skip
[mypy-ray.*]
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
assert_type(ep.write(conn, 1, 2, 3, b"", stream=7), bool)
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


def test_the_package(tmp_path):
    code, said = mypy(tmp_path, "-p", "uccl")
    assert code == 0, said


def test_programs(tmp_path):
    (tmp_path / "good.py").write_text(GOOD)
    (tmp_path / "wrong.py").write_text(WRONG)
    code, said = mypy(tmp_path, "good.py", "wrong.py")
    complaints = [line for line in said.splitlines() if ": error:" in line]
    lines = {int(line.split(":")[1]) for line in complaints if Path(line.split(":")[0]).name == "wrong.py"}
    assert code == 1 and lines == {3, 4, 5, 6}, said
    assert not [line for line in complaints if "good.py" in line], said
