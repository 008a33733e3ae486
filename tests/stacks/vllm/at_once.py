# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""Six requests at a time to vLLM's prefill and decode, by each of the named ways in turns, and what its metrics say.

    python tests/stacks/vllm/at_once.py FOLDER [tcp ucx default]

Each server has a core of its own: on the same cores the OpenMP threads of both would wait for each other in busy
loops, and a transfer, which is looked after between steps of the model, would be counted with seconds.
"""

import argparse
import concurrent.futures
import hashlib
import random
import re
import time
import urllib.request
from pathlib import Path

from model import make_model
from run import Server, by_two, running

_AT_ONCE, _REQUESTS = 6, 24
_WORDS = ("a river", "the seventh harbour", "snow", "wind")
_WAYS: dict[str, tuple[str, dict[str, str]]] = {
    "tcp": ("TCPX", {"UCCL_P2P_TRANSPORT": "tcp"}),
    "ucx": ("UCX", {}),
    "default": ("TCPX", {}),
}


def prompts() -> list[str]:
    choose = random.Random(1)
    return [
        "".join(f"{choose.choice(_WORDS)} {choose.randrange(1000)}; " for _ in range(60)) for _ in range(_REQUESTS)
    ]


def transfer_times(server: Server) -> tuple[float, float, dict[str, float]]:
    """Seconds in all, how many transfers, and how many took no longer than each of the buckets' bounds."""
    with urllib.request.urlopen(server.address("/metrics"), timeout=60) as answer:
        text = answer.read().decode()
    name = r"^vllm:nixl_xfer_time_seconds"
    total, count = (float(re.findall(rf"{name}_{what}{{[^}}]*}} (\S+)", text, re.M)[0]) for what in ("sum", "count"))
    buckets = re.findall(rf'{name}_bucket{{[^}}]*le="([^"]+)"[^}}]*}} (\S+)', text, re.M)
    return total, count, {bound: float(below) for bound, below in buckets}


def measure(model: Path, folder: Path, way: str) -> None:
    backend, environment = _WAYS[way]
    # The lease is longer than a request may take on a busy machine.
    extra = {"backends": [backend], "kv_lease_duration": 600}
    transfer = {"kv_connector": "NixlConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra}
    prefill, decode = (
        Server(model, folder / f"{role}_{way}.log", transfer,
               environment | {"VLLM_CPU_OMP_THREADS_BIND": str(core), "OMP_NUM_THREADS": "1"})
        for core, role in enumerate(("prefill", "decode"))
    )
    with running(prefill, decode):
        by_two(prefill, decode, "first one; " * 20)
        total_before, count_before, below_before = transfer_times(decode)
        start = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(_AT_ONCE) as pool:
            written = list(pool.map(lambda prompt: by_two(prefill, decode, prompt), prompts()))
        seconds = time.monotonic() - start
        total, count, below = transfer_times(decode)
    text = hashlib.sha256("".join(written).encode()).hexdigest()[:8]
    mean = (total - total_before) / max(count - count_before, 1)
    print(f"{way}: {_REQUESTS} requests in {seconds:.1f} s, transfers {1000 * mean:.1f} ms in the mean, output {text}")
    print("  s: " + ", ".join(f"<= {bound}: {number - below_before.get(bound, 0):.0f}" for bound, number in below.items()),
          flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="for the model and the logs")
    parser.add_argument("ways", nargs="*", choices=[*_WAYS, []], help="which, in this order; all if none is named")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    model = make_model(arguments.folder / "model")
    for way in arguments.ways or _WAYS:
        measure(model, arguments.folder, way)


if __name__ == "__main__":
    main()
