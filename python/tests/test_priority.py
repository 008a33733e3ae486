# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""priority= and rate= of the calls that write and read."""

import time

import numpy as np
import pytest

from uccl import p2p

SIZE = 1 << 20


@pytest.mark.parametrize("priority", ["high", "normal", "low"])
def test_every_one_sided_call_takes_a_priority(pair, priority):
    ep, conn = pair.ep, pair.conn
    array, mr_id, pointer = pair.memory(SIZE, 3)
    pair.other.memory("m", SIZE)
    blob = pair.other.advertised("m")
    assert ep.write(conn, mr_id, pointer, SIZE, blob, priority=priority), p2p.last_error()
    assert ep.write(conn, mr_id, array, blob, priority=priority, rate=1 << 40)
    assert ep.write(conn, array, blob, priority=priority)
    assert ep.writev(conn, [mr_id], [pointer], [SIZE], [blob], priority=priority)
    assert pair.other.contents("m") == b"\x03" * SIZE
    pair.other.fill("m", b"\x05" * SIZE)
    ids = [
        ep.read_async(conn, mr_id, pointer, SIZE, blob, priority=priority),
        ep.readv_async(conn, [mr_id], [pointer], [SIZE], [blob], priority=priority, rate=1 << 40),
    ]
    for ok, transfer in ids:
        assert ok and ep.wait(transfer)
    assert np.all(array == 5)


def test_a_rate_is_kept_and_holds_nobody_up(pair):
    _, mr_id, pointer = pair.memory(SIZE, 4)
    pair.other.memory("m", SIZE)
    blob = pair.other.advertised("m")
    start = time.monotonic()
    assert pair.ep.write(pair.conn, mr_id, pointer, SIZE, blob, rate=5 * SIZE)
    assert time.monotonic() - start >= 0.17
    ok, slow = pair.ep.write_async(pair.conn, mr_id, pointer, SIZE, blob, rate=1)
    assert ok
    assert pair.ep.write(pair.conn, mr_id, pointer, SIZE, blob)
    assert pair.ep.poll_async(slow) == (True, False)
    assert pair.ep.cancel(slow)


def test_what_is_no_priority_or_rate_is_refused(pair):
    _, mr_id, pointer = pair.memory(64)
    pair.other.memory("m", 64)
    blob = pair.other.advertised("m")
    for verb in (pair.ep.write, pair.ep.read_async):
        with pytest.raises(ValueError, match="'urgent' is none of"):
            verb(pair.conn, mr_id, pointer, 64, blob, priority="urgent")
        for rate in (-1, 1.5, "fast"):
            with pytest.raises(TypeError):
                verb(pair.conn, mr_id, pointer, 64, blob, rate=rate)
