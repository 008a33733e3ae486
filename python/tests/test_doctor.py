# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""p2p-doctor as a user runs it, and each refusal that it explains, provoked."""

import contextlib
import ctypes
import json
import os
import platform
import resource
import socket
import struct
import subprocess
import sys
import time

import pytest
from test_namespaces import LEFT, RIGHT, two_namespaces

from uccl import files
from uccl.doctor import figures, finding, gpus, machine, memory, net_plugin, paths, peer
from uccl.doctor.__main__ import _host_and_port

# Where the machine is busy; alone it is done in less than 20.
SECONDS = 240 if os.environ.get("P2P_SLOW_MACHINE") else 60
COMMAND = [sys.executable, "-m", "uccl.doctor"]

pytestmark = pytest.mark.timeout(2 * SECONDS + 30)


def doctor(*words, before=None, wrapper=(), **variables):
    """Exit code and findings by (section, name)."""
    done = subprocess.run(
        [*wrapper, *COMMAND, "--json", *words], env={**os.environ, **variables}, capture_output=True, text=True,
        timeout=SECONDS, check=False, preexec_fn=before,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stderr
    report = json.loads(done.stdout)
    assert report["healthy"] == (done.returncode == 0)
    return done.returncode, {(one["section"], one["name"]): one for one in report["findings"]}


def refuse_copies_between_processes():
    """A seccomp filter that answers EPERM to process_vm_readv and _writev, as containers have it."""
    calls = {"x86_64": (310, 311), "aarch64": (270, 271)}[platform.machine()]
    load, equal, answer = 0x20, 0x15, 0x06  # BPF: load a word, jump if equal, return
    program = [(load, 0, 0, 0)]
    program += [(equal, len(calls) - index, 0, call) for index, call in enumerate(calls)]
    program += [(answer, 0, 0, 0x7FFF0000), (answer, 0, 0, 0x00050000 | 1)]  # allow; EPERM
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in program))
    libc = ctypes.CDLL(None, use_errno=True)
    header = struct.pack("HxxxxxxP", len(program), ctypes.addressof(code))
    assert libc.prctl(38, 1, 0, 0, 0) == 0  # no new privileges
    assert libc.prctl(22, 2, ctypes.c_char_p(header), 0, 0) == 0, os.strerror(ctypes.get_errno())


def test_a_healthy_machine():
    start = time.monotonic()
    code, found = doctor()
    host = found["paths on this machine", "host to host"]
    assert code == 0 or host["level"] == finding.PROBLEM, found
    assert ("machine", "kernel") in found and ("rights and namespaces", "other processes' memory") in found
    assert found["transports", "tcp"]["level"] == finding.OK
    carrier = host["text"].split(":")[0]
    assert "GB/s" in found["measured", f"{carrier}, host to host"]["text"]
    assert "a raw socket reaches" in found["measured", "tcp, host to host"]["text"]
    if os.getloadavg()[0] < (os.cpu_count() or 1):
        assert time.monotonic() - start < 20


def softnet():
    return str(files.softnet())


def test_every_path_is_measured():
    """A net plugin is one of them."""
    _, found = doctor(UCCL_P2P_NCCL_NET_PLUGIN=softnet())
    assert found["plugins", "NCCL net plugin"]["text"].startswith("softnet, ")
    assert found["net plugin", "plugin"]["text"].startswith("softnet from ")
    measured = found["measured", "nccl_net, host to host"]
    assert measured["gbytes_per_second"] > 0 and measured["raw"] == "a raw socket", measured
    assert ("measured", "tcp, host to host") in found and ("measured", "loopback, host to host") not in found


def test_rdma_is_measured():
    if not machine._INFINIBAND.is_dir() or not any(machine._INFINIBAND.iterdir()):
        pytest.skip("there is no RDMA device")
    _, found = doctor()
    measured = found["measured", "rdma, host to host"]
    assert measured["gbytes_per_second"] > 0 and measured["raw"] == "the rate of the ports", measured
    assert measured["raw_gbytes_per_second"] > 0, measured


