# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""uccl.aio: two endpoints of one event loop."""

import asyncio
from contextlib import asynccontextmanager

import numpy as np
import pytest

from uccl import aio, p2p


@asynccontextmanager
async def pair():
    """Two endpoints and the id of their connection at each."""
    async with aio.Endpoint(0, 1) as here, aio.Endpoint(1, 1) as there:
        address, port, gpu = p2p.Endpoint.parse_metadata(there.sync.get_metadata())
        mine, theirs = await asyncio.gather(here.connect(address, gpu, port), there.accept(timeout=20))
        yield here, mine, there, theirs
    assert here.sync.closed and there.sync.closed


def memory(endpoint, size, value=0):
    array = np.full(size, value, np.uint8)
    return array, endpoint.reg(array.ctypes.data, size)


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 40))


def test_every_way_to_move_bytes():
    async def main():
        async with pair() as (here, mine, there, theirs):
            out, out_id = memory(here, 4096, 7)
            into, into_id = memory(there, 4096)
            blob = there.advertise(into_id, into.ctypes.data, 4096)
            assert await here.write(mine, out_id, out.ctypes.data, 4096, blob) == 4096
            assert (into == 7).all()
            into[:] = 9
            assert await here.read(mine, out_id, out.ctypes.data, 4096, blob) == 4096
            assert (out == 9).all()
            out[:] = 1
            sent, received = await asyncio.gather(
                here.send(mine, out_id, out.ctypes.data, 100), there.recv(theirs, into_id, into.ctypes.data, 4096)
            )
            assert (sent, received) == (100, 100) and (into[:100] == 1).all() and (into[100:] == 9).all()
            halves = [out_id] * 2, [out.ctypes.data, out.ctypes.data + 2048], [2048] * 2
            into_halves = [into_id] * 2, [into.ctypes.data, into.ctypes.data + 2048], [2048] * 2
            await asyncio.gather(here.sendv(mine, *halves), there.recvv(theirs, *into_halves))
            assert (into == 1).all()
            out[:] = 3
            blobs = [there.advertise(into_id, at, 2048) for at in into_halves[1]]
            assert await here.writev(mine, *halves, blobs) == 4096 and (into == 3).all()
            into[:] = 4
            assert await here.readv(mine, *halves, blobs) == 4096 and (out == 4).all()
            local, remote = here.sync.register_memory([out]), there.sync.register_memory([into])
            out[:] = 5
            assert await here.transfer(mine, "write", local, remote) == 4096 and (into == 5).all()
            await here.notify(mine, b"through")
            assert there.take_notifications(theirs) == [b"through"]
            await here.dereg(out_id)
            await here.disconnect(mine)

    run(main())


def test_failures_raise():
    async def main():
        async with pair() as (here, mine, _, _):
            with pytest.raises(p2p.Error, match="Invalid conn_id 99"):
                await here.send(99, 0, 0, 1)
            with pytest.raises(p2p.Error, match="Invalid conn_id 99"):
                await here.notify(99, b"")
            with pytest.raises(p2p.Error, match="port 0"):
                await here.connect("127.0.0.1", 0, 0)
            with pytest.raises(p2p.Error, match="no memory region"):
                await here.dereg(4711)
            with pytest.raises(p2p.Error, match="no memory region"):
                here.advertise(4711, 0, 1)
            with pytest.raises(p2p.Error):
                here.reg(0, 4096)
            with pytest.raises(p2p.TimedOut):
                await here.accept(timeout=0.1)

    run(main())


def test_a_cancelled_receive_leaves_the_memory_free():
    async def main():
        async with pair() as (here, mine, there, theirs):
            into, into_id = memory(there, 64)
            receiving = asyncio.create_task(there.recv(theirs, into_id, into.ctypes.data, 64))
            await asyncio.sleep(0)  # it has begun
            receiving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await receiving
            await there.dereg(into_id, timeout=0.1)  # nothing uses it
            # Its number stays taken: the message that meets it fails, the next one meets the next receive.
            into_id = there.reg(into.ctypes.data, 64)
            out, out_id = memory(here, 64, 8)
            with pytest.raises(p2p.Cancelled):
                await here.send(mine, out_id, out.ctypes.data, 64)
            await asyncio.gather(
                here.send(mine, out_id, out.ctypes.data, 64), there.recv(theirs, into_id, into.ctypes.data, 64)
            )
            assert (into == 8).all()

    run(main())


def test_a_cancelled_accept_takes_no_connection():
    async def main():
        async with aio.Endpoint(0, 1) as here, aio.Endpoint(1, 1) as there:
            accepting = asyncio.create_task(there.accept())
            await asyncio.sleep(0)
            accepting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await accepting
            address, port, gpu = p2p.Endpoint.parse_metadata(there.sync.get_metadata())
            # The thread of the first one may still take the connection: the second gets it all the same.
            conn = await here.connect(address, gpu, port)
            theirs = await there.accept(timeout=20)
            assert there.sync.peer(theirs)["gpu_idx"] == 0
            await here.disconnect(conn)

    run(main())


def test_an_endpoint_of_p2p_closes_with_async_with():
    async def main():
        async with p2p.Endpoint(0, 1) as endpoint:
            assert not endpoint.closed
        assert endpoint.closed

    run(main())
