#!/usr/bin/env python3
# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""docs/a3.md and docs/tcpx.md followed literally: their settings and commands, as printed.

Usage: pages_test.py TCPX PLUGIN SHY_PLUGIN. In namespaces with the interfaces of A3 High and sockets of RxDM, where that
may be made (root), on softnet that imitates the plugin. Where CUDA has no device host memory stands for its memory.
"""

import os
import re
import socket
import subprocess
import sys
import tempfile
import unittest
from contextlib import ExitStack
from json import loads
from pathlib import Path

import program_test
from program_test import IMITATED, environment, receive_manager

A3, TCPX_PAGE = ((Path(__file__).parents[2] / "docs" / name).read_text() for name in ("a3.md", "tcpx.md"))
HIGH, MEGA = A3.split("\n## On A3 Mega\n")
PAGES = [HIGH, TCPX_PAGE]
NAMESPACES = ["unshare", "--net", "--mount"]
MACHINE = """
mount -t sysfs sysfs /sys
mount -t tmpfs tmpfs /run
ip link set lo up
for nic in 0 1 2 3 4 5 6 7 8; do
  ip link add eth$nic type veth peer name end$nic
  ip address add 10.231.10$nic.1/24 dev eth$nic
  ip link set eth$nic up
  ip link set end$nic up
done
exec "$@"
"""


def variables(page=HIGH):
    """Of the table, by name."""
    rows = re.findall(r"^\| `(NCCL_\w+)`[ *]*\| ([^|]+?) \|", page, re.MULTILINE)
    return {name: value.split(", or ")[0].strip("`") for name, value in rows if not value.startswith("unset")}


def pairs(pages=PAGES):
    """(server, client): each client's command with the last server's before it that begins alike."""
    servers, found = {}, []
    for page in pages:
        for command in re.findall(r"`(tcpx \w+ (?:server|client)[^`]*)`", page):
            words = command.split()
            if words[2] == "server":
                servers[words[1]] = command
            elif (servers[words[1]], command) not in found:
                found.append((servers[words[1]], command))
    return found


class Pages(unittest.TestCase):
    """One machine that is set up as the page says."""

    @classmethod
    def setUpClass(cls):
        stack = ExitStack()
        cls.addClassCleanup(stack.close)
        # The loader's libnccl-net.so, as on the machine.
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        plain = {"SOFTNET_INTERFACES": "eth1,eth2,eth3,eth4", **IMITATED}
        report = subprocess.run([program_test.TCPX, "discover", "--json", "--plugin", program_test.PLUGIN],
                                env=environment(plain), capture_output=True, text=True, timeout=60, check=False).stdout
        gpus = [check["found"].split(",")[0] for check in loads(report)["checks"] if re.fullmatch(r"GPU \d+", check["subject"])]
        cls.gpu = bool(gpus)
        plugin = program_test.SHY_PLUGIN if cls.gpu else program_test.PLUGIN
        (Path(folder) / "libnccl-net.so").symlink_to(plugin)
        # Where the page says that RxDM is.
        sockets = stack.enter_context(receive_manager(*gpus or ["0000:04:00.0"]))
        Path("/run/tcpx").symlink_to(sockets)
        here = os.pathsep.join([folder, str(Path(program_test.TCPX).parent), os.environ["PATH"]])
        cls.settings = environment({**plain, "SOFTNET_CUDA": "1" if cls.gpu else "0", "LD_LIBRARY_PATH": folder, "PATH": here})
        # A machine with fewer processors has not those that the page names.
        cls.set = {name: value for name, value in variables().items() if "BINDINGS" not in name}

    def shell(self, command, **more):
        return subprocess.run(["bash", "-c", command], env={**self.settings, **more}, capture_output=True, text=True, timeout=120,
                              check=False)

    def here(self, command):
        return command.replace("/path/to/", f"{self.settings['LD_LIBRARY_PATH']}/")

    def test_the_settings_are_good(self):
        self.assertGreater(len(self.set), 12)
        done = self.shell("tcpx discover --json", **self.set)
        checks = {check["subject"]: check for check in loads(done.stdout)["checks"]}
        for name in self.set:
            self.assertEqual(checks[name]["verdict"], "good", checks[name])
        for name in ("RxDM", "eth1", "eth4"):
            self.assertNotEqual(checks[name]["verdict"], "bad", checks[name])
        self.assertEqual(done.returncode, 0, checks)

    def test_the_bindings_are_good_where_there_are_so_many_processors(self):
        done = self.shell("tcpx discover --json", **variables())
        checks = {check["subject"]: check for check in loads(done.stdout)["checks"]}
        for name in variables().keys() - self.set.keys():
            self.assertRegex(checks[name]["advice"], "^(there is no CPU .*)?$")
        self.assertNotIn("bindings of both directions", checks)

    def test_every_pair_of_commands_works(self):
        self.assertGreater(len(pairs()), 4)
        for server, client in pairs():
            short = " --rounds 2 --sizes 1M" if " perf " in client else ""
            as_printed = f"{server} & {client.replace('HOST', '127.0.0.1')}{short} && wait $!"
            if not self.gpu:
                as_printed = re.sub(r"--gpu \d+", "--host-pool", as_printed)
            done = self.shell(re.sub(r"(--gpu) N\b", r"\1 0", as_printed), **self.set)
            self.assertEqual(done.returncode, 0, f"{server}; {client}: {done.stdout}{done.stderr}")

    def test_every_discover_takes_its_options(self):
        for page in PAGES:
            for command in re.findall(r"`(tcpx discover[^`]*)`", page):
                done = self.shell(self.here(command), **self.set)
                self.assertEqual(done.returncode, 0, f"{command}: {done.stdout}{done.stderr}")

    def test_on_a3_mega(self):
        settings = {**variables(MEGA), "SOFTNET_HABITS": "tcpxo", "SOFTNET_NAME": "FasTrak",
                    "SOFTNET_INTERFACES": "eth1,eth2,eth3,eth4,eth5,eth6,eth7,eth8"}
        with socket.socket(socket.AF_UNIX) as manager:
            manager.bind(b"\0rxdm_uds_nic_mapping".ljust(108, b"\0"))
            manager.listen()
            (discover,) = re.findall(r"`(tcpx discover[^`]*)`", MEGA)
            done = self.shell(self.here(discover) + " --json", **settings)
            checks = {check["subject"]: check for check in loads(done.stdout)["checks"]}
            for name in (*variables(MEGA), "RxDM", "eth1", "eth8"):
                self.assertEqual(checks[name]["verdict"], "good", checks[name])
            self.assertEqual(done.returncode, 0, checks)
            ((server, client),) = pairs([MEGA])
            both = self.here(f"{server} & {client.replace('HOST', '127.0.0.1')} && wait $!")
            done = self.shell(both if self.gpu else re.sub(r"--gpu \d+", "--host-pool", both), **settings)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == "__main__":
    if len(sys.argv) == 4:
        if subprocess.run([*NAMESPACES, "true"], capture_output=True, check=False).returncode != 0:
            print("skipped: no namespaces can be made here")
            sys.exit(0)
        again = [*NAMESPACES, "bash", "-euc", MACHINE, "machine", sys.executable, *sys.argv, "inside"]
        os.execvp(again[0], again)
    program_test.TCPX, program_test.PLUGIN, program_test.SHY_PLUGIN = sys.argv[1:4]
    unittest.main(argv=sys.argv[:1], verbosity=2)