def test_a_plugin_that_ends_processes_of_one_machine(monkeypatch):
    """GPUDirectTCPX does, where both ends are on one: it is not connected."""
    monkeypatch.setattr(paths, "plugin_name", lambda: "GPUDirectTCPX_v7")
    monkeypatch.setenv("UCCL_P2P_NCCL_NET_PLUGIN", softnet())
    found = paths.examine()
    (told,) = [one for one in found if one.name == "nccl_net" and "one machine" in one.text]
    assert told.level == finding.NOTE and "--peer" in told.remedy
    assert not [one for one in found if one.section == "measured" and one.name.startswith("nccl_net")]
    assert [one for one in found if one.name == "tcp, host to host"], found


@pytest.mark.parametrize("sign", ["variable", "folder", "plugin"])
def test_what_tcpx_needs_is_checked_where_there_is_anything_of_it(monkeypatch, tmp_path, sign):
    """As `tcpx discover` does: its checks, one by one."""
    assert not list(net_plugin.examine()), "nothing of it is there"
    if sign == "variable":
        monkeypatch.setenv("NCCL_GPUDIRECTTCPX_TX_BINDINGS", "nowhere0:0-0")
    elif sign == "folder":
        monkeypatch.setattr(net_plugin, "_SOCKETS", tmp_path)
    else:
        monkeypatch.setenv("UCCL_P2P_NCCL_NET_PLUGIN", softnet())
        monkeypatch.setenv("SOFTNET_NAME", "GPUDirectTCPX_v7")
    told = {one.name: one for one in net_plugin.examine()}
    words = [files.program("tcpx"), "discover", "--json", "--plugin", softnet() if sign == "plugin" else ""]
    done = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 1
    assert set(told) == {check["subject"] for check in json.loads(done.stdout)["checks"]}
    assert told["RxDM"].level == finding.PROBLEM and "UNIX_CLIENT_PREFIX" in told["RxDM"].remedy
    if sign == "variable":
        assert "no interface nowhere0" in told["NCCL_GPUDIRECTTCPX_TX_BINDINGS"].remedy


def test_a_tcpx_that_says_nothing(monkeypatch):
    monkeypatch.setenv("NCCL_DYNAMIC_CHUNK_SIZE", "524288")
    monkeypatch.setattr(net_plugin.files, "program", lambda _: "/bin/true")
    (told,) = net_plugin.examine()
    assert told.level == finding.PROBLEM and "tcpx discover" in told.remedy
    monkeypatch.setenv("UCCL_P2P_NCCL_NET_PLUGIN", "none")
    assert not list(net_plugin.examine())


def test_fastrak_is_checked_too(monkeypatch):
    monkeypatch.setenv("NCCL_FASTRAK_NUM_FLOWS", "99")
    told = {one.name: one for one in net_plugin.examine()}
    assert told["NCCL_FASTRAK_NUM_FLOWS"].level == finding.PROBLEM, told


def test_what_a_plugin_calls_itself(monkeypatch):
    monkeypatch.setenv("UCCL_P2P_NCCL_NET_PLUGIN", softnet())
    assert machine.plugin_name() == "softnet"
    monkeypatch.setenv("UCCL_P2P_NCCL_NET_PLUGIN", "absent")
    assert machine.plugin_name() == ""


class CopyingDriver:
    """Copies within host memory as a driver of two GPUs would."""

    def __init__(self):
        self.lent = {}

    def count(self):
        return 2

    def allocate(self, device, size):
        memory = (ctypes.c_char * size)()
        self.lent[ctypes.addressof(memory)] = (device, memory)
        return ctypes.addressof(memory)

    def free(self, device, address):
        assert self.lent.pop(address)[0] == device

    def reach(self, one, other):
        assert (one, other) == (0, 1)

    @contextlib.contextmanager
    def pinned(self, device, size):
        address = self.allocate(device, size)
        yield address
        self.free(device, address)

    def copy_to_host(self, device, target, source, size):
        ctypes.memmove(target, source, size)

    copy_from_host = copy_to_host

    def copy_between(self, one, source, other, target, size):
        assert (one, self.lent[target][0]) == (0, other)
        ctypes.memmove(target, source, size)


