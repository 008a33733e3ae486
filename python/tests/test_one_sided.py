# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
import struct

import numpy as np
import pytest
from other_process import Other

from uccl import p2p


def pattern(size, seed=0):
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8).tobytes()


def narrowed(blob, offset, size):
    """What users of the 64-byte form do: edit the address and the size in place."""
    (address,) = struct.unpack_from("<Q", blob, 0)
    edited = bytearray(blob)
    struct.pack_into("<QI", edited, 0, address + offset, size)
    return bytes(edited)


@pytest.mark.parametrize("size", [1, 3, 4096, 100_001, 8 << 20])
def test_write_and_read(pair, size):
    data = pattern(size, size)
    array, mr_id, pointer = pair.memory(size)
    pair.other.memory("m", size)
    blob = pair.other.advertised("m")
    assert isinstance(blob, bytes) and len(blob) == 64
    array[:] = np.frombuffer(data, np.uint8)
    assert pair.ep.write(pair.conn, mr_id, pointer, size, blob) is True, p2p.last_error()
    assert pair.other.contents("m") == data
    array[:] = 0
    assert pair.ep.read(pair.conn, mr_id, pointer, size, blob) is True, p2p.last_error()
    assert array.tobytes() == data


def test_the_acceptor_may_start_operations_too(pair):
    array, mr_id, pointer = pair.memory(1000, 7)
    theirs, their_pointer = pair.other.memory("m", 1000, 1)
    ok, blob = pair.ep.advertise(pair.conn, mr_id, pointer, 1000)
    assert ok
    assert pair.other.call("read", pair.their_conn, theirs, their_pointer, 1000, blob)
    assert pair.other.contents("m") == b"\x07" * 1000
    pair.other.fill("m", b"\x02" * 1000)
    assert pair.other.call("write", pair.their_conn, theirs, their_pointer, 1000, blob)
    assert array.tobytes() == b"\x02" * 1000


def test_keywords_of_the_readme_and_of_the_binding(pair):
    array, mr_id, pointer = pair.memory(64, 3)
    pair.other.memory("m", 64)
    blob = pair.other.advertised("m")
    same = {"conn_id": pair.conn, "mr_id": mr_id, "size": 64}
    assert pair.ep.write(ptr=pointer, meta=blob, **same)
    assert pair.ep.write(src=pointer, slot_item=blob, **same)
    assert pair.ep.read(ptr=pointer, meta=bytearray(blob), **same)
    assert pair.ep.read(dst=pointer, slot_item=memoryview(blob), **same)
    one = {"conn_id": pair.conn, "num_iovs": 1}
    assert pair.ep.writev(mr_id_v=[mr_id], ptr_v=[pointer], size_v=[64], meta_blob_v=[blob], **one)
    assert pair.ep.readv(
        mr_id_list=[mr_id], dst_list=[pointer], size_list=[64], slot_item_list=[blob], **one
    )


def test_a_narrowed_blob_reaches_its_part_alone(pair):
    array, mr_id, pointer = pair.memory(100, 1)
    pair.other.memory("m", 300)
    part = narrowed(pair.other.advertised("m"), 100, 100)
    assert pair.ep.write(pair.conn, mr_id, pointer, 100, part), p2p.last_error()
    assert pair.other.contents("m") == bytes(100) + b"\x01" * 100 + bytes(100)
    assert pair.ep.write(pair.conn, mr_id, pointer, 100, narrowed(part, 0, 99)) is False
    assert "99" in p2p.last_error()


def test_a_blob_cannot_reach_beyond_the_region(pair):
    array, mr_id, pointer = pair.memory(100, 1)
    pair.other.memory("m", 100)
    blob = pair.other.advertised("m")
    for offset in (1, 100, -1, 1 << 40):
        assert pair.ep.write(pair.conn, mr_id, pointer, 100, narrowed(blob, offset, 100)) is False
        assert p2p.last_error()
    assert pair.other.contents("m") == bytes(100)
    assert pair.ep.write(pair.conn, mr_id, pointer, 100, blob)


