# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""Sends and receives by rank over uccl.collective.

    torchrun --nproc_per_node=2 benchmark_uccl_collective.py
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

import report
import torch
from ping import add_arguments, sweep
from ranks import process_group, route

from uccl import collective


class _Collective:
    """uccl.collective as the sweep calls it."""

    def __init__(self, context: collective.CollectiveContext) -> None:
        self._context = context

    def start(self, operations: list[tuple[str, torch.Tensor, int]]) -> Callable[[], object]:
        return partial(self._context.wait_all, self._context.batch_isend_irecv(operations))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add_arguments(parser)
    arguments = parser.parse_args()
    with process_group(), collective.CollectiveContext(4, arguments.local_gpu_idx) as context:
        if context.world_size != 2:
            raise SystemExit("this benchmark needs two ranks")
        if context.rank == 0:
            transport = route(context.ep, context.send_connections[1], arguments.device)
            report.announce("uccl collective", arguments.device, transport)
        settings = {"device": arguments.device, "dual": arguments.dual}
        sweep(arguments, _Collective(context), report.Report("uccl collective", settings))


if __name__ == "__main__":
    main()
