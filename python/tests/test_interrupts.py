# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""Ctrl-C, and the end of the interpreter with work in flight: each in a process of its own."""

import signal
import subprocess
import sys
import time

import pytest
from other_process import until_asleep

START_SECONDS = 30
END_SECONDS = 15

_SETUP = """
import os, signal, sys, threading, asyncio
signal.signal(signal.SIGINT, signal.default_int_handler)  # a run in the background starts with it ignored
import numpy as np
from uccl import p2p
a, b = p2p.Endpoint(0, 1), p2p.Endpoint(1, 1)
address, port, gpu = a.parse_metadata(b.get_metadata())
ok, conn = a.connect(address, gpu, port)
theirs = b.accept()[3]
array = np.zeros(64, np.uint8)
pointer = array.ctypes.data
mr = a.reg(pointer, 64)[1]
transfer = a.recv_async(conn, mr, pointer, 64)[1]
"""

WAITS = {
    "accept": "a.accept()",
    "accept_local": "a.accept_local()",
    "recv": "a.recv(conn, mr, pointer, 64)",
    "send": "a.send(conn, mr, pointer, 64)",
    "recvv": "a.recvv(conn, [mr], [pointer], [64], 1)",
    "recv_ipc": "a.recv_ipc(conn, pointer, 64)",
    "wait": "a.wait(transfer)",
    "connect": """
import socket
server = socket.create_server(('127.0.0.1', 0))
p2p.Endpoint(0, 1, connect_timeout=600).connect('127.0.0.1', 0, server.getsockname()[1])
""",
    "await": "asyncio.run(a.wait_async(transfer))",
}


def start(code):
    # Newer versions warn when a process with threads forks; one of the cases is about that.
    process = subprocess.Popen(
        [sys.executable, "-u", "-W", "ignore::DeprecationWarning", "-c", code],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout.readline() == "ready\n", process.communicate(timeout=END_SECONDS)
    return process


@pytest.mark.parametrize("name", WAITS)
def test_interrupt_in_every_wait(name):
    call = "\n".join("    " + line for line in WAITS[name].strip().splitlines())
    code = f"{_SETUP}\ntry:\n    print('ready')\n{call}\nexcept KeyboardInterrupt:\n    print('interrupted')\n"
    process = start(code)
    try:
        until_asleep(process.pid)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=END_SECONDS)
    finally:
        process.kill()
    assert out == "interrupted\n", err
    assert process.returncode == 0, err


ENDS = {
    "falls off": "",
    "exits": "sys.exit(0)",
    "waiting in a daemon thread": "threading.Thread(target=a.recv, args=(conn, mr, pointer, 64), daemon=True).start()",
    "accepting in a daemon thread": "threading.Thread(target=b.accept, daemon=True).start()",
    "polling in a daemon thread": """
def poll():
    while True: a.poll_async(transfer)
threading.Thread(target=poll, daemon=True).start()
""",
    "writing": """
big = np.zeros(64 << 20, np.uint8)
into = np.zeros(64 << 20, np.uint8)
mine, his = a.reg(big.ctypes.data, big.nbytes)[1], b.reg(into.ctypes.data, into.nbytes)[1]
blob = b.advertise(his, into.ctypes.data, into.nbytes)[1]
for _ in range(20): a.write_async(conn, mine, big.ctypes.data, big.nbytes, blob)
""",
    "endpoints dropped": "del a, b",
    "endpoint in a cycle": "ring = [a]; ring.append(ring); del a",
    "forked child": "child = os.fork()\nif child: os.waitpid(child, 0)",
}


@pytest.mark.parametrize("name", ENDS)
def test_exit_with_work_in_flight(name):
    process = start(f"{_SETUP}\nprint('ready')\n{ENDS[name]}\n")
    try:
        out, err = process.communicate(timeout=END_SECONDS)
    finally:
        process.kill()
    assert process.returncode == 0, (process.returncode, err)
    assert err == ""


_MANY = 10
_STANDS = """
import sys
from uccl import p2p
ep = p2p.Endpoint(1, 1, listen_address="127.0.0.1", transports=["tcp"])
print("ready")
print(p2p.Endpoint.parse_metadata(ep.get_metadata())[1])
sys.stdin.readline()
"""
_LEAVES = """
import sys
import numpy as np
from uccl import p2p
array = np.zeros(64, np.uint8)
kept = []
for _ in range({many}):
    ep = p2p.Endpoint(0, 1, listen_address="127.0.0.1", transports=["tcp"])
    ok, conn = ep.connect("127.0.0.1", 0, {port})
    assert ok, p2p.last_error()
    kept.append(ep)
print("ready")
sys.stdin.readline()
for ep in kept: ep.send_async(0, array)
"""


def test_endpoints_end_side_by_side_where_their_peer_stands_still():
    """Each takes about a second; one after the other they took ten."""
    stands = start(_STANDS)
    leaves = None
    try:
        leaves = start(_LEAVES.format(many=_MANY, port=int(stands.stdout.readline())))
        stands.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        _, err = leaves.communicate("\n", timeout=END_SECONDS)
        assert leaves.returncode == 0, err
        assert time.monotonic() - began < _MANY / 2
    finally:
        stands.kill()
        if leaves is not None:
            leaves.kill()