def test_foreign_forged_and_stale_blobs_are_refused(pair):
    array, mr_id, pointer = pair.memory(100, 1)
    theirs, _ = pair.other.memory("m", 100)
    blob = pair.other.advertised("m")
    forged = bytearray(blob)
    forged[24] ^= 1  # the key
    assert pair.ep.write(pair.conn, mr_id, pointer, 100, bytes(forged)) is False
    mine = pair.ep.advertise(pair.conn, mr_id, pointer, 100)[1]  # of this process, not of the peer
    assert pair.ep.write(pair.conn, mr_id, pointer, 100, mine) is False
    for junk in (bytes(64), b"\xff" * 64):
        assert pair.ep.write(pair.conn, mr_id, pointer, 100, junk) is False
    assert pair.ep.write(pair.conn, mr_id, pointer, 100, blob)
    assert pair.other.call("dereg", theirs) is True
    assert pair.ep.write(pair.conn, mr_id, pointer, 100, blob) is False
    assert p2p.last_error()


@pytest.mark.parametrize("size", [0, 63, 65, 4096])
def test_meta_must_be_64_bytes(pair, size):
    message = "meta must be exactly 64 bytes"
    for name in ("write", "read", "write_async", "read_async"):
        with pytest.raises(RuntimeError, match=message):
            getattr(pair.ep, name)(pair.conn, 1, 0, 1, bytes(size))
    for name in ("writev", "readv", "writev_async", "readv_async"):
        with pytest.raises(RuntimeError, match=message):
            getattr(pair.ep, name)(pair.conn, [1], [0], [1], [bytes(size)], 1)


def test_wrong_lengths_and_types_raise(pair):
    for name in ("writev", "readv", "writev_async", "readv_async"):
        call = getattr(pair.ep, name)
        for lists in (([1, 2], [0], [1], [bytes(64)]), ([1], [0], [1], []), ([1], [0], [1, 1], [bytes(64)])):
            with pytest.raises(RuntimeError, match="num_iovs"):
                call(pair.conn, *lists, 1)
        with pytest.raises(RuntimeError, match="num_iovs"):
            call(pair.conn, [1], [0], [1], [bytes(64)], 2)
        for bad in ("text", [1.5], ["1"], None, np.array([1.0])):
            with pytest.raises(TypeError):
                call(pair.conn, bad, [0], [1], [bytes(64)], 1)
        with pytest.raises(TypeError):
            call(pair.conn, [1], [0], [1], ["text"], 1)


class Vectors:
    """``count`` pieces of two registrations, in an order that merges nothing."""

    def __init__(self, pair, count, each=16):
        self.count, self.each = count, each
        self.array, self.mr_id, self.pointer = pair.memory(count * each)
        pair.other.memory("m", count * each)
        self.blob = pair.other.advertised("m")
        order = np.random.default_rng(1).permutation(count).astype(np.uint64)
        self.ids = np.full(count, self.mr_id, np.uint64)
        self.pointers = order * np.uint64(each) + np.uint64(self.pointer)
        self.sizes = np.full(count, each, np.uint64)
        # The peer's memory is taken in reverse.
        metas = np.tile(np.frombuffer(self.blob, np.uint8), (count, 1))
        (base,) = struct.unpack_from("<Q", self.blob)
        addresses = np.arange(count - 1, -1, -1, dtype=np.uint64) * np.uint64(each) + np.uint64(base)
        metas[:, :8] = addresses.reshape(-1, 1).view(np.uint8)
        metas[:, 8:12] = np.full((count, 1), each, np.uint32).view(np.uint8)
        self.metas = np.ascontiguousarray(metas)
        self.order = order.astype(np.int64)

    def expected(self):
        """What the peer's memory is after the write."""
        pieces = self.array.reshape(self.count, self.each)
        return pieces[self.order][::-1].tobytes()

    def arrays(self):
        return self.ids, self.pointers, self.sizes, self.metas

    def lists(self):
        return self.ids.tolist(), self.pointers.tolist(), self.sizes.tolist(), [bytes(m) for m in self.metas]


