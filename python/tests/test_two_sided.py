# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
import time

import numpy as np
import pytest

from uccl import p2p

def pattern(size, seed=0):
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8).tobytes()


@pytest.mark.parametrize("size", [1, 7, 4096, 65537, 5_000_000])
def test_numpy_arrays_both_directions(pair, size):
    data = pattern(size)
    array, mr_id, pointer = pair.memory(size)
    array[:] = np.frombuffer(data, np.uint8)
    theirs, their_pointer = pair.other.memory("m", size)
    pair.other.begin("call", "recv", pair.their_conn, theirs, their_pointer, size)
    assert pair.ep.send(pair.conn, mr_id, pointer, size), p2p.last_error()
    assert pair.other.result()
    assert pair.other.contents("m") == data
    # The other way on the same connection.
    array[:] = 0
    pair.other.begin("call", "send", pair.their_conn, theirs, their_pointer, size)
    assert pair.ep.recv(pair.conn, mr_id, pointer, size), p2p.last_error()
    assert pair.other.result()
    assert array.tobytes() == data


def test_recv_size_is_a_maximum(pair):
    """Also beyond the registration: what counts is what comes."""
    array, mr_id, pointer = pair.memory(4096, 9)
    theirs, their_pointer = pair.other.memory("m", 4096)
    pair.other.begin("call", "recv", pair.their_conn, theirs, their_pointer, 8192)
    assert pair.ep.send(pair.conn, mr_id, pointer, 4096), p2p.last_error()
    assert pair.other.result() is True
    assert pair.other.contents("m") == b"\x09" * 4096
    pair.other.begin("call", "recv", pair.their_conn, theirs, their_pointer, 4096)
    assert pair.ep.send(pair.conn, mr_id, pointer, 10)
    assert pair.other.result() is True


def test_too_long_a_message_fails_on_both_sides(pair):
    array, mr_id, pointer = pair.memory(4096, 9)
    theirs, their_pointer = pair.other.memory("m", 4096)
    pair.other.begin("call", "recv", pair.their_conn, theirs, their_pointer, 100)
    assert pair.ep.send(pair.conn, mr_id, pointer, 4096) is False
    assert p2p.last_error()
    assert pair.other.result() is False
    assert pair.other.last_error()


def test_messages_meet_in_order(pair):
    count, size = 20, 1000
    array, mr_id, pointer = pair.memory(count * size)
    for index in range(count):
        array[index * size : (index + 1) * size] = index
    theirs, their_pointer = pair.other.memory("m", count * size)
    receives = [
        pair.other.call("recv_async", pair.their_conn, theirs, their_pointer + index * size, size)
        for index in range(count)
    ]
    sends = [pair.ep.send_async(pair.conn, mr_id, pointer + index * size, size) for index in range(count)]
    for ok, transfer in sends:
        assert ok
        assert pair.ep.wait(transfer, 20) == size
    for ok, transfer in receives:
        assert ok
        assert pair.other.call("wait", transfer, 20) == size
    assert pair.other.contents("m") == array.tobytes()


@pytest.mark.parametrize("keywords", [("mr_id_v", "data_ptr_v", "size_v"), ("mr_id_list", "ptr_list", "size_list")])
def test_vectors(pair, keywords):
    sizes = [512 * 4, 1024 * 4, 256 * 4]
    sent = [pair.memory(size, index + 1) for index, size in enumerate(sizes)]
    received = [pair.other.memory(f"m{index}", size) for index, size in enumerate(sizes)]
    names = dict(zip(keywords, ([r[0] for r in received], [r[1] for r in received], sizes), strict=True))
    pair.other.begin("call", "recvv", conn_id=pair.their_conn, num_iovs=3, **names)
    names = dict(zip(keywords, ([s[1] for s in sent], [s[2] for s in sent], sizes), strict=True))
    assert pair.ep.sendv(conn_id=pair.conn, num_iovs=3, **names), p2p.last_error()
    assert pair.other.result() is True
    for index, size in enumerate(sizes):
        assert pair.other.contents(f"m{index}") == bytes([index + 1]) * size


