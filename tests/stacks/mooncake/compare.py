# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""What one engine moves in the calls of stacks, on host memory between two processes; to compare whatever `mooncake` is on the path.

    python -m uccl.mooncake install; python compare.py            # uccl.mooncake's, UCCL_P2P_TRANSPORT=tcp for that alone
    MC_FORCE_TCP=1 PYTHONPATH=FOLDER python compare.py             # Mooncake's, in that folder
"""

import os
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from mooncake.engine import TransferEngine

sys.path.append(str(Path(__file__).parents[1] / "support"))

import other_process

_SIZE, _PAGES, _PAGE, _ROUNDS = 256 << 20, 512, 9216, 8


def engine() -> tuple[Any, np.ndarray]:
    made, memory = TransferEngine(), np.ones(_SIZE, np.uint8)
    assert made.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
    assert made.register_memory(memory.ctypes.data, _SIZE) == 0
    return made, memory


def own(reader: Connection) -> None:
    made, memory = engine()
    reader.send((f"127.0.0.1:{made.get_rpc_port()}", memory.ctypes.data))
    reader.poll(600)


def rate(size: int, call: Callable[[], int]) -> str:
    """GB/s, median."""
    seconds = []
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        if call() != 0:
            return "failed"
        seconds.append(time.perf_counter() - start)
    return f"{size / sorted(seconds)[_ROUNDS // 2] / 1e9:.2f}"


def main() -> None:
    owner, here = other_process.start(own)
    made, memory = engine()
    peer, there = other_process.hear(here, "the owner's start")
    start, order = memory.ctypes.data, np.random.default_rng(1).permutation(_PAGES)
    lists = [start + at * _PAGE for at in range(_PAGES)], [there + int(at) * _PAGE for at in order], [_PAGE] * _PAGES
    whole = [rate(_SIZE, lambda call=call: call(peer, start, there, _SIZE)) for call in (made.transfer_sync_write, made.transfer_sync_read)]
    calls = made.batch_transfer_sync_write, made.batch_transfer_sync_read
    pages = [rate(_PAGES * _PAGE, lambda call=call: call(peer, *lists)) for call in calls]
    print(f"{TransferEngine.__module__}: write and read, GB/s: 256 MiB {' and '.join(whole)}, {_PAGES} pages {' and '.join(pages)}", flush=True)
    owner.kill()
    os._exit(0)


if __name__ == "__main__":
    main()
