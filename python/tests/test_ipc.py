# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from number import Number

from uccl import p2p

INFO_BYTES = 88


@pytest.fixture
def offered(pair):
    """4000 bytes of the other process, unregistered there as far as it knows."""
    _, pointer = pair.other.memory("m", 4000)
    ok, info = pair.other.call("advertise_ipc", 12345, pointer, 4000)  # any conn_id: it is not looked at
    assert ok
    return pointer, info


def test_write_and_read(pair, offered):
    _, info = offered
    assert isinstance(info, bytes) and len(info) == INFO_BYTES
    array = np.arange(4000).astype(np.uint8)
    assert pair.ep.write_ipc(pair.conn, array.ctypes.data, 4000, info) is True, p2p.last_error()
    assert pair.other.contents("m") == array.tobytes()
    into = np.zeros(4000, np.uint8)
    assert pair.ep.read_ipc(pair.conn, into.ctypes.data, 4000, info) is True, p2p.last_error()
    assert np.array_equal(into, array)


def test_asynchronous(pair, offered):
    _, info = offered
    array = np.full(4000, 8, np.uint8)
    for name in ("write_ipc_async", "read_ipc_async"):
        ok, transfer = getattr(pair.ep, name)(pair.conn, array.ctypes.data, 4000, info)
        assert ok, p2p.last_error()
        assert pair.ep.wait(transfer, 20) == 4000
    assert pair.other.contents("m") == array.tobytes()


def test_vectors(pair, offered):
    pointer, _ = offered
    pointers = [pointer + index * 1000 for index in range(4)]
    ok, infos = pair.other.call("advertisev_ipc", 0, pointers, [1000] * 4)
    assert ok and len(infos) == 4
    array = np.random.default_rng(0).integers(0, 256, 4000, np.uint8)
    mine = [array.ctypes.data + index * 1000 for index in range(4)]
    assert pair.ep.writev_ipc(pair.conn, mine, [1000] * 4, infos) is True, p2p.last_error()
    assert pair.other.contents("m") == array.tobytes()
    into = np.zeros(4000, np.uint8)
    theirs = np.uint64(into.ctypes.data) + np.arange(4, dtype=np.uint64) * np.uint64(1000)
    ok, transfer = pair.ep.readv_ipc_async(pair.conn, theirs, np.full(4, 1000), infos)
    assert ok and pair.ep.wait(transfer, 20) == 4000
    assert np.array_equal(into, array)
    ok, transfer = pair.ep.writev_ipc_async(pair.conn, mine, [1000] * 4, infos)
    assert ok and pair.ep.wait(transfer, 20) == 4000
    assert pair.ep.readv_ipc(pair.conn, mine, [1000] * 4, infos)
    with pytest.raises(RuntimeError, match="length"):
        pair.ep.writev_ipc(pair.conn, mine, [1000] * 4, infos[:3])


@pytest.mark.parametrize("gap", [0, 24])
def test_more_blocks_than_are_kept_registered(pair, gap):
    count, size = 10000, 40
    extent = count * (size + gap)
    _, pointer = pair.other.memory("m", extent)
    order = np.random.default_rng(1).permutation(count)
    theirs = [pointer + int(at) * (size + gap) for at in order]
    ok, infos = pair.other.call("advertisev_ipc", 0, theirs, [size] * count)
    assert ok and len(infos) == count
    array = np.random.default_rng(2).integers(1, 256, extent, np.uint8)
    mine = [array.ctypes.data + at * (size + gap) for at in range(count)]
    for _ in range(2):
        assert pair.ep.writev_ipc(pair.conn, mine, [size] * count, infos) is True, p2p.last_error()
    blocks = array.reshape(count, size + gap)[:, :size]
    expected = np.zeros((count, size + gap), np.uint8)
    expected[order, :size] = blocks
    assert pair.other.contents("m") == expected.tobytes()
    into = np.zeros(extent, np.uint8)
    mine = [into.ctypes.data + at * (size + gap) for at in range(count)]
    assert pair.ep.readv_ipc(pair.conn, mine, [size] * count, infos) is True, p2p.last_error()
    assert np.array_equal(into.reshape(count, size + gap)[:, :size], blocks)
    assert not into.reshape(count, size + gap)[:, size:].any()


