# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""GPU tensors of two processes; skipped where there is no GPU."""

import json
import subprocess
import sys

import numpy as np
import pytest
from other_process import Pair, gpu_tensor

from uccl import p2p

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
    pytest.mark.timeout(180),  # the other process imports torch, too
]
FAR = 1 if torch.cuda.device_count() > 1 else 0


def random_tensor(size, device, seed=0):
    data = np.random.default_rng(seed).integers(0, 256, size, np.uint8)
    tensor = torch.from_numpy(data).to(f"cuda:{device}")
    torch.cuda.synchronize(device)
    return tensor, data.tobytes()


def register(pair, tensor):
    ok, mr_id = pair.ep.reg(tensor.data_ptr(), tensor.nbytes)
    assert ok, p2p.last_error()
    pair.arrays.append(tensor)
    return mr_id


@pytest.mark.parametrize("size", [1, 4097, 65536, 8 << 20])
def test_write_and_read_between_gpus(pair, size):
    tensor, data = random_tensor(size, 0, size)
    mr_id = register(pair, tensor)
    pair.other.gpu_memory("m", size, FAR)
    blob = pair.other.advertised("m")
    assert pair.ep.write(pair.conn, mr_id, tensor.data_ptr(), size, blob), p2p.last_error()
    assert pair.other.contents("m") == data
    tensor.zero_()
    torch.cuda.synchronize(0)
    assert pair.ep.read(pair.conn, mr_id, tensor.data_ptr(), size, blob), p2p.last_error()
    assert tensor.cpu().numpy().tobytes() == data


def test_scattered_blocks(pair):
    count, block = 500, 4096
    tensor, data = random_tensor(count * block, 0)
    mr_id = register(pair, tensor)
    _, theirs = pair.other.gpu_memory("m", count * block, FAR)
    region = pair.other.regions_of("m")
    order = np.random.default_rng(1).permutation(count)
    ok, blobs = pair.other.call(
        "advertisev", 0, [region] * count, [theirs + int(i) * block for i in order], [block] * count, count
    )
    assert ok, pair.other.last_error()
    pointers = [tensor.data_ptr() + i * block for i in range(count)]
    assert pair.ep.writev(pair.conn, [mr_id] * count, pointers, [block] * count, blobs, count), p2p.last_error()
    got = np.frombuffer(pair.other.contents("m"), np.uint8).reshape(count, block)
    assert np.array_equal(got[order], np.frombuffer(data, np.uint8).reshape(count, block))


def test_host_and_gpu(pair):
    """Either side may be the host."""
    size = 100_001
    array, mr_id, pointer = pair.memory(size, 9)
    pair.other.gpu_memory("m", size, FAR)
    blob = pair.other.advertised("m")
    assert pair.ep.write(pair.conn, mr_id, pointer, size, blob), p2p.last_error()
    assert pair.other.contents("m") == b"\x09" * size
    tensor, data = random_tensor(size, 0)
    mr_id = register(pair, tensor)
    pair.other.memory("h", size)
    assert pair.ep.write(pair.conn, mr_id, tensor.data_ptr(), size, pair.other.advertised("h")), p2p.last_error()
    assert pair.other.contents("h") == data


def test_send_and_receive(pair):
    size = 1 << 20
    tensor, data = random_tensor(size, 0)
    mr_id = register(pair, tensor)
    theirs, pointer = pair.other.gpu_memory("m", size, FAR)
    pair.other.begin("call", "recv", pair.their_conn, theirs, pointer, size)
    assert pair.ep.send(pair.conn, mr_id, tensor.data_ptr(), size), p2p.last_error()
    assert pair.other.result()
    assert pair.other.contents("m") == data


def write_and_read_by_address(pair, size):
    """To the other side's memory "m" and back. What describes "m", and the tensor that it was read into."""
    tensor, data = random_tensor(size, 0)
    _, pointer = pair.other.gpu_memory("m", size, FAR)
    ok, info = pair.other.call("advertise_ipc", 0, pointer, size)
    assert ok
    assert pair.ep.write_ipc(pair.conn, tensor.data_ptr(), size, info), p2p.last_error()
    assert pair.other.contents("m") == data
    into = gpu_tensor(size, 0)
    assert pair.ep.read_ipc(pair.conn, into.data_ptr(), size, info), p2p.last_error()
    assert into.cpu().numpy().tobytes() == data
    return info, into


