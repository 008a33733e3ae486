# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""The peer is killed while a call waits for it: the call ends, with a reason, within the keepalive time."""

import os
import signal
import threading
import time

import numpy as np
import pytest
from other_process import Other, Pair

from uccl import p2p

KEEPALIVE = 0.6  # seconds
BOUND = 8.0  # keepalive, notice and a machine that is busy


@pytest.fixture
def doomed():
    other = Other()
    pair = Pair(other, keepalive=KEEPALIVE)
    yield pair
    pair.close()
    other.stop()


def in_thread(call):
    results = []
    thread = threading.Thread(target=lambda: results.append(call()), daemon=True)
    thread.start()
    return thread, results


def blocked_receive(pair):
    array, mr_id, pointer = pair.memory(64)
    return lambda: pair.ep.recv(pair.conn, mr_id, pointer, 64)


def blocked_send(pair):
    array, mr_id, pointer = pair.memory(64)
    return lambda: pair.ep.send(pair.conn, mr_id, pointer, 64)


def blocked_vectors(pair):
    array, mr_id, pointer = pair.memory(64)
    return lambda: pair.ep.recvv(pair.conn, [mr_id, mr_id], [pointer, pointer + 32], [32, 32], 2)


def blocked_ipc(pair):
    array = np.zeros(64, np.uint8)
    pair.arrays.append(array)
    return lambda: pair.ep.recv_ipc(pair.conn, array.ctypes.data, 64)


def blocked_wait(pair):
    array, mr_id, pointer = pair.memory(64)
    ok, transfer = pair.ep.recv_async(pair.conn, mr_id, pointer, 64)

    def wait():
        with pytest.raises(p2p.PeerGone):
            pair.ep.wait(transfer)
        assert pair.ep.poll_async(transfer) == (False, True)
        return False

    return wait


@pytest.mark.parametrize(
    "blocked", [blocked_receive, blocked_send, blocked_vectors, blocked_ipc, blocked_wait], ids=lambda f: f.__name__
)
def test_kill_while_a_call_waits(doomed, blocked):
    thread, results = in_thread(blocked(doomed))
    time.sleep(0.1)  # let it begin to wait; a later start must end as well
    doomed.other.kill()
    thread.join(BOUND)
    assert results == [False]


def test_a_stopped_peer_counts_as_gone(doomed):
    call = blocked_receive(doomed)
    os.kill(doomed.other.pid(), signal.SIGSTOP)
    try:
        thread, results = in_thread(call)
        thread.join(BOUND)
        assert results == [False]
    finally:
        os.kill(doomed.other.process.pid, signal.SIGCONT)


@pytest.mark.parametrize("name", ["write", "read"])
def test_one_sided_calls_after_the_kill(doomed, name):
    array, mr_id, pointer = doomed.memory(1 << 20)
    doomed.other.memory("m", 1 << 20)
    blob = doomed.other.advertised("m")
    assert getattr(doomed.ep, name)(doomed.conn, mr_id, pointer, 1 << 20, blob)
    doomed.other.kill()
    start = time.monotonic()
    while getattr(doomed.ep, name)(doomed.conn, mr_id, pointer, 1 << 20, blob):
        assert time.monotonic() - start < BOUND  # the kernel may serve the dead for a moment
    assert time.monotonic() - start < BOUND
    assert p2p.last_error()


def test_kill_in_the_middle_of_writes(doomed):
    size = 32 << 20
    array, mr_id, pointer = doomed.memory(size)
    doomed.other.memory("m", size)
    blob = doomed.other.advertised("m")

    def write():
        outcomes = [True]
        while outcomes[-1] and len(outcomes) < 100_000:
            outcomes.append(doomed.ep.write(doomed.conn, mr_id, pointer, size, blob))
        return outcomes[-1]

    thread, results = in_thread(write)
    time.sleep(0.2)
    doomed.other.kill()
    thread.join(BOUND + 10)
    assert results == [False]


def test_others_are_unharmed(doomed, other):
    metadata = other.open()
    ok, conn = doomed.ep.add_remote_endpoint(metadata)
    assert ok
    doomed.other.kill()
    array, mr_id, pointer = doomed.memory(64, 3)
    other.memory("m", 64)
    deadline = time.monotonic() + 3 * KEEPALIVE
    while time.monotonic() < deadline:
        assert doomed.ep.write(conn, mr_id, pointer, 64, other.advertised("m")), p2p.last_error()
        time.sleep(0.05)


def test_kill_during_connect():
    other = Other()
    metadata = other.open(keepalive=KEEPALIVE)
    os.kill(other.pid(), signal.SIGSTOP)
    try:
        with p2p.Endpoint(0, 1, keepalive=KEEPALIVE, connect_timeout=5) as ep:
            address, port, gpu = ep.parse_metadata(metadata)
            thread, results = in_thread(lambda: ep.connect(address, gpu, port))
            time.sleep(0.2)
            other.process.kill()
            thread.join(BOUND)
            assert results and results[0][0] is False
    finally:
        other.kill()
        other.stop()


def test_dereg_of_memory_that_a_receive_waits_with(doomed):
    array, mr_id, pointer = doomed.memory(64)
    ok, transfer = doomed.ep.recv_async(doomed.conn, mr_id, pointer, 64)
    assert ok
    # Nobody touches the memory yet, so it can go; the message that comes for it finds nothing.
    assert doomed.ep.dereg(mr_id) is True
    theirs, their_pointer = doomed.other.memory("m", 64)
    assert doomed.other.call("send", doomed.their_conn, theirs, their_pointer, 64) is False
    with pytest.raises(p2p.Error):
        doomed.ep.wait(transfer, BOUND)
