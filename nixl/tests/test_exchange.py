# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""Metadata of many regions by what stacks exchange it with: NIXL's own etcd, and a TCPStore."""

import urllib.request

import etcd_server
import pytest
from party import Party, wait_until

REGIONS = 10_000
SIZE = 4096
MOST_OF_ETCD = 1_500_000  # bytes of a request


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
    port = etcd_server.free_port()
    url = f"http://127.0.0.1:{port}"
    with etcd_server.etcd(tmp_path, port):
        assert wait_until(lambda: healthy(url))
        monkeypatch.setenv("NIXL_ETCD_ENDPOINTS", url)
        mortal.run("set_variable", "NIXL_ETCD_ENDPOINTS", url)
        yield url


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
