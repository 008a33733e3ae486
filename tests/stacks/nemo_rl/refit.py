# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""NeMo-RL's checkpoint engine `nixl` with `backend_name: TCPX`: a policy worker's weights into a rollout worker in another
process, on host memory. PYTHONPATH names a checkout of NeMo-RL's sources, which are in no package."""

import asyncio
from multiprocessing.connection import Connection

import other_process
import torch
from nemo_rl.utils.checkpoint_engines.nixl import NIXLCheckpointEngine

_BUCKET = 4 << 20  # bytes, of which an engine has two
_SHAPES = [(1000, 7), (3,), (2048, 4096), (512, 512), (1,), (999, 1001)]  # one is larger than a bucket
_SYNCS = 3


def weights(sync: int) -> list[tuple[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(sync)
    return [(f"layer.{at}", torch.randn(shape, generator=generator).bfloat16()) for at, shape in enumerate(_SHAPES)]


def engine() -> NIXLCheckpointEngine:
    return NIXLCheckpointEngine(_BUCKET, device="cpu", backend_name="TCPX", release_after_refit=True)


async def _receive(made: NIXLCheckpointEngine) -> dict[str, torch.Tensor]:
    return {name: one.clone() async for batch in made.receive_weight_batches() for name, one in batch}


def rollout(policy: Connection) -> None:
    made = engine()
    for sync in range(_SYNCS):
        policy.send(made.prepare())
        metadata = other_process.hear(policy, f"sync {sync}")
        made.init_rollout_process_group(rollout_rank=0, train_world_size=1, rollout_world_size=1, metadata=metadata)
        got = asyncio.run(_receive(made))
        assert sorted(got) == sorted(name for name, _ in weights(sync))
        for name, one in weights(sync):
            assert torch.equal(got[name].view(torch.int16), one.view(torch.int16)), f"sync {sync}: {name} differs"
        policy.send("compared")
        assert other_process.hear(policy, f"sync {sync}") == "done"
        made.finalize()


def main() -> None:
    other, here = other_process.start(rollout)
    made = engine()
    assert "TCPX" in made.agent.agent.backends, made.agent.agent.backends
    for sync in range(_SYNCS):
        metadata = [made.prepare(), other_process.hear(here, f"sync {sync}")]
        here.send(metadata)
        made.init_policy_process_group(worker_rank=0, train_world_size=1, rollout_world_size=1, metadata=metadata)
        asyncio.run(made.send_weights(iter(weights(sync))))
        assert other_process.hear(here, f"sync {sync}") == "compared"
        here.send("done")
        made.finalize()
    size = sum(one.nbytes for _, one in weights(0))
    print(f"NeMo-RL's nixl engine, backend TCPX: {size} bytes, {_SYNCS} times, compared", flush=True)
    other_process.finish(other)


if __name__ == "__main__":
    main()
