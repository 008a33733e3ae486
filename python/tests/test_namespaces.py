# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""Two network namespaces, joined by a virtual cable: what two hosts without shared loopback see."""

import os
import subprocess
import sys
from contextlib import contextmanager

import pytest
from test_programs import (
    BENCHMARKS,
    SECONDS,
    TORCHRUN,
    check_rows,
    environment,
    needs_torch,
    rank_environment,
    run_side_by_side,
)

LEFT, RIGHT = "10.231.7.1", "10.231.7.2"


def _ip(*arguments):
    return subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False, timeout=20)


@contextmanager
def two_namespaces():
    names = [f"uccl-{os.getpid()}-{side}" for side in "ab"]
    cables = [f"uccl{os.getpid() % 100000}{side}" for side in "ab"]
    try:
        for name in names:
            made = _ip("netns", "add", name)
            if made.returncode != 0:
                pytest.skip(f"no network namespaces here: {made.stderr.strip()}")
        _ip("link", "add", cables[0], "type", "veth", "peer", "name", cables[1])
        for name, cable, address in zip(names, cables, (LEFT, RIGHT), strict=True):
            for step in (
                ("link", "set", cable, "netns", name),
                ("-n", name, "address", "add", f"{address}/24", "dev", cable),
                ("-n", name, "link", "set", "lo", "up"),
                ("-n", name, "link", "set", cable, "up"),
                ("-n", name, "route", "add", "default", "dev", cable),
            ):
                done = _ip(*step)
                if done.returncode != 0:
                    pytest.skip(f"ip {' '.join(step)}: {done.stderr.strip()}")
        yield list(zip(names, cables, strict=True))
    finally:
        for name in names:
            _ip("netns", "delete", name)


@pytest.fixture(scope="module")
def namespaces():
    if os.geteuid() != 0:
        pytest.skip("namespaces need root")
    with two_namespaces() as made:
        yield made


def torchrun(rank):
    return [*TORCHRUN, "--nnodes=2", "--nproc_per_node=1", f"--node-rank={rank}", f"--master_addr={LEFT}"]


def directly(_):
    return [sys.executable]


@needs_torch
@pytest.mark.timeout(SECONDS + 20)
@pytest.mark.parametrize(
    ("script", "start"), [("benchmark_uccl.py", torchrun), ("benchmark_uccl_collective.py", directly)]
)
def test_benchmarks_on_two_nodes(namespaces, script, start, tmp_path):
    """One rank a node; the metadata is exchanged by gloo over the cable as well."""
    rows = tmp_path / "rows.json"
    commands = [
        ["ip", "netns", "exec", name, *start(rank), str(BENCHMARKS / script)]
        + ["--sizes=4K,1M", "--iters=3", f"--json={rows}"]
        for rank, (name, _) in enumerate(namespaces)
    ]
    environments = [
        rank_environment(rank, LEFT, 29511, GLOO_SOCKET_IFNAME=cable, LOCAL_RANK="0", LOCAL_WORLD_SIZE="1")
        for rank, (_, cable) in enumerate(namespaces)
    ]
    run_side_by_side(commands, environments)
    check_rows(rows, [4096, 1 << 20])


_SIDE = """
import sys
import numpy as np
from uccl import p2p
with p2p.Endpoint(int(sys.argv[1]), 2) as ep:
    print(ep.get_metadata().hex(), flush=True)
    array = np.full(100_000, 7 if sys.argv[1] == '0' else 0, np.uint8)
    mr = ep.reg(array.ctypes.data, array.nbytes)[1]
    if sys.argv[1] == '0':
        metadata = bytes.fromhex(sys.stdin.readline())
        if sys.argv[2] == 'metadata':
            ok, conn = ep.add_remote_endpoint(metadata)
        else:
            ok, conn = ep.connect('10.231.7.2', remote_gpu_idx=1)
        assert ok, p2p.last_error()
        assert ep.send(conn, mr, array.ctypes.data, array.nbytes), p2p.last_error()
    else:
        ok, address, gpu, conn = ep.accept(timeout=30)
        assert (ok, address, gpu) == (True, '10.231.7.1', 0), address
        assert ep.recv(conn, mr, array.ctypes.data, array.nbytes), p2p.last_error()
        assert (array == 7).all()
"""


