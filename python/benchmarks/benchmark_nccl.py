# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""The same sweep over torch.distributed: NCCL with --device gpu, gloo with --device cpu.

    torchrun --nproc_per_node=2 benchmark_nccl.py
"""

from __future__ import annotations

from collections.abc import Callable

import report
import torch
import torch.distributed as dist
from ping import parse_arguments, sweep
from ranks import local_gpu_index, process_group


class _TorchDistributed:
    """torch.distributed as the sweep calls it."""

    def isend(self, tensor: torch.Tensor, dst: int) -> Callable[[], object]:
        return self._end(dist.isend(tensor, dst), tensor)

    def irecv(self, tensor: torch.Tensor, src: int) -> Callable[[], object]:
        return self._end(dist.irecv(tensor, src), tensor)

    @staticmethod
    def _end(work: dist.Work, tensor: torch.Tensor) -> Callable[[], object]:
        def end() -> None:
            work.wait()
            if tensor.is_cuda:
                torch.cuda.synchronize()

        return end


def main() -> None:
    arguments = parse_arguments(__doc__.split("\n")[0])
    backend = "nccl" if arguments.device == "gpu" else "gloo"
    if arguments.device == "gpu":
        torch.cuda.set_device(local_gpu_index(arguments))
        arguments.confirm = False  # the confirmation is in host memory
    # A send over gloo ends when the bytes are in the kernel: only an answer shows that they came.
    arguments.confirm = arguments.confirm or backend == "gloo"
    with process_group(backend):
        if dist.get_world_size() != 2:
            raise SystemExit("this benchmark needs two ranks")
        sweep(arguments, _TorchDistributed(), report.Report(f"torch.distributed {backend}", {"dual": arguments.dual}))


if __name__ == "__main__":
    main()