@pytest.mark.parametrize("count", [1, 2, 100, 5_000])
@pytest.mark.parametrize("form", ["arrays", "lists"])
def test_vectors(pair, count, form):
    vectors = Vectors(pair, count)
    data = np.frombuffer(pattern(vectors.array.nbytes, count), np.uint8)
    vectors.array[:] = data
    given = getattr(vectors, form)()
    assert pair.ep.writev(pair.conn, *given, count) is True, p2p.last_error()
    assert pair.other.contents("m") == vectors.expected()
    vectors.array[:] = 0
    assert pair.ep.readv(pair.conn, *given) is True, p2p.last_error()
    assert vectors.array.tobytes() == data.tobytes()


def test_a_hundred_thousand_descriptors(pair):
    vectors = Vectors(pair, 100_000)
    vectors.array[:] = np.frombuffer(pattern(vectors.array.nbytes, 3), np.uint8)
    ok, transfer = pair.ep.writev_async(pair.conn, *vectors.arrays(), 100_000)
    assert ok, p2p.last_error()
    assert pair.ep.wait(transfer, 50) == vectors.array.nbytes
    assert pair.other.contents("m") == vectors.expected()


def test_arrays_of_other_widths_and_strides(pair):
    vectors = Vectors(pair, 10)
    vectors.array[:] = 4
    strided = np.repeat(vectors.pointers, 2)[::2]
    assert strided.strides != (8,)
    given = (vectors.ids.astype(np.int32), strided, vectors.sizes.astype(np.uint16), vectors.metas)
    assert pair.ep.writev(pair.conn, *given), p2p.last_error()
    assert pair.other.contents("m") == b"\x04" * vectors.array.nbytes


def test_numpy_scalars_in_lists(pair):
    vectors = Vectors(pair, 4)
    given = [list(part) for part in vectors.arrays()]
    assert pair.ep.writev(pair.conn, *given), p2p.last_error()


def test_vectors_over_several_regions(pair):
    count = 200  # more than the regions that a call remembers
    blobs, expected = [], []
    array, mr_id, pointer = pair.memory(count * 8)
    array[:] = np.frombuffer(pattern(array.nbytes), np.uint8)
    for index in range(count):
        pair.other.memory(f"m{index}", 8)
        blobs.append(pair.other.advertised(f"m{index}"))
        expected.append(array[index * 8 : index * 8 + 8].tobytes())
    pointers = [pointer + index * 8 for index in range(count)]
    assert pair.ep.writev(pair.conn, [mr_id] * count, pointers, [8] * count, blobs, count), p2p.last_error()
    assert [pair.other.contents(f"m{index}") for index in range(count)] == expected


def test_one_bad_descriptor_fails_the_call(pair):
    vectors = Vectors(pair, 10)
    pointers = vectors.pointers.copy()
    pointers[7] += 10**9
    assert pair.ep.writev(pair.conn, vectors.ids, pointers, vectors.sizes, vectors.metas) is False
    assert p2p.last_error()
    metas = vectors.metas.copy()
    metas[7, 24] ^= 1
    assert pair.ep.writev(pair.conn, vectors.ids, vectors.pointers, vectors.sizes, metas) is False
    assert pair.ep.writev(pair.conn, *vectors.arrays())


def test_an_empty_list_is_done_at_once(pair):
    assert pair.ep.writev(pair.conn, [], [], [], [], 0), p2p.last_error()


def test_a_restarted_peer_refuses_old_blobs():
    old, new = Other(), Other()
    try:
        old.open()
        old.memory("m", 64)
        stale = old.advertised("m")
        old.kill()
        metadata = new.open()
        new.memory("m", 64)
        with p2p.Endpoint(0, 1) as ep:
            ok, conn = ep.add_remote_endpoint(metadata)
            array = np.zeros(64, np.uint8)
            ok, mr_id = ep.reg(array.ctypes.data, 64)
            assert ep.write(conn, mr_id, array.ctypes.data, 64, stale) is False
            assert ep.write(conn, mr_id, array.ctypes.data, 64, new.advertised("m")), p2p.last_error()
    finally:
        old.stop()
        new.stop()
