# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""CUDA streams that transfers wait for, and GPU tensors given as such; skipped where there is no GPU."""

import pytest
from other_process import gpu_tensor

from uccl import p2p

torch = pytest.importorskip("torch", reason="torch is not installed")
from test_gpu import FAR, random_tensor, register  # noqa: E402 - needs torch

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
    pytest.mark.timeout(180),  # the other process imports torch, too
]

# A slow kernel sleeps on the GPU, some 0.2 s, so that what is wrong is wrong each time.
SLEEP = 400_000_000  # cycles


def warmed(pair, size):
    """A tensor here, memory "m" there, and transfers of both kinds done between them."""
    tensor, data = random_tensor(size, 0, 11)
    mr_id = register(pair, tensor)
    pair.other.gpu_memory("m", size, FAR)
    blob = pair.other.advertised("m")
    for _ in range(3):
        assert pair.ep.write(pair.conn, mr_id, tensor.data_ptr(), size, blob), p2p.last_error()
        assert pair.ep.read(pair.conn, mr_id, tensor.data_ptr(), size, blob), p2p.last_error()
    torch.cuda.synchronize(0)
    return tensor, data, mr_id, blob


def slow_fill(stream, tensor, source):
    """Bytes that ``stream`` writes late."""
    with torch.cuda.stream(stream):
        torch.cuda._sleep(SLEEP)
        tensor.copy_(source, non_blocking=True)


STREAMS = {
    "object": lambda stream: stream,
    "handle": lambda stream: stream.cuda_stream,
}


@pytest.mark.parametrize("size", [4099, 24 << 20])
@pytest.mark.parametrize("form", STREAMS, ids=str)
@pytest.mark.parametrize("suffix", ["", "_async"])
def test_a_write_waits_for_a_slow_kernel(pair, size, form, suffix):
    tensor, _, mr_id, blob = warmed(pair, size)
    late, data = random_tensor(size, 0, 12)
    stream = torch.cuda.Stream(0)
    slow_fill(stream, tensor, late)
    behind = STREAMS[form](stream)
    answer = getattr(pair.ep, "write" + suffix)(pair.conn, mr_id, tensor.data_ptr(), size, blob, stream=behind)
    if suffix:
        assert answer[0], p2p.last_error()
        assert not stream.query() and pair.ep.poll_async(answer[1]) == (True, False)
        assert pair.ep.wait(answer[1], 20) == size
    else:
        assert answer, p2p.last_error()
    assert pair.other.contents("m") == data


def calls_behind(pair, tensor, mr_id, blob, name):
    """Each call of a name that takes a stream, started: its transfer id."""
    size, ep, conn = tensor.nbytes, pair.ep, pair.conn
    ok, info = pair.other.call("advertise_ipc", 0, pair.other.address_of("m"), size)
    assert ok
    half = size // 2
    pointers, sizes = [tensor.data_ptr(), tensor.data_ptr() + half], [half, size - half]
    blobs, infos = [], []
    for at, length in zip((0, half), sizes, strict=True):
        ok, one = pair.other.call("advertise", pair.other.regions_of("m"), pair.other.address_of("m") + at, length)
        assert ok
        blobs.append(one)
        ok, one = pair.other.call("advertise_ipc", 0, pair.other.address_of("m") + at, length)
        assert ok
        infos.append(one)
    (desc,) = ep.register_memory([tensor])
    remote = ep.deserialize_descs(pair.other.described(["m"]))
    pointer = tensor.data_ptr()

    def by(suffix):
        return getattr(ep, name + suffix)

    yield lambda stream: by("_async")(conn, mr_id, pointer, size, blob, stream=stream)
    yield lambda stream: by("_async")(conn, mr_id, tensor, blob, stream=stream)
    yield lambda stream: by("_async")(conn, tensor, blob, stream=stream)
    yield lambda stream: by("v_async")(conn, [mr_id] * 2, pointers, sizes, blobs, stream=stream)
    yield lambda stream: by("_ipc_async")(conn, pointer, size, info, stream=stream)
    yield lambda stream: by("_ipc_async")(conn, tensor, info, stream=stream)
    yield lambda stream: by("v_ipc_async")(conn, pointers, sizes, infos, stream=stream)
    yield lambda stream: ep.transfer(conn, name, [desc], remote, stream=stream)


def test_every_write_waits_for_a_slow_kernel(pair):
    size = 3 << 20
    tensor, _, mr_id, blob = warmed(pair, size)
    for number, call in enumerate(calls_behind(pair, tensor, mr_id, blob, "write")):
        ok, transfer = call(None)  # what is made at first use, such as regions
        assert ok and pair.ep.wait(transfer, 20) == size, p2p.last_error()
        late, data = random_tensor(size, 0, 20 + number)
        stream = torch.cuda.Stream(0)
        slow_fill(stream, tensor, late)
        ok, transfer = call(stream)
        assert ok, p2p.last_error()
        assert pair.ep.wait(transfer, 20) == size
        assert pair.other.contents("m") == data, number


