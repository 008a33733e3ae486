# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""The peer is killed while a call waits for it: the call ends, with a reason, at once. A stopped one is slow."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial

import pytest
from other_process import Other, Pair, until_asleep

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
    """Starts the call in a thread, which waits by the time this returns."""
    results = []
    thread = threading.Thread(target=lambda: results.append(call()), daemon=True)
    thread.start()
    until_asleep(os.getpid(), thread.native_id)
    return thread, results


def blocked_receive(pair):
    array, mr_id, pointer = pair.memory(64)
    return lambda: pair.ep.recv(pair.conn, mr_id, pointer, 64)


def blocked_send(pair):
    array, mr_id, pointer = pair.memory(64)
    return lambda: pair.ep.send(pair.conn, mr_id, pointer, 64)


def blocked_vector_receive(pair):
    array, mr_id, pointer = pair.memory(64)
    return lambda: pair.ep.recvv(pair.conn, [mr_id, mr_id], [pointer, pointer + 32], [32, 32], 2)


def blocked_vector_send(pair):
    array, mr_id, pointer = pair.memory(64)
    return lambda: pair.ep.sendv(pair.conn, [mr_id, mr_id], [pointer, pointer + 32], [32, 32], 2)


def blocked_ipc_receive(pair):
    array, _, pointer = pair.memory(64)
    return lambda: pair.ep.recv_ipc(pair.conn, pointer, 64)


def blocked_ipc_send(pair):
    array, _, pointer = pair.memory(64)
    return lambda: pair.ep.send_ipc(pair.conn, pointer, 64)


def blocked_wait(pair):
    array, mr_id, pointer = pair.memory(64)
    ok, transfer = pair.ep.recv_async(pair.conn, mr_id, pointer, 64)

    def wait():
        with pytest.raises(p2p.PeerGone):
            pair.ep.wait(transfer)
        assert pair.ep.poll_async(transfer) == (False, True)
        return False

    return wait


def blocked_coroutine(pair):
    array, mr_id, pointer = pair.memory(64)
    ok, transfer = pair.ep.recv_async(pair.conn, mr_id, pointer, 64)

    def wait():
        with pytest.raises(p2p.PeerGone):
            asyncio.run(pair.ep.wait_async(transfer))
        return False

    return wait


BLOCKED = [
    blocked_receive, blocked_send, blocked_vector_receive, blocked_vector_send, blocked_ipc_receive,
    blocked_ipc_send, blocked_wait, blocked_coroutine,
]  # fmt: skip


@pytest.mark.parametrize("blocked", BLOCKED, ids=lambda f: f.__name__)
def test_kill_while_a_call_waits(doomed, blocked):
    thread, results = in_thread(blocked(doomed))
    doomed.other.kill()
    thread.join(BOUND)
    assert results == [False]


@pytest.fixture
def impatient():
    other = Other()
    pair = Pair(other, keepalive=KEEPALIVE, hung=2.0)
    yield pair
    pair.close()
    other.stop()


def test_a_peer_that_hangs_counts_as_gone(impatient):
    call = blocked_receive(impatient)
    os.kill(impatient.other.pid(), signal.SIGSTOP)
    try:
        thread, results = in_thread(call)
        thread.join(BOUND)
        assert results == [False]
    finally:
        os.kill(impatient.other.process.pid, signal.SIGCONT)


def test_a_stopped_peer_is_slow_and_no_more_than_that(doomed):
    array, mr_id, pointer = doomed.memory(64)
    theirs, their_pointer = doomed.other.memory("m", 64)
    thread, results = in_thread(lambda: doomed.ep.recv(doomed.conn, mr_id, pointer, 64))
    pid = doomed.other.pid()
    os.kill(pid, signal.SIGSTOP)
    try:
        deadline = time.monotonic() + BOUND
        while not any(route["detail"].startswith("slow: ") for route in doomed.ep.routes(doomed.conn)):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert results == []
    finally:
        os.kill(pid, signal.SIGCONT)
    assert doomed.other.call("send", doomed.their_conn, theirs, their_pointer, 64) is True
    thread.join(BOUND)
    assert results == [True]


