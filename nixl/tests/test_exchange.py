# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""Metadata of many regions by what stacks exchange it with: NIXL's own etcd, and a TCPStore."""

import shutil
import socket
import subprocess
import urllib.request

import pytest
from party import Party, wait_until

REGIONS = 10_000
SIZE = 4096
MOST_OF_ETCD = 1_500_000  # bytes of a request


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def healthy(url):
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{url}/health", timeout=5) as answer:
            return answer.status == 200
    except OSError:
        return False


@pytest.fixture
def etcd(tmp_path, monkeypatch, mortal):
    """Both processes' agents use it from now on."""
    if shutil.which("etcd") is None:
        pytest.skip("etcd is not installed (Debian's etcd-server)")
    urls = [f"http://127.0.0.1:{free_port()}" for _ in range(2)]
    server = subprocess.Popen(
        ["etcd", "--data-dir", str(tmp_path), "--listen-client-urls", urls[0], "--advertise-client-urls", urls[0]]
        + ["--listen-peer-urls", urls[1], "--initial-advertise-peer-urls", urls[1]]
        + ["--initial-cluster", f"default={urls[1]}", "--unsafe-no-fsync"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        assert wait_until(lambda: healthy(urls[0]))
        monkeypatch.setenv("NIXL_ETCD_ENDPOINTS", urls[0])
        mortal.run("set_variable", "NIXL_ETCD_ENDPOINTS", urls[0])
        yield urls[0]
    finally:
        server.kill()
        server.wait()


def write_to_ends(here, there, first, count):
    """One write to the first and the last of its regions, once NIXL has loaded them."""
    mine = here.memory("out", 2 * SIZE, 7)
    ends = [(first, SIZE), (first + 2 * (count - 1) * SIZE, SIZE)]
    assert wait_until(lambda: here.agent.check_remote_metadata(there.name, here.descs(ends)))
    return here.move("WRITE", there.name, [(mine, SIZE), (mine + SIZE, SIZE)], ends)


def test_ten_thousand_regions_by_the_etcd_of_nixl(etcd, mortal, names):
    there = mortal.open(names("there"))
    first = there.many("kv", REGIONS, SIZE)
    assert len(there.metadata()) < MOST_OF_ETCD
    there.publish()
    here = Party(names("here"))
    here.agent.fetch_remote_metadata(there.name)
    assert write_to_ends(here, there, first, REGIONS) == "DONE"


def test_more_than_etcd_takes_in_parts(etcd, mortal, names):
    there = mortal.open(names("there"))
    firsts = {label: there.many(label, REGIONS, SIZE) for label in ("kv0", "kv1")}
    assert len(there.metadata()) > MOST_OF_ETCD
    there.publish(*firsts)
    here = Party(names("here"))
    for label, first in firsts.items():
        here.agent.fetch_remote_metadata(there.name, label=label)
        assert write_to_ends(here, there, first, REGIONS) == "DONE"


def test_ten_thousand_regions_by_a_tcpstore(other, names):
    distributed = pytest.importorskip("torch.distributed")
    server = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    client = distributed.TCPStore("127.0.0.1", server.port, is_master=False, wait_for_workers=False)
    there = other.open(names("there"))
    first = there.many("kv", REGIONS, SIZE)
    server.set(there.name, there.metadata())
    here = Party(names("here"))
    assert here.add(client.get(there.name)) == there.name
    assert write_to_ends(here, there, first, REGIONS) == "DONE"
