# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""Tensor sends and receives by rank, over the engine, for programs that run under torch.distributed.

Every pair of ranks shares one connection: ranks on one host (one address in their metadata) connect
locally, the others over the network. The process group is used once, to exchange metadata.
"""

import itertools
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
import torch.distributed as dist

from uccl import _p2p, p2p, utils
from uccl._errors import from_code

_CONNECT_SECONDS = 60.0


@dataclass(frozen=True)
class _Member:
    """What the metadata says about a rank."""

    address: str
    port: int
    gpu: int | str


@dataclass
class P2POp:
    """One operation of batch_isend_irecv(): "send" or "recv", or the function isend or irecv."""

    op: str | Callable[..., object]
    tensor: torch.Tensor
    peer: int

    def __post_init__(self) -> None:
        name = self.op if isinstance(self.op, str) else getattr(self.op, "__name__", "")
        if name not in ("send", "recv", "isend", "irecv"):
            raise ValueError(f"P2POp: the operation must be 'send' or 'recv', not {self.op!r}")
        self.op = name.removeprefix("i")


def _default_gpu_index() -> int:
    if "LOCAL_RANK" in os.environ:
        return int(os.environ["LOCAL_RANK"])
    local_rank = getattr(dist, "get_local_rank", None)  # of newer releases
    if local_rank is not None:
        try:
            return int(local_rank())
        except (RuntimeError, ValueError):
            pass
    rank = int(dist.get_rank())
    local_size = int(os.environ.get("LOCAL_WORLD_SIZE", "0"))
    return rank % local_size if local_size > 0 else rank


_Operation = P2POp | tuple[str, torch.Tensor, int]


class CollectiveContext:
    """The connections of this rank to all others.

    ``torch.distributed`` must be initialised, with a group that can gather CPU tensors (gloo); RuntimeError
    otherwise. The GPU index defaults to LOCAL_RANK, else the rank among the host's. Call ``init()`` on every
    rank before anything else. ``use_copy_engine_for_intra`` and ``disable_uccl_intra`` chose between libraries
    for the ranks of one host, and ``num_cpus`` said how many threads; here the engine finds the best way for
    all and chooses its threads, and they change nothing.
    """

    def __init__(
        self,
        num_cpus: int = 4,
        local_gpu_idx: int | None = None,
        use_copy_engine_for_intra: bool = False,
        *,
        disable_uccl_intra: bool = False,
    ) -> None:
        if not dist.is_available() or not dist.is_initialized():
            raise RuntimeError("CollectiveContext needs torch.distributed to be initialised")
        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()
        self.num_cpus = num_cpus
        self.local_gpu_idx = _default_gpu_index() if local_gpu_idx is None else local_gpu_idx
        self.use_copy_engine_for_intra = use_copy_engine_for_intra
        self.disable_uccl_intra = disable_uccl_intra
        self.ep: p2p.Endpoint | None = None
        self.memory_regions = utils.ClosedIntervalTree()
        self.local_connections: list[bool] | None = None  # by rank: whether it is on this host
        self._connections: dict[int, int] = {}
        self._moving: dict[int, torch.Tensor] = {}  # kept: the engine knows their addresses only
        self._failed: dict[int, p2p.Error] = {}  # transfers that failed as they were started
        self._failures = itertools.count()

    @property
    def initialized(self) -> bool:
        """Whether init() is through."""
        return self.ep is not None and len(self._connections) == self.world_size - 1

    @property
    def send_connections(self) -> list[int | None] | None:
        """By rank the connection to it, None for this rank; None before init()."""
        if not self.initialized:
            return None
        return [self._connections.get(rank) for rank in range(self.world_size)]

    @property
    def recv_connections(self) -> list[int | None] | None:
        """The same: a connection goes both ways."""
        return self.send_connections

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
        here = members[self.rank].address
        self.local_connections = [
            rank != self.rank and member.address == here for rank, member in enumerate(members)
        ]
        lower = range(self.rank)
        higher = range(self.rank + 1, self.world_size)
        with ThreadPoolExecutor(max_workers=max(1, self.world_size)) as pool:
            dialled = {rank: pool.submit(self._dial, members[rank], members) for rank in higher}
            accepted = [pool.submit(self._accept, members, members[rank]) for rank in lower]
            for rank, future in dialled.items():
                self._connections[rank] = future.result()
            for arrival in accepted:
                rank, connection = arrival.result()
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
            ok, _, connection = endpoint.accept_local(timeout=_CONNECT_SECONDS)
        else:
            ok, _, _, connection = endpoint.accept(timeout=_CONNECT_SECONDS)
        if not ok:
            raise RuntimeError(f"rank {self.rank}: {p2p.last_error()}")
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

    def register_tensor(self, tensor: torch.Tensor) -> int:
        """Registers a tensor's memory and returns the region; registered memory costs nothing."""
        return self._registration(tensor, None)

    def check_tensor_registered(self, tensor: torch.Tensor) -> int | None:
        """The region that a tensor's memory lies in; None if it is not registered."""
        self._endpoint()
        return self._region(*self._memory(tensor))

    @staticmethod
    def _memory(tensor: torch.Tensor, op: str | None = None) -> tuple[int, int]:
        """The range that a tensor lies in, gaps and all. ValueError for one that ``op`` cannot move."""
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"a tensor is needed, not {type(tensor).__name__}")
        return _p2p._range_of(tensor, op or "register", None if op is None else op == "recv")

    def _region(self, pointer: int, size: int) -> int | None:
        known = self.memory_regions.query_containing(pointer, pointer + size)
        return int(known[0][2]) if known else None

    def _registration(self, tensor: torch.Tensor, op: str | None) -> int:
        """The region of a tensor."""
        pointer, size = self._memory(tensor, op)
        region = self._region(pointer, size)
        if region is None:
            ok, region = self._endpoint().reg(pointer, size)
            if not ok:
                raise RuntimeError(f"register a tensor of {size} bytes: {p2p.last_error()}")
            self.memory_regions.add(pointer, pointer + size, region)
        return region

    def deregister_tensor(self, tensor: torch.Tensor) -> bool:
        """Ends the registrations of exactly a tensor's memory; whether there was one."""
        pointer, size = self._memory(tensor)
        known = self.memory_regions.query_exact_match(pointer, pointer + size)
        for start, end, region in known:
            self.memory_regions.remove(start, end, region)
            self._endpoint().dereg(region)
        return bool(known)

    @staticmethod
    def float_type_from_tensor(tensor: torch.Tensor) -> p2p.FloatType:
        """The name of a tensor's element type; kUndefined for one that has none. Transfers move bytes."""
        return _FLOAT_TYPES.get(tensor.dtype, p2p.FloatType.kUndefined)

    def send(self, tensor: torch.Tensor, dst: int) -> None:
        """Sends a tensor and waits; nothing happens for the own rank. Raises p2p.Error.

        The elements go in the order of their indices. One that is not contiguous goes as its runs (docs/python.md).
        """
        self.wait(self.isend(tensor, dst))

    def recv(self, tensor: torch.Tensor, src: int) -> None:
        """Receives into a tensor and waits; nothing happens for the own rank. Raises p2p.Error."""
        self.wait(self.irecv(tensor, src))

    def isend(self, tensor: torch.Tensor, dst: int) -> int:
        """Starts a send and returns its transfer id; -1 for the own rank."""
        return self._start([P2POp("send", tensor, dst)])[0]

    def irecv(self, tensor: torch.Tensor, src: int) -> int:
        """Starts a receive and returns its transfer id; -1 for the own rank."""
        return self._start([P2POp("recv", tensor, src)])[0]

    def _start(self, ops: list[P2POp]) -> list[int]:
        """Starts all or none of them: a peer that got some would meet the next ones with the wrong calls."""
        others = [one for one in ops if one.peer != self.rank]
        connections = [self._connection(one.peer) for one in others]
        regions = [self._registration(one.tensor, str(one.op)) for one in others]
        started = iter([self._begin(*each) for each in zip(others, connections, regions, strict=True)])
        return [-1 if one.peer == self.rank else next(started) for one in ops]

    def _begin(self, one: P2POp, connection: int, region: int) -> int:
        """What fails here fails for wait(): the message was there already and is too long, or the peer is gone."""
        begin = self._endpoint().send_async if one.op == "send" else self._endpoint().recv_async
        ok, transfer_id = begin(connection, region, one.tensor)
        if not ok:
            transfer_id = -2 - next(self._failures)
            self._failed[transfer_id] = from_code(*_p2p._last_failure())
        else:
            self._moving[transfer_id] = one.tensor
        return transfer_id

    def wait(self, transfer_id: int) -> None:
        """Waits until a transfer is done. Raises p2p.Error if it failed."""
        if transfer_id < -1:
            raise self._failed.pop(transfer_id, p2p.NotFound(f"the failure of transfer {transfer_id} was told already"))
        if transfer_id != -1:
            try:
                self._endpoint().wait(transfer_id)
            except p2p.Error:
                self._moving.pop(transfer_id, None)
                raise
            self._moving.pop(transfer_id, None)

    def test(self, transfer_id: int) -> bool:
        """Whether a transfer is done. Raises p2p.Error if it failed."""
        if transfer_id < 0:
            self.wait(transfer_id)
            return True
        _, done = self._endpoint().poll_async(transfer_id)
        if done:
            self.wait(transfer_id)
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

    P2POp = P2POp  # as ctx.P2POp(...), too

    def batch_isend_irecv(self, ops: Iterable[_Operation]) -> list[int]:
        """Starts them all and returns the transfer ids; those with the own rank are left out.

        Where one of them is wrong, none is started.
        """
        whole = [P2POp(*one) if isinstance(one, tuple) else P2POp(one.op, one.tensor, one.peer) for one in ops]
        return self._start([one for one in whole if one.peer != self.rank])

    def allgather(self, send_tensor: torch.Tensor, recv_tensor: torch.Tensor) -> None:
        """Every rank's tensor into everyone's ``recv_tensor``, by rank, and waits."""
        self.wait_all(self.iallgather(send_tensor, recv_tensor))

    def iallgather(self, send_tensor: torch.Tensor, recv_tensor: torch.Tensor) -> list[int]:
        """Starts an allgather() and returns the transfer ids. ValueError if ``recv_tensor`` is too small."""
        self._memory(send_tensor, "send")
        self._memory(recv_tensor, "recv")
        if not recv_tensor.is_contiguous():
            raise ValueError("recv_tensor is not contiguous: it is filled rank after rank")
        count = send_tensor.numel()
        whole = count * self.world_size
        if recv_tensor.dtype != send_tensor.dtype or recv_tensor.numel() < whole:
            raise ValueError(f"recv_tensor must have {whole} elements of {send_tensor.dtype}")
        self._registration(recv_tensor, "recv")  # once, not for each part
        parts = recv_tensor.view(-1)[:whole].view(self.world_size, count)
        parts[self.rank].copy_(send_tensor.reshape(-1))
        if recv_tensor.is_cuda:
            torch.cuda.current_stream(recv_tensor.device).synchronize()
        others = [rank for rank in range(self.world_size) if rank != self.rank]
        ops = [P2POp("recv", parts[rank], rank) for rank in others]
        ops += [P2POp("send", send_tensor, rank) for rank in others]
        return self.batch_isend_irecv(ops)

    def finalize(self) -> None:
        """Closes every connection. The context can be initialised again."""
        endpoint, self.ep = self.ep, None
        self._connections.clear()
        self.local_connections = None
        self._moving.clear()
        self._failed.clear()
        self.memory_regions.clear()
        if endpoint is not None:
            endpoint.close()

    def __enter__(self) -> "CollectiveContext":
        self.init()
        return self

    def __exit__(self, *_: object) -> None:
        self.finalize()


