# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""Sends and receives by rank over uccl.collective.

    torchrun --nproc_per_node=2 benchmark_uccl_collective.py
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import report
import torch
from ping import parse_arguments, sweep
from ranks import process_group

from uccl import collective


class _Collective:
    """uccl.collective as the sweep calls it."""

    def __init__(self, context: collective.CollectiveContext) -> None:
        self._context = context

    def isend(self, tensor: torch.Tensor, dst: int) -> Callable[[], object]:
        return partial(self._context.wait, self._context.isend(tensor, dst))

    def irecv(self, tensor: torch.Tensor, src: int) -> Callable[[], object]:
        return partial(self._context.wait, self._context.irecv(tensor, src))


def main() -> None:
    arguments = parse_arguments(__doc__.split("\n")[0])
    with process_group(), collective.CollectiveContext(4, arguments.local_gpu_idx) as context:
        if context.world_size != 2:
            raise SystemExit("this benchmark needs two ranks")
        settings = {"device": arguments.device, "dual": arguments.dual}
        sweep(arguments, _Collective(context), report.Report("uccl collective", settings))


if __name__ == "__main__":
    main()
