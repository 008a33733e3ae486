# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""Tensors with gaps, and those whose elements lie in another order than their indices: moved as they are."""

import asyncio

import numpy as np
import pytest
from test_tensors import CudaArray, Packed

from uccl import aio, p2p

CASES = 30  # of each random test
TYPES = (np.uint8, np.int16, np.float32, np.complex128)


def random_view(random, downwards=True):
    """An array of random bytes, and a view of it: steps, another order of dimensions, some of one element."""
    shape = random.integers(1, 9, random.integers(1, 5))
    kind = TYPES[random.integers(len(TYPES))]
    base = random.integers(0, 256, int(shape.prod()) * np.dtype(kind).itemsize, np.uint8).view(kind).reshape(shape)
    steps = (1, 1, 2, 3, -1, -2) if downwards else (1, 1, 2, 3)
    slices = []
    for extent in shape:
        step, start = steps[random.integers(len(steps))], random.integers(0, extent)
        slices.append(slice(extent - 1 - start, None, step) if step < 0 else slice(start, None, step))
    return base, base[tuple(slices)].transpose(random.permutation(len(shape)))


def as_bytes(view):
    return np.ascontiguousarray(view).tobytes()


def zeroed(base, view):
    """Other memory with a view of the same layout: (memory, view)."""
    other = np.zeros_like(base)
    offset = view.__array_interface__["data"][0] - base.__array_interface__["data"][0]
    return other, np.ndarray(view.shape, view.dtype, other, offset, view.strides)


def filled(base, view):
    """What ``zeroed`` memory is once the view has been filled: between its elements nothing changes."""
    expected, there = zeroed(base, view)
    there[...] = view
    return expected.tobytes()


def awaited(ep, answer):
    """Of a blocking call or an asynchronous one."""
    if isinstance(answer, tuple):
        assert answer[0], p2p.last_error()
        ep.wait(answer[1], 20)
        return True
    assert answer, p2p.last_error()
    return answer


def test_random_views_one_sided(pair):
    random = np.random.default_rng(1)
    ep, conn = pair.ep, pair.conn
    _, theirs = pair.other.memory("m", 1 << 17)
    blob = pair.other.advertised("m")
    ok, info = pair.other.call("advertise_ipc", 0, theirs, 1 << 17)
    assert ok
    for case in range(CASES):
        base, view = random_view(random)
        expected = as_bytes(view)
        into, hole = zeroed(base, view)
        pair.arrays += [base, into]
        suffix, form = ("", "_async")[case % 2], case % 3
        if form == 0:
            before, ipc, described = ((ep.reg(view)[1],), (ep.reg(hole)[1],)), "", blob
        else:
            before, ipc, described = ((), ()), ("", "_ipc")[form - 1], (blob, info)[form - 1]
        assert awaited(ep, getattr(ep, f"write{ipc}{suffix}")(conn, *before[0], view, described))
        assert pair.other.contents("m")[: len(expected)] == expected, (view.shape, view.strides)
        assert awaited(ep, getattr(ep, f"read{ipc}{suffix}")(conn, *before[1], hole, described))
        assert into.tobytes() == filled(base, view), (view.shape, view.strides)


def test_random_views_as_messages(pair):
    """Views here meet packed memory there, or a view of another layout of as many bytes."""
    random = np.random.default_rng(2)
    ep, conn = pair.ep, pair.conn
    region, theirs = pair.other.memory("m", 1 << 17)
    for case in range(CASES):
        base, view = random_view(random)
        expected = as_bytes(view)
        into, hole = zeroed(base, view)
        pair.arrays += [base, into]
        suffix = ("", "_async")[case % 2]
        pair.other.begin("call", "recv", pair.their_conn, region, theirs, len(expected))
        assert awaited(ep, getattr(ep, f"send{suffix}")(conn, view))
        assert pair.other.result() and pair.other.contents("m")[: len(expected)] == expected
        pair.other.begin("call", "send", pair.their_conn, region, theirs, len(expected))
        assert awaited(ep, getattr(ep, f"recv{suffix}")(conn, hole))
        assert pair.other.result() and into.tobytes() == filled(base, view)
        strides = [size * 3 for size in np.empty(view.shape[::-1], view.dtype).strides[::-1]]  # the first is the fastest
        pair.other.begin("call_on_view", "recv", "m", view.dtype.str, view.shape, strides, pair.their_conn)
        assert ep.send(conn, view), p2p.last_error()
        assert pair.other.result()
        got = np.ndarray(view.shape, view.dtype, pair.other.contents("m"), 0, strides)
        assert as_bytes(got) == expected


