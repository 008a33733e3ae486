# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""Ray's direct transport of tensors by uccl.p2p: what a method returns stays in its actor's memory, and an actor that
is given the reference reads it from there.

    from uccl import ray as uccl_ray

    uccl_ray.register()                             # before the first method that names it

    @ray.remote
    class Source:
        @ray.method(tensor_transport="UCCL")
        def weights(self) -> torch.Tensor: ...

Needs a Ray that takes transports of others (2.60 was tried) and this package where the actors run. An endpoint has
the options of its environment (``UCCL_P2P_*``). Tensors are on the host or on GPUs. One that is not contiguous is read
as its runs; one that fills its memory in another order arrives in that order, unless buffers ask for another.
"""

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from ray.experimental import register_tensor_transport
from ray.experimental.rdt.tensor_transport_manager import (
    CommunicatorMetadata,
    FetchRequest,
    TensorTransportManager,
    TensorTransportMetadata,
)

from uccl import _p2p, p2p

NAME = "UCCL"

# Threads for an actor's transfers: the engine has its own number of them if this is 0.
_THREADS = 0
# What one transfer is given as a list, of each tensor.
_MOST_RUNS = 1 << 20


def register() -> None:
    """Makes the transport known to Ray, as ``tensor_transport="UCCL"``; again, nothing changes."""
    try:
        register_tensor_transport(NAME, ["cpu", "cuda"], TensorTransport, torch.Tensor)
    except ValueError as error:
        if "already registered" not in str(error):
            raise


@dataclass
class Metadata(TensorTransportMetadata):
    """Where the tensors of an object lie: the owner's endpoint, and of each the description of its memory and strides."""

    endpoint: bytes = b""
    descriptions: bytes = b""
    strides: list[tuple[int, ...]] = field(default_factory=list)  # of tensors that have elements


@dataclass
class Fetch(FetchRequest):
    """Tensors on their way here; the transfer ends, and their memory is free, before it does."""

    transfer: int = 0
    endpoint: Any = None
    regions: list[Any] = field(default_factory=list)

    def close(self) -> None:
        regions, self.regions = self.regions, []
        if not regions:
            return
        self.endpoint.cancel(self.transfer)  # one that is done stays as it is
        self.endpoint.deregister_memory(regions)

    def __del__(self) -> None:
        self.close()


