# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""verify= of the calls that write and read."""

import numpy as np

from uccl import p2p

SIZE = 1 << 20


def test_every_one_sided_call_may_be_verified(pair):
    ep, conn = pair.ep, pair.conn
    array, mr_id, pointer = pair.memory(SIZE, 3)
    pair.other.memory("m", SIZE)
    blob = pair.other.advertised("m")
    assert ep.write(conn, mr_id, pointer, SIZE, blob, verify=True), p2p.last_error()
    assert ep.write(conn, mr_id, array, blob, verify=True)
    assert ep.write(conn, array, blob, verify=True)
    assert ep.writev(conn, [mr_id], [pointer], [SIZE], [blob], verify=True)
    assert pair.other.contents("m") == b"\x03" * SIZE
    pair.other.fill("m", b"\x05" * SIZE)
    ok, transfer = ep.readv_async(conn, [mr_id], [pointer], [SIZE], [blob], verify=True)
    assert ok and ep.wait(transfer)
    assert np.all(array == 5)


def test_a_difference_is_an_error_that_names_the_range(pair):
    size = 32 << 10  # both in one batch, as each is compared as soon as it has landed
    _, mr_id, pointer = pair.memory(size, 3)
    other, other_id, other_pointer = pair.memory(size, 3)
    other[size // 2 + 5000] = 4
    pair.other.memory("m", size)
    blob = pair.other.advertised("m")
    # Two sources for one place: whichever comes last, the other one is not there.
    both = [mr_id, other_id], [pointer, other_pointer], [size, size], [blob, blob]
    assert not pair.ep.writev(pair.conn, *both, verify=True)
    error = p2p.last_error()
    assert "4096 bytes at " in error
    assert f"byte {size // 2 + 4096} of region" in error
    assert pair.ep.writev(pair.conn, *both)
