# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""What lists of blocks may consist of, and what is said of an entry that is wrong."""

import array as arrays

import numpy as np
import pytest
from number import Number

from uccl import p2p

BLOCK = 8


def pattern(size, seed):
    return np.random.default_rng(seed).integers(1, 256, size, np.uint8)


class Small(int):
    """A subclass of int."""


class Raw(bytes):
    """A subclass of bytes."""


class Lists:
    """``count`` blocks in reverse order, as plain lists: of registrations, and for the calls by address."""

    def __init__(self, pair, count):
        self.pair, self.count = pair, count
        self.array, self.mr_id, self.pointer = pair.memory(count * BLOCK)
        self.array[:] = pattern(self.array.nbytes, count)
        theirs, there = pair.other.memory("m", count * BLOCK)
        places = [there + index * BLOCK for index in range(count)]
        self.ids, self.sizes = [self.mr_id] * count, [BLOCK] * count
        self.pointers = [self.pointer + index * BLOCK for index in reversed(range(count))]
        ok, self.metas = pair.other.call("advertisev", [theirs] * count, places, self.sizes)
        assert ok
        ok, self.infos = pair.other.call("advertisev_ipc", 0, places, self.sizes)
        assert ok

    def write(self, **changed):
        given = {"ids": self.ids, "pointers": self.pointers, "sizes": self.sizes, "metas": self.metas} | changed
        return self.pair.ep.writev(self.pair.conn, *given.values())

    def write_ipc(self, **changed):
        given = {"pointers": self.pointers, "sizes": self.sizes, "infos": self.infos} | changed
        return self.pair.ep.writev_ipc(self.pair.conn, *given.values())

    def arrived(self):
        return self.pair.other.contents("m") == self.array.reshape(-1, BLOCK)[::-1].tobytes()

    def nothing_arrived(self):
        return self.pair.other.contents("m") == bytes(self.array.nbytes)


def with_entry(items, index, entry):
    return [*items[:index], entry, *items[index + 1 :]]


# Lists are read in steps of 64 entries.
@pytest.mark.parametrize("count", [1, 63, 64, 65, 128, 1000])
def test_lists_of_any_length(pair, count):
    lists = Lists(pair, count)
    assert lists.write(), p2p.last_error()
    assert lists.arrived()
    lists.array[:] = lists.array[::-1].copy()
    assert lists.write_ipc(), p2p.last_error()
    assert lists.arrived()


@pytest.mark.parametrize("kind", [Small, Number, np.int64, np.uint64, np.array])
@pytest.mark.parametrize("index", [0, 64, 99])
def test_integers_of_other_types_among_plain_ones(pair, kind, index):
    lists = Lists(pair, 100)
    assert lists.write(
        ids=with_entry(lists.ids, index, kind(lists.ids[index])),
        pointers=with_entry(lists.pointers, index, kind(lists.pointers[index])),
        sizes=with_entry(lists.sizes, index, kind(BLOCK)),
    ), p2p.last_error()
    assert lists.arrived()


def test_a_bool_is_an_integer(pair):
    lists = Lists(pair, 100)
    assert lists.write(sizes=with_entry(lists.sizes, 70, True)), p2p.last_error()
    expected = bytearray(lists.array.reshape(-1, BLOCK)[::-1].tobytes())
    expected[70 * BLOCK + 1 : 71 * BLOCK] = bytes(BLOCK - 1)
    assert pair.other.contents("m") == expected


@pytest.mark.parametrize("form", [tuple, lambda items: arrays.array("Q", items), lambda items: dict.fromkeys(items)])
def test_other_sequences(pair, form):
    lists = Lists(pair, 100)
    assert lists.write(pointers=form(lists.pointers), sizes=(BLOCK,) * 100, metas=tuple(lists.metas)), p2p.last_error()
    assert lists.arrived()


@pytest.mark.parametrize("kind", [Raw, bytearray, memoryview, lambda meta: np.frombuffer(meta, np.uint8)])
def test_blobs_of_other_types_among_bytes(pair, kind):
    lists = Lists(pair, 200)
    metas = with_entry(with_entry(lists.metas, 70, kind(lists.metas[70])), 199, kind(lists.metas[199]))
    assert lists.write(metas=metas), p2p.last_error()
    assert lists.arrived()


@pytest.mark.parametrize("kind", [np.uint8, np.int8, np.uint16, np.int16, np.uint32, np.int32, np.uint64, np.int64])
def test_arrays_of_every_width(pair, kind):
    lists = Lists(pair, 150)
    sizes = np.repeat(np.full(150, BLOCK, kind), 2)[::2]
    pointers = np.array(lists.pointers[::-1], np.uint64)[::-1]
    assert lists.write(ids=np.array(lists.ids, kind), pointers=pointers, sizes=sizes), p2p.last_error()
    assert lists.arrived()


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (1.5, "float"),
        ("8", "str"),
        (None, "NoneType"),
        (2**64, "too big"),
        (-(2**63) - 1, "too"),
        (Number("8"), "__index__"),
    ],
)
def test_an_entry_that_is_no_integer_is_named(fast_pair, wrong, why):
    lists = Lists(fast_pair, 100)
    for what in ("ids", "pointers", "sizes"):
        for call in (lists.write, lists.write_ipc)[: 1 if what == "ids" else 2]:
            with pytest.raises(TypeError, match=f"entry 77 of a list: .*{why}"):
                call(**{what: with_entry(getattr(lists, what), 77, wrong)})
    assert lists.nothing_arrived()