class TensorTransport(TensorTransportManager):
    """What Ray calls, in each actor and in the driver. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._endpoint: p2p.Endpoint | None = None
        self._regions: dict[str, list[Any]] = {}  # of this process's objects

    def endpoint(self) -> p2p.Endpoint:
        """This process's, made when it is first needed."""
        with self._lock:
            if self._endpoint is None:
                gpu = torch.cuda.current_device() if torch.cuda.is_available() else 0
                self._endpoint = p2p.Endpoint(gpu, _THREADS)
                self._endpoint.start_passive_accept()
            return self._endpoint

    @property
    def tensor_transport_backend(self) -> str:
        return NAME

    @staticmethod
    def is_one_sided() -> bool:
        return True

    @staticmethod
    def can_abort_transport() -> bool:
        """True: transfers end by themselves when a peer does."""
        return True

    def actor_has_tensor_transport(self, actor: Any) -> bool:
        return True

    def extract_tensor_transport_metadata(self, obj_id: str, rdt_object: Sequence[torch.Tensor]) -> Metadata:
        tensors = list(rdt_object)
        devices = {tensor.device for tensor in tensors}
        if len({device.type for device in devices}) > 1:
            raise ValueError(f"object {obj_id}: its tensors lie on {sorted(map(str, devices))}: Ray asks for one kind")
        for device in devices:
            if device.type == "cuda":
                torch.cuda.current_stream(device).synchronize()  # who reads does not know of this stream
        endpoint = self.endpoint()
        some = [tensor for tensor in tensors if tensor.numel()]
        for tensor in some:
            if not _is_dense(tensor.shape, tensor.stride()):
                _p2p._range_of(tensor, f"object {obj_id}", False)  # ValueError for more runs than one transfer takes
        described = _register(endpoint, some)
        with self._lock:
            self._regions[obj_id] = described
        return Metadata(
            tensor_meta=[(tensor.shape, tensor.dtype) for tensor in tensors],
            tensor_device=tensors[0].device.type if tensors else None,
            endpoint=endpoint.get_metadata(),
            descriptions=endpoint.get_serialized_descs(described),
            strides=[tuple(tensor.stride()) for tensor in some],
        )

    def get_communicator_metadata(
        self, src_actor: Any, dst_actor: Any, backend: str | None = None
    ) -> CommunicatorMetadata:
        return CommunicatorMetadata()

    def fetch_multiple_tensors(
        self,
        obj_id: str,
        tensor_transport_metadata: Metadata,
        communicator_metadata: CommunicatorMetadata,
        target_buffers: Sequence[torch.Tensor] | None = None,
    ) -> Fetch:
        device = tensor_transport_metadata.tensor_device
        wanted = tensor_transport_metadata.tensor_meta
        if target_buffers is None:
            strides = iter(tensor_transport_metadata.strides)
            tensors = [
                _like(shape, next(strides), dtype, device)
                if math.prod(shape)
                else torch.empty(shape, dtype=dtype, device=device)
                for shape, dtype in wanted
            ]
        else:
            tensors = list(target_buffers)
            if [(tensor.shape, tensor.dtype) for tensor in tensors] != wanted:
                raise ValueError(f"object {obj_id}: the buffers are not of its tensors' shapes and types, {wanted}")
        filled = [tensor for tensor in tensors if tensor.numel()]
        if not filled:
            return Fetch(obj_id, tensors)
        pieces = [
            _pieces(tensor, strides)
            for tensor, strides in zip(filled, tensor_transport_metadata.strides, strict=True)
        ]
        endpoint = self.endpoint()
        ok, connection = endpoint.add_remote_endpoint(tensor_transport_metadata.endpoint)
        if not ok:
            raise RuntimeError(f"object {obj_id}: its owner cannot be reached: {p2p.last_error()}")
        remote = endpoint.deserialize_descs(tensor_transport_metadata.descriptions)
        local = _register(endpoint, filled)
        ok, transfer = _read(endpoint, connection, pieces, local, remote)
        if not ok:
            why = p2p.last_error()
            endpoint.deregister_memory(local)
            raise RuntimeError(f"object {obj_id}: its tensors cannot be read: {why}")
        return Fetch(obj_id, tensors, transfer, endpoint, local)

    def wait_fetch_complete(self, fetch_request: Fetch, timeout: float = -1) -> list[torch.Tensor]:
        if fetch_request.regions:
            try:
                fetch_request.endpoint.wait(fetch_request.transfer, None if timeout < 0 else timeout)
            except p2p.TimedOut as error:
                raise TimeoutError(f"object {fetch_request.obj_id}: {error}") from error
            fetch_request.close()
        tensors: list[torch.Tensor] = fetch_request.tensors
        return tensors

    def recv_multiple_tensors(
        self,
        obj_id: str,
        tensor_transport_metadata: Metadata,
        communicator_metadata: CommunicatorMetadata,
        target_buffers: Sequence[torch.Tensor] | None = None,
    ) -> list[torch.Tensor]:
        fetch = self.fetch_multiple_tensors(obj_id, tensor_transport_metadata, communicator_metadata, target_buffers)
        return self.wait_fetch_complete(fetch)

    def send_multiple_tensors(
        self,
        tensors: Sequence[torch.Tensor],
        tensor_transport_metadata: Metadata,
        communicator_metadata: CommunicatorMetadata,
    ) -> None:
        raise NotImplementedError("the receiver reads; nobody sends")

    def garbage_collect(self, obj_id: str, tensor_transport_meta: Metadata, tensors: Sequence[torch.Tensor]) -> None:
        with self._lock:
            regions = self._regions.pop(obj_id, [])
        if regions and not self.endpoint().deregister_memory(regions):
            raise RuntimeError(f"object {obj_id}: its memory cannot be given back yet: {p2p.last_error()}")

    def abort_transport(self, obj_id: str, communicator_metadata: CommunicatorMetadata) -> None:
        """Nothing to do: a read ends with its error, and its memory is free then."""


