# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
import inspect
import os
import signal
import subprocess
import sys
import re
from pathlib import Path

import pytest

import uccl
from uccl import _p2p, p2p, utils

_QUIET = """
import os, sys
def state():
    return len(os.listdir('/proc/self/task')), sorted(os.readlink(f'/proc/self/fd/{fd}')
        for fd in os.listdir('/proc/self/fd') if os.path.islink(f'/proc/self/fd/{fd}'))
before = state()
from uccl import p2p
assert state() == before, (before, state())
assert 'torch' not in sys.modules and 'numpy' not in sys.modules
"""

_FORK = """
import os, sys
from uccl import p2p
child = os.fork()
if child == 0:
    with p2p.Endpoint(0, 1) as ep:
        os._exit(0 if len(ep.get_metadata()) in (10, 22) else 1)
_, status = os.waitpid(child, 0)
sys.exit(os.waitstatus_to_exitcode(status))
"""

_PLUGIN = """
import sys
from importlib.metadata import entry_points
for group, package in (('vllm.general_plugins', 'vllm'), ('sglang.srt.plugins', 'sglang')):
    (plugin,) = entry_points(group=group, name='uccl')
    sys.modules[package] = None
    plugin.load()()  # they call it in each of their processes
assert not {'torch', 'numpy', 'uccl._p2p', 'uccl.weights'} & set(sys.modules)
"""

_FAULT = """
import ctypes, faulthandler
from uccl import p2p
{early}
ep = p2p.Endpoint(0, 1)
memory = bytearray(4096)
assert ep.reg(memory)[0]
{late}
ctypes.string_at(8)
"""


def run_python(code, seconds=30, **keywords):
    return subprocess.run(
        [sys.executable, "-c", code], timeout=seconds, capture_output=True, text=True, check=False, **keywords
    )


def test_import_starts_nothing():
    done = run_python(_QUIET)
    assert done.returncode == 0, done.stderr


def test_fork_after_import():
    done = run_python(_FORK)
    assert done.returncode == 0, done.stderr


def test_endpoint_of_the_parent_is_refused_in_a_child(ep):
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            ep.get_metadata()
            os.write(write, b"used")
        except RuntimeError as error:
            os.write(write, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    assert b"fork" in os.read(read, 4096)
    os.close(read)
    assert ep.get_metadata()


@pytest.mark.parametrize("enable", ["early", "late"])
def test_faults_of_the_program_reach_its_faulthandler(enable):
    done = run_python(_FAULT.format(**{"early": "", "late": "", enable: "faulthandler.enable()"}))
    assert done.returncode == -signal.SIGSEGV
    assert "Fatal Python error: Segmentation fault" in done.stderr and "string_at" in done.stderr


def test_version_is_that_of_the_project():
    project = Path(__file__).parents[2] / "pyproject.toml"
    assert re.search(r'^version = "(.*)"', project.read_text(), re.M)[1] == uccl.__version__


def test_package_is_typed():
    package = Path(uccl.__file__).parent
    assert (package / "py.typed").exists()
    assert (package / "_p2p.pyi").exists()


@pytest.mark.parametrize("owner", [p2p, p2p.Endpoint, p2p.XferDesc, utils])
def test_every_public_name_is_documented(owner):
    names = getattr(owner, "__all__", None) or [name for name in dir(owner) if not name.startswith("_")]
    for name in names:
        value = getattr(owner, name)
        if inspect.ismodule(value) or not (callable(value) or isinstance(value, property)):
            continue
        if getattr(value, "__module__", None) in ("typing", "collections.abc"):
            continue
        assert inspect.getdoc(value), f"{owner.__name__}.{name} has no docstring"


def test_lazy_modules():
    done = run_python("import uccl; uccl.utils.set_files_limit(); uccl.p2p.Endpoint; assert 'p2p' in dir(uccl)")
    assert done.returncode == 0, done.stderr
    with pytest.raises(AttributeError, match="nothing"):
        uccl.nothing  # noqa: B018
    with pytest.raises(AttributeError, match="no plugin"):
        uccl.nccl_plugin_path()


def test_out_of_band_address(ep):
    assert p2p.get_oob_ip() == ep.parse_metadata(ep.get_metadata())[0]


def test_error_classes():
    for name in p2p.__all__:
        value = getattr(p2p, name)
        if inspect.isclass(value) and issubclass(value, Exception):
            assert issubclass(value, p2p.Error) and issubclass(value, RuntimeError)
    assert issubclass(p2p.TimedOut, TimeoutError)
    assert issubclass(p2p.PeerGone, ConnectionError)
    assert _p2p.get_oob_ip is p2p.get_oob_ip


def test_entry_point_for_vllm_imports_nothing():
    done = run_python(_PLUGIN)
    assert done.returncode == 0, done.stderr
