# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""vLLM's prefill and decode in two processes, the KV cache between them by MooncakeConnector, which calls uccl.mooncake.

vLLM is unmodified but for host/sitecustomize.py. What the two processes write must be what one process alone writes, over the default route and over tcp.
"""

import json
import os
import urllib.request
import uuid
from pathlib import Path

from run import PROMPTS, Server, one_process, route_of, running, text_of  # beside this script


def by_two(prefill: Server, decode: Server, prompt: str) -> str:
    """What a router does: the prompt to one, and where that one's bootstrap server is to the other."""
    told = {"transfer_id": uuid.uuid4().hex}
    prefill.complete(prompt, max_tokens=1, kv_transfer_params=told | {"do_remote_decode": True, "do_remote_prefill": False})
    told["remote_bootstrap_addr"] = f"http://127.0.0.1:{prefill.side_port}"
    with urllib.request.urlopen(told["remote_bootstrap_addr"] + "/query", timeout=20) as answer:
        told["remote_engine_id"] = json.load(answer)["0"]["engine_id"]
    return text_of(decode.complete(prompt, kv_transfer_params=told | {"do_remote_decode": False, "do_remote_prefill": True}))


def main() -> None:
    folder, model, expected = one_process(__doc__)
    cores = sorted(os.sched_getaffinity(0))
    host = {"PYTHONPATH": str(Path(__file__).parent / "host")}
    for route, environment in (("default", host), ("tcp", host | {"UCCL_P2P_TRANSPORT": "tcp"})):
        servers = [
            Server(
                model, folder / f"{role}_{route}.log", {"kv_connector": "MooncakeConnector", "kv_role": role},
                environment | {"VLLM_CPU_OMP_THREADS_BIND": str(core)},  # they wait in busy loops
            )
            for role, core in zip(("kv_producer", "kv_consumer"), (cores[0], cores[-1]), strict=True)
        ]  # fmt: skip
        with running(*servers):
            for prompt, text in zip(PROMPTS, expected, strict=True):
                got = by_two(*servers, prompt)
                assert got == text, f"{route}: {got!r} in place of {text!r}"
            taken = route_of(servers[0])  # which writes
            assert route == "default" or taken == route, f"{taken} was taken in place of {route}"
            print(f"MooncakeConnector, {route} route ({taken}): the same output", flush=True)


if __name__ == "__main__":
    main()
