# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""A trainer's weights into vLLM's running server by the backend "uccl", over vLLM's own HTTP calls.

After each update the server writes what a server that was started with those weights writes.
"""

import argparse
import os
import sys
from pathlib import Path

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="for the models and the logs")
    parser.add_argument("--workers", type=int, default=1, help="of the server, each of which has a part of the weights")
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
            UcclTrainerInitInfo(rank=0, timeout=60), client=client, source=ModuleSource(module)
        )
        for model in (newer, older, newer):
            module.load_state_dict(LlamaForCausalLM.from_pretrained(model).state_dict())
            trainer.send_weights()
            got = [text_of(server.complete(prompt)) for prompt in PROMPTS]
            assert got == written[model], f"{model.name}: {got} in place of {written[model]}"
        trainer.shutdown()
    print(f"vLLM's server, {arguments.workers} workers, weights by uccl: three updates, each as a fresh load", flush=True)


if __name__ == "__main__":
    main()