def test_without_registration(pair):
    write_and_read_by_address(pair, 70_000)


def test_host_and_gpu_in_one_call(pair):
    """Each kind of memory here to each kind there, and back."""
    size = 50_021
    tensor, gpu_data = random_tensor(size, 0, 4)
    array, host_region, host_pointer = pair.memory(size, 9)
    data = [gpu_data, array.tobytes()]
    regions, pointers = [register(pair, tensor), host_region], [tensor.data_ptr(), host_pointer]
    theirs = [pair.other.gpu_memory("m", 2 * size, FAR), pair.other.memory("h", 2 * size)]
    pairs = [(mine, their) for mine in range(2) for their in range(2)]
    ok, blobs = pair.other.call(
        "advertisev",
        0,
        [theirs[their][0] for _, their in pairs],
        [theirs[their][1] + mine * size for mine, their in pairs],
        [size] * 4,
        4,
    )
    assert ok, pair.other.last_error()
    given = [regions[mine] for mine, _ in pairs], [pointers[mine] for mine, _ in pairs], [size] * 4
    assert pair.ep.writev(pair.conn, *given, blobs, 4), p2p.last_error()
    assert pair.other.contents("m") == data[0] + data[1]
    assert pair.other.contents("h") == data[0] + data[1]
    into_gpu = gpu_tensor(2 * size, 0)
    into_host, host_region, host_pointer = pair.memory(2 * size)
    regions, pointers = [register(pair, into_gpu), host_region], [into_gpu.data_ptr(), host_pointer]
    given = [regions[mine] for mine, _ in pairs], [pointers[mine] + their * size for mine, their in pairs], [size] * 4
    assert pair.ep.readv(pair.conn, *given, blobs, 4), p2p.last_error()
    assert into_gpu.cpu().numpy().tobytes() == data[0] * 2
    assert into_host.tobytes() == data[1] * 2


@pytest.fixture
def ipc_pair(other):
    """Two endpoints that may use nothing but cuda_ipc: what succeeds between their GPUs went that way."""
    made = Pair(other, transports=["cuda_ipc"])
    yield made
    made.close()


def assert_route(pair):
    routes = {(row["local"], row["remote"]): row for row in pair.ep.routes(pair.conn)}
    assert routes["cuda", "cuda"]["transport"] == "cuda_ipc", routes


def test_ipc_calls_take_the_direct_route(ipc_pair):
    size = 300_001
    info, into = write_and_read_by_address(ipc_pair, size)
    tensor, data = random_tensor(size, 0, 1)
    ok, transfer = ipc_pair.ep.write_ipc_async(ipc_pair.conn, tensor.data_ptr(), size, info)
    assert ok and ipc_pair.ep.wait(transfer, 20) == size
    assert ipc_pair.other.contents("m") == data
    ok, transfer = ipc_pair.ep.read_ipc_async(ipc_pair.conn, into.data_ptr(), size, info)
    assert ok and ipc_pair.ep.wait(transfer, 20) == size
    assert into.cpu().numpy().tobytes() == data
    assert_route(ipc_pair)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_ipc_vectors_take_the_direct_route(ipc_pair, asynchronous):
    count, block = 50, 4099
    tensor, data = random_tensor(count * block, 0, 2)
    _, pointer = ipc_pair.other.gpu_memory("m", count * block, FAR)
    order = [int(i) for i in np.random.default_rng(3).permutation(count)]
    ok, infos = ipc_pair.other.call("advertisev_ipc", 0, [pointer + i * block for i in order], [block] * count)
    assert ok and len(infos) == count

    def move(name, target):
        pointers = [target.data_ptr() + i * block for i in range(count)]
        if not asynchronous:
            assert getattr(ipc_pair.ep, name)(ipc_pair.conn, pointers, [block] * count, infos), p2p.last_error()
            return
        ok, transfer = getattr(ipc_pair.ep, f"{name}_async")(ipc_pair.conn, pointers, [block] * count, infos)
        assert ok and ipc_pair.ep.wait(transfer, 20) == count * block

    move("writev_ipc", tensor)
    got = np.frombuffer(ipc_pair.other.contents("m"), np.uint8).reshape(count, block)
    assert np.array_equal(got[order], np.frombuffer(data, np.uint8).reshape(count, block))
    into = gpu_tensor(count * block, 0)
    move("readv_ipc", into)
    assert into.cpu().numpy().tobytes() == data
    assert_route(ipc_pair)