def test_views_of_torch(fast_pair):
    torch = pytest.importorskip("torch")
    random = np.random.default_rng(3)
    ep, conn = fast_pair.ep, fast_pair.conn
    fast_pair.other.memory("m", 1 << 17)
    blob = fast_pair.other.advertised("m")
    for _ in range(CASES):
        base, view = random_view(random, downwards=False)
        tensor = torch.from_numpy(view)
        expected = tensor.contiguous().numpy().tobytes()
        assert ep.write(conn, tensor, blob), p2p.last_error()
        assert fast_pair.other.contents("m")[: len(expected)] == expected
        into, hole = zeroed(base, view)
        assert ep.read(conn, torch.from_numpy(hole), blob), p2p.last_error()
        assert into.tobytes() == filled(base, view)
    pixels = torch.arange(2 * 3 * 5 * 7, dtype=torch.bfloat16).reshape(2, 3, 5, 7)
    for tensor in (pixels.to(memory_format=torch.channels_last), pixels[..., ::2], pixels.mT):
        assert ep.write(conn, tensor, blob), p2p.last_error()
        expected = tensor.contiguous().view(torch.uint8).numpy().tobytes()
        assert fast_pair.other.contents("m")[: len(expected)] == expected


def test_other_protocols(fast_pair):
    ep, conn = fast_pair.ep, fast_pair.conn
    fast_pair.other.memory("m", 4096)
    blob = fast_pair.other.advertised("m")
    grid = np.random.default_rng(4).random((16, 8)).astype(np.float32)
    for tensor, expected in (
        (memoryview(grid)[::3], grid[::3]),
        (CudaArray(grid[:, :4], strides=(32, 4)), grid[:, :4]),
        (CudaArray(grid[::-1], strides=(-32, 4)), grid[::-1]),
        (Packed(grid[::2, 1::2]), grid[::2, 1::2]),
        (np.asfortranarray(grid), grid),
        (np.broadcast_to(grid[3], (5, 8)), np.repeat(grid[3:4], 5, 0)),
    ):
        assert ep.write(conn, tensor, blob), p2p.last_error()
        assert fast_pair.other.contents("m")[: expected.nbytes] == as_bytes(expected)


def test_a_registration_has_the_gaps_as_well(fast_pair):
    ep, conn = fast_pair.ep, fast_pair.conn
    fast_pair.other.memory("m", 64)
    blob = fast_pair.other.advertised("m")
    grid = np.arange(128, dtype=np.uint8).reshape(8, 16)
    part = grid[6:0:-2, 4:12]
    (ok, mr_id), (also, (second,)) = ep.reg(part), ep.regv([part])
    assert ok and also and ep.dereg(second)
    assert ep.write(conn, mr_id, part, blob), p2p.last_error()
    assert fast_pair.other.contents("m")[:24] == as_bytes(part)
    start, end = grid[2:].ctypes.data + 4, grid[6:].ctypes.data + 12
    assert ep.advertise(mr_id, start, end - start)[0]
    assert not ep.advertise(mr_id, start, end - start + 1)[0] and not ep.advertise(mr_id, start - 1, 2)[0]
    assert not ep.write(conn, mr_id, grid[:, 4:12], blob)  # not all of it is registered
    assert not ep.send(conn, mr_id, grid[:, 4:12]) and "region" in p2p.last_error()


def test_more_runs_than_the_peer_describes(fast_pair):
    fast_pair.other.memory("m", 16)
    grid = np.zeros((8, 8), np.uint8)
    assert not fast_pair.ep.write(fast_pair.conn, grid[:, :3], fast_pair.other.advertised("m"))
    assert "move 24 bytes: the peer's blob describes 16" in p2p.last_error()
    assert fast_pair.ep.write(fast_pair.conn, grid[:, :2], fast_pair.other.advertised("m"))


def test_what_cannot_be_a_list(fast_pair):
    ep, conn = fast_pair.ep, fast_pair.conn
    fast_pair.other.memory("m", 16)
    blob = fast_pair.other.advertised("m")
    many = np.zeros(2 << 20, np.uint16).reshape(1 << 20, 2)[:, ::-1]
    text = r"shape \(1048576, 2\) and strides \(4, -2\) in bytes are more than 1048576 runs of 2 bytes.*contiguous\(\)"
    for call in (lambda: ep.write(conn, many, blob), lambda: ep.recv_async(conn, 1, many)):
        with pytest.raises(ValueError, match=text):
            call()
    assert ep.reg(many)[0]  # that takes no list
    for tensor in (
        np.lib.stride_tricks.as_strided(np.zeros(32, np.uint8), (4, 8), (4, 1)),
        np.lib.stride_tricks.as_strided(np.zeros(8, np.uint8), (4, 8), (0, 1)),
    ):
        for call in (lambda: ep.read(conn, tensor, blob), lambda: ep.recv(conn, tensor)):  # noqa: B023
            with pytest.raises(ValueError, match=r"share memory.*shape \(4, 8\)"):
                call()


def test_no_description_names_several_runs(fast_pair):
    ep, conn = fast_pair.ep, fast_pair.conn
    for tensor in (np.zeros((8, 8), np.uint8)[:, ::2], np.zeros((8, 8), np.float32).T):
        mr_id = ep.reg(tensor)[1]
        for call in (lambda: ep.advertise(mr_id, tensor), lambda: ep.advertise_ipc(conn, tensor)):  # noqa: B023
            with pytest.raises(ValueError, match=r"not contiguous.*strides.*contiguous\(\)"):
                call()


