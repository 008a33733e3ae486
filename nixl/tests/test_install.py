# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""``python -m uccl.nixl`` on the installed NIXL, and the backend beside NIXL's own."""

import os
import pathlib
import shutil
import subprocess
import sys

import nixl_cu13
import pytest

from uccl import nixl

FOLDER = pathlib.Path(nixl_cu13.__file__).parent.parent / ".nixl_cu13.mesonpy.libs" / "plugins"
MOVE = """
import numpy
from nixl_cu13._api import nixl_agent, nixl_agent_config
agent = nixl_agent("one", nixl_agent_config(backends=["TCPX"]))
data = numpy.arange(2000, dtype=numpy.uint8)
agent.register_memory([(data.ctypes.data, 2000, 0, "")], "DRAM")
descs = [agent.get_xfer_descs([(data.ctypes.data + at, 1000, 0)], "DRAM") for at in (0, 1000)]
handle = agent.initialize_xfer("WRITE", *descs, "one", b"x")
state = agent.transfer(handle)
while state == "PROC":
    state = agent.check_xfer_state(handle)
assert state == "DONE" and bytes(data[:1000]) == bytes(data[1000:])
print("moved by", agent.query_xfer_backend(handle), "among", sorted(agent.get_plugin_list()))
"""


def run(*words, plugin_dir=None):
    environment = {key: value for key, value in os.environ.items() if key != "NIXL_PLUGIN_DIR"}
    if plugin_dir:
        environment["NIXL_PLUGIN_DIR"] = str(plugin_dir)
    return subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True, timeout=50)


def tool(*words, **keywords):
    return run("-m", "uccl.nixl", *words, **keywords)


@pytest.fixture
def clean():
    nixl.uninstall(FOLDER, force=True)
    yield
    nixl.uninstall(FOLDER, force=True)


@pytest.mark.parametrize("options, kind", [([], "linked"), (["--copy"], "copied")])
def test_install_use_uninstall(clean, options, kind):
    assert "absent" in tool("status").stdout
    installed = tool("install", *options)
    assert installed.returncode == 0 and kind in installed.stdout, installed.stderr
    assert tool("install", *options).returncode == 0, "again is no error"
    assert kind in tool("status").stdout
    moved = run("-c", MOVE)
    assert "moved by TCPX" in moved.stdout and "UCX" in moved.stdout, moved.stdout + moved.stderr
    assert "removed" in tool("uninstall").stdout
    assert not (FOLDER / nixl.NAME).exists()
    assert "absent" in tool("uninstall").stdout


def test_installed_as_another_backend(clean):
    """Programs that ask for UCCL, with the parameters that they give it."""
    assert tool("install", "--as", "UCCL").returncode == 0
    try:
        parameters = 'agent = nixl_agent("one", nixl_agent_config(backends=[]))\n'
        parameters += 'agent.create_backend("UCCL", {"in_python": "true", "num_cpus": "2"})'
        asks = MOVE.replace('agent = nixl_agent("one", nixl_agent_config(backends=["TCPX"]))', parameters)
        moved = run("-c", asks)
        assert "moved by UCCL" in moved.stdout, moved.stdout + moved.stderr
        assert "linked" in tool("status", "--as", "UCCL").stdout and "absent" in tool("status").stdout
    finally:
        assert "removed" in tool("uninstall", "--as", "UCCL").stdout
    assert tool("install", "--as", "../x").returncode == 1


def test_a_file_from_elsewhere_is_left_alone(tmp_path):
    (tmp_path / nixl.NAME).write_text("something else")
    for command in ("install", "uninstall"):
        refused = tool(command, "--dir", str(tmp_path))
        assert refused.returncode == 1 and "from elsewhere" in refused.stderr
    assert (tmp_path / nixl.NAME).read_text() == "something else"
    assert tool("install", "--dir", str(tmp_path), "--force").returncode == 0
    assert nixl.state(tmp_path) == "linked"


def test_a_package_without_the_backend_has_none_installed(tmp_path, monkeypatch):
    shutil.copy(nixl.plugin(), tmp_path)
    assert nixl.state(tmp_path) == "copied"
    monkeypatch.setattr(nixl.folders, "_OURS", tmp_path / "built without")
    assert nixl.state(tmp_path) == "other"
    with pytest.raises(FileNotFoundError, match="built without the NIXL backend"):
        nixl.plugin()


def test_a_folder_of_its_own(tmp_path):
    shutil.copy(nixl.plugin(), tmp_path)
    moved = run("-c", MOVE, plugin_dir=tmp_path)
    assert "among ['TCPX']" in moved.stdout, "NIXL_PLUGIN_DIR hides all other plugins"


def test_status_warns_of_the_environment(tmp_path):
    assert "nowhere else" in tool("status", plugin_dir=tmp_path).stdout
