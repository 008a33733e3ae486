# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
import mmap
import os
import struct

import numpy as np
import pytest
from other_process import Pair

from uccl import p2p

UNREGISTERED = 2**64 - 1
MAP_HUGETLB = 0x40000  # mmap names it since Python 3.13


@pytest.fixture
def array():
    return np.arange(1024, dtype=np.uint8)


def test_reg_and_dereg(ep, array):
    ok, first = ep.reg(array.ctypes.data, array.nbytes)
    assert ok and first >= 1
    ok, second = ep.reg(ptr=array.ctypes.data, size=10, floatType=p2p.FloatType.kBFloat16)
    assert ok and second != first
    assert ep.dereg(first) is True
    assert ep.dereg(first) is False
    assert str(first) in p2p.last_error()
    assert ep.dereg(mr_id=second) is True
    assert ep.dereg(0) is False
    assert ep.dereg(2**64 - 1) is False


def test_float_types():
    assert p2p.FloatType.kUndefined == p2p.kUndefined
    names = ["kUndefined", "kFloat16", "kBFloat16", "kFloat32", "kFloat8E4M3FN", "kFloat8E5M2"]
    assert [getattr(p2p.FloatType, name) for name in names] == [getattr(p2p, name) for name in names]


def test_reg_of_nothing(ep):
    ok, mr_id = ep.reg(0, 4096)
    assert (ok, mr_id) == (False, 0)
    assert p2p.last_error()
    with pytest.raises(TypeError):
        ep.reg(-1, 4096)
    with pytest.raises(TypeError):
        ep.reg("pointer", 4096)


def test_regv(ep, array):
    pointers = [array.ctypes.data, array.ctypes.data + 512]
    ok, ids = ep.regv(pointers, [512, 512])
    assert ok and len(ids) == 2 and ids[0] != ids[1]
    assert all(ep.dereg(mr_id) for mr_id in ids)
    ok, ids = ep.regv(np.array(pointers, np.uint64), np.array([512, 512]))
    assert ok and len(ids) == 2
    with pytest.raises(RuntimeError, match="length"):
        ep.regv(pointers, [512])
    assert ep.regv([array.ctypes.data, 0], [16, 4096]) == (False, [])


def test_advertise_in_every_form(ep, array):
    pointer = array.ctypes.data
    _, mr_id = ep.reg(pointer, array.nbytes)
    ok, blob = ep.advertise(0, mr_id, pointer, 100)
    assert ok and isinstance(blob, bytes) and len(blob) == 64
    assert struct.unpack_from("<QI", blob) == (pointer, 100)
    assert ep.advertise(mr_id, pointer, 100) == (True, blob)
    assert ep.advertise(conn_id=3, mr_id=mr_id, ptr=pointer, size=100) == (True, blob)
    assert ep.advertise(conn_id=3, mr_id=mr_id, addr=pointer, len=100) == (True, blob)
    assert ep.advertise(mr_id=mr_id, ptr=pointer, size=100) == (True, blob)
    assert ep.advertisev(0, [mr_id], [pointer], [100], 1) == (True, [blob])
    assert ep.advertisev([mr_id], [pointer], [100], 1) == (True, [blob])
    assert ep.advertisev(0, [mr_id], [pointer], [100]) == (True, [blob])
    arrays = [np.array([value], np.uint64) for value in (mr_id, pointer, 100)]
    assert ep.advertisev(0, *arrays, 1) == (True, [blob])
    assert ep.advertisev(
        conn_id=0, mr_id_list=[mr_id], addr_list=[pointer], len_list=[100], num_iovs=1
    ) == (True, [blob])


def test_advertise_into_buffers_of_the_callers(ep, array):
    pointer = array.ctypes.data
    _, mr_id = ep.reg(pointer, array.nbytes)
    _, blob = ep.advertise(mr_id, pointer, 100)
    for out in (bytearray(64), memoryview(bytearray(80)), np.zeros(64, np.uint8)):
        assert ep.advertise(0, mr_id, pointer, 100, out) is True, p2p.last_error()
        assert bytes(out)[:64] == blob
    named = bytearray(64)
    assert ep.advertise(conn_id=0, mr_id=mr_id, addr=pointer, len=100, out_buf=named) and named == blob
    outs = [bytearray(64), bytearray(64)]
    assert ep.advertisev(0, [mr_id] * 2, [pointer] * 2, [100, 50], outs, 2) is True, p2p.last_error()
    assert outs[0] == blob and struct.unpack_from("<QI", outs[1]) == (pointer, 50)
    assert ep.advertise(0, mr_id, pointer, 100, bytearray(63)) is False
    assert "63" in p2p.last_error()
    assert ep.advertise(0, 99, pointer, 100, bytearray(64)) is False
    assert ep.advertisev(0, [mr_id, 99], [pointer] * 2, [1, 1], outs, 2) is False
    with pytest.raises(TypeError):
        ep.advertise(0, mr_id, pointer, 100, bytes(64))  # cannot be written to
    with pytest.raises(RuntimeError, match="num_iovs"):
        ep.advertisev(0, [mr_id], [pointer], [1], outs, 1)


