# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
import os
import socket
import struct

import pytest
from test_import import run_python

from uccl import p2p


def test_seed_form_decodes_by_hand(ep):
    metadata = bytes(ep.get_metadata())
    assert len(metadata) in (10, 22)
    family = socket.AF_INET if len(metadata) == 10 else socket.AF_INET6
    address = socket.inet_ntop(family, metadata[:-6])
    (port,) = struct.unpack("!H", metadata[-6:-4])
    (gpu,) = struct.unpack("i", metadata[-4:])
    assert (address, port, gpu) == p2p.Endpoint.parse_metadata(metadata)
    assert gpu == 0 and port > 0


def test_gpu_index_needs_no_gpu():
    with p2p.Endpoint(local_gpu_idx=17, num_cpus=4) as ep:
        assert ep.parse_metadata(ep.get_metadata())[2] == 17
    with p2p.Endpoint() as ep:
        assert ep.parse_metadata(ep.get_metadata())[2] == 0
    with p2p.Endpoint(3) as ep:
        assert ep.parse_metadata(ep.get_metadata())[2] == 3


_THREADS = """
import os
from uccl import p2p
kept = []
def started(*args, **options):
    before = len(os.listdir('/proc/self/task'))
    kept.append(p2p.Endpoint(*args, **options))
    return len(os.listdir('/proc/self/task')) - before
started(0)
own = started(0)
assert started(0, 1) == started(num_cpus=4) == own
assert started(0, 1, workers=5) == started(0, 1, workers=2) + 3
for endpoint in kept:
    endpoint.close()
"""


def test_num_cpus_changes_nothing():
    done = run_python(_THREADS)
    assert done.returncode == 0, done.stderr


def test_ipv6_form():
    metadata = socket.inet_pton(socket.AF_INET6, "fd00::7") + struct.pack("!H", 4096) + struct.pack("i", 5)
    assert p2p.Endpoint.parse_metadata(metadata) == ("fd00::7", 4096, 5)


@pytest.mark.parametrize("size", [0, 1, 9, 11, 21, 23, 64, 1000])
def test_other_lengths_raise(size):
    with pytest.raises(RuntimeError, match="metadata"):
        p2p.Endpoint.parse_metadata(b"\xff" * size)


def test_wrong_types_raise():
    with pytest.raises(TypeError):
        p2p.Endpoint.parse_metadata("text")
    with pytest.raises(TypeError, match="nonsense"):
        p2p.Endpoint(0, 1, nonsense=1)
    for name, value in (("port", 70000), ("workers", "many"), ("interfaces", ["a", ""])):
        with pytest.raises(p2p.InvalidArgument, match=f"UCCL_P2P_{name.upper()}"):
            p2p.Endpoint(0, 1, **{name: value})
    with pytest.raises(ValueError, match="keepalive"):
        p2p.Endpoint(0, 1, keepalive=-1)
    with pytest.raises(ValueError, match="local_gpu_idx"):
        p2p.Endpoint(-1, 1)


def test_names_by_pci_address():
    code = """
from uccl import p2p
ep = p2p.Endpoint(4096)  # an index that no machine has: its name is the number
metadata = ep.get_metadata()
assert metadata[-5:] == bytes([4]) + b'4096', metadata
assert p2p.Endpoint.parse_metadata(metadata)[2] == '4096'
foreign = metadata[:6] + bytes([12]) + b'0000:18:00.0'
assert p2p.Endpoint.parse_metadata(foreign)[2] == '0000:18:00.0'
other = p2p.Endpoint(4097)
address, port, gpu = p2p.Endpoint.parse_metadata(metadata)
assert other.connect(address, gpu, port)[0]
assert ep.accept(timeout=20)[2] == 4097  # a number, also here
assert other.connect_local(gpu, port)[0]
assert ep.accept_local(timeout=20)[1] == '4097'
"""
    done = run_python(code, env={**os.environ, "UCCL_P2P_GPU_NAMES": "bdf"})
    assert done.returncode == 0, done.stderr


def test_bad_setting_is_named():
    done = run_python("from uccl import p2p", env={**os.environ, "UCCL_P2P_GPU_NAMES": "x"})
    assert done.returncode != 0 and "UCCL_P2P_GPU_NAMES" in done.stderr


@pytest.mark.parametrize(
    ("options", "dial"),
    [
        ({"listen_address": "127.0.0.1", "announce": "localhost"}, "{address}"),
        ({"listen_address": "127.0.0.1"}, "{address}:{port}"),
        ({"listen_address": "127.0.0.1"}, "localhost"),
        ({"listen_address": "0.0.0.0"}, "{address}"),
        ({"listen_address": "::"}, "{address}"),
        ({"listen_address": "[::1]"}, "{address}"),
        ({"listen_address": "::1"}, "[{address}]:{port}"),
    ],
)
def test_hosts_as_people_write_them(options, dial):
    with p2p.Endpoint(5, 1, **options) as owner, p2p.Endpoint(0, 1) as me:
        metadata = owner.get_metadata()
        address, port, gpu = p2p.Endpoint.parse_metadata(metadata)
        assert gpu == 5 and address == options.get("announce", address)
        ok, _ = me.connect(dial.format(address=address, port=port), gpu, port)
        assert ok, p2p.last_error()
        assert me.add_remote_endpoint(metadata)[0], p2p.last_error()


def test_hosts_that_are_none_are_refused_with_the_cause(ep):
    for listen, cause in (("localhost", "a name"), ("fe80::1", "eth0"), ("10.7", "four decimal numbers"), ("[::1", "bracket")):
        with pytest.raises(p2p.Error, match=cause):
            p2p.Endpoint(0, 1, listen_address=listen)
    for host, cause in (("", "no host"), (" 127.0.0.1", "characters"), ("127.1", "four"), ("127.0.0.1:5", "port 6"), ("fe80::1", "eth0")):
        assert ep.connect(host, 0, 6)[0] is False
        assert cause in p2p.last_error()


def test_a_taken_port_names_its_option(ep):
    port = p2p.Endpoint.parse_metadata(ep.get_metadata())[1]
    with pytest.raises(p2p.Error, match="UCCL_P2P_PORT"):
        p2p.Endpoint(0, 1, port=port)
