# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""uccl.aio: two endpoints of one event loop."""

import ast
import asyncio
import gc
import inspect
import os
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
from test_contract import in_stub

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


def test_a_receive_cancelled_twice_is_not_through_before_its_memory_is_free(monkeypatch):
    async def main():
        async with pair() as (_, _, there, theirs):
            into, into_id = memory(there, 64)
            receiving = asyncio.create_task(there.recv(theirs, into_id, into.ctypes.data, 64))
            await asyncio.sleep(0)
            asked = []
            monkeypatch.setattr(there.sync, "cancel", asked.append, raising=False)  # an end that takes its time
            for _ in range(3):
                receiving.cancel()
                for _ in range(5):
                    await asyncio.sleep(0)
                assert not receiving.done()
            (transfer_id,) = asked
            assert p2p.Endpoint.cancel(there.sync, transfer_id)
            with pytest.raises(asyncio.CancelledError):
                await receiving
            assert there.sync.poll_async(transfer_id) == (False, True)

    run(main())


def test_a_receive_cancelled_while_its_endpoint_closes():
    async def main():
        async with pair() as (_, _, there, theirs):
            into, into_id = memory(there, 64)
            receiving = asyncio.create_task(there.recv(theirs, into_id, into.ctypes.data, 64))
            await asyncio.sleep(0)
            there.sync.close()  # the end of the transfer waits for this loop to look
            receiving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await receiving

    run(main())


def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def test_nothing_stays_of_cancelled_and_failed_transfers():
    async def main():
        async with pair() as (_, _, there, theirs):
            into, into_id = memory(there, 64)

            async def cancel_one():
                receiving = asyncio.create_task(there.recv(theirs, into_id, into.ctypes.data, 64))
                await asyncio.sleep(0)
                receiving.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await receiving

            def fail_one():
                transfer_id = there.recv_async(theirs, into_id, into.ctypes.data, 64)
                there.cancel(transfer_id)
                with pytest.raises(p2p.Cancelled):
                    while not there.poll_async(transfer_id):
                        pass
                return transfer_id

            for _ in range(500):
                await cancel_one()
                fail_one()
            gc.collect()
            before = resident()
            for _ in range(15000):
                await cancel_one()
            first = fail_one()
            for _ in range(15000):
                last = fail_one()
            gc.collect()
            assert resident() - before < 2 << 20  # less than 70 bytes of each
            with pytest.raises(p2p.Cancelled):
                there.poll_async(last)  # once more
            with pytest.raises(p2p.NotFound, match="forgotten"):
                there.poll_async(first)

    run(main())


def public(owner):
    return {name for name in dir(owner) if not name.startswith("_")}


def test_it_has_every_call_of_the_plain_one():
    assert public(aio.Endpoint) - public(p2p.Endpoint) == {"disconnect"}
    assert public(p2p.Endpoint) - public(aio.Endpoint) == set()
    rows = aio._TRANSFERS + aio._CONNECT + aio._THREAD + aio._UNCHANGED
    assert set(rows) <= public(p2p.Endpoint) and len(set(rows)) == len(rows)


def test_its_stub_has_the_arguments_of_the_plain_one():
    folder = Path(aio.__file__).parent
    trees = {name: ast.parse((folder / name).read_text()) for name in ("aio.pyi", "_p2p.pyi")}
    ours, theirs = ({name: count for name, count in in_stub(tree.body)["Endpoint"].items() if not name.startswith("_")}
                    for tree in trees.values())  # fmt: skip
    assert set(ours) == public(aio.Endpoint)
    added = {"disconnect", "wait_async", "transfer_future"}
    assert {name: count for name, count in ours.items() if name not in added} == theirs

    def arguments(tree):
        (endpoint,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Endpoint")
        return [(node, f"{node.name}({ast.unparse(node.args)})") for node in endpoint.body
                if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name in theirs]  # fmt: skip

    here, there = (arguments(tree) for tree in trees.values())
    assert sorted(text for _, text in here) == sorted(text for _, text in there)
    for node, _ in here:
        waits = inspect.iscoroutinefunction(inspect.getattr_static(aio.Endpoint, node.name))
        assert waits == isinstance(node, ast.AsyncFunctionDef), node.name


def test_tensors_views_and_keywords():
    async def main():
        async with pair() as (here, mine, there, theirs):
            out, into = np.full(4096, 7, np.uint8), np.zeros(4096, np.uint8)
            out_id, into_id = here.reg(out), there.reg(tensor=into, read_only=False)
            blob = there.advertise(into_id, into)
            assert await here.write(mine, out_id, out, blob) == 4096 and (into == 7).all()
            into[:] = 8
            assert await here.read(conn_id=mine, tensor=memoryview(out), meta=blob) == 4096 and (out == 8).all()
            assert await here.write(mine, out_id, src=out.ctypes.data, size=8, slot_item=blob, stream=None) == 8
            sent, received = await asyncio.gather(here.send(mine, out_id, out[:100]), there.recv(theirs, bytearray(200)))
            assert (sent, received) == (100, 100)
            info = there.advertise_ipc(theirs, into)
            out[:] = 9
            assert await here.write_ipc(mine, out, info) == 4096 and (into == 9).all()
            assert await here.wait(here.read_async(mine, out, blob)) == 4096
            one = here.transfer_future(here.read_async(mine, out, blob))
            assert await one == 4096 and await one == 0  # told before
            with pytest.raises(ValueError, match="."):
                await here.read(mine, np.broadcast_to(out[:8], (8, 8)), blob)
            buffer = bytearray(64)
            assert there.advertise(theirs, into_id, into.ctypes.data, 4096, buffer) is None and bytes(buffer) == blob
            (only,) = there.advertisev([into_id], [into.ctypes.data], [4096])
            assert only == blob
            assert len(here.regv([out.ctypes.data], [64])) == 1
            with pytest.raises(p2p.OutOfRange):
                there.advertise(into_id, into.ctypes.data, 5000)

    run(main())


def test_what_tells_about_an_endpoint():
    async def main():
        async with pair() as (here, mine, there, theirs):
            metadata = there.get_metadata()
            assert aio.Endpoint.parse_metadata(metadata) == p2p.Endpoint.parse_metadata(metadata)
            assert await here.add_remote_endpoint(metadata) == await here.add_remote_endpoint(metadata)
            assert there.peer(theirs)["gpu_idx"] == 0 and here.routes(mine) and here.transports()
            assert here.stats(mine)["channels"] >= 1 and "p2p_endpoint" in here.metrics()
            assert there.start_passive_accept() is None
            into = np.zeros(64, np.uint8)
            into_id, out_id = there.reg(into), here.reg(into)
            assert (await here.explain(mine, out_id, there.advertise(into_id, into)))["transport"]
            descriptors = there.register_memory([into])
            assert len(here.deserialize_descs(there.get_serialized_descs(descriptors))) == 1
            await there.deregister_memory(descriptors)
            assert await there.dereg(into_id, timeout=1) is None
            assert not here.closed

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
