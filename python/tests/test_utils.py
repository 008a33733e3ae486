# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
import resource
import socket
import threading
import time

import pytest

from uccl import utils


@pytest.fixture
def sockets():
    a, b = socket.socketpair()
    a.settimeout(10)
    b.settimeout(10)
    with a, b:
        yield a, b


@pytest.mark.parametrize("value", [b"", b"\x00bytes", "text", 5, None, [1, "two", None], {"a": [1.5, True]}])
def test_objects_arrive(sockets, value):
    a, b = sockets
    utils.send_obj(a, value)
    assert utils.recv_obj(b) == value


def test_large_bytes_arrive(sockets):
    a, b = sockets
    payload = bytes(range(256)) * 10_000
    thread = threading.Thread(target=utils.send_obj, args=(a, payload), kwargs={"protocol": 4})
    thread.start()
    assert utils.recv_obj(b) == payload
    thread.join()


def test_only_json_and_bytes(sockets):
    with pytest.raises(TypeError):
        utils.send_obj(sockets[0], object())


@pytest.mark.parametrize(
    "junk",
    [
        b"x" + bytes(8),  # a form that does not exist
        b"b" + (1 << 40).to_bytes(8, "little"),  # more than anyone may ask for
        b"j" + (3).to_bytes(8, "little") + b"{{{",
        b"j" + (50_000).to_bytes(8, "little") + b"[" * 50_000,  # deeper than Python counts
        (27).to_bytes(8, "little") + b"\x80\x04\x95pickle of older versions",
    ],
)
def test_junk_raises(sockets, junk):
    a, b = sockets
    a.sendall(junk)
    with pytest.raises(ValueError):
        utils.recv_obj(b)


def test_a_peer_that_leaves(sockets):
    a, b = sockets
    a.sendall(b"b" + (10).to_bytes(8, "little") + b"half")
    a.close()
    with pytest.raises(ConnectionError):
        utils.recv_obj(b)


def test_connect_with_retries():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with utils.create_socket_and_connect("127.0.0.1", port) as connected:
            assert connected.getpeername()[1] == port
    start = time.monotonic()
    with pytest.raises(OSError, match="."):
        utils.create_socket_and_connect("127.0.0.1", port, max_retries=3, initial_delay=0.01)
    with pytest.raises(OSError, match="."):
        utils.create_socket_and_connect("127.0.0.1", port, initial_delay=0.05, timeout=0.3)
    assert time.monotonic() - start < 10


def test_files_limit():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        utils.set_files_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.fixture
def tree():
    made = utils.ClosedIntervalTree()
    for entry in ((20, 29, "b"), (0, 9, "a"), (5, 24, "c"), (20, 29, "d"), (20, 29, "b")):
        made.add(*entry)
    return made


def test_intervals_are_found(tree):
    assert list(tree) == [(0, 9, "a"), (5, 24, "c"), (20, 29, "b"), (20, 29, "d")]
    assert str(tree).splitlines()[0] == "[0, 9] -> a"
    assert tree.query_containing(6, 9) == [(0, 9, "a"), (5, 24, "c")]
    assert tree.query_containing(6, 10) == [(5, 24, "c")]
    assert tree.query_overlap(24, 24) == [(5, 24, "c"), (20, 29, "b"), (20, 29, "d")]
    assert tree.query_overlap(25, 40) == [(20, 29, "b"), (20, 29, "d")]
    assert tree.query_overlap(30, 40) == []
    assert tree.query_exact_match(20, 29) == [(20, 29, "b"), (20, 29, "d")]
    assert tree.query_exact_match(20, 29, "d") == [(20, 29, "d")]
    assert tree.query_exact_match(20, 28) == []


def test_intervals_are_removed(tree):
    assert tree.remove(20, 29, "x") == 0
    assert tree.remove(20, 29, "b") == 1
    assert tree.remove(0, 8) == 0
    assert tree.remove(20, 29) == 1
    assert list(tree) == [(0, 9, "a"), (5, 24, "c")]
    tree.clear()
    assert tree.query_overlap(0, 100) == []


def test_an_interval_ends_after_it_starts(tree):
    tree.add(7, 7, None)
    assert tree.query_exact_match(7, 7) == [(7, 7, None)]
    with pytest.raises(ValueError, match="7, 6"):
        tree.add(7, 6, None)