def test_every_read_leaves_the_memory_to_the_stream_first(pair):
    size = 3 << 20
    tensor, theirs, mr_id, blob = warmed(pair, size)
    for number, call in enumerate(calls_behind(pair, tensor, mr_id, blob, "read")):
        ok, transfer = call(None)
        assert ok and pair.ep.wait(transfer, 20) == size, p2p.last_error()
        source, data = random_tensor(size, 0, 40 + number)
        tensor.copy_(source)
        kept = torch.zeros_like(tensor)
        torch.cuda.synchronize(0)
        stream = torch.cuda.Stream(0)
        slow_fill(stream, kept, tensor)
        ok, transfer = call(stream)
        assert ok, p2p.last_error()
        assert pair.ep.wait(transfer, 20) == size
        stream.synchronize()
        assert kept.cpu().numpy().tobytes() == data, number
        assert tensor.cpu().numpy().tobytes() == theirs, number


def test_a_tensor_is_written_behind_the_current_stream(pair):
    """Without stream=, a tensor's bytes are those that torch's current stream makes."""
    size = 3 << 20
    tensor, _, mr_id, blob = warmed(pair, size)
    assert pair.ep.write(pair.conn, tensor, blob), p2p.last_error()
    for number, stream in enumerate((torch.cuda.current_stream(0), torch.cuda.Stream(0))):
        late, data = random_tensor(size, 0, 60 + number)
        slow_fill(stream, tensor, late)
        with torch.cuda.stream(stream):
            ok, transfer = pair.ep.write_async(pair.conn, mr_id, tensor, blob)
            assert ok, p2p.last_error()
            assert pair.ep.poll_async(transfer) == (True, False)
            assert pair.ep.wait(transfer, 20) == size
        assert pair.other.contents("m") == data


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_the_default_stream_of_another_gpu(pair):
    """Its handle is 0 on every GPU; the object says which is meant."""
    size = 3 << 20
    tensor, _ = random_tensor(size, 1, 70)
    mr_id = register(pair, tensor)
    pair.other.gpu_memory("m", size, 0)
    blob = pair.other.advertised("m")
    for _ in range(3):
        assert pair.ep.write(pair.conn, mr_id, tensor.data_ptr(), size, blob), p2p.last_error()
    for number, named in enumerate((torch.cuda.default_stream(1), None)):
        late, data = random_tensor(size, 1, 71 + number)
        slow_fill(torch.cuda.default_stream(1), tensor, late)
        assert torch.cuda.current_device() == 0
        ok, transfer = pair.ep.write_async(pair.conn, mr_id, tensor, blob, stream=named)
        assert torch.cuda.current_device() == 0
        assert ok and pair.ep.wait(transfer, 20) == size, p2p.last_error()
        assert pair.other.contents("m") == data


def test_streams_that_are_captured_are_refused(pair):
    """With the reason, and the capture is not harmed."""
    tensor, data, mr_id, blob = warmed(pair, 4096)
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream(0)
    kept = torch.zeros_like(tensor)
    torch.cuda.synchronize(0)
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="global"):
        kept.copy_(tensor)
        assert not pair.ep.write(pair.conn, mr_id, tensor.data_ptr(), 4096, blob, stream=stream)
        assert "captured" in p2p.last_error()
        assert not pair.ep.write(pair.conn, mr_id, tensor, blob)  # behind torch's current stream, which is that
        assert "captured" in p2p.last_error()
    graph.replay()
    torch.cuda.synchronize(0)
    assert kept.cpu().numpy().tobytes() == data


@pytest.mark.parametrize("suffix", ["", "_async"])
def test_tensors_are_sent_and_received(pair, suffix):
    size = 300_001
    tensor, data = random_tensor(size, 0, 80)
    region, pointer = pair.other.gpu_memory("m", size, FAR)

    def done(answer):
        if not suffix:
            return answer
        assert answer[0], p2p.last_error()
        return pair.ep.wait(answer[1], 20) == size

    for named in ((), (register(pair, tensor),)):
        pair.other.begin("call", "recv", pair.their_conn, region, pointer, size)
        assert done(getattr(pair.ep, "send" + suffix)(pair.conn, *named, tensor)), p2p.last_error()
        assert pair.other.result() and pair.other.contents("m") == data
    into = gpu_tensor(size, 0)
    pair.other.begin("call", "send", pair.their_conn, region, pointer, size)
    assert done(getattr(pair.ep, "recv" + suffix)(pair.conn, into)), p2p.last_error()
    assert pair.other.result()
    assert into.cpu().numpy().tobytes() == data


def test_tensors_with_gaps(pair):
    grid = torch.arange(64 * 64, dtype=torch.float32, device="cuda:0").reshape(64, 64)
    into = torch.zeros_like(grid)
    pair.other.gpu_memory("m", grid.numel() * 4, FAR)
    blob = pair.other.advertised("m")
    for view in (lambda of: of.t(), lambda of: of[:, 8:40], lambda of: of[::3]):
        expected = view(grid).contiguous().cpu().numpy().tobytes()
        assert pair.ep.write(pair.conn, view(grid), blob), p2p.last_error()
        assert pair.other.contents("m")[: len(expected)] == expected
        assert pair.ep.read(pair.conn, view(into), blob), p2p.last_error()
        assert torch.equal(view(into), view(grid))