def test_vectors_without_a_count_and_asynchronous(pair):
    array, mr_id, pointer = pair.memory(300, 3)
    theirs, their_pointer = pair.other.memory("m", 300)
    lists = lambda region, at: ([region] * 3, [at, at + 100, at + 200], [100] * 3)  # noqa: E731
    ok, receive = pair.other.call("recvv_async", pair.their_conn, *lists(theirs, their_pointer))
    assert ok
    ok, send = pair.ep.sendv_async(pair.conn, *lists(mr_id, pointer))
    assert ok
    assert pair.ep.wait(send, 20) == 300
    assert pair.other.call("wait", receive, 20) == 300
    assert pair.other.contents("m") == array.tobytes()


def test_wrong_lengths_raise(pair):
    for name in ("sendv", "recvv", "sendv_async", "recvv_async"):
        call = getattr(pair.ep, name)
        with pytest.raises(RuntimeError, match="num_iovs"):
            call(pair.conn, [1], [0], [1], 2)
        with pytest.raises(RuntimeError, match="num_iovs"):
            call(pair.conn, [1, 1], [0], [1], 1)


def test_bad_memory_answers_false(pair):
    array, mr_id, pointer = pair.memory(100)
    assert pair.ep.send(pair.conn, 10**6, pointer, 100) is False
    assert pair.ep.send(pair.conn, 2**64 - 1, pointer, 100) is False
    assert pair.ep.send(pair.conn, mr_id, pointer, 101) is False
    assert pair.ep.send(pair.conn, mr_id, pointer - 1, 10) is False
    assert p2p.last_error()
    ok, transfer = pair.ep.send_async(pair.conn, 10**6, pointer, 100)
    if ok:  # found wrong after the call
        with pytest.raises(p2p.Error):
            pair.ep.wait(transfer, 10)
    # The connection is none the worse.
    theirs, their_pointer = pair.other.memory("m", 100)
    pair.other.begin("call", "recv", pair.their_conn, theirs, their_pointer, 100)
    assert pair.ep.send(pair.conn, mr_id, pointer, 100), p2p.last_error()
    assert pair.other.result()


def test_a_receive_may_come_late(pair):
    array, mr_id, pointer = pair.memory(1 << 20, 5)
    ok, send = pair.ep.send_async(pair.conn, mr_id, pointer, 1 << 20)
    assert ok
    assert pair.ep.poll_async(send) == (True, False)
    theirs, their_pointer = pair.other.memory("m", 1 << 20)
    assert pair.other.call("recv", pair.their_conn, theirs, their_pointer, 1 << 20)
    assert pair.ep.wait(send, 20) == 1 << 20


def test_without_registration(pair):
    data = np.frombuffer(pattern(10_000), np.uint8).copy()
    theirs, their_pointer = pair.other.memory("m", 10_000)
    pair.other.begin("call", "recv_ipc", pair.their_conn, their_pointer, 10_000)
    assert pair.ep.send_ipc(pair.conn, data.ctypes.data, 10_000), p2p.last_error()
    assert pair.other.result()
    assert pair.other.contents("m") == data.tobytes()
    ok, receive = pair.other.call("recv_ipc_async", pair.their_conn, their_pointer, 10_000)
    ok, send = pair.ep.send_ipc_async(pair.conn, data.ctypes.data, 5_000)
    assert pair.ep.wait(send, 20) == 5_000
    assert pair.other.call("wait", receive, 20) == 5_000


def test_done_is_prompt(fast_pair):
    """A blocking call is not quantised by the slices in which it looks for signals."""
    array, mr_id, pointer = fast_pair.memory(64)
    fast_pair.other.memory("m", 64)
    blob = fast_pair.other.advertised("m")
    times = []
    for _ in range(20):
        start = time.perf_counter()
        assert fast_pair.ep.write(fast_pair.conn, mr_id, pointer, 64, blob)
        times.append(time.perf_counter() - start)
    assert sorted(times)[10] < 0.02
