# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""Tensors, arrays and buffers that cannot be moved, that nobody may write to, or that have no bytes."""

import ctypes

import numpy as np
import pytest
from test_tensors import SIZE, CudaArray, Packed

from uccl import p2p


def every_call_on(pair, tensor):
    """Every call that takes a tensor."""
    ep, conn = pair.ep, pair.conn
    pair.other.memory("m", SIZE)
    blob = pair.other.advertised("m")
    ok, info = pair.other.call("advertise_ipc", 0, pair.other.run("address_of", "m"), SIZE)
    assert ok
    yield lambda: ep.reg(tensor)
    yield lambda: ep.regv([tensor])
    yield lambda: ep.register_memory([tensor])
    yield lambda: ep.advertise(1, tensor)
    yield lambda: ep.advertise_ipc(conn, tensor)
    for suffix in ("", "_async"):
        for name in ("write", "read"):
            one, ipc = getattr(ep, name + suffix), getattr(ep, f"{name}_ipc{suffix}")
            yield lambda one=one: one(conn, 1, tensor, blob)
            yield lambda one=one: one(conn, tensor, blob)
            yield lambda ipc=ipc: ipc(conn, tensor, info)
        for name in ("send", "recv"):
            one, ipc = getattr(ep, name + suffix), getattr(ep, f"{name}_ipc{suffix}")
            yield lambda one=one: one(conn, tensor)
            yield lambda one=one: one(conn, 1, tensor)
            yield lambda ipc=ipc: ipc(conn, tensor)


class Structure(ctypes.Structure):
    _fields_ = [("number", ctypes.c_int), ("object", ctypes.py_object)]


ARRAYS_OF_OBJECTS = {
    "objects": lambda: np.array([1, "a"], object),
    "none": lambda: np.zeros(0, object),
    "a field": lambda: np.zeros(3, [("a", "i4"), ("b", object)]),
    "a field of a field": lambda: np.zeros(3, [("a", [("b", "f8"), ("c", [("d", object)])])]),
    "a field of several": lambda: np.zeros(3, [("a", object, (2,))]),
    "memoryview": lambda: memoryview(np.array([1, 2], object)),
    "ctypes": lambda: (ctypes.py_object * 3)(),
    "ctypes structure": lambda: (Structure * 2)(),
    "cuda_array": lambda: CudaArray(np.array([1, 2], object)),
}


@pytest.mark.parametrize("kind", ARRAYS_OF_OBJECTS)
def test_arrays_of_objects_are_refused(fast_pair, kind):
    tensor = ARRAYS_OF_OBJECTS[kind]()
    for call in every_call_on(fast_pair, tensor):
        with pytest.raises(TypeError, match="Python objects"):
            call()


def test_fields_may_have_any_name(ep):
    assert ep.reg(np.zeros(3, [("O", "i4"), ("xOx", "f8"), ("P", [("O", "u1")])]))[0]
    assert ep.reg(np.zeros(3, "S1"))[0] and ep.reg(np.zeros(3, "U1"))[0] and ep.reg(np.zeros(3, "V3"))[0]


@pytest.mark.parametrize("view", ["conj", "neg", "neg_of_conj"])
def test_views_that_show_other_values_are_refused(fast_pair, view):
    torch = pytest.importorskip("torch")
    complex_ = torch.complex(torch.arange(1.0), torch.arange(1.0) + 1)
    tensor = {
        "conj": lambda: complex_.conj(),
        "neg": lambda: torch._neg_view(torch.arange(1.0, 5.0)),
        "neg_of_conj": lambda: complex_.conj().imag,
    }[view]()
    for call in every_call_on(fast_pair, tensor):
        with pytest.raises(ValueError, match="resolve_"):
            call()
    plain = tensor.resolve_conj().resolve_neg()
    fast_pair.arrays.append(plain)
    ok, mr_id = fast_pair.ep.reg(plain)
    assert ok and fast_pair.ep.write(fast_pair.conn, mr_id, plain, fast_pair.other.advertised("m"))
    assert fast_pair.other.contents("m").startswith(plain.numpy().tobytes())


def test_layouts_without_memory_in_order_are_refused(ep):
    torch = pytest.importorskip("torch")
    for tensor in (torch.eye(3).to_sparse(), torch.eye(3).to_sparse_csr(), torch.eye(3).to_mkldnn()):
        with pytest.raises(ValueError, match="reg: "):
            ep.reg(tensor)


def read_only_memory():
    """By kind, memory that nobody may write to."""
    frozen = np.zeros(SIZE, np.uint8)
    frozen.flags.writeable = False
    return {"bytes": bytes(SIZE), "array": frozen, "view": memoryview(bytearray(SIZE)).toreadonly()}


READ_ONLY_CALLS = {
    "reg": lambda ep, frozen: ep.advertise(ep.reg(frozen)[1], frozen),
    "regv": lambda ep, frozen: ep.advertise(ep.regv([bytearray(8), frozen])[1][1], frozen),
    "register_memory": lambda ep, frozen: ep.advertise(ep.register_memory([frozen])[0].mr_id, frozen),
    "advertise_ipc": lambda ep, frozen: ep.advertise_ipc(0, frozen),
}


