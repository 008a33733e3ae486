# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""vLLM's weight transfer with the backend "uccl": the trainer's side and a worker's side in two processes, no server.

Both come from vLLM's factories; the worker's by the entry point. This process has the worker's engine and a model whose
weights vLLM's layerwise reload puts in place; the other one is the trainer. Every byte is compared.
"""

import dataclasses
import sys
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from types import SimpleNamespace
from typing import Any

import other_process
import torch
from vllm.config.weight_transfer import WeightTransferConfig
from vllm.distributed.weight_transfer import (
    ModuleSource,
    ParamMeta,
    WeightSource,
    WeightTransferEngine,
    WeightTransferEngineFactory,
    WeightTransferTrainerFactory,
)
from vllm.model_executor.model_loader.reload import record_metadata_for_reloading
from vllm.model_executor.model_loader.weight_utils import default_weight_loader
from vllm.plugins import load_general_plugins


class Model(torch.nn.Module):
    """Several types and shapes, one of them 16 MiB; what vLLM asks of a model."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(seed)
        shapes = {torch.bfloat16: [(2048, 4096), (7, 3)], torch.float32: [(1000,), ()], torch.float16: [(33, 65)]}
        self.layers = torch.nn.ModuleList()
        for dtype, some in shapes.items():
            for shape in some:
                layer = torch.nn.Module()
                for name, size in (("weight", shape), ("bias", (5,))):
                    made = torch.randn(size, generator=random).to(dtype)
                    layer.register_parameter(name, torch.nn.Parameter(made, requires_grad=False))
                self.layers.append(layer)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        mine = dict(self.named_parameters())
        loaded = set()
        for name, weight in weights:
            getattr(mine[name], "weight_loader", default_weight_loader)(mine[name], weight)
            loaded.add(name)
        return loaded


def bytes_of(model: Model) -> dict[str, bytes]:
    return {name: weight.reshape(-1).view(torch.uint8).numpy().tobytes() for name, weight in model.named_parameters()}


def places_of(model: Model) -> dict[str, int]:
    return {name: weight.data_ptr() for name, weight in model.named_parameters()}


class Client:
    """The four calls of vLLM's client, through a pipe."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def _call(self, name: str, *arguments: Any) -> None:
        self._pipe.send((name, arguments))
        error = other_process.hear(self._pipe, name)
        if error:
            raise RuntimeError(error)

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self._call("init", init_info)

    def start_weight_update(self) -> None:
        self._call("start")

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self._call("update", update_info)

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._call("finish")


class Part(WeightSource):
    """What uccl does not send: a source whose ranks hold parts."""

    def metadata(self) -> list[ParamMeta]:
        return []

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        return iter(())

    def held_names(self) -> list[str]:
        return []


def train(pipe: Connection) -> None:
    """Sends the weights of each seed that it is told, in batches of so many bytes or to workers that stage while they
    serve, and says when."""
    from uccl.weights.vllm import UcclTrainerInitInfo  # registers it: this process loads no plug-ins

    batch_bytes, workers = other_process.hear(pipe, "batch_bytes, workers")
    client, model = Client(pipe), Model(0)
    info = UcclTrainerInitInfo(rank=0, batch_bytes=batch_bytes, timeout=20, workers=workers)
    both = dataclasses.replace(info, batch_bytes=1, workers=1)
    source = ModuleSource(model)
    refused(lambda: WeightTransferTrainerFactory.trainer_init(both, client=client, source=source), "must be 0")
    for source, word in ((None, "needs a WeightSource"), (Part(), "holds a part")):
        refused(lambda source=source: WeightTransferTrainerFactory.trainer_init(info, client=client, source=source), word)
    trainer = WeightTransferTrainerFactory.trainer_init(info, client=client, source=ModuleSource(model))
    follower = WeightTransferTrainerFactory.trainer_init(
        dataclasses.replace(info, rank=1), client=client, source=ModuleSource(model)
    )
    pipe.send(("ready", ()))
    while (seed := other_process.hear(pipe, "seed")) is not None:
        for mine, new in zip(model.parameters(), Model(seed).parameters(), strict=True):
            mine.copy_(new)
        follower.send_weights()
        trainer.send_weights()
        pipe.send(("sent", ()))
    trainer.shutdown()


def refused(run: Callable[[], object], word: str) -> None:
    try:
        run()
    except (ValueError, RuntimeError, OSError) as error:
        assert word in str(error), error
    else:
        sys.exit(f"nothing was refused with '{word}'")


def serve(pipe: Connection, engine: WeightTransferEngine, until: str) -> list[Any]:
    """Does what the trainer calls, as vLLM's worker does it. The calls, the last one not done."""
    calls = {
        "init": lambda info: engine.init_transfer_engine(engine.parse_init_info(info)),
        "start": engine.start_weight_update,
        "update": engine.update_weights,
        "finish": engine.finish_weight_update,
    }
    done = []
    while True:
        name, arguments = other_process.hear(pipe, until)
        done.append((name, arguments))
        if name == until:
            return done
        calls[name](*arguments)
        pipe.send("")