def test_what_stands_beside_the_figures_of_gpus(monkeypatch):
    driver = CopyingDriver()
    monkeypatch.setattr(memory, "Driver", lambda: driver)
    monkeypatch.setattr(memory.uccl, "__cuda__", "13.0.1")
    monkeypatch.setattr(figures, "raw_copy", lambda *_: 1e-3)
    with memory.memories(near=True) as mine:
        limits = figures.Limits(mine, 0, 0)
        for pair, what in (
            (("cuda_ipc", "cuda", "cuda"), "the driver's copy between GPUs"),
            (("cuda_ipc", "host", "cuda"), "the driver's copy from host memory"),
            (("cma", "host", "host"), "process_vm_writev alone"),
            (("cma", "cuda", "host"), "process_vm_writev alone"),  # the slower of the two halves
            (("tcp", "cuda", "cuda"), "a raw socket"),
        ):
            name, speed = limits.of(*pair, "")
            assert name == what and speed > 0
        assert limits.of("rdma", "host", "host", "a:1, 100 Gb/s, MTU 4096; b:1, 400 Gb/s")[1] == 62.5
    assert not driver.lent


def test_a_gpu_that_is_full(monkeypatch):
    driver = CopyingDriver()
    monkeypatch.setattr(memory, "Driver", lambda: driver)
    monkeypatch.setattr(memory.uccl, "__cuda__", "13.0.1")

    def refuse(*_):
        raise RuntimeError("cuMemAlloc: CUDA error 2")

    monkeypatch.setattr(driver, "allocate", refuse)
    with memory.memories(near=True) as mine:
        assert mine.missing == "cuMemAlloc: CUDA error 2" and list(mine.by_kind) == ["host"]


def test_text_says_what_is_to_be_done():
    done = subprocess.run(
        COMMAND, env={**os.environ, "UCCL_P2P_TRANSPORT": "rdma"}, capture_output=True, text=True, timeout=SECONDS,
        check=False,
    )  # fmt: skip
    if done.returncode == 0:
        pytest.skip("there is RDMA")
    assert "! two processes" in done.stdout and "problem" in done.stdout.splitlines()[-1]
    assert "without UCCL_P2P_TRANSPORT" in done.stdout


def test_seccomp_refuses_copies():
    code, found = doctor(before=refuse_copies_between_processes)
    host = found["paths on this machine", "host to host"]
    assert (code, host["level"]) == (1, finding.PROBLEM)
    assert host["text"].startswith("tcp") and host["remedy"], host
    assert found["rights and namespaces", "seccomp"]["text"] == "a filter is in force"


def test_only_transports_that_reach_other_hosts():
    code, found = doctor(UCCL_P2P_DISABLE_IPC="1")
    host = found["paths on this machine", "host to host"]
    assert (code, host["remedy"]) == (0, "unset UCCL_P2P_DISABLE_IPC")
    assert host["text"].startswith("tcp")