@pytest.mark.parametrize("kind", ["bytes", "array", "view"])
@pytest.mark.parametrize("call", READ_ONLY_CALLS)
def test_peers_may_read_and_not_write_what_is_read_only_here(pair, kind, call):
    frozen = read_only_memory()[kind]
    ok, blob = READ_ONLY_CALLS[call](pair.ep, frozen)
    assert ok, p2p.last_error()
    pair.arrays.append(frozen)
    region, pointer = pair.other.memory("n", SIZE, 1)
    verbs = ("write_ipc", "read_ipc") if call == "advertise_ipc" else ("write", "read")
    arguments = (pair.their_conn, *(() if call == "advertise_ipc" else (region,)), pointer, SIZE, blob)
    assert not pair.other.call(verbs[0], *arguments)
    assert "read-only" in pair.other.run("last_error")
    assert bytes(frozen) == bytes(SIZE)
    assert pair.other.call(verbs[1], *arguments), pair.other.run("last_error")
    assert pair.other.contents("n") == bytes(SIZE)


def test_read_only_by_the_programs_word(fast_pair):
    ep = fast_pair.ep
    array_ = np.zeros(SIZE, np.uint8)
    pointer = array_.ctypes.data
    fast_pair.arrays.append(array_)
    region, theirs = fast_pair.other.memory("n", SIZE, 1)

    def written(blob, verb="write"):
        arguments = (theirs, SIZE, blob) if verb == "write_ipc" else (region, theirs, SIZE, blob)
        return fast_pair.other.call(verb, fast_pair.their_conn, *arguments)

    for regions in (ep.regv([pointer], [SIZE], read_only=True), ep.regv([array_], read_only=True)):
        assert regions[0] and not written(ep.advertise(regions[1][0], array_)[1])
    for info in (
        ep.advertise_ipc(0, pointer, SIZE, read_only=True)[1],
        ep.advertise_ipc(0, array_, read_only=True)[1],
        ep.advertisev_ipc(0, [pointer], [SIZE], read_only=True)[1][0],
    ):
        assert not written(info, "write_ipc")
    assert not array_.any()
    # The same memory, offered without it.
    assert written(ep.advertise_ipc(0, array_)[1], "write_ipc") and array_.all()
    assert ep.regv([array_], expires=60)[0]
    assert ep.regv([pointer], [SIZE], peers=["somebody"]) == (False, [])


def nothings():
    torch = pytest.importorskip("torch")
    return {
        "array": np.zeros(0, np.uint8),
        "rows of none": np.zeros((4, 0), np.float32),
        "bytearray": bytearray(),
        "torch": torch.empty(0, 4),
        "cuda_array": CudaArray(np.zeros(0, np.float32)),
        "dlpack": Packed(np.zeros(0, np.float32)),
    }


@pytest.mark.parametrize("kind", ["array", "rows of none", "bytearray", "torch", "cuda_array", "dlpack"])
def test_nothing_moves_as_well(pair, kind):
    ep, conn, tensor = pair.ep, pair.conn, nothings()[kind]
    (ok, mr_id), (also, nowhere) = ep.reg(tensor), ep.reg(0, 0)
    assert ok and also and mr_id >= 1 and nowhere > mr_id, p2p.last_error()
    assert ep.regv([0, 0], [0, 0])[0] and ep.regv([tensor])[0]
    region, pointer = pair.other.memory("m", 0)
    pair.other.memory("some", 8, 7)
    info = pair.other.call("advertise_ipc", 0, 0, 0)[1]
    for blob in (pair.other.advertised("m"), pair.other.advertised("some")):
        assert ep.write(conn, mr_id, tensor, blob), p2p.last_error()
        assert ep.write(conn, tensor, blob) and ep.read(conn, tensor, blob), p2p.last_error()
        assert ep.writev(conn, [nowhere] * 2, [0, 0], [0, 0], [blob] * 2), p2p.last_error()
        ok, transfer = ep.read_async(conn, mr_id, tensor, blob)
        assert ok and ep.wait(transfer, 20) == 0
    assert ep.write_ipc(conn, tensor, info) and ep.read_ipc(conn, tensor, info), p2p.last_error()
    assert not ep.write(conn, np.zeros(1, np.uint8), pair.other.advertised("m"))
    # Beside something, in one list.
    local = ep.register_memory([tensor, np.full(8, 9, np.uint8)])
    remote = ep.deserialize_descs(pair.other.described(["m", "some"]))
    ok, transfer = ep.transfer(conn, "write", local, remote)
    assert ok and ep.wait(transfer, 20) == 8, p2p.last_error()
    assert pair.other.contents("some") == bytes([9] * 8)
    pair.other.begin("call", "recv", pair.their_conn, region, pointer, 0)
    assert ep.send(conn, tensor) and pair.other.result(), p2p.last_error()
    pair.other.begin("call", "send", pair.their_conn, region, pointer, 0)
    assert ep.recv(conn, mr_id, tensor) and pair.other.result(), p2p.last_error()
    assert ep.dereg(mr_id) and ep.deregister_memory(local)
