# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""Tensors, arrays and buffers in place of address and size; streams where there is no CUDA."""

import array
import asyncio
import ctypes

import numpy as np
import pytest

from uccl import aio, p2p

SIZE = 4096


class Foreign:
    """Memory of an array under another protocol alone."""

    def __init__(self, source):
        self.kept = source


class CudaArray(Foreign):
    """Host memory that claims to be a GPU's: what is read of the protocol is the same."""

    def __init__(self, source, strides=None, read_only=False):
        super().__init__(source)
        self.__cuda_array_interface__ = {
            "shape": source.shape,
            "typestr": source.dtype.str,
            "data": (source.ctypes.data, read_only),
            "strides": strides,
            "version": 3,
        }


class Packed(Foreign):
    """DLPack."""

    def __dlpack__(self, **keywords):
        return self.kept.__dlpack__(**keywords)

    def __dlpack_device__(self):
        return self.kept.__dlpack_device__()


def of_torch(data):
    torch = pytest.importorskip("torch")
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).view(torch.bfloat16).reshape(2, -1)


def bytes_of(tensor):
    tensor = getattr(tensor, "kept", tensor)
    if hasattr(tensor, "data_ptr"):
        return ctypes.string_at(tensor.data_ptr(), tensor.numel() * tensor.element_size())
    return bytes(memoryview(tensor).cast("B"))


def of_numpy(data):
    return np.frombuffer(bytearray(data), np.float32).reshape(4, -1)


MAKERS = {
    "numpy": of_numpy,
    "torch": of_torch,
    "bytearray": bytearray,
    "memoryview": lambda data: memoryview(bytearray(data)),
    "array": lambda data: array.array("d", bytes(data)),
    "cuda_array": lambda data: CudaArray(of_numpy(data)),
    "dlpack": lambda data: Packed(of_numpy(data)),
}
DATA = np.random.default_rng(0).integers(0, 256, SIZE, np.uint8).tobytes()


@pytest.fixture(params=MAKERS, ids=str)
def make(request):
    return MAKERS[request.param]


def done(ep, answer):
    """Of a blocking call or an asynchronous one."""
    if isinstance(answer, tuple):
        assert answer[0], p2p.last_error()
        return ep.wait(answer[1], 20) == SIZE
    assert answer is True, p2p.last_error()
    return answer


@pytest.mark.parametrize("suffix", ["", "_async"])
@pytest.mark.parametrize("registered", [True, False])
def test_write_and_read(fast_pair, make, suffix, registered):
    ep, conn = fast_pair.ep, fast_pair.conn
    fast_pair.other.memory("m", SIZE)
    blob = fast_pair.other.advertised("m")
    tensor, into = make(DATA), make(bytes(SIZE))
    fast_pair.arrays += [tensor, into]

    def region(of):
        if not registered:
            return ()
        ok, mr_id = ep.reg(of)
        assert ok, p2p.last_error()
        return (mr_id,)

    assert done(ep, getattr(ep, "write" + suffix)(conn, *region(tensor), tensor, blob))
    assert fast_pair.other.contents("m") == DATA
    assert done(ep, getattr(ep, "read" + suffix)(conn, *region(into), into, blob))
    assert bytes_of(into) == DATA


@pytest.mark.parametrize("suffix", ["", "_async"])
def test_by_address_alone(fast_pair, make, suffix):
    ep, conn = fast_pair.ep, fast_pair.conn
    _, pointer = fast_pair.other.memory("m", SIZE)
    ok, info = fast_pair.other.call("advertise_ipc", 0, pointer, SIZE)
    assert ok
    tensor, into = make(DATA), make(bytes(SIZE))
    fast_pair.arrays += [tensor, into]
    assert done(ep, getattr(ep, "write_ipc" + suffix)(conn, tensor, info))
    assert fast_pair.other.contents("m") == DATA
    assert done(ep, getattr(ep, "read_ipc" + suffix)(conn, into, info))
    assert bytes_of(into) == DATA