@pytest.mark.parametrize("how", ["metadata", "the port that both set"])
def test_metadata_has_the_address_of_the_default_route(namespaces, how):
    port = {} if how == "metadata" else {"UCCL_P2P_PORT": "47811"}
    sides = [
        subprocess.Popen(
            ["ip", "netns", "exec", name, sys.executable, "-c", _SIDE, str(index), how], env=environment(**port),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        for index, (name, _) in enumerate(namespaces)
    ]
    try:
        metadata = [side.stdout.readline() for side in sides]
        out, err = sides[0].communicate(metadata[1], timeout=40)
        assert sides[0].returncode == 0, err
        out, err = sides[1].communicate(timeout=40)
        assert sides[1].returncode == 0, err
    finally:
        for side in sides:
            side.kill()


_OWN_NAMESPACE = """
import subprocess
from uccl import p2p
for step in ('link set lo up', 'address delete 127.0.0.1/8 dev lo'):
    subprocess.run(['ip', *step.split()], check=True)
try:
    p2p.Endpoint(0, 1, listen_address='0.0.0.0')
    raise SystemExit('it announces an address that is none')
except p2p.Error as error:
    assert 'of IPv4' in str(error), error
with p2p.Endpoint(0, 1, listen_address='::') as ep:
    assert p2p.Endpoint.parse_metadata(ep.get_metadata())[0] == '::1'
"""


def test_what_is_announced_is_of_the_family_that_is_listened_at(namespaces):
    done = subprocess.run(
        ["unshare", "--net", sys.executable, "-c", _OWN_NAMESPACE], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


_LISTED = """
import sys
from uccl import p2p
with p2p.Endpoint(7, 1, listen_address='127.0.0.1') as ep:
    print('ready', flush=True)
    sys.stdin.read()
"""

_SEEKS = """
from uccl import p2p
with p2p.Endpoint(8, 1, listen_address='127.0.0.1') as ep:
    ok, conn = ep.connect_local(7)
    assert ok, p2p.last_error()
    print(ep.peer(conn)['port'])
"""


def test_connect_local_passes_over_endpoints_of_other_containers(namespaces, tmp_path):
    """The newest is in another network namespace, then a dead one of another PID namespace as well."""
    env = environment(XDG_RUNTIME_DIR=str(tmp_path))
    here = [sys.executable, "-c", _LISTED]
    elsewhere = ["ip", "netns", "exec", namespaces[0][0], "unshare", "--pid", "--fork", "--kill-child", "--mount-proc", *here]
    listed = []
    try:
        for command in (here, elsewhere):
            listed.append(subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
            assert listed[-1].stdout.readline() == "ready\n"
        for _ in ("alive", "dead"):
            done = subprocess.run(
                [sys.executable, "-c", _SEEKS], env=env, capture_output=True, text=True, timeout=60, check=False
            )
            assert done.returncode == 0, done.stderr
            listed[1].kill()
            listed[1].wait()
    finally:
        for process in listed:
            process.kill()


_POD = ("unshare", "--user", "--map-current-user", "--pid", "--ipc", "--mount", "--mount-proc", "--fork", "--kill-child")

_POD_SIDE = """
import sys
import numpy as np
from uccl import p2p
gpu = int(sys.argv[1])
with p2p.Endpoint(gpu, 2, listen_address=sys.argv[2]) as ep:
    print('ready', flush=True)
    array = np.full(3_000_000, gpu, np.uint8)
    mr = ep.reg(array.ctypes.data, array.nbytes)[1]
    if gpu == 0:
        ok, conn = ep.connect_local(1)
        assert ok, p2p.last_error()
        assert ep.send(conn, mr, array.ctypes.data, array.nbytes), p2p.last_error()
    else:
        ok, _, conn = ep.accept_local(timeout=60)
        assert ok, p2p.last_error()
    assert ep.recv(conn, mr, array.ctypes.data, array.nbytes), p2p.last_error()
    assert (array == 1 - gpu).all()
    if gpu == 1:
        array[:] = 1
        assert ep.send(conn, mr, array.ctypes.data, array.nbytes), p2p.last_error()
    row = next(row for row in ep.routes(conn) if row['local'] == row['remote'] == 'host')
    print(row['transport'], row, flush=True)
    sys.stdin.read()
"""


# The owner's memory is mapped by the other, whose own is mapped by none.
_SHARED_SIDE = """
import os, sys, time
import numpy as np
from uccl import p2p

def pattern(seed):
    return np.arange(seed, seed + 750_000, dtype=np.uint32).view(np.uint8)

def open_files():
    found = []
    for name in os.listdir('/proc/self/fd'):
        try:
            found.append(os.readlink('/proc/self/fd/' + name))
        except FileNotFoundError:
            pass  # the list's own, and what has just been closed
    return sorted(found)

def lent():
    return [name for name in open_files() if 'p2p-memory' in name]

gpu = int(sys.argv[1])
with p2p.Endpoint(gpu, 2, listen_address=sys.argv[2]) as ep:
    if gpu == 1:
        buffer = ep.allocate(3_000_000)
        assert len(lent()) == 1
        array = np.frombuffer(buffer, np.uint8)
        assert (array == 0).all() and len(buffer) == buffer.nbytes == array.nbytes and buffer.ptr == array.ctypes.data
        mr = ep.reg(buffer)[1]
        array[:] = pattern(1)
        print('ready', flush=True)
        ok, _, conn = ep.accept_local(timeout=60)
        assert ok, p2p.last_error()
        ok, blob = ep.advertise(conn, mr, buffer.ptr, buffer.nbytes)
        assert ok and ep.notify(conn, blob), p2p.last_error()
        sys.stdin.readline()
        assert (array == pattern(9)).all()
        print('seen', flush=True)
        sys.stdin.read()
    print('ready', flush=True)
    ok, conn = ep.connect_local(1)
    assert ok, p2p.last_error()
    end = time.monotonic() + 60
    while not (notes := ep.take_notifications(conn)) and time.monotonic() < end:
        time.sleep(0.01)
    blob = notes[0]
    array = np.zeros(3_000_000, np.uint8)
    mr = ep.reg(array)[1]
    assert ep.read(conn, mr, array.ctypes.data, array.nbytes, blob), p2p.last_error()
    assert (array == pattern(1)).all()
    def is_whole(how):  # else channels are still to come, with their descriptors
        return 'is mapped here' in how['detail'] and ' of ' not in how['detail'].partition(' channels')[0]

    while not is_whole(how := ep.explain(conn, mr, blob)):
        assert time.monotonic() < end, how
        assert ep.read(conn, mr, array.ctypes.data, array.nbytes, blob), p2p.last_error()
    while lent():  # closed just behind the moment from which it is mapped
        assert time.monotonic() < end, 'the descriptor stays open though it is mapped'
    before = open_files()
    maps = [line for line in open('/proc/self/maps') if 'p2p-memory' in line]
    assert len(maps) == 1, maps
    for seed in range(10):
        array[:] = pattern(seed)
        assert ep.write(conn, mr, array.ctypes.data, array.nbytes, blob), p2p.last_error()
        array[:] = 0
        assert ep.read(conn, mr, array.ctypes.data, array.nbytes, blob), p2p.last_error()
        assert (array == pattern(seed)).all(), seed
    assert not lent()
    while len(open_files()) > len(before):  # others come and go meanwhile
        assert time.monotonic() < end, 'descriptors were opened: %s before, %s now' % (before, open_files())
    print(how['transport'], how['detail'], flush=True)
    sys.stdin.readline()
    while ep.write(conn, mr, array.ctypes.data, array.nbytes, blob):
        assert time.monotonic() < end, 'the owner was killed'
    while any('p2p-memory' in line for line in open('/proc/self/maps')):
        assert time.monotonic() < end, 'its memory stays mapped'
        time.sleep(0.01)
    print('let go', flush=True)
"""


_LATE = """
from uccl import p2p
with p2p.Endpoint(0, 1, connect_timeout=0.1) as ep:
    assert ep.connect_local(1)[0] is False
    assert 'GPU 1' in p2p.last_error(), p2p.last_error()
"""


def _in_pod(namespaces, side, script, folder, **variables):
    """It shares no namespace with the other side, and has no privilege outside of them; only the folder."""
    if subprocess.run([*_POD, "true"], check=False, capture_output=True).returncode != 0:
        pytest.skip("no user namespaces here")
    return subprocess.Popen(
        ["ip", "netns", "exec", namespaces[side][0], *_POD, sys.executable, "-c", script, str(side), (LEFT, RIGHT)[side]],
        env=environment(UCCL_P2P_SOCKET_DIR=str(folder), **variables),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.fixture
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("s")
    if len(str(made)) > 60:
        pytest.skip(f"{made} is too long for sockets")
    return made


def test_pods_find_each_other_in_a_folder_and_take_cma(namespaces, folder):
    """And the list forgets a pod that was killed."""
    pods = [_in_pod(namespaces, 1, _POD_SIDE, folder)]
    try:
        assert pods[0].stdout.readline() == "ready\n", pods[0].stderr.read()
        pods.insert(0, _in_pod(namespaces, 0, _POD_SIDE, folder))
        assert pods[0].stdout.readline() == "ready\n"
        for pod in pods:
            said = pod.stdout.readline()
            assert said.startswith("cma ") and "through shared memory" in said, (said, pod.kill(), pod.stderr.read())
        assert any(path.name.startswith("gpu1-") for path in folder.iterdir())
    finally:
        for pod in pods:
            pod.kill()
            pod.wait()
    late = _in_pod(namespaces, 0, _LATE, folder)
    _, err = late.communicate(timeout=50)
    assert late.returncode == 0, err
    assert not [path.name for path in folder.iterdir() if path.name.startswith("gpu")]


def test_pods_map_what_was_allocated_for_it(namespaces, folder):
    """And let go of it when its owner was killed."""
    pods = [_in_pod(namespaces, 1, _SHARED_SIDE, folder)]
    try:
        assert pods[0].stdout.readline() == "ready\n", pods[0].stderr.read()
        pods.insert(0, _in_pod(namespaces, 0, _SHARED_SIDE, folder))
        assert pods[0].stdout.readline() == "ready\n", pods[0].stderr.read()
        said = pods[0].stdout.readline()
        assert said.startswith("cma ") and "the peer's region is mapped here" in said, (said, pods[0].stderr.read())
        pods[1].stdin.write("\n")
        pods[1].stdin.flush()
        assert pods[1].stdout.readline() == "seen\n", pods[1].stderr.read()
        pods[1].kill()
        pods[1].wait()
        pods[0].stdin.write("\n")
        pods[0].stdin.flush()
        assert pods[0].stdout.readline() == "let go\n", pods[0].stderr.read()
    finally:
        for pod in pods:
            pod.kill()
            pod.wait()


def test_a_pod_with_another_key_is_refused(namespaces, folder, tmp_path):
    pods = []
    try:
        for side in (1, 0):
            key = tmp_path / f"key{side}"
            key.write_text(f"{side}" * 40)
            key.chmod(0o600)
            pods.append(_in_pod(namespaces, side, _POD_SIDE, folder, UCCL_P2P_KEY_FILE=str(key), UCCL_P2P_CONNECT_TIMEOUT_MS="2000"))
            assert pods[-1].stdout.readline() == "ready\n", pods[-1].stderr.read()
        _, err = pods[1].communicate(timeout=50)
        assert pods[1].returncode == 1 and "key" in err, err
        assert pods[0].poll() is None, "it goes on"
    finally:
        for pod in pods:
            pod.kill()
            pod.wait()