def test_coroutines(fast_pair):
    async def run():
        there = aio.Endpoint()
        there.sync.close()
        there.sync = fast_pair.ep
        fast_pair.other.memory("m", 32)
        blob = fast_pair.other.advertised("m")
        grid = np.arange(64, dtype=np.uint8).reshape(8, 8)
        assert await there.write(fast_pair.conn, grid[..., ::2], blob) == 32
        assert fast_pair.other.contents("m") == as_bytes(grid[..., ::2])
        into = np.zeros_like(grid)
        assert await there.read(fast_pair.conn, into[..., ::2], blob) == 32
        assert (into[..., ::2] == grid[..., ::2]).all() and not into[..., 1::2].any()

    asyncio.run(run())


def random_strides(random, size, room):
    """Where the first block of some Strides of ``size`` bytes is in ``room`` bytes, and they."""
    divisors = [n for n in range(1, size + 1) if size % n == 0]
    while True:
        block = int(random.choice(divisors))
        count = int(random.choice([n for n in divisors if size // block % n == 0]))
        rows = size // block // count
        stride = block + int(random.integers(0, 40)) * int(random.integers(2))
        row_stride = stride * count + int(random.integers(0, 300))
        if row_stride * rows <= room:
            start = int(random.integers(0, room - row_stride * rows + 1))
            return start, p2p.Strides(block, count, stride, rows, row_stride)


def places(start, strides):
    """The index of each byte, in order."""
    rows, blocks, inner = np.arange(strides.rows), np.arange(strides.count), np.arange(strides.block)
    rows, blocks = rows[:, None, None] * strides.row_stride, blocks[:, None] * strides.stride
    return (start + rows + blocks + inner).reshape(-1)


def test_random_strides_on_both_sides(pair):
    random = np.random.default_rng(6)
    ep, conn, room = pair.ep, pair.conn, 1 << 15
    region, theirs = pair.other.memory("m", room)
    there = np.zeros(room, np.uint8)
    for case in range(CASES):
        here = random.integers(0, 256, room, np.uint8)
        pair.arrays.append(here)
        size = int(random.integers(1, 3000))
        (start, mine), (begin, their) = random_strides(random, size, room), random_strides(random, size, room)
        assert mine.bytes == their.bytes == size
        ok, blob = pair.other.call("advertise", 0, region, theirs + begin, room - begin)
        assert ok
        address = here.ctypes.data + start
        ok, mr_id = ep.reg(here)
        assert ok
        suffix = ("", "_async")[case % 2]
        assert awaited(ep, getattr(ep, f"write{suffix}")(conn, mr_id, address, mine, blob, theirs=their))
        there[places(begin, their)] = here[places(start, mine)]
        assert pair.other.contents("m") == there.tobytes(), (mine, their)
        here[:] = 0
        expected = here.copy()
        expected[places(start, mine)] = there[places(begin, their)]
        assert awaited(ep, getattr(ep, f"read{suffix}")(conn, mr_id, address, mine, blob, theirs=their))
        assert here.tobytes() == expected.tobytes()
        ep.dereg(mr_id)


def test_strides_that_do_not_fit_are_refused(fast_pair):
    ep, conn = fast_pair.ep, fast_pair.conn
    array, mr_id, address = fast_pair.memory(4096, 7)
    region, theirs = fast_pair.other.memory("m", 4096)
    ok, blob = fast_pair.other.call("advertise", 0, region, theirs, 1000)
    assert ok
    rows = p2p.Strides(block=10, count=50, stride=20)
    assert (rows.block, rows.count, rows.stride, rows.rows, rows.row_stride, rows.bytes) == (10, 50, 20, 1, 0, 500)
    for ptr, size, their, why in (
        (address, rows, p2p.Strides(10, 51, 20), "describes 1000"),
        (address, rows, p2p.Strides(10, 50, -20), "begins before"),
        (address, rows, p2p.Strides(10, 49, 20), "490 bytes, and 500"),
        (address, rows, p2p.Strides(10, 50, 9), "overlap"),
        (address + 4096 - 989, rows, None, "local region"),
        (address, p2p.Strides(1, 1 << 23, 2), None, "describes 1000"),
    ):
        assert not ep.write(conn, mr_id, ptr, size, blob, theirs=their)
        assert why in p2p.last_error()
    with pytest.raises(ValueError, match="more bytes than memory can have"):
        p2p.Strides(1 << 40, 1 << 40)
    with pytest.raises(TypeError):
        ep.write(conn, mr_id, address, 1.5, blob)
    assert ep.write(conn, mr_id, address + 4096 - 990, rows, blob, theirs=rows), p2p.last_error()
    expected = np.zeros(4096, np.uint8)
    expected[places(0, rows)] = array[places(4096 - 990, rows)]
    assert fast_pair.other.contents("m") == expected.tobytes()
    deep = np.zeros((3, 4, 5, 6), np.uint8)[:, ::2, ::2, ::2]
    assert not ep.write(conn, deep, blob, theirs=rows) and "more than rows of blocks" in p2p.last_error()
