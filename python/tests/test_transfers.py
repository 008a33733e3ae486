# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
import asyncio
import gc
import os
import time

import numpy as np
import pytest

from uccl import p2p


@pytest.fixture
def receive(fast_pair):
    """Starts a receive that nothing has been sent for."""

    def start(size=64):
        array, mr_id, pointer = fast_pair.memory(size)
        ok, transfer = fast_pair.ep.recv_async(fast_pair.conn, mr_id, pointer, size)
        assert ok, p2p.last_error()
        return transfer

    return start


def send_from_there(pair, size=64, value=1):
    theirs, pointer = pair.other.memory("out", size, value)
    assert pair.other.call("send", pair.their_conn, theirs, pointer, size)


def test_ids_are_small_numbers(fast_pair, receive):
    assert [receive(), receive()] == [1, 2]


def test_polling(fast_pair, receive):
    transfer = receive()
    assert fast_pair.ep.poll_async(transfer) == (True, False)
    send_from_there(fast_pair)
    deadline = time.monotonic() + 10
    while fast_pair.ep.poll_async(transfer) != (True, True):
        assert time.monotonic() < deadline
    # Asking again is harmless.
    assert fast_pair.ep.poll_async(transfer) == (True, True)
    assert fast_pair.ep.wait(transfer) == 0


@pytest.mark.parametrize("unknown", [0, 999, 2**64 - 1])
def test_unknown_ids(ep, unknown):
    assert ep.poll_async(unknown) == (False, True)
    assert str(unknown) in p2p.last_error()
    with pytest.raises(p2p.NotFound):
        ep.wait(unknown)
    assert ep.cancel(unknown) is False


def test_wait_has_a_deadline(fast_pair, receive):
    transfer = receive()
    start = time.monotonic()
    with pytest.raises(p2p.TimedOut):
        fast_pair.ep.wait(transfer, timeout=0.2)
    assert 0.15 < time.monotonic() - start < 5
    with pytest.raises(TimeoutError):
        fast_pair.ep.wait(transfer, 0)
    send_from_there(fast_pair)  # it goes on
    assert fast_pair.ep.wait(transfer, 10) == 64


@pytest.mark.parametrize("bad", [-1, float("nan")])
def test_deadlines_that_are_none(fast_pair, receive, bad):
    with pytest.raises(ValueError, match="timeout"):
        fast_pair.ep.wait(receive(), bad)


def test_cancel(fast_pair, receive):
    transfer = receive()
    assert fast_pair.ep.cancel(transfer) is True
    with pytest.raises(p2p.Cancelled):
        fast_pair.ep.wait(transfer, 10)
    assert fast_pair.ep.poll_async(transfer) == (False, True)
    assert fast_pair.ep.poll_async(transfer) == (False, True)
    assert fast_pair.ep.cancel(transfer) is False


def test_failures_are_told_by_poll_and_raised_by_wait(fast_pair, receive):
    array, mr_id, pointer = fast_pair.memory(100)
    fast_pair.other.memory("m", 100)
    forged = bytearray(fast_pair.other.advertised("m"))
    forged[30] ^= 1
    for _ in range(2):
        ok, transfer = fast_pair.ep.write_async(fast_pair.conn, mr_id, pointer, 100, bytes(forged))
        if not ok:
            assert p2p.last_error()
            continue
        with pytest.raises(p2p.Error) as raised:
            fast_pair.ep.wait(transfer, 10)
        assert raised.value.code != "timed_out" and str(raised.value)
        assert fast_pair.ep.poll_async(transfer) == (False, True)


def test_await(fast_pair):
    array, mr_id, pointer = fast_pair.memory(4096, 6)
    fast_pair.other.memory("m", 4096)
    blob = fast_pair.other.advertised("m")

    async def write():
        started = fast_pair.ep.write_async(fast_pair.conn, mr_id, pointer, 4096, blob)
        return await fast_pair.ep.transfer_future(started)

    async def several():
        return await asyncio.gather(*(write() for _ in range(20)))

    assert asyncio.run(several()) == [4096] * 20
    assert asyncio.run(write()) == 4096  # in a new loop
    assert fast_pair.other.contents("m") == array.tobytes()


def test_awaiting_leaves_the_loop_free(fast_pair, receive):
    transfer = receive()

    async def main():
        waiting = asyncio.create_task(fast_pair.ep.wait_async(transfer))
        ticks = 0
        for _ in range(5):
            await asyncio.sleep(0.01)
            ticks += 1
        assert not waiting.done()
        await asyncio.to_thread(send_from_there, fast_pair)
        return ticks, await waiting

    assert asyncio.run(main()) == (5, 64)


def test_await_raises(fast_pair, receive):
    async def main():
        with pytest.raises(p2p.TimedOut):
            await fast_pair.ep.wait_async(receive(), timeout=0.1)
        transfer = receive()
        waiting = asyncio.create_task(fast_pair.ep.wait_async(transfer))
        await asyncio.sleep(0)
        fast_pair.ep.cancel(transfer)
        with pytest.raises(p2p.Cancelled):
            await waiting
        with pytest.raises(p2p.NotFound):
            await fast_pair.ep.wait_async(12345)
        # Also where it never started the class is that of the failure.
        with pytest.raises(p2p.NotFound):
            await fast_pair.ep.transfer_future(fast_pair.ep.send_async(99, 0, 0, 0))

    asyncio.run(main())


def test_a_cancelled_coroutine_cancels_its_transfer(fast_pair, receive):
    transfer = receive()

    async def main():
        waiting = asyncio.create_task(fast_pair.ep.wait_async(transfer))
        await asyncio.sleep(0)  # it waits now
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(main())
    assert fast_pair.ep.poll_async(transfer) == (False, True)


def test_loops_leave_no_descriptors_behind(fast_pair):
    async def nothing():
        with pytest.raises(p2p.NotFound):
            await fast_pair.ep.wait_async(12345)

    asyncio.run(nothing())
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        asyncio.run(nothing())
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before


def test_many_transfers_at_once(fast_pair):
    count, size = 500, 512
    array, mr_id, pointer = fast_pair.memory(count * size)
    array[:] = np.random.default_rng(0).integers(0, 256, count * size, np.uint8)
    fast_pair.other.memory("m", count * size)
    blob = fast_pair.other.advertised("m")
    address = int.from_bytes(blob[:8], "little")
    ids = []
    for index in range(count):
        part = (address + index * size).to_bytes(8, "little") + blob[8:]
        ok, transfer = fast_pair.ep.write_async(fast_pair.conn, mr_id, pointer + index * size, size, part)
        assert ok, p2p.last_error()
        ids.append(transfer)
    for transfer in reversed(ids):
        assert fast_pair.ep.wait(transfer, 30) == size
    assert fast_pair.other.contents("m") == array.tobytes()