_FLOAT_TYPES = {
    torch.float16: p2p.FloatType.kFloat16,
    torch.bfloat16: p2p.FloatType.kBFloat16,
    torch.float32: p2p.FloatType.kFloat32,
}

_context: CollectiveContext | None = None


def init_collective(
    num_cpus: int = 4,
    local_gpu_idx: int | None = None,
    use_copy_engine_for_intra: bool = False,
    *,
    disable_uccl_intra: bool = False,
) -> CollectiveContext:
    """Makes and initialises the context that the functions of this module use."""
    global _context
    if _context is not None:
        finalize_collective()
    context = CollectiveContext(
        num_cpus, local_gpu_idx, use_copy_engine_for_intra, disable_uccl_intra=disable_uccl_intra
    )
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


def register_tensor(tensor: torch.Tensor) -> int:
    """CollectiveContext.register_tensor of the module's context."""
    return get_collective().register_tensor(tensor)


def deregister_tensor(tensor: torch.Tensor) -> bool:
    """CollectiveContext.deregister_tensor of the module's context."""
    return get_collective().deregister_tensor(tensor)


def check_tensor_registered(tensor: torch.Tensor) -> int | None:
    """CollectiveContext.check_tensor_registered of the module's context."""
    return get_collective().check_tensor_registered(tensor)


def batch_isend_irecv(ops: Iterable[_Operation]) -> list[int]:
    """CollectiveContext.batch_isend_irecv of the module's context."""
    return get_collective().batch_isend_irecv(ops)


def allgather(send_tensor: torch.Tensor, recv_tensor: torch.Tensor) -> None:
    """CollectiveContext.allgather of the module's context."""
    get_collective().allgather(send_tensor, recv_tensor)


def iallgather(send_tensor: torch.Tensor, recv_tensor: torch.Tensor) -> list[int]:
    """CollectiveContext.iallgather of the module's context."""
    return get_collective().iallgather(send_tensor, recv_tensor)


def finalize_collective() -> None:
    """Closes the module's context, if there is one."""
    global _context
    context, _context = _context, None
    if context is not None:
        context.finalize()
