# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""A trainer's weights into vLLM's running server by the backend "uccl", over vLLM's own HTTP calls.

After each update the server writes what a server that was started with those weights writes. With --beside its workers
stage while they serve, requests go on meanwhile, and what they waited is printed.
"""

import argparse
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import requests
from model import make_model  # beside this script
from run import PROMPTS, Server, running, text_of
from transformers import LlamaForCausalLM
from vllm.distributed.weight_transfer import HTTPVLLMWeightSyncClient, ModuleSource, WeightTransferTrainerFactory

from uccl.weights.vllm import UcclTrainerInitInfo


def without_trainer(client: HTTPVLLMWeightSyncClient) -> None:
    """An update whose trainer is gone: the server says so, and goes on."""
    client.init_weight_transfer_engine({"place": "127.0.0.1:9", "timeout": 5.0})
    client.start_weight_update()
    batch = {"version": 1, "names": ["lm_head.weight"], "dtype_names": ["float32"], "shapes": [[257, 256]]}
    try:
        client.update_weights(batch)
    except requests.HTTPError as error:
        print(f"without a trainer: {error.response.status_code} {error.response.text[:300]}", flush=True)
    else:
        sys.exit("an update without a trainer succeeded")


class Requests:
    """One short request after the other, by a thread, and how long the slowest took."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._seconds: list[tuple[float, float]] = []  # when it was sent, how long it took
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._stop.is_set():
            begun = time.monotonic()
            self._server.complete("a river", max_tokens=1)
            self._seconds.append((begun, time.monotonic() - begun))

    def slowest(self, begun: float, end: float) -> float:
        return max(seconds for at, seconds in list(self._seconds) if at + seconds >= begun and at <= end)

    def __enter__(self) -> "Requests":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def update(trainer: Any, server: Server) -> dict[str, float]:
    """Seconds of one update, and of requests meanwhile and around it."""
    with Requests(server) as requests:
        before = time.monotonic()
        time.sleep(1)  # requests without an update
        begun = time.monotonic()
        trainer.send_weights()
        end = time.monotonic()
        time.sleep(0.2)
    return {
        "update": end - begun,
        "paused": trainer.paused,
        "request": requests.slowest(before, begun),
        "request in it": requests.slowest(begun, end),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="for the models and the logs")
    parser.add_argument("--workers", type=int, default=1, help="of the server, each of which has a part of the weights")
    parser.add_argument("--updates", type=int, default=3, help="how many")
    parser.add_argument("--beside", action="store_true", help="the workers stage while they serve")
    arguments = parser.parse_args()
    folder: Path = arguments.folder
    folder.mkdir(parents=True, exist_ok=True)
    older, newer = make_model(folder / "older"), make_model(folder / "newer", seed=2)
    more = ["--tensor-parallel-size", str(arguments.workers)]
    # A core for each: they wait in busy loops.
    cores = sorted(os.sched_getaffinity(0))
    environment = {"VLLM_SERVER_DEV_MODE": "1"}
    environment["VLLM_CPU_OMP_THREADS_BIND"] = "|".join(str(cores[n % len(cores)]) for n in range(arguments.workers))
    written = {}
    for model in (older, newer):
        alone = Server(model, folder / f"{model.name}.log", None, environment, more)
        with running(alone):
            written[model] = [text_of(alone.complete(prompt)) for prompt in PROMPTS]
    assert written[older] != written[newer]

    more += ["--weight-transfer-config", '{"backend": "uccl"}']
    server = Server(older, folder / "updated.log", None, environment, more)
    module = LlamaForCausalLM.from_pretrained(older)
    with running(server):
        client = HTTPVLLMWeightSyncClient(server.address("").rstrip("/"), timeout=120)
        if arguments.workers == 1:  # vLLM takes the second worker's error for the answer to its next call
            without_trainer(client)
            assert [text_of(server.complete(prompt)) for prompt in PROMPTS] == written[older]
        trainer = WeightTransferTrainerFactory.trainer_init(
            UcclTrainerInitInfo(rank=0, timeout=60, workers=arguments.workers if arguments.beside else 0),
            client=client, source=ModuleSource(module),
        )  # fmt: skip
        rows = []
        for number in range(arguments.updates):
            model = older if number % 2 else newer
            module.load_state_dict(LlamaForCausalLM.from_pretrained(model).state_dict())
            if arguments.beside:
                rows.append(update(trainer, server))
            else:
                trainer.send_weights()
            got = [text_of(server.complete(prompt)) for prompt in PROMPTS]
            assert got == written[model], f"{model.name}: {got} in place of {written[model]}"
        trainer.shutdown()
    size = sum(tensor.nbytes for tensor in module.state_dict().values())
    print(f"vLLM's server, {arguments.workers} workers, weights by uccl ({size / 1e6:.0f} MB): {arguments.updates} updates, each "
          "as a fresh load", flush=True)  # fmt: skip
    for what in rows[0] if rows else ():
        seconds = sorted(row[what] for row in rows)
        print(f"  {what}: {seconds[len(seconds) // 2]:.2f} s in the median, {seconds[-1]:.2f} s at most", flush=True)


if __name__ == "__main__":
    main()
