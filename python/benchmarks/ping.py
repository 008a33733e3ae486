# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""The sweep of libraries that have send and recv by rank: rank 0 sends, rank 1 receives."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Protocol

import report
import torch
import torch.distributed as dist
from ranks import make_tensor, verify

_SENT = 0x3C


class ByRank(Protocol):
    """Starts operations ("send" or "recv", the memory, the other rank) at once; the result ends them."""

    def start(self, operations: list[tuple[str, torch.Tensor, int]]) -> Callable[[], object]: ...


def sweep(arguments: argparse.Namespace, library: ByRank, rows: report.Report) -> None:
    """Measures every size and checks the last received bytes. The receiver confirms each message, so that the
    time is that of delivery also where a send completes before its bytes have left."""
    rank = dist.get_rank()
    confirmation = torch.zeros(1, dtype=torch.uint8)
    for size in report.progress(arguments.sizes, rows.name, arguments.quiet or rank != 0):
        out = make_tensor(arguments, size, _SENT)
        into = make_tensor(arguments, size, 0)
        other = 1 - rank

        def operation() -> None:
            operations = []
            if rank == 0 or arguments.dual:
                operations.append(("send", out, other))  # noqa: B023
            if rank == 1 or arguments.dual:
                operations.append(("recv", into, other))  # noqa: B023
            library.start(operations)()
            if arguments.confirm:
                library.start([("send" if rank == 1 else "recv", confirmation, other)])()  # noqa: B023

        rows.add(report.measure(size, 1, arguments.iters, operation))
        if rank == 1 or arguments.dual:
            verify(into, _SENT)
        dist.barrier()
    if rank == 0:
        rows.finish(arguments)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the sweep takes."""
    report.add_arguments(parser)
    parser.add_argument("--dual", action="store_true", help="both directions at once")
    parser.add_argument("--confirm", action="store_true", help="count the receiver's answer of one byte as well")