def send(pipe: Connection, engine: WeightTransferEngine, model: Model, seed: int, batches: int) -> None:
    places = places_of(model)
    pipe.send(seed)
    calls = [name for name, _ in serve(pipe, engine, "sent")]
    assert calls == ["start", *["update"] * batches, "finish", "sent"], calls
    assert bytes_of(model) == bytes_of(Model(seed)), f"seed {seed}"
    assert places == places_of(model)


def killed(trainer: SpawnProcess, pipe: Connection, engine: WeightTransferEngine, seed: int, batches: int) -> None:
    """The trainer dies when so many batches of an update have been loaded, and the next one is announced."""
    pipe.send(seed)
    for _ in range(batches):
        _, (batch,) = serve(pipe, engine, "update")[-1]
        engine.update_weights(batch)
        pipe.send("")
    _, (batch,) = serve(pipe, engine, "update")[-1]
    trainer.kill()
    trainer.join()
    try:
        engine.update_weights(batch)
        engine.finish_weight_update()
    except (ConnectionError, TimeoutError) as error:
        print(f"the trainer is killed: {type(error).__name__}: {error}", flush=True)
    else:
        sys.exit("an update of a trainer that is dead succeeded")


def main() -> None:
    load_general_plugins()
    model = Model(1)
    record_metadata_for_reloading(model)  # as vLLM's loader does
    config = SimpleNamespace(parallel_config=None, model_config=SimpleNamespace(dtype=torch.bfloat16))
    engine = WeightTransferEngineFactory.create_engine(
        WeightTransferConfig(backend="uccl"), config, torch.device("cpu"), model
    )
    batch = {"version": 1, "names": ["layers.0.weight"], "dtype_names": ["sys"], "shapes": [[1]]}
    refused(lambda: engine.update_weights(batch), "before init_transfer_engine")

    trainer, pipe = other_process.start(train)
    pipe.send((0, 0))
    serve(pipe, engine, "ready")
    refused(lambda: engine.update_weights(batch), "which torch does not have")
    for seed in (2, 3):
        send(pipe, engine, model, seed, 1)
    print("vLLM's weight transfer by uccl: two updates, every byte compared", flush=True)

    places = places_of(model)
    killed(trainer, pipe, engine, 4, batches=0)
    assert bytes_of(model) == bytes_of(Model(3)), "the weights are not what they were"

    trainer, pipe = other_process.start(train)
    pipe.send((0, 1))
    serve(pipe, engine, "ready")
    for seed in (10, 11):
        send(pipe, engine, model, seed, 1)
    killed(trainer, pipe, engine, 12, batches=0)
    assert bytes_of(model) == bytes_of(Model(11)), "the weights are not what they were"
    print("staged while serving: two updates, every byte compared", flush=True)

    for first in (5, 7):  # a batch is the largest tensor, or all behind it: its layer's bias is among those
        trainer, pipe = other_process.start(train)
        pipe.send((1 << 20, 0))
        serve(pipe, engine, "ready")
        for seed in (first, first + 1):
            send(pipe, engine, model, seed, 2)
        if first == 5:
            killed(trainer, pipe, engine, 9, batches=1)
            assert places == places_of(model)
    print("the next trainers, in batches: four updates, every byte compared", flush=True)
    pipe.send(None)
    other_process.finish(trainer)


if __name__ == "__main__":
    main()