def test_calls_after_the_kill(doomed):
    size = 1 << 20
    array, mr_id, pointer = doomed.memory(size)
    theirs, their_pointer = doomed.other.memory("m", size)
    blob = doomed.other.advertised("m")
    info = doomed.other.call("advertise_ipc", 0, their_pointer, size)[1]
    ep, conn = doomed.ep, doomed.conn
    calls = {"notify": lambda: ep.notify(conn, b"x" * size)}
    for name in ("write", "read"):
        calls[name] = partial(getattr(ep, name), conn, mr_id, pointer, size, blob)
        calls[name + "v"] = partial(getattr(ep, name + "v"), conn, [mr_id], [pointer], [size], [blob])
        calls[name + "_ipc"] = partial(getattr(ep, name + "_ipc"), conn, pointer, size, info)
        calls[name + "v_ipc"] = partial(getattr(ep, name + "v_ipc"), conn, [pointer], [size], [info])
    for name, call in calls.items():
        assert call() is True, name
    doomed.other.kill()
    start = time.monotonic()
    for name, call in calls.items():
        while call():
            assert time.monotonic() - start < BOUND, name  # the kernel may serve the dead for a moment
        assert time.monotonic() - start < BOUND, name
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
    deadline = time.monotonic() + BOUND
    while doomed.ep.stats()["transfers_completed"] < 3:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    doomed.other.kill()
    thread.join(BOUND + 10)
    assert results == [False]


def test_others_are_unharmed(doomed, other):
    metadata = other.open()
    ok, conn = doomed.ep.add_remote_endpoint(metadata)
    assert ok
    array, mr_id, pointer = doomed.memory(64, 3)
    other.memory("m", 64)
    blob = other.advertised("m")
    ok, waiting = doomed.ep.recv_async(doomed.conn, mr_id, pointer, 64)
    assert ok
    doomed.other.kill()
    deadline = time.monotonic() + BOUND
    while doomed.ep.poll_async(waiting) == (True, False):
        assert doomed.ep.write(conn, mr_id, pointer, 64, blob), p2p.last_error()
        assert time.monotonic() < deadline
    assert doomed.ep.poll_async(waiting) == (False, True)
    assert doomed.ep.write(conn, mr_id, pointer, 64, blob), p2p.last_error()


def test_kill_during_connect():
    other = Other()
    metadata = other.open(keepalive=KEEPALIVE)
    os.kill(other.pid(), signal.SIGSTOP)
    try:
        with p2p.Endpoint(0, 1, keepalive=KEEPALIVE, connect_timeout=5) as ep:
            address, port, gpu = ep.parse_metadata(metadata)
            thread, results = in_thread(lambda: ep.connect(address, gpu, port))
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


ENDING = """
import atexit
import sys
import time
import numpy as np
from uccl import p2p

held = []
memory = np.zeros(64, np.uint8)
for _ in range(5):
    ep = p2p.Endpoint(0, 2, keepalive=20.0)
    ok, conn = ep.connect("127.0.0.1", 0, int(sys.argv[1]))
    assert ok, p2p.last_error()
    ok, mr = ep.reg(memory.ctypes.data, 64)
    ep.recv_async(conn, mr, memory.ctypes.data, 64)
    held.append(ep)
atexit.unregister(p2p._p2p._close_all)
print("ready", flush=True)
sys.stdin.readline()
begun = time.monotonic()
p2p._p2p._close_all()
print(time.monotonic() - begun, flush=True)
"""


def test_a_process_ends_soon_beside_a_stopped_peer(doomed):
    """Not the keepalive time, and not one endpoint after the other."""
    port = p2p.Endpoint.parse_metadata(doomed.metadata)[1]
    peer = doomed.other.process.pid
    ending = subprocess.Popen(
        [sys.executable, "-c", ENDING, str(port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert ending.stdout.readline() == "ready\n"
        os.kill(peer, signal.SIGSTOP)
        took, _ = ending.communicate("\n", timeout=15)
        assert ending.returncode == 0
        assert float(took) < 3, "within a second, on a machine that has time"
    finally:
        os.kill(peer, signal.SIGCONT)
        ending.kill()
