# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""verl's checkpoint engine "uccl": two actor ranks to the workers of rollout replicas, all of them Ray's processes.

verl's own manager, worker groups and rollout worker make the calls; what stands for a model engine and for a server is
here. Every byte of each update is compared, also with a replica that comes later.
"""

import hashlib
import os
import sys
from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace
from typing import Any

import ray
import torch
from verl.checkpoint_engine import CheckpointEngineManager, CheckpointEngineRegistry, CheckpointEngineWorker
from verl.single_controller.base import Worker
from verl.single_controller.base.decorator import Dispatch, register
from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
from verl.workers.config import CheckpointEngineConfig

CONFIG = CheckpointEngineConfig(
    backend="uccl",
    custom_backend_module="uccl.weights.verl",
    update_weights_bucket_megabytes=1,
    engine_kwargs={"uccl": {"timeout": 60.0}},
)
SHAPES: dict[torch.dtype, list[tuple[int, ...]]] = {
    torch.bfloat16: [(1024, 1536), (7, 3), (300, 1000), (300, 1001)],  # the first one is three batches long
    torch.float32: [(1000,), (), (0, 4)],
    torch.float8_e4m3fn: [(33, 65)],
    torch.int64: [(5,)],
}


def weights(step: int) -> Iterator[tuple[str, torch.Tensor]]:
    """All in one memory, as of an actor that gathers one tensor after the other; then more than a listing takes. Of a
    negative step it fails on the way."""
    random = torch.Generator().manual_seed(abs(step))
    memory = torch.empty(4 << 20, dtype=torch.uint8)
    shapes = [(shape, dtype) for dtype, some in SHAPES.items() for shape in some]
    for number, (shape, dtype) in enumerate(shapes + [((2,), torch.bfloat16)] * 1500):
        size = dtype.itemsize * torch.Size(shape).numel()
        memory[:size] = torch.randint(0, 256, (size,), generator=random, dtype=torch.uint8)
        yield f"layers.{number}.weight", memory[:size].view(dtype).view(shape)
        if step < 0 and number == 3:
            raise RuntimeError("the actor fails as it was told")


def digest(name: str, tensor: torch.Tensor) -> tuple[str, str, tuple[int, ...], str]:
    plain = tensor.contiguous().view(-1).view(torch.uint8) if tensor.numel() else torch.empty(0, dtype=torch.uint8)
    return name, str(tensor.dtype), tuple(tensor.shape), hashlib.sha256(plain.numpy().tobytes()).hexdigest()


def expected(step: int) -> list[Any]:
    return [digest(name, tensor) for name, tensor in weights(step)]


class Actor(Worker):
    """What verl's ActorRolloutRefWorker does with a checkpoint engine."""

    def __init__(self) -> None:
        super().__init__()
        import uccl.weights.verl  # noqa: F401 - custom_backend_module

        self.checkpoint_engine = CheckpointEngineRegistry.new(
            CONFIG.backend, is_master=self.rank == 0, bucket_size=CONFIG.update_weights_bucket_megabytes << 20,
            **CONFIG.engine_kwargs[CONFIG.backend],
        )  # fmt: skip

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
    async def update_weights(self, global_steps: int, mode: str) -> dict[str, Any]:
        return await self.checkpoint_engine.send_weights(weights(global_steps), global_steps=global_steps) or {}

    @register(dispatch_mode=Dispatch.DP_COMPUTE, blocking=False)
    def execute_checkpoint_engine(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.checkpoint_engine, method)(*args, **kwargs)


class Server:
    """Takes weights as a rollout's adapter does, and remembers what came."""

    replica_rank = 0

    async def update_weights(self, weights: AsyncIterator[tuple[str, torch.Tensor]], **kwargs: Any) -> None:
        assert kwargs["wire_format"] == "named_tensors"
        self.got = [digest(name, tensor) async for name, tensor in weights]
        self.step = kwargs["global_steps"]


class Rollout(CheckpointEngineWorker):
    def __init__(self) -> None:
        super().__init__(SimpleNamespace(name="vllm", mode="async", checkpoint_engine=CONFIG), None, Server())

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def differences(self, step: int) -> int:
        """How many tensors are not those of that step; -1 for another step, or another number of them."""
        got, right = self.server_adapter.got, expected(step)
        if self.server_adapter.step != step or len(got) != len(right):
            return -1
        return sum(one != other for one, other in zip(got, right, strict=True))


class Replica:
    """What verl's manager asks of a replica, whose server is none here."""

    def __init__(self, workers: int) -> None:
        self.group = group_of(Rollout, workers)
        self.workers = self.group.workers

    async def abort_all_requests(self, reject_request: bool = False) -> None: ...
    async def resume_generation(self) -> None: ...
    async def release_kv_cache(self) -> None: ...
    async def resume_kv_cache(self) -> None: ...


def group_of(cls: type[Worker], count: int) -> RayWorkerGroup:
    pool = RayResourcePool(process_on_nodes=[count], use_gpu=False, max_colocate_count=1)
    return RayWorkerGroup(resource_pool=pool, ray_cls_with_init=RayClassWithInitArgs(cls=ray.remote(cls)), use_gpu=False)


def update(manager: CheckpointEngineManager, step: int) -> None:
    manager.update_weights(global_steps=step)
    for replica in manager.replicas:
        differ = replica.group.differences(step)
        assert not any(differ), f"step {step}: {differ}"


def main() -> None:
    os.environ["RAY_IGNORE_UNHANDLED_ERRORS"] = "1"  # of the rollouts whose actor fails
    ray.init(num_cpus=8, include_dashboard=False, log_to_driver=True)
    manager = CheckpointEngineManager(CONFIG, group_of(Actor, 2), [Replica(1), Replica(2)])
    for step in (1, 2):
        update(manager, step)
    print("verl's checkpoint engine by uccl: two updates of three workers, every byte compared", flush=True)
    late = Replica(1)
    manager.add_replicas([late])
    update(manager, 3)
    manager.remove_replicas([late])
    try:
        update(manager, -1)
    except RuntimeError as error:
        assert "as it was told" in str(error), error
    else:
        sys.exit("an update whose actor fails succeeded")
    update(manager, 4)
    print("with a replica that came later, and without it again, after an update that failed: every byte compared", flush=True)
    ray.shutdown()


if __name__ == "__main__":
    main()
