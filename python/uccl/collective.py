# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""Tensor sends and receives by rank, over the engine, for programs that run under torch.distributed.

Every pair of ranks shares one connection: ranks on one host (one address in their metadata) connect
locally, the others over the network. The process group is used once, to exchange metadata.
"""

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
import torch.distributed as dist

from uccl import p2p

_CONNECT_SECONDS = 60.0


@dataclass(frozen=True)
class _Member:
    """What the metadata says about a rank."""

    address: str
    port: int
    gpu: int | str


@dataclass
class _Registration:
    mr_id: int
    size: int


def _default_gpu_index() -> int:
    if "LOCAL_RANK" in os.environ:
        return int(os.environ["LOCAL_RANK"])
    if hasattr(dist, "get_local_rank"):
        try:
            return int(dist.get_local_rank())
        except (RuntimeError, ValueError):
            pass
    local_size = int(os.environ.get("LOCAL_WORLD_SIZE", "0"))
    return dist.get_rank() % local_size if local_size > 0 else dist.get_rank()


class CollectiveContext:
    """The connections of this rank to all others.

    ``torch.distributed`` must be initialised, with a group that can gather CPU tensors (gloo); RuntimeError
    otherwise. The GPU index defaults to LOCAL_RANK, else the rank among the host's. Call ``init()`` on every
    rank before anything else.
    """

    def __init__(self, num_cpus: int = 4, local_gpu_idx: int | None = None) -> None:
        if not dist.is_available() or not dist.is_initialized():
            raise RuntimeError("CollectiveContext needs torch.distributed to be initialised")
        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()
        self.num_cpus = num_cpus
        self.local_gpu_idx = _default_gpu_index() if local_gpu_idx is None else local_gpu_idx
        self.ep: p2p.Endpoint | None = None
        self._connections: dict[int, int] = {}
        self._registered: dict[int, _Registration] = {}

    def init(self) -> None:
        """Makes the endpoint and connects to every rank. Raises RuntimeError if one cannot be reached."""
        if self.ep is not None:
            return
        self.ep = p2p.Endpoint(self.local_gpu_idx, self.num_cpus)
        try:
            self._connect_all(self._exchange_metadata())
        except BaseException:
            self.finalize()
            raise

    def _exchange_metadata(self) -> list[_Member]:
        metadata = self._endpoint().get_metadata()
        mine = torch.tensor(list(metadata), dtype=torch.uint8)
        gathered = [torch.empty_like(mine) for _ in range(self.world_size)]
        group = dist.group.WORLD
        if "gloo" not in str(dist.get_backend(group)):
            group = dist.new_group(backend="gloo")
        dist.all_gather(gathered, mine, group=group)
        return [_Member(*p2p.Endpoint.parse_metadata(bytes(item.tolist()))) for item in gathered]

    def _connect_all(self, members: list[_Member]) -> None:
        """The lower rank of a pair connects; either side of a connection can then send and receive."""
        lower = range(self.rank)
        higher = range(self.rank + 1, self.world_size)
        with ThreadPoolExecutor(max_workers=max(1, self.world_size)) as pool:
            dialled = {rank: pool.submit(self._dial, members[rank], members) for rank in higher}
            accepted = [pool.submit(self._accept, members, members[rank]) for rank in lower]
            for rank, future in dialled.items():
                self._connections[rank] = future.result()
            for future in accepted:
                rank, connection = future.result()
                self._connections[rank] = connection
        for rank, connection in self._connections.items():
            self._endpoint()._set_rank(rank, connection)

    def _dial(self, peer: _Member, members: list[_Member]) -> int:
        endpoint = self._endpoint()
        if peer.address == members[self.rank].address:
            ok, connection = endpoint.connect_local(peer.gpu, peer.port)
        else:
            ok, connection = endpoint.connect(peer.address, peer.gpu, peer.port)
        if not ok:
            raise RuntimeError(f"rank {self.rank}: {p2p.last_error()}")
        return connection

    def _accept(self, members: list[_Member], expected: _Member) -> tuple[int, int]:
        """Any lower rank of the expected one's kind: they come in any order."""
        endpoint = self._endpoint()
        if expected.address == members[self.rank].address:
            accepted = endpoint.accept_local(timeout=_CONNECT_SECONDS)
        else:
            accepted = endpoint.accept(timeout=_CONNECT_SECONDS)
        if not accepted[0]:
            raise RuntimeError(f"rank {self.rank}: {p2p.last_error()}")
        connection = accepted[-1]
        peer = endpoint.peer(connection)
        for rank, member in enumerate(members):
            if (member.address, member.port) == (peer["address"], peer["port"]):
                return rank, connection
        raise RuntimeError(f"rank {self.rank}: {peer['address']}:{peer['port']} is not one of the ranks")

    def _endpoint(self) -> p2p.Endpoint:
        if self.ep is None:
            raise RuntimeError("CollectiveContext is not initialised: call init()")
        return self.ep

    def _connection(self, rank: int) -> int:
        self._endpoint()
        if rank not in self._connections:
            raise ValueError(f"no connection to rank {rank}")
        return self._connections[rank]

    def register_tensor(self, tensor: torch.Tensor) -> None:
        """Registers a contiguous tensor's memory; the same memory again costs nothing."""
        self._registration(tensor)

    def _registration(self, tensor: torch.Tensor) -> tuple[int, int, int]:
        """The region, address and bytes of a tensor."""
        if not tensor.is_contiguous():
            raise ValueError("the tensor is not contiguous")
        pointer = tensor.data_ptr()
        size = tensor.numel() * tensor.element_size()
        known = self._registered.get(pointer)
        if known is None or known.size < size:
            ok, mr_id = self._endpoint().reg(pointer, size)
            if not ok:
                raise RuntimeError(f"register a tensor of {size} bytes: {p2p.last_error()}")
            if known is not None:
                self._endpoint().dereg(known.mr_id)
            known = self._registered[pointer] = _Registration(mr_id, size)
        return known.mr_id, pointer, size

    def deregister_tensor(self, tensor: torch.Tensor) -> None:
        """Ends the registration of a tensor's memory, if there is one."""
        known = self._registered.pop(tensor.data_ptr(), None)
        if known is not None:
            self._endpoint().dereg(known.mr_id)

    def send(self, tensor: torch.Tensor, dst: int) -> None:
        """Sends a contiguous tensor and waits; nothing happens for the own rank. Raises p2p.Error."""
        self.wait(self.isend(tensor, dst))

    def recv(self, tensor: torch.Tensor, src: int) -> None:
        """Receives into a contiguous tensor and waits; nothing happens for the own rank. Raises p2p.Error."""
        self.wait(self.irecv(tensor, src))

    def isend(self, tensor: torch.Tensor, dst: int) -> int:
        """Starts a send and returns its transfer id; -1 for the own rank."""
        if dst == self.rank:
            return -1
        return self._started(self._endpoint().send_async(self._connection(dst), *self._registration(tensor)))

    def irecv(self, tensor: torch.Tensor, src: int) -> int:
        """Starts a receive and returns its transfer id; -1 for the own rank."""
        if src == self.rank:
            return -1
        return self._started(self._endpoint().recv_async(self._connection(src), *self._registration(tensor)))

    def _started(self, result: tuple[bool, int]) -> int:
        if not result[0]:
            raise RuntimeError(p2p.last_error())
        return result[1]

    def wait(self, transfer_id: int) -> None:
        """Waits until a transfer is done. Raises p2p.Error if it failed."""
        if transfer_id != -1:
            self._endpoint().wait(transfer_id)

    def test(self, transfer_id: int) -> bool:
        """Whether a transfer is done. Raises p2p.Error if it failed."""
        if transfer_id == -1:
            return True
        _, done = self._endpoint().poll_async(transfer_id)
        if done:
            self._endpoint().wait(transfer_id)
        return done

    def wait_all(self, transfer_ids: Iterable[int]) -> None:
        """Waits for all of them, then raises the first error."""
        errors = []
        for transfer_id in transfer_ids:
            try:
                self.wait(transfer_id)
            except p2p.Error as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def finalize(self) -> None:
        """Closes every connection. The context can be initialised again."""
        endpoint, self.ep = self.ep, None
        self._connections.clear()
        self._registered.clear()
        if endpoint is not None:
            endpoint.close()

    def __enter__(self) -> "CollectiveContext":
        self.init()
        return self

    def __exit__(self, *_: object) -> None:
        self.finalize()


