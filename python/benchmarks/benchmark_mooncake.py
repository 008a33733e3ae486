# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""Mooncake's own benchmark, `transfer_engine_bench`, between two processes of this machine, in the form of the others.

    pip install mooncake-transfer-engine-non-cuda     # host memory; mooncake-transfer-engine with GPUs
    python benchmark_mooncake.py --sizes 64K,1M,64M

One thread, one write at a time. The program tells the throughput alone, so median and p99 are the mean; it checks no
bytes. Both sides find each other without a metadata server (P2PHANDSHAKE).
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import report

_HOST = "127.0.0.1"
_PATIENCE = 60.0  # seconds until the target listens, and beyond the time that is measured
_LISTENS = re.compile(r"P2P handshake, listening on [^ ]*:(\d+)")
_COMPLETED = re.compile(r"duration ([0-9.]+), batch count (\d+)")


def program() -> str:
    """Of the package, without importing it: that asks for a CUDA driver in some of its forms."""
    found = importlib.util.find_spec("mooncake")
    for folder in (found.submodule_search_locations or []) if found else []:
        if (Path(folder) / "transfer_engine_bench").is_file():
            return str(Path(folder) / "transfer_engine_bench")
    if path := shutil.which("transfer_engine_bench"):
        return path
    sys.exit("benchmark_mooncake: no transfer_engine_bench; pip install mooncake-transfer-engine-non-cuda")


def _words(arguments: argparse.Namespace, mode: str, gpu: int) -> list[str]:
    words = [
        arguments.program, f"--mode={mode}", "--metadata_server=P2PHANDSHAKE", f"--local_server_name={_HOST}",
        f"--protocol={arguments.protocol}", f"--buffer_size={max(arguments.sizes)}",
    ]  # fmt: skip
    # Programs that were built without CUDA refuse these.
    return words + (["--use_vram=true", f"--gpu_id={gpu}"] if arguments.device == "gpu" else arguments.host_memory)


def _host_memory(path: str) -> list[str]:
    """What a program that takes GPU memory by default is told for host memory."""
    told = subprocess.run([path, "--help"], capture_output=True, text=True, timeout=_PATIENCE, check=False)
    return ["--use_vram=false"] if "-use_vram" in told.stdout else []


class _Target:
    """The process whose memory is written to."""

    def __init__(self, words: list[str]) -> None:
        self.process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self._said: list[str] = []
        self._port = ""
        self._known = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self.process.stderr or []:
            self._said = [*self._said[-20:], line]
            if found := _LISTENS.search(line):
                self._port = found[1]
                self._known.set()
        self._known.set()

    def port(self) -> str:
        if not self._known.wait(_PATIENCE) or not self._port:
            sys.exit("benchmark_mooncake: the target does not listen:\n" + "".join(self._said))
        return self._port

    def __enter__(self) -> _Target:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(_PATIENCE)


def measure(arguments: argparse.Namespace, port: str, size: int) -> report.Row:
    words = _words(arguments, "initiator", 0) + [
        f"--segment_id={_HOST}:{port}", "--operation=write", f"--block_size={size}", "--batch_size=1", "--threads=1",
        f"--duration={arguments.seconds}",
    ]  # fmt: skip
    done = subprocess.run(words, capture_output=True, text=True, timeout=arguments.seconds + _PATIENCE, check=False)
    found = _COMPLETED.search(done.stderr)
    if done.returncode != 0 or not found or int(found[2]) == 0:
        sys.exit(f"benchmark_mooncake: {' '.join(words)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    count = int(found[2])
    seconds = float(found[1]) / count
    return report.Row(size=size, iovs=1, iters=count, seconds=seconds, median=seconds, p99=seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=1, help="of each size (default: %(default)s)")
    parser.add_argument("--protocol", default="tcp", help="of Mooncake (default: %(default)s)")
    report.add_arguments(parser)
    arguments = parser.parse_args()
    arguments.program = program()
    arguments.host_memory = _host_memory(arguments.program)
    report.announce("mooncake", arguments.device, arguments.protocol)
    settings = {"op": "write", "device": arguments.device, "protocol": arguments.protocol}
    rows = report.Report("Mooncake", settings)
    with _Target(_words(arguments, "target", 1)) as target:
        for size in report.progress(arguments.sizes, "Mooncake", arguments.quiet):
            rows.add(measure(arguments, target.port(), size))
    rows.finish(arguments)


if __name__ == "__main__":
    main()