def test_in_a_container_of_its_own():
    wrapper = ["unshare", "--pid", "--fork", "--mount-proc", "--net"]
    if subprocess.run([*wrapper, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("namespaces need root")
    # Nothing but the doctor is in there: process 1 is its own, there is no network, and its processes meet.
    code, found = doctor(wrapper=[*wrapper, "--", "sh", "-c", 'ip link set lo up; "$@"', "sh"])
    assert found["paths on this machine", "host to host"]["level"] == finding.OK, found
    assert found["rights and namespaces", "PID namespace"]["level"] == finding.OK


def test_namespaces_that_are_not_process_ones(monkeypatch):
    monkeypatch.setattr(machine, "namespace", lambda process, kind: f"{kind}:[{process}]")
    rights = {one.name: one for one in machine._rights()}
    assert "other PID namespaces" in rights["PID namespace"].remedy
    assert "tcp only" in rights["NET namespace"].remedy


def test_few_open_files():
    def few():
        resource.setrlimit(resource.RLIMIT_NOFILE, (512, 512))

    _, found = doctor(before=few)
    assert "ulimit -n" in found["limits", "open files"]["remedy"]


@pytest.mark.parametrize(
    ("reason", "says"),
    [
        ("not permitted; both processes must run as the same user, and kernel.yama.ptrace_scope", "ptrace_scope=0"),
        ("read the memory of process 7: not permitted", "SYS_PTRACE"),
        ("connect with cma: the peer is in another PID namespace", "--pid=host"),
        ("connect with cma: the peer is in another network namespace", "--network=host"),
        ("the peer's GPU is not visible to this process (CUDA_VISIBLE_DEVICES)", "cudaSetDevice"),
        ("cuda_ipc: built without CUDA", "nvcc"),
        ("the preferred transport", ""),
    ],
)
def test_remedies(reason, says):
    remedy = paths.remedy_of(reason)
    assert says in remedy and bool(remedy) == bool(says)


def test_a_slow_path_is_called_slow():
    assert figures.judge("tcp", 1.0, "a raw socket", 4.0).level == finding.NOTE
    assert "fine" in figures.judge("tcp", 3.9, "a raw socket", 4.0).text
    assert figures.judge("cma", 3.9, "the copy alone", 0.0).text == "3.9 GB/s"  # nothing to compare with


def test_yama(monkeypatch):
    read = {"/proc/sys/kernel/yama/ptrace_scope": "1", "/proc/self/status": "CapEff:\t0000000000000000\nSeccomp:\t0"}
    monkeypatch.setattr(machine, "read", lambda path: read.get(str(path), ""))
    (rights, *_) = machine._rights()
    assert rights.level == finding.PROBLEM and "ptrace_scope=0" in rights.remedy


class ThreeGpus:
    """A driver of CUDA 12.4 with three GPUs: NVLink between 0 and 1, PCIe from 0 to 2, nothing from 1 to 2."""

    links = {(0, 1): "NVLink", (0, 2): "PCIe", (1, 2): ""}

    def version(self):
        return 12, 4

    def count(self):
        return 3

    def name(self, device):
        return f"model {device}"

    def pci(self, device):
        return f"ffff:0{device}:00.0"

    def link(self, one, other):
        return self.links[min(one, other), max(one, other)]


def test_how_gpus_are_linked(monkeypatch):
    monkeypatch.setattr(gpus, "Driver", ThreeGpus)
    found = [(one.name, one.text, one.level) for one in gpus.find_gpus("12.4.1")]
    assert found[0] == ("driver", "for CUDA 12.4, 3 GPUs", finding.OK)
    assert ("GPU 0", "NVLink to GPU 1", finding.OK) in found
    assert ("GPU 0", "PCIe to GPU 2", finding.OK) in found
    assert ("GPU 1", "does not reach the memory of GPU 2", finding.NOTE) in found


@pytest.mark.parametrize(("built", "level"), [("13.0.1", finding.PROBLEM), ("12.9.0", finding.OK), ("", finding.OK)])
def test_a_driver_older_than_the_build(monkeypatch, built, level):
    monkeypatch.setattr(gpus, "Driver", ThreeGpus)
    driver = next(gpus.find_gpus(built))
    assert driver.level == level and (built in driver.remedy or level == finding.OK)


def test_the_nearest_nics(tmp_path):
    """Two bridges, a GPU and a NIC below each; sysfs has links from the flat folders into the tree."""
    tree, flat, nics = tmp_path / "devices" / "pci0000:00", tmp_path / "flat", tmp_path / "net"
    flat.mkdir()
    for number, (gpu, nic) in enumerate((("0000:01:00.0", "0000:02:00.0"), ("0000:81:00.0", "0000:82:00.0"))):
        for device in (gpu, nic):
            (tree / f"0000:0{number}:01.0" / device).mkdir(parents=True)
            (flat / device).symlink_to(tree / f"0000:0{number}:01.0" / device)
        (nics / f"eth{number}").mkdir(parents=True)
        (nics / f"eth{number}" / "device").symlink_to(flat / nic)
    (nics / "lo").mkdir()
    assert gpus.nearest_nics("0000:01:00.0", flat, nics) == ["eth0"]
    assert gpus.nearest_nics("0000:81:00.0", flat, nics) == ["eth1"]
    assert gpus.nearest_nics("0000:99:00.0", flat, nics) == []


# Two hosts


@pytest.fixture(scope="module")
def hosts():
    if os.geteuid() != 0:
        pytest.skip("namespaces need root")
    with two_namespaces() as made:
        yield [["ip", "netns", "exec", name] for name, _ in made]


class Serving:
    """p2p-doctor --serve for one client on the second host."""

    def __init__(self, inside, **variables):
        self.process = subprocess.Popen(
            [*inside, *COMMAND, "--serve", "--port", "0", "--clients", "1"], env={**os.environ, **variables},
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def __enter__(self):
        return self.process.stdout.readline().split(":")[-1].strip()

    def __exit__(self, *_):
        try:
            self.process.wait(SECONDS)
        finally:
            self.process.kill()


def test_the_way_to_a_peer(hosts):
    with Serving(hosts[1]) as port:
        code, found = doctor("--peer", f"{RIGHT}:{port}", wrapper=hosts[0])
    assert code == 0, found
    assert found["peer", "connection"]["text"].startswith("open; tcp")
    rails = [one["text"] for (_, name), one in found.items() if " to uccl" in name and name.startswith("uccl")]
    assert len(rails) == 1 and "path MTU 1500" in rails[0] and "GB/s" in rails[0], found
    assert abs(float(found["peer", "clock"]["text"].split()[0])) < 1000
    measured = found["measured", f"tcp, host to host, {RIGHT}"]["text"]
    assert "one raw stream" in measured and ("fine" in measured or "slow" in measured)


def test_an_mtu_that_differs(hosts):
    cable = json.loads(
        subprocess.run([*hosts[1], "ip", "-j", "link"], capture_output=True, text=True, check=True).stdout
    )[-1]["ifname"]
    subprocess.run([*hosts[1], "ip", "link", "set", cable, "mtu", "1400"], check=True)
    try:
        with Serving(hosts[1]) as port:
            _, found = doctor("--peer", f"{RIGHT}:{port}", wrapper=hosts[0])
    finally:
        subprocess.run([*hosts[1], "ip", "link", "set", cable, "mtu", "1500"], check=True)
    assert any("1400 there" in one["remedy"] for one in found.values()), found


def test_keys_that_differ(hosts, tmp_path):
    for name in ("one", "other"):
        (tmp_path / name).write_text(f"this is the secret of {name}")
        (tmp_path / name).chmod(0o600)
    with Serving(hosts[1], UCCL_P2P_KEY_FILE=str(tmp_path / "one")) as port:
        code, found = doctor(
            "--peer", f"{RIGHT}:{port}", wrapper=hosts[0], UCCL_P2P_KEY_FILE=str(tmp_path / "other")
        )
    assert code == 1
    refused = found["peer", "connection"]
    assert refused["level"] == finding.PROBLEM and "UCCL_P2P_KEY_FILE" in refused["remedy"], refused


def test_the_doctor_there_says_what_is_wrong(hosts, tmp_path):
    with Serving(hosts[1], UCCL_P2P_KEY_FILE=str(tmp_path / "absent")) as port:
        code, found = doctor("--peer", f"{RIGHT}:{port}", wrapper=hosts[0])
    assert code == 1 and "absent" in found["peer", f"{RIGHT}:{port}"]["text"]


def test_nobody_serves(hosts):
    code, found = doctor("--peer", f"{RIGHT}:9", wrapper=hosts[0])
    assert code == 1 and "--serve" in found["peer", f"{RIGHT}:9"]["remedy"]


def test_host_memory_misses_nothing_without_cuda():
    known = {"cuda_ipc": "built without CUDA", "cma": ""}
    for others, remedy in (("", ""), ("; cma: not permitted", "--cap-add")):
        reason = "the best that works; before it cuda_ipc: built without CUDA" + others
        told = [paths.remedy_of_path({"local": kind, "remote": kind, "reason": reason}, known) for kind in ("host", "cuda")]
        assert remedy in told[0] and bool(told[0]) == bool(remedy)
        assert told[1]


def test_a_name_that_is_no_hosts():
    (found,) = peer.examine("nobody.invalid", 9)
    assert found.level == finding.PROBLEM and "nobody.invalid the name of a host" in found.remedy
    assert "Errno" not in found.text and "firewall" not in found.remedy


def test_something_else_serves():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        client = subprocess.Popen([*COMMAND, "--json", "--peer", f"127.0.0.1:{port}"], stdout=subprocess.PIPE)
        try:
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                out, _ = client.communicate(timeout=SECONDS)
        finally:
            client.kill()
    assert client.returncode == 1 and not json.loads(out)["healthy"]


def test_a_port_that_is_taken():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        done = subprocess.run(
            [*COMMAND, "--serve", "--listen", "127.0.0.1", "--port", port], capture_output=True, text=True,
            timeout=SECONDS, check=False,
        )  # fmt: skip
    assert done.returncode == 1 and port in done.stderr


def test_addresses_leave_loopback_out():
    listed = subprocess.run(
        ["ip", "-j", "-4", "address", "show", "up", "scope", "global"], capture_output=True, text=True, check=True
    )
    first = {one["ifname"]: one["addr_info"][0]["local"] for one in json.loads(listed.stdout) if one.get("addr_info")}
    found = peer.addresses()
    assert {name: address for name, address in found.items() if ":" not in address} == first
    assert "lo" not in found and LEFT not in found.values()


def test_ipv6_addresses_that_others_reach(monkeypatch, tmp_path):
    """Of the kernel's list: global, and neither of the link alone nor untried nor going out of use."""
    lines = [
        "00000000000000000000000000000001 01 80 10 80       lo",
        "fe80000000000000000000000000000a 02 40 20 80     eth0",
        "fd00000000000000000000000000000a 02 40 00 80     eth0",
        "fd00000000000000000000000000000b 02 40 00 c0     eth1",
        "fd00000000000000000000000000000c 02 40 00 a0     eth1",
        "fd00000000000000000000000000000d 02 40 00 00     eth1",
    ]
    (tmp_path / "if_inet6").write_text("\n".join(lines) + "\n")
    monkeypatch.setattr(peer, "_IPV6_ADDRESSES", tmp_path / "if_inet6")
    assert peer._ipv6_addresses() == {"eth0 IPv6": "fd00::a", "eth1 IPv6": "fd00::d"}


@pytest.mark.parametrize(
    ("given", "host", "port"),
    [
        ("host", "host", 18733),
        ("host:7", "host", 7),
        ("10.0.0.1:7", "10.0.0.1", 7),
        ("fd00::2", "fd00::2", 18733),
        ("[fd00::2]:7", "fd00::2", 7),
        ("[fd00::2]", "fd00::2", 18733),
    ],
)
def test_how_a_peer_is_named(given, host, port):
    assert _host_and_port(given) == (host, port)


@pytest.fixture
def six(hosts):
    """An IPv6 address on either end of the cable."""
    addresses = ["fd07::1", "fd07::2"]
    for inside, address in zip(hosts, addresses, strict=True):
        links = subprocess.run([*inside, "ip", "-j", "link"], capture_output=True, text=True, check=True).stdout
        subprocess.run(
            [*inside, "ip", "address", "add", f"{address}/64", "dev", json.loads(links)[-1]["ifname"], "nodad"],
            check=True,
        )
    yield addresses[1]
    for inside, address in zip(hosts, addresses, strict=True):
        links = subprocess.run([*inside, "ip", "-j", "link"], capture_output=True, text=True, check=True).stdout
        subprocess.run(
            [*inside, "ip", "address", "del", f"{address}/64", "dev", json.loads(links)[-1]["ifname"]], check=True
        )


def test_rails_of_ipv6(hosts, six):
    with Serving(hosts[1]) as port:
        code, found = doctor("--peer", f"[{six}]:{port}", wrapper=hosts[0])
    assert code == 0, found
    rails = {name: one["text"] for (_, name), one in found.items() if " to uccl" in name and name.startswith("uccl")}
    assert len(rails) == 2 and sorted("IPv6" in name for name in rails) == [False, True], rails
    assert all("path MTU 1500" in text and "GB/s" in text for text in rails.values()), rails
    assert found["peer", "connection"]["text"].startswith("open; tcp")
    assert ("measured", f"tcp, host to host, {six}") in found