_context: CollectiveContext | None = None


def init_collective(num_cpus: int = 4, local_gpu_idx: int | None = None) -> CollectiveContext:
    """Makes and initialises the context that the functions of this module use."""
    global _context
    if _context is not None:
        finalize_collective()
    context = CollectiveContext(num_cpus, local_gpu_idx)
    context.init()
    _context = context
    return context


def get_collective() -> CollectiveContext:
    """The context of init_collective(); RuntimeError without one."""
    if _context is None:
        raise RuntimeError("call init_collective() first")
    return _context


def send(tensor: torch.Tensor, dst: int) -> None:
    """CollectiveContext.send of the module's context."""
    get_collective().send(tensor, dst)


def recv(tensor: torch.Tensor, src: int) -> None:
    """CollectiveContext.recv of the module's context."""
    get_collective().recv(tensor, src)


def isend(tensor: torch.Tensor, dst: int) -> int:
    """CollectiveContext.isend of the module's context."""
    return get_collective().isend(tensor, dst)


def irecv(tensor: torch.Tensor, src: int) -> int:
    """CollectiveContext.irecv of the module's context."""
    return get_collective().irecv(tensor, src)


def wait(transfer_id: int) -> None:
    """CollectiveContext.wait of the module's context."""
    get_collective().wait(transfer_id)


def wait_all(transfer_ids: Iterable[int]) -> None:
    """CollectiveContext.wait_all of the module's context."""
    get_collective().wait_all(transfer_ids)


def test(transfer_id: int) -> bool:
    """CollectiveContext.test of the module's context."""
    return get_collective().test(transfer_id)


test.__test__ = False  # type: ignore[attr-defined]  # not a case for pytest


def register_tensor(tensor: torch.Tensor) -> None:
    """CollectiveContext.register_tensor of the module's context."""
    get_collective().register_tensor(tensor)


def deregister_tensor(tensor: torch.Tensor) -> None:
    """CollectiveContext.deregister_tensor of the module's context."""
    get_collective().deregister_tensor(tensor)


def finalize_collective() -> None:
    """Closes the module's context, if there is one."""
    global _context
    context, _context = _context, None
    if context is not None:
        context.finalize()
