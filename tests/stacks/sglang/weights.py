# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""SGLang's WeightUpdater with the backend "uccl": a trainer's batches into a worker's model, two processes, no server.

SGLang loads the hooks by the entry point. The calls are those of its scheduler; every byte is compared.
"""

from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any

import other_process
import torch
from sglang.srt.model_executor.model_runner_components.weight_updater import WeightUpdater
from sglang.srt.plugins import load_plugins

SHAPES = {"embed": ((1000, 512), torch.bfloat16), "norm": ((512,), torch.float32), "scale": ((), torch.float16)}


def weights(version: int) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(version)
    return {name: torch.randn(shape, generator=random).to(dtype) for name, (shape, dtype) in SHAPES.items()}


def train(pipe: Connection) -> None:
    from uccl.weights import Publisher

    with Publisher() as publisher:
        pipe.send(publisher.place)
        for version in (1, 2, 3):
            batch = weights(version)
            publisher.publish(version, batch)
            pipe.send([(name, str(one.dtype).removeprefix("torch."), list(one.shape)) for name, one in batch.items()])
            other_process.hear(pipe, "loaded")
            publisher.withdraw(version)


def updater() -> WeightUpdater:
    nothing: Any = lambda *_, **__: None  # noqa: E731
    return WeightUpdater(
        tp_rank=0, device="cpu", gpu_id=0, model_config=SimpleNamespace(), custom_weight_loaders={}, get_model=nothing,
        update_model_fields=nothing, recapture_cuda_graph=nothing, get_model_runner=nothing,
    )  # fmt: skip


def main() -> None:
    load_plugins()
    worker = updater()
    trainer, pipe = other_process.start(train)
    host, _, port = other_process.hear(pipe, "place").rpartition(":")
    done, said = worker.init_weights_update_group(host, int(port), 1, 2, "trainer", "uccl")
    assert done, said
    for version in (1, 2, 3):
        names, dtypes, shapes = zip(*other_process.hear(pipe, "batch"), strict=True)
        got = worker.receive_weights_from_distributed(names=names, dtypes=dtypes, shapes=shapes, group_name="trainer")
        assert [name for name, _ in got] == list(SHAPES)
        for name, tensor in weights(version).items():
            mine = dict(got)[name]
            assert mine.dtype == tensor.dtype and torch.equal(mine, tensor), f"version {version}: {name}"
        pipe.send("loaded")
    assert worker.destroy_weights_update_group("trainer") == (True, "Succeeded to end the group by uccl.")
    assert not worker.destroy_weights_update_group("trainer")[0]  # SGLang's own
    print("SGLang's WeightUpdater by uccl: three updates, every byte compared", flush=True)
    other_process.finish(trainer)


if __name__ == "__main__":
    main()
