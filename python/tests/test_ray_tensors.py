# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""Layouts of tensors that uccl.ray reads. Ray itself is in tests/stacks; here its classes are stood in for."""

import importlib
import pickle
import sys
import types
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")


@dataclass
class FetchRequest:
    obj_id: str
    tensors: Any


@dataclass
class TensorTransportMetadata:
    tensor_meta: Any
    tensor_device: Any = None


@pytest.fixture
def module(monkeypatch):
    """uccl.ray beside a Ray that has no more than the classes that it names."""
    manager = types.ModuleType("ray.experimental.rdt.tensor_transport_manager")
    for one in (FetchRequest, TensorTransportMetadata):
        setattr(manager, one.__name__, one)
    for name in ("CommunicatorMetadata", "TensorTransportManager"):
        setattr(manager, name, type(name, (), {}))
    experimental = types.ModuleType("ray.experimental")
    experimental.register_tensor_transport = lambda *_: None
    for name, made in (
        ("ray", types.ModuleType("ray")),
        ("ray.experimental", experimental),
        ("ray.experimental.rdt", types.ModuleType("ray.experimental.rdt")),
        ("ray.experimental.rdt.tensor_transport_manager", manager),
    ):
        monkeypatch.setitem(sys.modules, name, made)
    monkeypatch.delitem(sys.modules, "uccl.ray", raising=False)
    module = importlib.import_module("uccl.ray")
    yield module
    sys.modules.pop("uccl.ray", None)


def random_tensor(random):
    """A tensor with steps and another order of dimensions."""
    shape = random.integers(1, 7, random.integers(1, 5))
    base = torch.from_numpy(random.integers(-1000, 1000, tuple(shape)).astype((np.int8, np.int16, np.float64)[random.integers(3)]))
    parts = tuple(slice(int(random.integers(0, extent)), None, int(random.integers(1, 4))) for extent in shape)
    return base[parts].permute(*(int(one) for one in random.permutation(len(shape))))


def buffer_like(tensor, random):
    """Zeros of another layout: (whole, the part that is to be filled)."""
    order = [int(one) for one in random.permutation(tensor.dim())]
    whole = torch.zeros([2 * tensor.shape[one] for one in order], dtype=tensor.dtype)
    back = [order.index(one) for one in range(tensor.dim())]
    return whole, whole[tuple(slice(0, 2 * tensor.shape[one], 2) for one in order)].permute(*back)


def test_layouts(module):
    random = np.random.default_rng(5)
    owner, reader = module.TensorTransport(), module.TensorTransport()
    try:
        tensors = [random_tensor(random) for _ in range(60)]
        tensors += [torch.zeros(0, 3), torch.arange(6.0), torch.arange(24.0).reshape(2, 3, 4).permute(2, 0, 1)]
        metadata = pickle.loads(pickle.dumps(owner.extract_tensor_transport_metadata("o", tensors).__dict__))
        metadata = module.Metadata(**metadata)
        got = reader.recv_multiple_tensors("o", metadata, None)
        assert all(torch.equal(one, tensor) for one, tensor in zip(got, tensors, strict=True))
        assert got[-1].stride() == tensors[-1].stride()  # it came as one range
        buffers = [buffer_like(tensor, random) for tensor in tensors]
        reader.recv_multiple_tensors("o", metadata, None, [part for _, part in buffers])
        for (whole, part), tensor in zip(buffers, tensors, strict=True):
            assert torch.equal(part, tensor)
            part.zero_()
            assert not whole.any()  # nothing between the elements was written
        with pytest.raises(ValueError, match="share memory"):
            reader.recv_multiple_tensors("o", metadata, None, [torch.zeros(1, dtype=t.dtype).expand(t.shape) for t in tensors])
        owner.garbage_collect("o", metadata, tensors)
    finally:
        owner.endpoint().close()
        reader.endpoint().close()


def test_too_many_runs(module):
    owner = module.TensorTransport()
    try:
        with pytest.raises(ValueError, match="more than 1048576 runs of 1 bytes"):
            owner.extract_tensor_transport_metadata("o", [torch.zeros(1 << 21, 2, dtype=torch.int8)[:, 0]])
        turned = torch.zeros(2, 1 << 21, dtype=torch.int8).t()
        assert owner.extract_tensor_transport_metadata("o", [turned]).strides == [(1, 1 << 21)]
        owner.garbage_collect("o", None, [])
    finally:
        owner.endpoint().close()
