# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""What p2p-doctor finds wrong with a machine, or with two: each provoked, by the system where it can be, else by what
the doctor reads."""

import platform
import shutil
import socket
import subprocess
import sys
import time
import types

import pytest
from test_doctor import RIGHT, SECONDS, Serving, doctor, hosts  # noqa: F401 - a fixture

import uccl
from uccl.doctor import finding, gpus, machine, peer

pytestmark = pytest.mark.timeout(2 * SECONDS + 30)


def by_name(findings):
    return {one.name: one for one in findings}


def test_an_old_kernel():
    wrapper = ["setarch", platform.machine(), "--uname-2.6"]
    if shutil.which("setarch") is None or subprocess.run([*wrapper, "true"], check=False).returncode != 0:
        pytest.skip("setarch cannot do that here")
    code, found = doctor(wrapper=wrapper)
    kernel = found["machine", "kernel"]
    assert code == 1 and kernel["level"] == finding.PROBLEM and "Linux 5.3" in kernel["remedy"], kernel


def test_one_core_of_several():
    if shutil.which("taskset") is None or len(machine.os.sched_getaffinity(0)) < 2:
        pytest.skip("there is one core anyway")
    core = str(min(machine.os.sched_getaffinity(0)))
    _, found = doctor(wrapper=["taskset", "-c", core])
    cores = found["machine", "CPUs"]
    assert cores["level"] == finding.NOTE and "less than two cores" in cores["remedy"] and "1 of them" in cores["text"]


def test_a_quota_of_half_a_core(monkeypatch):
    monkeypatch.setattr(machine, "read", lambda path: {"/sys/fs/cgroup/cpu.max": "50000 100000"}.get(str(path), ""))
    monkeypatch.setattr(machine.os, "cpu_count", lambda: 8)
    cores = by_name(machine._system())["CPUs"]
    assert cores.level == finding.NOTE and "quota of 0.5" in cores.text


def test_a_build_without_cuda(monkeypatch):
    monkeypatch.setattr(machine._p2p, "__cuda__", "")
    built = by_name(machine._system())["built with CUDA"]
    assert built.level == finding.NOTE and "nvcc" in built.remedy


@pytest.fixture
def infiniband(monkeypatch, tmp_path):
    """A device with a port that is up and one that is down."""
    for number, state in (("1", "4: ACTIVE"), ("2", "1: DOWN")):
        port = tmp_path / "mlx5_0" / "ports" / number
        port.mkdir(parents=True)
        for name, text in (("state", state), ("rate", "400 Gb/sec (4X NDR)"), ("link_layer", "InfiniBand")):
            (port / name).write_text(text + "\n")
    monkeypatch.setattr(machine, "_INFINIBAND", tmp_path)


def test_a_port_whose_link_is_down(infiniband):
    ports = by_name(machine._rdma())
    assert ports["mlx5_0:1"].level == finding.OK and "400 Gb/sec" in ports["mlx5_0:1"].text
    assert ports["mlx5_0:2"].level == finding.NOTE and "link is up" in ports["mlx5_0:2"].remedy


def test_little_memory_that_may_be_locked(infiniband, monkeypatch):
    limits = {machine.resource.RLIMIT_MEMLOCK: (64 << 10, 64 << 10), machine.resource.RLIMIT_NOFILE: (65536, 65536)}
    monkeypatch.setattr(machine.resource, "getrlimit", limits.get)
    locked = by_name(machine._limits())["locked memory"]
    assert locked.level == finding.PROBLEM and locked.text == "64 KiB" and "ulimit -l" in locked.remedy


def test_no_sys(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "_NICS", tmp_path / "absent")
    assert "not mounted" in by_name(machine._network())["interfaces"].text


def test_a_port_that_another_program_has():
    with socket.create_server(("", 0)) as server:
        code, found = doctor(UCCL_P2P_PORT=str(server.getsockname()[1]))
    port = found["network", "port"]
    assert "taken" in port["text"] and port["level"] == finding.NOTE
    assert ("paths on this machine", "two processes") not in found, "the doctor's own endpoints need none"
    assert code == 0 or found["paths on this machine", "host to host"]["level"] == finding.PROBLEM


def refuse(error):
    def driver():
        raise error

    return driver


def test_a_container_without_its_gpus(monkeypatch, tmp_path):
    monkeypatch.setattr(gpus, "Driver", refuse(OSError("libcuda.so.1: cannot open")))
    (driver,) = gpus.find_gpus("13.0")
    assert driver.level == finding.OK, "a machine without GPUs"
    monkeypatch.setattr(gpus, "_KERNEL_DRIVER", tmp_path)
    (driver,) = gpus.find_gpus("13.0")
    assert driver.level == finding.PROBLEM and "container" in driver.remedy


@pytest.mark.parametrize(("visible", "says"), [("", "CUDA_VISIBLE_DEVICES is ''"), (None, "no GPU can be used")])
def test_a_driver_that_refuses(monkeypatch, visible, says):
    monkeypatch.setattr(gpus, "Driver", refuse(RuntimeError("cuInit: CUDA error 100")))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    (driver,) = gpus.find_gpus("13.0")
    assert driver.level == finding.NOTE and driver.remedy == says


# Two hosts


def examined(monkeypatch):
    """What the doctor here finds of one in another process."""
    words = [sys.executable, "-m", "uccl.doctor", "--serve", "--listen", "127.0.0.1", "--port", "0", "--clients", "1"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as serving:
        try:
            port = int(serving.stdout.readline().split(":")[-1])
            return by_name(peer.examine("127.0.0.1", port))
        finally:
            serving.kill()


def test_another_version_there(monkeypatch):
    monkeypatch.setattr(uccl, "__version__", "0.0.1")
    versions = examined(monkeypatch)["versions"]
    assert versions.level == finding.NOTE and "one version" in versions.remedy and "0.0.1 here" in versions.text


def test_a_clock_that_goes_wrong(monkeypatch):
    late = types.SimpleNamespace(time=lambda: time.time() - 7, perf_counter=time.perf_counter)
    monkeypatch.setattr(peer, "time", late)
    clock = examined(monkeypatch)["clock"]
    assert clock.level == finding.NOTE and "NTP" in clock.remedy and clock.text.startswith("+7")


def test_a_rail_that_cannot_be_reached(hosts):  # noqa: F811
    def there(*words):
        subprocess.run([*hosts[1], "ip", *words], check=True)

    there("link", "add", "uccl-rail", "type", "veth", "peer", "name", "uccl-rail-end")
    there("link", "set", "uccl-rail-end", "up")
    there("address", "add", "10.231.8.2/24", "dev", "uccl-rail")
    there("link", "set", "uccl-rail", "up")
    subprocess.run([*hosts[0], "ip", "route", "add", "unreachable", "10.231.8.0/24"], check=True)
    try:
        with Serving(hosts[1]) as port:
            code, found = doctor("--peer", f"{RIGHT}:{port}", wrapper=hosts[0])
    finally:
        subprocess.run([*hosts[0], "ip", "route", "del", "10.231.8.0/24"], check=True)
        there("link", "del", "uccl-rail")
    (rail,) = [one for (_, name), one in found.items() if name.endswith("to uccl-rail")]
    assert rail["level"] == finding.NOTE and "does not reach 10.231.8.2" in rail["text"] and "firewall" in rail["remedy"]
    assert code == 0, "another rail works"
