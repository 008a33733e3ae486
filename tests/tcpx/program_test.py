#!/usr/bin/env python3
# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""The tcpx program, as people call it.

Usage: program_test.py TCPX PLUGIN SHY_PLUGIN P2P_PERF. PLUGIN is softnet, which here calls itself GPUDirectTCPX and has its
habits; SHY_PLUGIN passes its calls on, and has no pool in host memory that it would tell of.
"""

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import unittest

TCPX, PLUGIN, SHY_PLUGIN, P2P_PERF = "", "", "", ""
IMITATED = {
    "SOFTNET_NAME": "GPUDirectTCPX_v7",
    "SOFTNET_PCI_PATH": "/sys/devices/pci0000:00/0000:00:04.0",
    "SOFTNET_UNPACK": "1",
    "SOFTNET_HABITS": "tcpx",
}
OURS = ("NCCL_", "SOFTNET_", "UCCL_", "TCPX_")


def environment(settings):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    # A machine that stands still is no failure.
    patient = {"SOFTNET_TIMEOUT_MS": "50000", "UCCL_P2P_CONNECT_TIMEOUT_MS": "50000"}
    return {**kept, **patient, "SOFTNET_INTERFACES": "lo", **settings}


def run(*arguments, **settings):
    return subprocess.run([TCPX, *arguments], env=environment(settings), capture_output=True, text=True, timeout=60,
                          check=False)


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def pair(command, *arguments, server=(), plugin=None, both_fail=False, **settings):
    """A server and a client; both as they ended, the server's output first. It is killed where the client alone can fail."""
    port = str(free_port())
    common = ["--plugin", plugin or PLUGIN, "--port", port]
    with subprocess.Popen([TCPX, command, "server", *common, *server], env=environment(settings), text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as serving:
        client = run(command, "client", "127.0.0.1", *common, *arguments, **settings)
        if client.returncode != 0 and not both_fail:
            serving.kill()
        output, _ = serving.communicate(timeout=60)
    return serving.returncode, output, client


class Discover(unittest.TestCase):
    def checks(self, **settings):
        result = run("discover", "--plugin", PLUGIN, "--json", **{**IMITATED, **settings})
        report = json.loads(result.stdout)
        return result.returncode, {check["subject"]: check for check in report["checks"]}

    def test_says_what_the_user_left_unset(self):
        code, checks = self.checks()
        self.assertEqual(code, 1)
        for name, verdict in (("NCCL_DYNAMIC_CHUNK_SIZE", "bad"),
                              ("NCCL_GPUDIRECTTCPX_PROGRAM_FLOW_STEERING_WAIT_MICROS", "advice")):
            self.assertEqual((checks[name]["verdict"], checks[name]["found"]), (verdict, "unset"), name)

    def test_values_are_judged(self):
        for name, value, verdict in (
                ("NCCL_DYNAMIC_CHUNK_SIZE", "524288", "good"), ("NCCL_DYNAMIC_CHUNK_SIZE", "512K", "bad"),
                ("NCCL_DYNAMIC_CHUNK_SIZE", "abc", "bad"), ("NCCL_DYNAMIC_CHUNK_SIZE", "0", "bad"),
                ("NCCL_GPUDIRECTTCPX_PROGRAM_FLOW_STEERING_WAIT_MICROS", "50000", "good"),
                ("NCCL_GPUDIRECTTCPX_PROGRAM_FLOW_STEERING_WAIT_MICROS", "0", "bad"),
                ("NCCL_GPUDIRECTTCPX_PROGRAM_FLOW_STEERING_WAIT_MICROS", "30000000", "bad"),
                ("NCCL_NSOCKS_PERTHREAD", "4", "good"), ("NCCL_NSOCKS_PERTHREAD", "9", "bad"),
                ("NCCL_GPUDIRECTTCPX_SOCKET_IFNAME", "lo", "good"),
                ("NCCL_GPUDIRECTTCPX_SOCKET_IFNAME", "nowhere0", "bad"),
                ("NCCL_GPUDIRECTTCPX_CTRL_DEV", "nowhere0", "bad"), ("NCCL_SOCKET_IFNAME", "nowhere0", "bad"),
                ("NCCL_GPUDIRECTTCPX_FORCE_ACK", "1", "advice"), ("NCCL_MIN_ZCOPY_SIZE", "4K", "bad"),
                ("NCCL_USE_DMA_BUF", "0", "bad"), ("NCCL_GPUDIRECTTCPX_TX_BINDINGS", "lo:0-0", "good"),
                ("NCCL_GPUDIRECTTCPX_RX_BINDINGS", "lo:0", "bad")):
            # One that lets no byte move is refused by the plugin's users, and judged here all the same.
            _, checks = self.checks(**{"NCCL_DYNAMIC_CHUNK_SIZE": "524288", name: value})
            self.assertEqual(checks[name]["verdict"], verdict, f"{name}={value}")

    def test_bindings_that_cannot_be(self):
        for value, why in (("lo:8", "'8' is not a range"), ("lo", "not INTERFACE:A-B"), ("lo:", "not INTERFACE:A-B"),
                           ("nowhere0:0-0", "no interface nowhere0"), ("lo:0-65536", "there is no CPU "),
                           ("lo:0-18446744073709551615", "there is no CPU "), ("lo:0-0,0-0", "0-0 and 0-0 of lo overlap"),
                           ("lo:0-0;lo:0-0", "lo is named twice")):
            for name in ("NCCL_GPUDIRECTTCPX_TX_BINDINGS", "NCCL_GPUDIRECTTCPX_RX_BINDINGS"):
                _, checks = self.checks(**{name: value})
                self.assertEqual(checks[name]["verdict"], "bad", value)
                self.assertIn(why, checks[name]["advice"])

    def test_bindings_of_both_directions_that_overlap(self):
        last = f"lo:{os.cpu_count() - 1}-{os.cpu_count() - 1}"
        for receives, overlap in (("lo:0-0", True), (last, os.cpu_count() == 1)):
            _, checks = self.checks(NCCL_GPUDIRECTTCPX_TX_BINDINGS="lo:0-0", NCCL_GPUDIRECTTCPX_RX_BINDINGS=receives)
            self.assertEqual("bindings of both directions" in checks, overlap, receives)

    def test_a_small_task_is_noticed(self):
        _, checks = self.checks(NCCL_DYNAMIC_CHUNK_SIZE="131072")
        self.assertEqual(checks["bytes of a message"]["verdict"], "advice")
        _, checks = self.checks(NCCL_DYNAMIC_CHUNK_SIZE="524288")
        self.assertNotIn("bytes of a message", checks)

    def test_a_nic_that_cannot_register_cuda_memory(self):
        _, checks = self.checks()
        self.assertEqual(checks["lo"]["verdict"], "good")
        for place in ("/sys/devices/pci0000:00/0000:00:04.0/virtio1", ""):
            _, checks = self.checks(SOFTNET_PCI_PATH=place)
            self.assertEqual(checks["lo"]["verdict"], "bad", place)
            self.assertIn("no gVNIC", checks["lo"]["advice"])

    def test_stale_sockets_of_the_receive_manager(self):
        with tempfile.TemporaryDirectory() as folder:
            settings = {"NCCL_GPUDIRECTTCPX_UNIX_CLIENT_PREFIX": folder}
            with socket.socket(socket.AF_UNIX) as gpu, socket.socket(socket.AF_UNIX) as rules:
                for name, listener in (("get_gpu_fd_0000:04:00.0", gpu), ("rx_rule_manager", rules)):
                    listener.bind(f"{folder}/{name}")
                    listener.listen()
                _, checks = self.checks(**settings)
                self.assertEqual(checks["RxDM"]["verdict"], "good", checks["RxDM"])
            _, checks = self.checks(**settings)
            self.assertEqual(checks["RxDM"]["verdict"], "bad")
            self.assertIn("nobody listens", checks["RxDM"]["found"])

    def test_a_probe_without_a_gpu(self):
        result = run("discover", "--plugin", PLUGIN, "--json", "--probe", CUDA_VISIBLE_DEVICES="")
        probed = [check for check in json.loads(result.stdout)["checks"] if check["subject"] == "probe"]
        self.assertEqual((result.returncode, [check["verdict"] for check in probed]), (1, ["bad"]), result.stdout)

    def test_all_is_checked_without_a_plugin(self):
        result = run("discover", "--plugin", "/nowhere/libnccl-net.so", "--json", NCCL_DYNAMIC_CHUNK_SIZE="512K")
        self.assertEqual(result.returncode, 1)
        checks = {check["subject"]: check["verdict"] for check in json.loads(result.stdout)["checks"]}
        self.assertEqual(checks["plugin"], "bad")
        self.assertEqual(checks["NCCL_DYNAMIC_CHUNK_SIZE"], "bad")
        self.assertIn("RxDM", checks)
        self.assertIn("CUDA", checks)

    def test_fastrak(self):
        fastrak = {"SOFTNET_HABITS": "tcpxo", "SOFTNET_NAME": "FasTrak", "NCCL_FASTRAK_IFNAME": "lo"}
        with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as manager:
            manager.bind(f"{folder}/rxdm_uds_nic_mapping")
            manager.listen()
            result = run("discover", "--plugin", PLUGIN, "--json", NCCL_FASTRAK_NUM_FLOWS="9", NCCL_FASTRAK_ENABLE="0",
                         NCCL_FASTRAK_CTRL_DEV="nosuch0", FILE_BASED_UDS_PATH_PREFIX=folder, **fastrak)
            self.assertEqual(result.returncode, 1)
            report = json.loads(result.stdout)
            self.assertEqual(report["abi"], 7)
            self.assertEqual([(device["cuda"], device["unpack"]) for device in report["devices"]], [(True, False)])
            checks = {check["subject"]: check for check in report["checks"]}
            for name, verdict in (("RxDM", "good"), ("NCCL_FASTRAK_IFNAME", "good"), ("NCCL_FASTRAK_NUM_FLOWS", "bad"),
                                  ("NCCL_FASTRAK_ENABLE", "bad"), ("NCCL_FASTRAK_CTRL_DEV", "bad"),
                                  ("NCCL_FASTRAK_USE_LLCM", "advice")):
                self.assertEqual(checks[name]["verdict"], verdict, checks[name])
            self.assertNotIn("NCCL_DYNAMIC_CHUNK_SIZE", checks)
        for plugin in (PLUGIN, "/nowhere/libnccl-net.so"):
            result = run("discover", "--plugin", plugin, "--json", FILE_BASED_UDS_PATH_PREFIX="/nowhere", **fastrak)
            checks = {check["subject"]: check for check in json.loads(result.stdout)["checks"]}
            self.assertEqual(checks["RxDM"]["verdict"], "bad")
            self.assertIn("/nowhere/rxdm_uds_nic_mapping", checks["RxDM"]["found"])

    def test_an_init_that_exits_ends_nothing_else(self):
        _, checks = self.checks()
        if checks["CUDA"]["verdict"] == "good":
            self.skipTest("where CUDA has a device, init has no reason to exit")
        result = run("discover", "--plugin", PLUGIN, **{**IMITATED, "SOFTNET_HABITS": "init_exit"})
        self.assertEqual(result.returncode, 1)
        self.assertIn("ends the process", result.stdout)

    def test_what_to_do_about_a_plugin(self):
        for plugin, settings, advice in (("/nowhere/libnccl-net.so", {}, "give --plugin the path"),
                                         (PLUGIN, {"SOFTNET_FAULT": "init"}, "UCCL_P2P_LOG_LEVEL=debug"),
                                         (PLUGIN, {"SOFTNET_FAULT": "no_devices"}, "UCCL_P2P_LOG_LEVEL=debug")):
            result = run("discover", "--plugin", plugin, "--json", **settings)
            self.assertEqual(result.returncode, 1)
            self.assertIn(advice, json.loads(result.stdout)["checks"][0]["advice"], settings)


@contextlib.contextmanager
def receive_manager(*gpus):
    """A folder with the sockets of an RxDM that serves these GPUs, by their PCI addresses."""
    names = ["rx_rule_manager", *(kind + gpu for gpu in gpus for kind in ("get_gpu_fd_", "get_gpu_metadata_"))]
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        for name in names:
            listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(f"{folder}/{name}")
            listener.listen()
        yield folder


class Gpus(unittest.TestCase):
    """Where CUDA has a device: softnet then takes its memory, and ends the process as the plugin would."""

    def setUp(self):
        report = json.loads(run("discover", "--plugin", PLUGIN, "--json").stdout)
        found = {check["subject"]: check for check in report["checks"]}
        if "GPU 0" not in found:
            self.skipTest("there is no GPU")
        self.gpus = [found[name]["found"].split(",")[0] for name in found if re.fullmatch(r"GPU \d+", name)]

    def settings(self, folder):
        return {**IMITATED, "SOFTNET_CUDA": "1", "SOFTNET_HABITS": "tcpx,accept_exits", "NCCL_DYNAMIC_CHUNK_SIZE": "524288",
                "NCCL_GPUDIRECTTCPX_UNIX_CLIENT_PREFIX": folder}

    def checks(self, *arguments, **settings):
        result = run("discover", "--plugin", SHY_PLUGIN, "--json", *arguments, **settings)
        report = json.loads(result.stdout)
        return result.returncode, {check["subject"]: check for check in report["checks"]}

    def test_a_gpu_without_its_socket(self):
        with receive_manager(*self.gpus[1:], "0000:ff:00.0") as folder:
            code, checks = self.checks(**self.settings(folder))
        self.assertEqual((code, checks["RxDM of GPU 0"]["verdict"]), (1, "bad"))
        self.assertIn(f"get_gpu_fd_{self.gpus[0]}: No such file", checks["RxDM of GPU 0"]["found"])
        if len(self.gpus) > 1:
            self.assertEqual(checks["RxDM of GPU 1"]["verdict"], "good")

    def test_a_probe_registers_memory_of_every_gpu(self):
        with receive_manager(*self.gpus) as folder:
            code, checks = self.checks("--probe", **self.settings(folder))
        self.assertEqual(code, 0, checks)
        for gpu in range(len(self.gpus)):
            self.assertEqual(checks[f"GPU {gpu}, lo"]["found"], "its memory can be registered")

    def test_a_probe_asks_the_receive_manager(self):
        with receive_manager(*self.gpus[1:]) as folder:
            code, checks = self.checks("--probe", **self.settings(folder))
        self.assertEqual((code, checks["GPU 0, lo"]["verdict"]), (1, "bad"))
        self.assertIn(f"get_gpu_fd_{self.gpus[0]}", checks["GPU 0, lo"]["found"])

    def test_a_plugin_that_ends_the_process_is_a_finding(self):
        for habit in ("no_pci_path", "accept_exits"):
            with receive_manager() as folder:
                code, checks = self.checks("--probe", **{**self.settings(folder), "SOFTNET_NAME": "Other", "SOFTNET_HABITS": habit})
            self.assertEqual(code, 1)
            for gpu in range(len(self.gpus)):
                self.assertIn("the plugin ended the process", checks[f"GPU {gpu}, lo"]["found"])

    def test_accepts_are_refused_instead(self):
        with receive_manager() as folder:
            served = pair("transfer", "--gpu", "0", server=["--gpu", "0"], plugin=SHY_PLUGIN, both_fail=True,
                          **self.settings(folder))
        code, output, client = served
        self.assertEqual((code, client.returncode), (1, 1))
        self.assertIn("RxDM has no pool of the GPU", output)

    def test_a_gpu_that_is_served_receives(self):
        with receive_manager(*self.gpus) as folder:
            served = pair("transfer", "--gpu", "0", "--sizes", "24", server=["--gpu", "0"], plugin=SHY_PLUGIN,
                          **self.settings(folder))
        code, output, client = served
        self.assertEqual((code, client.returncode), (0, 0), output + client.stderr)

    def test_the_engine_takes_another_way(self):
        for gpus, carrier, reason in (((), "tcp", "RxDM has no pool of the GPU"), (self.gpus, "nccl_net", "preferred")):
            with receive_manager(*gpus) as folder:
                settings = {**self.settings(folder), "UCCL_P2P_NCCL_NET_PLUGIN": SHY_PLUGIN, "UCCL_P2P_TRANSPORT": "tcpx,tcp"}
                done = subprocess.run([P2P_PERF, "local", "--memory", "cuda:0", "--size", "64K", "--duration", "0.1"],
                                      env=environment(settings), capture_output=True, text=True, timeout=60, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertRegex(done.stdout, rf"route: {carrier}: .*{reason}")


class Log(unittest.TestCase):
    def lines(self, **settings):
        return run("discover", "--plugin", PLUGIN, **settings).stderr

    def test_every_variable_counts(self):
        self.assertNotIn("device lo", self.lines())
        for name, value in (("UCCL_P2P_LOG_LEVEL", "debug"), ("UCCL_TCPX_DEBUG", "1"), ("TCPX_DEBUG", "1"),
                            ("NCCL_DEBUG", "INFO")):
            self.assertIn("device lo", self.lines(**{name: value}), name)
        self.assertNotIn("device lo", self.lines(UCCL_P2P_LOG_LEVEL="error", TCPX_DEBUG="1"))

    def test_times(self):
        _, _, client = pair("transfer", "--sizes", "4096", TCPX_PERF="1")
        self.assertRegex(client.stderr, r"\[PERF\] 4096 bytes in \d+ us")


class Transfer(unittest.TestCase):
    def assert_moves(self, command, *arguments, server=(), **settings):
        code, output, client = pair(command, *arguments, server=server, **settings)
        self.assertEqual((code, client.returncode), (0, 0), output + client.stdout + client.stderr)
        return output, client.stdout + client.stderr

    def test_a_plugin_with_all_habits(self):
        _, said = self.assert_moves("transfer", "--host-pool", "--channels", "4", "--chunk", "1M", "--sizes",
                                    "1,24,4096,1000003,67108864", server=["--host-pool"], SOFTNET_POOL_MIB="32",
                                    **IMITATED)
        self.assertIn("instead of 1048576", said, "the chunk is capped, and that is said")

    def test_a_host_pool_of_a_device_is_refused(self):
        # Its devices would take the addresses of host memory for their GPU's.
        _, _, client = pair("transfer", "--host-pool", plugin=SHY_PLUGIN, **IMITATED)
        self.assertEqual(client.returncode, 1)
        self.assertIn("GPUDirectTCPX_v7 has no pool in host memory", client.stderr)

    def test_the_chunk_that_is_used_is_said(self):
        output, said = self.assert_moves("transfer", "--host-pool", "--sizes", "4096", server=["--host-pool"],
                                         NCCL_DYNAMIC_CHUNK_SIZE="131072", **IMITATED)
        for side in (output, said):
            self.assertIn("chunks of 131072 bytes", side)

    def test_limits_that_differ_are_said_by_both_sides_at_once(self):
        port = str(free_port())
        common = ["--plugin", PLUGIN, "--port", port, "--host-pool", "--timeout", "600"]
        with subprocess.Popen([TCPX, "transfer", "server", *common],
                              env=environment({**IMITATED, "NCCL_DYNAMIC_CHUNK_SIZE": "131072"}), text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE) as serving:
            client = run("transfer", "client", "127.0.0.1", *common, **IMITATED)
            _, said = serving.communicate(timeout=60)
        self.assertEqual((serving.returncode, client.returncode), (1, 1))
        for side in (said, client.stderr):
            self.assertIn("chunks of 131072 bytes, we have 2 and 524288", side)
        self.assertIn("the client does not connect: ", said)

    def test_fastrak_moves_what_is_registered_as_memory_of_gpus(self):
        fastrak = {"SOFTNET_HABITS": "tcpxo,null_requests", "SOFTNET_NAME": "FasTrak"}
        self.assert_moves("transfer", "--host-pool", "--channels", "2", "--sizes", "1,4096,1000003",
                          server=["--host-pool"], **fastrak)
        _, _, client = pair("transfer", "--sizes", "4096", **fastrak)
        self.assertIn("FasTrak moves no host memory: name a CUDA device", client.stderr)

    def test_host_memory_on_unpack_devices_is_refused(self):
        _, _, client = pair("transfer", "--sizes", "4096", **IMITATED)
        self.assertEqual(client.returncode, 1)
        self.assertIn("name a CUDA device", client.stderr)

    def test_the_server_says_who_came(self):
        output, _ = self.assert_moves("connect")
        self.assertRegex(output, r"softnet from .*\nlistening on port \d+\nclient: 127.0.0.1 port \d+\n")

    def test_a_server_without_a_plugin_does_not_wait(self):
        result = run("connect", "server", "--plugin", "/nowhere/libnccl-net.so", "--port", str(free_port()))
        self.assertEqual(result.returncode, 1)
        self.assertIn("/nowhere/libnccl-net.so", result.stderr)

    def test_sizes_beyond_all_are_refused_in_words(self):
        result = run("transfer", "client", "127.0.0.1", "--plugin", PLUGIN, "--sizes", "64G")
        self.assertEqual(result.returncode, 1)
        self.assertIn("16 GiB", result.stderr)

    def test_perf_by_several_threads(self):
        _, said = self.assert_moves("perf", "--threads", "3", "--channels", "6", "--sizes", "1,1000003,8M", "--rounds",
                                    "2", "--json", server=["--host-pool"], SOFTNET_UNPACK="1")
        self.assertEqual(said.count('"verified": true'), 3)


if __name__ == "__main__":
    TCPX, PLUGIN, SHY_PLUGIN, P2P_PERF = sys.argv[1:5]
    unittest.main(argv=sys.argv[:1], verbosity=2)