def test_ranges_that_overlap_in_any_order(pair):
    _, pointer = pair.other.memory("m", 1000)
    ok, infos = pair.other.call("advertisev_ipc", 0, [pointer] * 4, [1000, 300, 200, 1000])
    assert ok
    array = np.random.default_rng(3).integers(0, 256, 1000, np.uint8)
    start = array.ctypes.data
    for first, length, info in ((500, 300, infos[1]), (450, 200, infos[2]), (0, 1000, infos[0]), (640, 200, infos[2])):
        assert pair.ep.write_ipc(pair.conn, start + first, length, info) is True, p2p.last_error()
        assert pair.other.contents("m")[:length] == array[first : first + length].tobytes()


@pytest.mark.parametrize("size", [0, 64, 87, 89, 128, 1000])
def test_a_wrong_length_raises(pair, size):
    array = np.zeros(16, np.uint8)
    for name in ("write_ipc", "read_ipc", "write_ipc_async", "read_ipc_async"):
        with pytest.raises(RuntimeError, match="info must be exactly 88 bytes"):
            getattr(pair.ep, name)(pair.conn, array.ctypes.data, 16, bytes(size))
    with pytest.raises(RuntimeError, match="info must be exactly 88 bytes"):
        pair.ep.writev_ipc(pair.conn, [array.ctypes.data], [16], [bytes(size)])


def test_wrong_contents(pair, offered):
    _, info = offered
    array = np.zeros(5000, np.uint8)
    with pytest.raises(RuntimeError, match="advertise_ipc"):
        pair.ep.write_ipc(pair.conn, array.ctypes.data, 16, bytes(INFO_BYTES))
    assert pair.ep.write_ipc(pair.conn, array.ctypes.data, 5000, info) is False
    assert "4000" in p2p.last_error()
    assert pair.ep.write_ipc(99, array.ctypes.data, 16, info) is False
    assert pair.ep.advertise_ipc(0, 0, 4096) == (False, b"")
    assert pair.ep.advertisev_ipc(0, [0], [4096]) == (False, [])


def test_lists_of_any_integers(pair, offered):
    pointer, info = offered
    ok, infos = pair.other.call("advertisev_ipc", 0, [pointer + at * 8 for at in range(4)], [8] * 4)
    assert ok
    array = np.arange(32).astype(np.uint8)
    at = array.ctypes.data
    mine = [at, np.uint64(at + 8), Number(at + 16), np.int64(at + 24)]
    for form in (list, tuple):
        assert pair.ep.writev_ipc(pair.conn, form(mine), form([8, Number(8), np.uint8(8), 8]), form(infos)), p2p.last_error()
        assert pair.other.contents("m")[:32] == array.tobytes()
    views = [infos[0], bytearray(infos[1]), memoryview(infos[2]), infos[3]]
    assert pair.ep.writev_ipc(pair.conn, mine, [8] * 4, views), p2p.last_error()


def test_lists_that_change_while_they_are_read(pair, offered):
    _, info = offered
    array = np.zeros(64, np.uint8)
    for change in (lambda: mine.clear(), lambda: mine.append(1), lambda: mine.pop(0)):
        mine = [10**15 + index for index in range(50)]
        mine[3] = Number(array.ctypes.data, change)
        with pytest.raises((TypeError, RuntimeError)):
            pair.ep.writev_ipc(pair.conn, mine, [1] * 50, [info] * 50)


@pytest.mark.parametrize("wrong", [[1.5], ["1"], [None], [2**64], [-(2**63) - 1], "12", 7])
def test_lists_of_what_are_no_integers(pair, offered, wrong):
    _, info = offered
    with pytest.raises(TypeError):
        pair.ep.writev_ipc(pair.conn, wrong, [1], [info])


def test_lists_with_a_blob_that_is_none(pair, offered):
    _, info = offered
    array = np.zeros(8, np.uint8)
    for wrong in (info[:-1], info[:72] + b"\1" + info[73:], info[:-1] + b"2"):
        with pytest.raises(RuntimeError, match="advertise_ipc"):
            pair.ep.writev_ipc(pair.conn, [array.ctypes.data] * 2, [8] * 2, [info, wrong])