def test_ipc_messages_take_the_direct_route(ipc_pair):
    size = 1 << 20
    tensor, data = random_tensor(size, 0, 5)
    _, pointer = ipc_pair.other.gpu_memory("m", size, FAR)
    ipc_pair.other.begin("call", "recv_ipc", ipc_pair.their_conn, pointer, size)
    assert ipc_pair.ep.send_ipc(ipc_pair.conn, tensor.data_ptr(), size), p2p.last_error()
    assert ipc_pair.other.result()
    assert ipc_pair.other.contents("m") == data
    into = gpu_tensor(size, 0)
    ok, receive = ipc_pair.ep.recv_ipc_async(ipc_pair.conn, into.data_ptr(), size)
    assert ok
    ok, _ = ipc_pair.other.call("send_ipc_async", ipc_pair.their_conn, pointer, size)
    assert ok
    assert ipc_pair.ep.wait(receive, 20) == size
    assert into.cpu().numpy().tobytes() == data
    assert_route(ipc_pair)


def test_reallocated_memory_is_another_region(pair):
    """Freed and allocated anew, an address is that of other memory, which the region made before is not."""
    size = 32 << 20
    _, theirs = pair.other.gpu_memory("m", size, FAR)
    ok, info = pair.other.call("advertise_ipc", 0, theirs, size)
    assert ok
    seen = []
    for seed in range(4):
        tensor, data = random_tensor(size, 0, seed)
        seen.append(tensor.data_ptr())
        assert pair.ep.write_ipc(pair.conn, tensor.data_ptr(), size, info), p2p.last_error()
        assert pair.other.contents("m") == data
        tensor.zero_()
        torch.cuda.synchronize(0)
        ok, mine = pair.ep.advertise_ipc(0, tensor.data_ptr(), size)
        assert ok, p2p.last_error()
        assert pair.other.call("write_ipc", pair.their_conn, theirs, size, mine), pair.other.last_error()
        assert tensor.cpu().numpy().tobytes() == data
        del tensor
        torch.cuda.empty_cache()
    if len(set(seen)) == len(seen):
        pytest.skip("no address was given out twice")


def test_gpus_of_one_host_take_the_direct_route(fast_pair):
    """Nobody is to find out from a bandwidth graph that a slow path was taken."""
    fast_pair.other.gpu_memory("m", 4096, FAR)
    routes = {(row["local"], row["remote"]): row for row in fast_pair.ep.routes(fast_pair.conn)}
    assert routes["cuda", "cuda"]["transport"] == "cuda_ipc", routes


def test_the_doctor_measures_every_path_of_gpus():
    done = subprocess.run(
        [sys.executable, "-m", "uccl.doctor", "--json"], capture_output=True, text=True, timeout=120, check=False
    )
    measured = {one["name"]: one for one in json.loads(done.stdout)["findings"] if one["section"] == "measured"}
    for name, raw in (
        ("cuda_ipc, GPU to GPU", "the driver's copy between GPUs"),
        ("cuda_ipc, host to GPU", "the driver's copy from host memory"),
        ("cma, GPU to host", None),
        ("tcp, GPU to GPU", "a raw socket"),
        ("tcp, GPU to host", "a raw socket"),
        ("tcp, host to GPU", "a raw socket"),
    ):
        if name.startswith("cma") and name not in measured:
            continue  # where memory of other processes is refused
        assert measured[name]["gbytes_per_second"] > 0, (name, measured)
        assert measured[name]["raw"] == raw or raw is None, (name, measured)
