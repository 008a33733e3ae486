# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""The binary interface: what the installed NIXL's own plugins have, what ours was built to, whom it refuses."""

import ctypes
import os
import pathlib
import re
import subprocess

import nixl_cu13
import pytest

HERE = pathlib.Path(__file__).parent
PLUGIN = pathlib.Path(os.environ["NIXL_PLUGIN_DIR"]) / "libplugin_TCPX.so"
WHEEL = pathlib.Path(nixl_cu13.__file__).parent.parent / ".nixl_cu13.mesonpy.libs"
POINTER = 8


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def slots_of(library, class_name):
    """The functions of a class's virtual table in order, destructors left out, as NAME(PARAMETERS)."""
    mangled = f"_ZTV{len(class_name)}{class_name}"
    row = next(line.split() for line in output("readelf", "-sW", "--dyn-syms", library).splitlines() if line.endswith(" " + mangled))
    start, size = int(row[1], 16), int(row[2], 0)
    found = {}
    for line in output("readelf", "-rW", library).splitlines():
        words = line.split()
        if len(words) >= 5 and re.fullmatch("[0-9a-f]+", words[0]) and start <= int(words[0], 16) < start + size:
            found[int(words[0], 16) - start] = words[4]
    entries = [found[at] for at in range(2 * POINTER, size, POINTER)]
    names = output("c++filt", *entries).splitlines()
    return [name.replace(f"{class_name}::", "").replace("nixlBackendEngine::", "") for name in names if "~" not in name]


def plain(signature):
    """With the short name of strings, and without what demanglers disagree about."""
    text = signature.replace(" ", "").replace("[abi:cxx11]", "")
    return text.replace("std::__cxx11::basic_string<char,std::char_traits<char>,std::allocator<char>>", "std::string")


@pytest.mark.parametrize("library, class_name", [("UCX", "nixlUcxEngine"), ("POSIX", "nixlPosixEngine")])
def test_the_wheels_plugins_have_the_slots_that_ours_was_built_to(library, class_name):
    expected = [line for line in (HERE.parent / "abi" / "slots.txt").read_text().splitlines() if not line.startswith("#")]
    found = slots_of(WHEEL / "plugins" / f"libplugin_{library}.so", class_name)
    # What follows is the plugin's own: agents call no further.
    assert [plain(slot) for slot in found[: len(expected)]] == [plain(slot) for slot in expected]


def test_only_the_entry_points_are_visible():
    rows = [line.split() for line in output("nm", "-D", "--defined-only", PLUGIN).splitlines()]
    assert sorted(row[-1] for row in rows) == ["nixl_plugin_fini", "nixl_plugin_init"]


def test_it_needs_nothing_of_nixl():
    needed = re.findall(r"NEEDED.*\[(.*)\]", output("readelf", "-dW", PLUGIN))
    assert needed and not [name for name in needed if re.search("nixl|absl|ucp|uct|cuda", name)]
    undefined = output("nm", "-DC", "--undefined-only", PLUGIN)
    assert "nixl" not in undefined and "absl" not in undefined


def test_a_host_that_is_no_nixl_is_refused(capfd):
    library = ctypes.CDLL(str(PLUGIN))
    library.nixl_plugin_init.restype = ctypes.c_void_p
    assert library.nixl_plugin_init() is None
    assert "works with NIXL 1.0 to 1.5" in capfd.readouterr().err


def test_the_agent_finds_it(names):
    from party import Party

    party = Party(names("finder"))
    assert party.agent.get_plugin_mem_types("TCPX") == party.agent.get_backend_mem_types("TCPX")
    assert len(party.agent.get_plugin_mem_types("TCPX")) == 2