@pytest.mark.parametrize("form", ["registered", "not", "ipc"])
@pytest.mark.parametrize("suffix", ["", "_async"])
def test_send_and_receive(fast_pair, make, form, suffix):
    ep, conn = fast_pair.ep, fast_pair.conn
    tensor, into = make(DATA), make(bytes(SIZE))
    fast_pair.arrays += [tensor, into]
    region, pointer = fast_pair.other.memory("m", SIZE)
    infix = "_ipc" if form == "ipc" else ""
    before = [(ep.reg(one)[1],) if form == "registered" else () for one in (tensor, into)]
    fast_pair.other.begin("call", "recv", fast_pair.their_conn, region, pointer, SIZE)
    assert done(ep, getattr(ep, f"send{infix}{suffix}")(conn, *before[0], tensor))
    assert fast_pair.other.result() and fast_pair.other.contents("m") == DATA
    fast_pair.other.begin("call", "send", fast_pair.their_conn, region, pointer, SIZE)
    assert done(ep, getattr(ep, f"recv{infix}{suffix}")(conn, *before[1], into))
    assert fast_pair.other.result()
    assert bytes_of(into) == DATA


def test_what_describes_a_tensor(ep, make):
    tensor = make(DATA)
    ok, mr_id = ep.reg(tensor)
    assert ok
    ok, blob = ep.advertise(mr_id, tensor)
    assert ok and int.from_bytes(blob[8:12], "little") == SIZE
    ok, info = ep.advertise_ipc(0, tensor)
    assert ok and info[:12] == blob[:12]
    (desc,) = ep.register_memory([tensor])
    assert desc.size == SIZE and desc.addr == int.from_bytes(blob[:8], "little")


def test_strides_that_leave_no_gap_are_fine(ep):
    assert ep.reg(CudaArray(np.zeros((4, 4), np.float32), strides=(16, 4)))[0]
    assert ep.reg(CudaArray(np.zeros((1, 4), np.float32), strides=(999, 4)))[0]
    assert ep.reg(np.zeros((8, 8), np.uint8)[2:4])[0]


def test_what_is_no_tensor(fast_pair):
    ep, conn = fast_pair.ep, fast_pair.conn
    fast_pair.other.memory("m", SIZE)
    blob = fast_pair.other.advertised("m")
    for wrong in (12345, "text", [1, 2], None, object()):
        with pytest.raises(TypeError):
            ep.reg(wrong)
        with pytest.raises(TypeError):
            ep.write(conn, wrong, blob)
        with pytest.raises(TypeError):
            ep.send(conn, wrong)
    with pytest.raises(TypeError, match="an address needs its size"):
        ep.write(conn, 1, 12345, blob)


def test_a_number_in_a_tensor_is_not_an_address(fast_pair):
    torch = pytest.importorskip("torch")
    tensor = torch.tensor([7])
    fast_pair.other.memory("m", 8)
    assert fast_pair.ep.write(fast_pair.conn, tensor, fast_pair.other.advertised("m")), p2p.last_error()
    assert fast_pair.other.contents("m") == (7).to_bytes(8, "little")


def test_nothing_is_received_into_memory_that_is_read_only(fast_pair):
    ep, conn = fast_pair.ep, fast_pair.conn
    frozen = np.zeros(SIZE, np.uint8)
    frozen.flags.writeable = False
    fast_pair.other.memory("m", SIZE)
    blob = fast_pair.other.advertised("m")
    for tensor in (bytes(SIZE), frozen, CudaArray(np.zeros(SIZE, np.uint8), read_only=True)):
        with pytest.raises(ValueError, match="read-only"):
            ep.read(conn, tensor, blob)
        with pytest.raises(ValueError, match="read-only"):
            ep.recv(conn, tensor)
        assert ep.write(conn, tensor, blob), p2p.last_error()  # that takes nothing but reading
    ok, mr_id = ep.reg(frozen)
    assert ok
    ok, mine = ep.advertise(mr_id, frozen)
    assert ok
    region, pointer = fast_pair.other.memory("n", SIZE, 1)
    assert not fast_pair.other.call("write", fast_pair.their_conn, region, pointer, SIZE, mine)
    assert not frozen.any()


def test_more_than_the_peer_describes(fast_pair):
    fast_pair.other.memory("m", SIZE)
    blob = fast_pair.other.advertised("m")
    assert not fast_pair.ep.write(fast_pair.conn, np.zeros(SIZE + 1, np.uint8), blob)
    assert "describes" in p2p.last_error()


