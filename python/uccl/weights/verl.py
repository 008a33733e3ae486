# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""verl's checkpoint engine "uccl": the actor's weights into the workers of its rollout replicas.

    actor_rollout_ref.rollout.checkpoint_engine.backend=uccl
    actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module=uccl.weights.verl

Endpoints have the options of their environment (``UCCL_P2P_*``). verl 0.9.1 was tried.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import torch
from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry
from verl.utils.device import get_device_id, get_device_name, get_torch_device
from verl.workers.rollout.utils import ensure_async_iterator

from uccl.weights import Publisher, Subscriber
from uccl.weights._tensors import dtype_of

# A batch is two versions: names, types and shapes as JSON filled up to this size, which no receiver has to be told;
# and the tensors.
_LISTING = 64 << 10

_Listed = tuple[str, str, list[int]]


@CheckpointEngineRegistry.register("uccl")
class UcclCheckpointEngine(CheckpointEngine):
    """A worker's side, of the actor or of a rollout. verl calls it from one thread.

    ``bucket_size``: how many bytes of tensors go at a time; actor rank 0 and each receiver have host memory for two
    such batches. ``timeout``: seconds for a batch, on either side. ``device``: where receivers yield tensors; by
    default their accelerator, or the host where there is none.
    """

    def __init__(self, bucket_size: int, is_master: bool = False, timeout: float = 600.0, device: str | None = None) -> None:
        self._bucket_size = bucket_size
        self._timeout = timeout
        self._publisher = Publisher() if is_master else None
        self._subscriber: Subscriber | None = None
        self._receiving = False
        if device is not None:
            self._device = torch.device(device)
        elif get_torch_device().is_available():
            self._device = torch.device(get_device_name(), get_device_id())
        else:
            self._device = torch.device("cpu")
        self._place = ""
        self._receivers = 0
        self._version = 0  # of actor rank 0: the last one; of receivers: what it was before this update

    def prepare(self) -> dict[str, Any] | None:
        return None if self._publisher is None else {"place": self._publisher.place, "version": self._version}

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[dict[str, Any] | None]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        def told(ranks: list[int]) -> dict[str, list[Any]]:
            count = len(ranks)
            return {"rank": ranks, "receivers": [rollout_world_size] * count, "master": [metadata[0]] * count}

        actors = [0] + [-1] * (actor_wg_world_size - 1)
        return told(actors), told(list(range(1, rollout_world_size + 1)))

    def init_process_group(self, rank: int, receivers: int, master: dict[str, Any]) -> None:
        """``rank``: 0 sends, -1 has no part in it, others receive."""
        self._receivers = receivers
        self._version = int(master["version"])
        if self._receiving or self._place != master["place"]:
            self._leave()  # ends an update that failed elsewhere
        if rank > 0 and self._subscriber is None:
            self._place = str(master["place"])
            self._subscriber = Subscriber(self._place, {})

    def finalize(self) -> None:
        """Frees the memory of the last batch. Endpoints and connections stay for the next update."""
        if self._subscriber is not None:
            self._subscriber.receive_into({})

    @torch.no_grad()
    async def send_weights(self, weights: Any, global_steps: int | None = None) -> None:
        """Returns when all receivers have all of it. TimeoutError: one has not taken a batch in time."""
        if self._publisher is None:
            async for _ in ensure_async_iterator(weights):  # all ranks gather them together
                pass
            return
        offered: list[int] = []
        try:
            async for batch, last in self._batches(weights):
                await self._wait_taken(self._publisher, offered)
                await asyncio.to_thread(self._offer, self._publisher, batch, last, offered)
            await self._wait_taken(self._publisher, offered)
        finally:
            for version in offered:
                self._publisher.withdraw(version)

    @torch.no_grad()
    async def receive_weights(self, global_steps: int | None = None) -> AsyncGenerator[tuple[str, torch.Tensor], None]:
        """Yields each tensor when its batch has come, while the next one comes. TimeoutError, PeerGone: the actor is
        gone, or slow; ValueError: what it has announced is no list of tensors."""
        subscriber, version = self._subscriber, self._version
        if subscriber is None:
            raise RuntimeError("weights were asked for before init_process_group said who sends them")

        def following() -> asyncio.Task[tuple[dict[str, torch.Tensor], bool]]:
            return asyncio.create_task(asyncio.to_thread(self._receive, subscriber, version))

        coming = following()
        self._receiving = True
        try:
            last = False
            while not last:
                tensors, last = await coming
                version += 2
                if not last:
                    coming = following()
                for name, tensor in tensors.items():
                    yield name, tensor.to(self._device)
        except BaseException:
            coming.cancel()
            subscriber.close()  # ends what is under way
            if subscriber is self._subscriber:
                self._leave()
            raise
        self._receiving = False

    async def _batches(self, weights: Any) -> AsyncIterator[tuple[dict[str, torch.Tensor], bool]]:
        """Copies on the host, and whether they are the last ones: the actor may use a tensor's memory for the next."""
        batch: dict[str, torch.Tensor] = {}
        size = listing = 0
        seen: set[str] = set()
        async for name, tensor in ensure_async_iterator(weights):
            if name in seen:
                raise ValueError(f"the actor gives the tensor '{name}' twice")
            seen.add(name)
            entry = len(_encode({name: tensor}, last=False))
            if entry > _LISTING:
                raise ValueError(f"a tensor's name of {len(name)} characters is too long: {name[:80]}...")
            if batch and (size + tensor.nbytes > self._bucket_size or listing + entry > _LISTING):
                yield batch, False
                batch, size, listing = {}, 0, 0
            batch[name] = tensor.detach().to("cpu", copy=True).contiguous()
            size += tensor.nbytes
            listing += entry
        yield batch, True

    def _offer(self, publisher: Publisher, batch: dict[str, torch.Tensor], last: bool, offered: list[int]) -> None:
        listing = torch.frombuffer(bytearray(_encode(batch, last).ljust(_LISTING)), dtype=torch.uint8)
        for tensors in ({"listing": listing}, batch):
            self._version += 1
            if tensors:
                publisher.publish(self._version, tensors)
                offered.append(self._version)

    async def _wait_taken(self, publisher: Publisher, offered: list[int]) -> None:
        """Until all receivers have what is offered, which then is no more."""
        while offered:
            try:
                await asyncio.to_thread(publisher.wait_copies, offered[-1], self._receivers, self._timeout)
            except TimeoutError as error:
                raise TimeoutError(
                    f"{publisher.copies(offered[-1])} of {self._receivers} receivers have taken a batch of weights "
                    f"within {self._timeout:g} s"
                ) from error
            publisher.withdraw(offered.pop())

    def _receive(self, subscriber: Subscriber, version: int) -> tuple[dict[str, torch.Tensor], bool]:
        """The tensors of the batch after that version, and whether it is the last one."""
        try:
            # Whoever still takes the batch before from this one is done once the next is offered.
            subscriber.wait_version(above=version, timeout=self._timeout)
        except TimeoutError as error:
            raise TimeoutError(f"the actor at {self._place} has offered no weights within {self._timeout:g} s") from error
        listing = torch.zeros(_LISTING, dtype=torch.uint8)
        self._stage(subscriber, version + 1, {"listing": listing})
        listed, last = _decode(listing.numpy().tobytes())
        pinned = self._device.type != "cpu"
        tensors = {
            name: torch.empty(shape, dtype=dtype_of(name, kind), device="cpu", pin_memory=pinned)
            for name, kind, shape in listed
        }
        if tensors:
            self._stage(subscriber, version + 2, tensors)
        return tensors, last

    def _stage(self, subscriber: Subscriber, version: int, tensors: dict[str, torch.Tensor]) -> None:
        subscriber.receive_into(tensors)
        subscriber.stage(version, in_place=True, timeout=self._timeout)
        subscriber.commit()

    def _leave(self) -> None:
        if self._subscriber is not None:
            self._subscriber.close()
        self._subscriber = None
        self._receiving = False


def _encode(batch: dict[str, torch.Tensor], last: bool) -> bytes:
    listed = [(name, str(one.dtype).removeprefix("torch."), list(one.shape)) for name, one in batch.items()]
    return json.dumps({"last": last, "tensors": listed}).encode()


def _decode(text: bytes) -> tuple[list[_Listed], bool]:
    try:
        told = json.loads(text)
        listed = [(str(name), str(kind), [int(extent) for extent in shape]) for name, kind, shape in told["tensors"]]
        return listed, bool(told["last"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise ValueError(f"what the actor has announced is no list of tensors: {text[:80]!r}") from error