def _register(endpoint: p2p.Endpoint, tensors: list[torch.Tensor]) -> list[Any]:
    described = endpoint.register_memory([_Range(*_p2p._range_of(tensor, "register", None)) for tensor in tensors])
    if any(not one.lkeys for one in described):
        why = p2p.last_error()
        endpoint.deregister_memory([one for one in described if one.lkeys])
        raise RuntimeError(f"register a tensor's memory: {why}")
    return described


@dataclass
class _Range:
    """Memory as register_memory takes it."""

    address: int
    size: int

    def data_ptr(self) -> int:
        return self.address

    def numel(self) -> int:
        return self.size

    def element_size(self) -> int:
        return 1


def _is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether elements fill a range of memory, in whichever order."""
    packed = 1
    for stride, extent in sorted((stride, extent) for stride, extent in zip(strides, shape, strict=True) if extent != 1):
        if stride != packed:
            return False
        packed *= extent
    return True


def _like(shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype, device: str | None) -> torch.Tensor:
    if _is_dense(shape, strides):
        return torch.empty_strided(tuple(shape), tuple(strides), dtype=dtype, device=device)
    return torch.empty(shape, dtype=dtype, device=device)


def _runs(shape: Sequence[int], strides: Sequence[int], item: int) -> tuple[Any, int]:
    """The bytes of the stretches that lie in the order of the indices, and where each begins."""
    run, starts = item, np.zeros(1, np.int64)
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent == 1:
            continue
        if starts.size == 1 and stride * item == run:
            run *= extent
            continue
        if starts.size * extent > _MOST_RUNS:
            raise ValueError(f"a tensor of shape {tuple(shape)} and strides {tuple(strides)} is more than {_MOST_RUNS} runs")
        starts = (np.arange(extent, dtype=np.int64)[:, None] * (stride * item) + starts).reshape(-1)
    return starts, run


def _pieces(tensor: torch.Tensor, strides: Sequence[int]) -> tuple[Any, Any, Any]:
    """What lies together here and at the owner: where it begins in the range here, in the range there, and bytes."""
    item = tensor.element_size()
    total = tensor.numel() * item
    if _is_dense(tensor.shape, strides) and tuple(tensor.stride()) == tuple(strides):
        return np.zeros(1, np.int64), np.zeros(1, np.int64), np.full(1, total, np.int64)
    _p2p._range_of(tensor, "read", True)  # ValueError for what cannot be filled
    here, run_here = _runs(tensor.shape, tensor.stride(), item)
    there, run_there = _runs(tensor.shape, strides, item)
    begin = np.union1d(np.arange(0, total, run_here), np.arange(0, total, run_there))
    return (
        here[begin // run_here] + begin % run_here,
        there[begin // run_there] + begin % run_there,
        np.diff(begin, append=total),
    )


def _read(
    endpoint: p2p.Endpoint, connection: int, pieces: list[tuple[Any, Any, Any]], local: list[Any], remote: list[Any]
) -> tuple[bool, int]:
    """Starts to read the pieces of each tensor, as one list."""
    counts = [sizes.size for _, _, sizes in pieces]
    blobs = []
    for (_, there, sizes), desc in zip(pieces, remote, strict=True):
        blob = np.tile(np.array(desc.lkeys, "<u4").view(np.uint8), (sizes.size, 1))
        blob[:, :8] = (there + desc.addr).astype("<u8").view(np.uint8).reshape(-1, 8)
        blobs.append(blob)
    return endpoint.readv_async(
        connection,
        np.repeat(np.array([desc.mr_id for desc in local], np.uint64), counts),
        np.concatenate([here + desc.addr for (here, _, _), desc in zip(pieces, local, strict=True)]).astype(np.uint64),
        np.concatenate([sizes for _, _, sizes in pieces]).astype(np.uint64),
        np.concatenate(blobs),
    )