def has_cuda():
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


needs_no_cuda = pytest.mark.skipif(has_cuda(), reason="there is a CUDA driver")


def write_calls(pair):
    array_, mr_id, pointer = pair.memory(SIZE)
    _, theirs = pair.other.memory("m", SIZE)
    blob = pair.other.advertised("m")
    ok, info = pair.other.call("advertise_ipc", 0, theirs, SIZE)
    assert ok
    (desc,) = pair.ep.register_memory([array_])
    remote = pair.ep.deserialize_descs(pair.other.described(["m"]))
    ep, conn = pair.ep, pair.conn
    for name in ("write", "read"):
        for suffix in ("", "_async"):
            one, many = getattr(ep, name + suffix), getattr(ep, f"{name}v{suffix}")
            yield lambda stream, call=one: call(conn, mr_id, pointer, SIZE, blob, stream=stream)
            yield lambda stream, call=one: call(conn, mr_id, array_, blob, stream=stream)
            yield lambda stream, call=one: call(conn, array_, blob, stream=stream)
            yield lambda stream, call=many: call(conn, [mr_id], [pointer], [SIZE], [blob], stream=stream)
            one, many = getattr(ep, f"{name}_ipc{suffix}"), getattr(ep, f"{name}v_ipc{suffix}")
            yield lambda stream, call=one: call(conn, pointer, SIZE, info, stream=stream)
            yield lambda stream, call=one: call(conn, array_, info, stream=stream)
            yield lambda stream, call=many: call(conn, [pointer], [SIZE], [info], stream=stream)
        yield lambda stream, name=name: ep.transfer(conn, name, [desc], remote, stream=stream)


class FakeStream:
    """As torch's, and as those of other packages."""

    def __init__(self, handle):
        self.cuda_stream = handle


class OtherStream:
    def __cuda_stream__(self):
        return (0, 1)


def test_no_stream_is_the_same_as_none(fast_pair):
    for call in write_calls(fast_pair):
        assert done(fast_pair.ep, call(None))


@needs_no_cuda
@pytest.mark.parametrize("stream", [0, 1, FakeStream(0), FakeStream(2), OtherStream()], ids=lambda one: type(one).__name__)
def test_streams_without_cuda(fast_pair, stream):
    for call in write_calls(fast_pair):
        answer = call(stream)
        assert (answer if isinstance(answer, bool) else answer[0]) is False
        assert "CUDA stream 0x" in p2p.last_error() and "CUDA" in p2p.last_error().partition(": ")[2]


def test_what_is_no_stream(fast_pair):
    for call in write_calls(fast_pair):
        for wrong in ("current", True, 1.5, object(), -1, 2**70):
            with pytest.raises(TypeError, match="stream"):
                call(wrong)


async def every_call_of_aio(there, pair, stream):
    array_, mr_id, pointer = pair.memory(SIZE)
    blob = pair.other.advertised("m")
    (desc,) = there.sync.register_memory([array_])
    remote = there.sync.deserialize_descs(pair.other.described(["m"]))
    one, many = (pair.conn, mr_id, pointer, SIZE, blob), (pair.conn, [mr_id], [pointer], [SIZE], [blob])
    for call in (
        lambda: there.write(*one, stream=stream),
        lambda: there.read(*one, stream=stream),
        lambda: there.writev(*many, stream=stream),
        lambda: there.readv(*many, stream=stream),
        lambda: there.transfer(pair.conn, "write", [desc], remote, stream=stream),
    ):
        yield call


@pytest.mark.parametrize("stream", [None, pytest.param(1, marks=needs_no_cuda)])
def test_streams_of_coroutines(fast_pair, stream):
    async def run():
        there = aio.Endpoint()
        there.sync.close()
        there.sync = fast_pair.ep
        fast_pair.other.memory("m", SIZE)
        async for call in every_call_of_aio(there, fast_pair, stream):
            if stream is None:
                assert await call() == SIZE
            else:
                with pytest.raises(p2p.Error, match="CUDA stream 0x1"):
                    await call()

    asyncio.run(run())