def test_descriptors_built_from_anothers_fields(pair):
    """A program registers one cache and makes a descriptor for each of its blocks."""
    mine = np.arange(100, dtype=np.uint8)
    pair.other.memory("m", 100)
    (whole,) = pair.ep.register_memory([mine])
    (theirs,) = pair.ep.deserialize_descs(pair.other.run("described", ["m"]))

    def block(of, offset, size):
        desc = p2p.XferDesc()
        assert (desc.addr, desc.size, desc.mr_id, desc.lkeys, desc.rkeys) == (0, 0, 0, [], [])
        desc.addr, desc.size, desc.mr_id = of.addr + offset, size, of.mr_id
        desc.lkeys, desc.rkeys = of.lkeys, of.rkeys
        return desc

    # As they travel, too.
    remote = pair.ep.deserialize_descs(pair.ep.get_serialized_descs([block(theirs, at, 10) for at in (20, 70)]))
    ok, transfer = pair.ep.transfer(pair.conn, "WRITE", [block(whole, at, 10) for at in (0, 50)], remote)
    assert ok, p2p.last_error()
    assert pair.ep.wait(transfer, 20) == 20
    expected = np.zeros(100, np.uint8)
    expected[20:30], expected[70:80] = mine[0:10], mine[50:60]
    assert pair.other.contents("m") == expected.tobytes()
    with pytest.raises(RuntimeError, match="3 words"):
        p2p.XferDesc().rkeys = [1, 2, 3]
    nameless = p2p.XferDesc()
    nameless.addr, nameless.size = theirs.addr, 10
    assert pair.ep.transfer(pair.conn, "write", [block(whole, 0, 10)], [nameless])[0] is False
    assert p2p.last_error()


def test_no_descriptors_are_no_bytes(ep):
    assert ep.deserialize_descs(b"") == []


def test_advertise_of_what_is_not_registered(ep, array):
    pointer = array.ctypes.data
    _, mr_id = ep.reg(pointer, array.nbytes)
    for arguments in ((99, pointer, 1), (mr_id, pointer - 1, 1), (mr_id, pointer, 1025), (mr_id, pointer, 2**63)):
        assert ep.advertise(0, *arguments) == (False, b"")
        assert p2p.last_error()
        assert ep.advertisev(0, *[[part] for part in arguments], 1) == (False, [])
    with pytest.raises(RuntimeError, match="num_iovs"):
        ep.advertisev(0, [mr_id], [pointer], [1], 2)


def test_register_memory_and_transfer(pair):
    arrays = [np.arange(100, dtype=np.float32), np.arange(7, dtype=np.int64)]
    copies = [np.zeros(100, np.float32), np.zeros(7, np.int64)]
    descs = pair.ep.register_memory(arrays)
    assert [desc.size for desc in descs] == [400, 56]
    assert descs[0].addr == arrays[0].ctypes.data
    assert descs[0].rkeys == descs[0].lkeys != [] and "XferDesc" in repr(descs[0])
    back = pair.ep.register_memory(copies)
    for index, desc in enumerate(descs):
        pair.other.memory(f"m{index}", desc.size)
    assert pair.ep.deserialize_descs(pair.ep.get_serialized_descs([])) == []
    blob = pair.other.run("described", ["m0", "m1"])
    remote_descs = pair.ep.deserialize_descs(serialized_bytes=blob)
    ok, transfer = pair.ep.transfer(pair.conn, "write", descs, remote_descs)
    assert ok, p2p.last_error()
    assert pair.ep.wait(transfer, 20) == 456
    ok, transfer = pair.ep.transfer(
        conn_id=pair.conn, op_name="read", local_desc_list=back, remote_desc_list=remote_descs
    )
    assert ok and pair.ep.wait(transfer, 20) == 456
    assert np.array_equal(copies[0], arrays[0]) and np.array_equal(copies[1], arrays[1])
    assert pair.ep.deregister_memory(descs) is True
    assert pair.ep.deregister_memory(descs) is False


def test_descriptors_may_be_moved_within_their_region(pair):
    mine = pair.ep.register_memory([np.full(10, 5, np.uint8)])
    pair.other.memory("m", 100)
    (remote,) = pair.ep.deserialize_descs(pair.other.run("described", ["m"]))
    remote.addr, remote.size = remote.addr + 50, 10
    ok, transfer = pair.ep.transfer(pair.conn, "write", mine, [remote])
    assert ok and pair.ep.wait(transfer, 20) == 10
    assert pair.other.contents("m") == bytes(50) + b"\x05" * 10 + bytes(40)
    remote.addr += 50
    assert pair.ep.transfer(pair.conn, "write", mine, [remote]) == (False, 0)


