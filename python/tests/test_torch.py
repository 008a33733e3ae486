# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""Torch tensors in host memory."""

import pytest

from uccl import p2p

torch = pytest.importorskip("torch")

DTYPES = [
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
    torch.float32, torch.float64, torch.complex64, torch.bool, torch.float8_e4m3fn, torch.float8_e5m2,
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_type(fast_pair, dtype):
    tensor = (torch.arange(1024) % 2).to(dtype)
    size = tensor.numel() * tensor.element_size()
    ok, mr_id = fast_pair.ep.reg(tensor.data_ptr(), size)
    assert ok and mr_id >= 1
    theirs, pointer = fast_pair.other.memory("in", size)
    fast_pair.other.begin("call", "recv", fast_pair.their_conn, theirs, pointer, size)
    assert fast_pair.ep.send(fast_pair.conn, mr_id, tensor.data_ptr(), size), p2p.last_error()
    assert fast_pair.other.result() is True
    got = torch.frombuffer(bytearray(fast_pair.other.contents("in")), dtype=torch.uint8)
    assert torch.equal(got, tensor.view(torch.uint8).reshape(-1))


def test_a_view_within_an_allocation(fast_pair):
    whole = torch.arange(4096, dtype=torch.int32)
    (desc,) = fast_pair.ep.register_memory([whole[100:200]])
    assert (desc.addr, desc.size) == (whole.data_ptr() + 400, 400)
    fast_pair.other.memory("m", 400)
    remote = fast_pair.ep.deserialize_descs(fast_pair.other.described(["m"]))
    ok, transfer = fast_pair.ep.transfer(fast_pair.conn, "write", [desc], remote)
    assert ok and fast_pair.ep.wait(transfer, 20) == 400
    got = torch.frombuffer(bytearray(fast_pair.other.contents("m")), dtype=torch.int32)
    assert torch.equal(got, whole[100:200])


def test_tensors_with_gaps_are_refused(ep):
    with pytest.raises(ValueError, match="contiguous"):
        ep.register_memory([torch.zeros(4, 4).t()])
