# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""verl's checkpoint engine `mooncake` in three processes, its TransferEngine uccl.mooncake's: a trainer, and two rollout
workers of which the second gets everything from the first. On host memory.

Needs `mooncake` on the path (`python -m uccl.mooncake install`). verl knows no platform without an accelerator; the one
that it is given here is registered as verl lets plug-ins do it.
"""

import asyncio
import os
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any

import other_process
import torch
from verl.plugin.platform.platform_manager import PlatformBase, PlatformRegistry

ROUTES = ("auto", "tcp")
_BUCKET = 4 << 20  # bytes, of which an engine has two
_SHAPES = [(1000, 7), (1024, 1024), (3,), (512, 4096), (2048, 1024), (1,), (999, 1001)]
_WORLD = 3


def _host_memory_is_enough(cls: type) -> type:
    cls.__abstractmethods__ = frozenset()  # what training asks of a platform is not asked here
    return cls


@PlatformRegistry.register(platform="cpu")
@_host_memory_is_enough
class _Cpu(PlatformBase):
    device_name = vendor_name = "cpu"
    device_module = SimpleNamespace(
        device_count=lambda: 1, set_device=lambda _: None, synchronize=lambda: None, empty_cache=lambda: None
    )

    def is_available(self) -> bool:
        return True


os.environ |= {"VERL_PLATFORM": "cpu", "VERL_LOGGING_LEVEL": "WARNING"}

from verl.checkpoint_engine import CheckpointEngineRegistry, MooncakeCheckpointEngine

from uccl.mooncake import TransferEngine


def weights() -> list[tuple[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [(f"layer.{at}", torch.randn(shape, generator=generator).bfloat16()) for at, shape in enumerate(_SHAPES)]


def engine(route: str, rank: int) -> Any:
    os.environ |= {"UCCL_P2P_TRANSPORT": route, "RANK": str(rank)}
    made = CheckpointEngineRegistry.new("mooncake", bucket_size=_BUCKET, device="cpu", is_master=rank == 0)
    assert isinstance(made, MooncakeCheckpointEngine) and isinstance(made.engine, TransferEngine), made
    return made


async def _receive(made: Any) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() async for name, tensor in made.receive_weights()}


def rollout(trainer: Connection) -> None:
    for route in ROUTES:
        rank = other_process.hear(trainer, route)
        made = engine(route, rank)
        trainer.send(made.prepare())
        made.init_process_group(**other_process.hear(trainer, route))
        for _ in range(2):
            got = asyncio.run(_receive(made))
            assert list(got) == [name for name, _ in weights()]
            for name, tensor in weights():
                assert torch.equal(got[name].view(torch.int16), tensor.view(torch.int16)), f"{route}: {name} differs"
        made.finalize()
        trainer.send("compared")


def main() -> None:
    others = [other_process.start(rollout) for _ in range(_WORLD - 1)]
    for route in ROUTES:
        for rank, (_, pipe) in enumerate(others, 1):
            pipe.send(rank)
        made = engine(route, 0)
        told = [made.prepare(), *(other_process.hear(pipe, route) for _, pipe in others)]
        mine, theirs = made.build_topology(1, _WORLD - 1, told)
        for at, (_, pipe) in enumerate(others):
            pipe.send({name: values[at] for name, values in theirs.items()})
        made.init_process_group(**{name: values[0] for name, values in mine.items()})
        for _ in range(2):
            asyncio.run(made.send_weights(iter(weights())))
        for _, pipe in others:
            assert other_process.hear(pipe, route) == "compared"
        made.finalize()
        size = sum(tensor.nbytes for _, tensor in weights())
        print(f"verl's mooncake engine, route {route}: {size} bytes twice to two rollouts in a chain, compared", flush=True)
    for process, _ in others:
        process.join(30)
        assert process.exitcode == 0, process.exitcode


if __name__ == "__main__":
    main()