@pytest.mark.parametrize("wrong", [-1, -(2**63), 2**64 - 1, 2**63])
def test_an_entry_outside_of_its_region_is_named(fast_pair, wrong):
    lists = Lists(fast_pair, 100)
    assert lists.write(pointers=with_entry(lists.pointers, 77, wrong)) is False
    assert "entry 77 of 100: " in p2p.last_error()
    assert lists.write(sizes=with_entry(lists.sizes, 77, wrong)) is False
    assert "entry 77 of 100: " in p2p.last_error()
    assert lists.write(ids=with_entry(lists.ids, 77, wrong)) is False
    assert "entry 77 of 100: " in p2p.last_error()
    assert lists.nothing_arrived()


def test_a_blob_of_a_wrong_length_is_named(fast_pair):
    lists = Lists(fast_pair, 100)
    for size in (0, 63, 65, 88, 4096):
        for kind in (bytes, bytearray):
            with pytest.raises(RuntimeError, match=f"entry 77 of 100: meta must be exactly 64 bytes.*, not {size}"):
                lists.write(metas=with_entry(lists.metas, 77, kind(size)))
            if size == 88:
                continue
            with pytest.raises(RuntimeError, match=f"entry 77 of 100: info must be exactly 88 bytes.*, not {size}"):
                lists.write_ipc(infos=with_entry(lists.infos, 77, kind(size)))
    with pytest.raises(RuntimeError, match="entry 0 of 100: meta must be exactly 64 bytes"):
        lists.write(metas=np.zeros((100, 63), np.uint8))
    assert lists.nothing_arrived()


def test_a_blob_of_wrong_contents_is_named(fast_pair):
    lists = Lists(fast_pair, 100)
    for at in (12, 13, 16, 20, 24, 39, 40, 56, 60):
        meta = bytearray(lists.metas[77])
        meta[at] ^= 1
        assert lists.write(metas=with_entry(lists.metas, 77, bytes(meta))) is False, at
        assert p2p.last_error()
    assert lists.write(metas=with_entry(lists.metas, 77, bytes(64))) is False
    assert "entry 77 of 100: " in p2p.last_error()
    for at in (72, 79, 80, 87):
        info = bytearray(lists.infos[77])
        info[at] ^= 1
        with pytest.raises(RuntimeError, match="entry 77 of 100: info is not what advertise_ipc gave"):
            lists.write_ipc(infos=with_entry(lists.infos, 77, bytes(info)))
    assert lists.write(sizes=with_entry(lists.sizes, 77, BLOCK + 1)) is False
    assert f"entry 77 of 100: move {BLOCK + 1} bytes" in p2p.last_error()
    assert lists.nothing_arrived()


@pytest.mark.parametrize("wrong", ["text", None, 64])
def test_a_blob_of_a_wrong_type_is_named(fast_pair, wrong):
    lists = Lists(fast_pair, 100)
    with pytest.raises(TypeError, match=f"entry 77 of a list: .* not '{type(wrong).__name__}'"):
        lists.write(metas=with_entry(lists.metas, 77, wrong))
    with pytest.raises(TypeError, match="entry 77 of a list: "):
        lists.write_ipc(infos=with_entry(lists.infos, 77, wrong))
    assert lists.nothing_arrived()


@pytest.mark.parametrize("index", [0, 30, 64, 99])
def test_an_entry_that_changes_the_lists(fast_pair, index):
    for name in ("pointers", "sizes", "metas", "ids"):
        if (name, index) in (("ids", 64), ("ids", 99), ("pointers", 99)):
            continue  # all of that list was read before
        for change in (list.clear, lambda items: items.append(items[0]), list.pop):
            lists = Lists(fast_pair, 100)
            items = getattr(lists, name)
            lists.pointers[index] = Number(lists.pointers[index], lambda items=items, change=change: change(items))
            with pytest.raises((TypeError, RuntimeError)):
                lists.write()


def test_an_entry_that_replaces_the_others(fast_pair):
    """The new ones are read, or the old ones while they are there."""
    lists = Lists(fast_pair, 100)
    pointers = list(lists.pointers)

    def renew():
        lists.pointers[:] = [int(str(pointer)) for pointer in pointers]
        lists.metas[:] = [bytes(bytearray(meta)) for meta in lists.metas]

    lists.pointers[30] = Number(pointers[30], renew)
    assert lists.write(), p2p.last_error()
    assert lists.arrived()


def test_a_call_after_a_longer_one(pair):
    """The memory of lists is kept from call to call."""
    long, short = Lists(pair, 1000), Lists(pair, 3)
    for lists in (short, long, short):
        pair.other.memory("m", lists.count * BLOCK)
        lists = Lists(pair, lists.count)
        assert lists.write(), p2p.last_error()
        assert lists.arrived()
    with pytest.raises(RuntimeError, match="num_iovs"):
        short.write(sizes=short.sizes[:2])