def test_transfer_raises_for_wrong_calls(pair):
    array = np.zeros(10, np.uint8)
    descs = pair.ep.register_memory([array])
    with pytest.raises(RuntimeError, match="Invalid conn_id 99"):
        pair.ep.transfer(99, "write", descs, descs)
    with pytest.raises(RuntimeError, match="Write"):
        pair.ep.transfer(pair.conn, "Write", descs, descs)
    with pytest.raises(RuntimeError, match="1 local"):
        pair.ep.transfer(pair.conn, "write", descs, [])


@pytest.mark.parametrize(("mine", "theirs"), [(10, 40), (40, 10)])
def test_the_local_size_counts(pair, mine, theirs):
    local = pair.ep.register_memory([np.full(mine, 5, np.uint8)])
    pair.other.memory("m", 100)
    (remote,) = pair.ep.deserialize_descs(pair.other.run("described", ["m"]))
    remote.size = theirs
    ok, transfer = pair.ep.transfer(pair.conn, "write", local, [remote])
    assert ok and pair.ep.wait(transfer, 20) == mine
    assert pair.other.contents("m") == b"\x05" * mine + bytes(100 - mine)


def test_each_registration_is_one_of_its_own(ep):
    array = np.zeros(64, np.uint8)
    first, second = ep.register_memory([array, array])
    assert first.mr_id != second.mr_id
    assert ep.dereg(first.mr_id)
    assert not ep.advertise(first.mr_id, array.ctypes.data, 64)[0]
    assert ep.advertise(second.mr_id, array.ctypes.data, 64)[0]
    assert ep.deregister_memory([second])
    assert not ep.advertise(second.mr_id, array.ctypes.data, 64)[0]


def test_handles_with_no_more_than_is_needed(ep):
    memory = np.zeros(24, np.uint8)

    class Handle:
        def data_ptr(self):
            return memory.ctypes.data

        def numel(self):
            return 6

        def element_size(self):
            return 4

    (desc,) = ep.register_memory([Handle()])
    assert (desc.addr, desc.size) == (memory.ctypes.data, 24) and desc.mr_id >= 1


def test_memory_that_cannot_be_registered(ep):
    with pytest.raises(TypeError, match="contiguous"):
        ep.register_memory([np.zeros((4, 4))[:, 1]])
    with pytest.raises(TypeError):
        ep.register_memory(["text"])
    empty = ep.register_memory([np.zeros(0, np.uint8)])
    assert empty[0].size == 0


def test_memory_that_no_transport_takes_has_no_keys(ep):
    class Nothing:
        """A tensor at address 0."""

        def data_ptr(self):
            return 0

        def numel(self):
            return 16

        def element_size(self):
            return 1

    (desc,) = ep.register_memory([Nothing()])
    assert (desc.mr_id, desc.size, desc.lkeys, desc.rkeys) == (UNREGISTERED, 16, [], [])
    assert p2p.last_error()
    assert ep.deregister_memory([desc]) is False


@pytest.mark.parametrize(
    "junk", [b"x", b"uccldsc1", b"uccldsc1" + b"\xff" * 8, b"uccldsc1" + struct.pack("<Q", 1) + bytes(87)]
)
def test_bytes_that_are_no_descriptors(ep, junk):
    with pytest.raises(RuntimeError, match="get_serialized_descs"):
        ep.deserialize_descs(junk)


@pytest.mark.parametrize("transport", ["tcp", "cma"])
@pytest.mark.parametrize("kind", ["shared file", "file of huge pages", "huge pages"])
def test_memory_of_files_and_of_huge_pages(other, kind, transport):
    size = 4 << 20
    file = -1
    try:
        if kind == "huge pages":
            memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_HUGETLB)
        else:
            file = os.memfd_create("p2p", os.MFD_HUGETLB if kind == "file of huge pages" else 0)
            os.ftruncate(file, size)
            memory = mmap.mmap(file, size)
    except OSError as error:
        pytest.skip(f"{kind}: {error}")
    pair = Pair(other, transports=[transport])
    mine = np.frombuffer(memory, np.uint8)
    mine[:] = np.arange(size) % 251
    other.memory("theirs", size)
    ok, mr_id = pair.ep.reg(mine)
    assert ok, p2p.last_error()
    blob = other.advertised("theirs")
    assert pair.ep.write(pair.conn, mr_id, mine.ctypes.data, size, blob), p2p.last_error()
    assert other.contents("theirs") == mine.tobytes()
    mine[:] = 0
    assert pair.ep.read(pair.conn, mr_id, mine.ctypes.data, size, blob), p2p.last_error()
    assert other.contents("theirs") == mine.tobytes()
    if file >= 0:
        os.ftruncate(file, size // 2)
        assert not pair.ep.write(pair.conn, mr_id, mine.ctypes.data, size, blob)
        assert "Bad address" in p2p.last_error()
        assert not pair.ep.read(pair.conn, mr_id, mine.ctypes.data, size, blob)
        assert "Bad address" in p2p.last_error()
        assert pair.ep.write(pair.conn, mr_id, mine.ctypes.data, size // 2, blob), p2p.last_error()
        os.close(file)
    pair.close()
