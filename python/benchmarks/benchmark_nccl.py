# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""The same sweep over torch.distributed: NCCL between GPUs, or gloo, which has host memory alone.

    torchrun --nproc_per_node=2 benchmark_nccl.py
    torchrun --nproc_per_node=2 benchmark_nccl.py --backend gloo

With --dual both directions go in one batch, as NCCL needs it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import report
import torch
import torch.distributed as dist
from ping import add_arguments, sweep
from ranks import local_gpu_index, process_group


class _TorchDistributed:
    """torch.distributed as the sweep calls it."""

    def start(self, operations: list[tuple[str, torch.Tensor, int]]) -> Callable[[], object]:
        calls = {"send": dist.isend, "recv": dist.irecv}
        batch = [dist.P2POp(calls[name], tensor, peer) for name, tensor, peer in operations]
        works = dist.batch_isend_irecv(batch)

        def end() -> None:
            for work in works:
                work.wait()
            if operations[0][1].is_cuda:
                torch.cuda.synchronize()

        return end


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add_arguments(parser)
    parser.add_argument("--backend", choices=("nccl", "gloo"), help="default: nccl, which needs a GPU for each rank")
    arguments = parser.parse_args()
    if arguments.backend is None:
        if arguments.device != "gpu":
            parser.error("NCCL needs GPUs, and the memory is the CPU's: --backend gloo measures gloo instead")
        arguments.backend = "nccl"
    arguments.device = "gpu" if arguments.backend == "nccl" else "cpu"
    return arguments


def main() -> None:
    arguments = _parse()
    if arguments.backend == "nccl":
        torch.cuda.set_device(local_gpu_index(arguments))
        arguments.confirm = False  # the confirmation is in host memory
    # A send over gloo ends when the bytes are in the kernel: only an answer shows that they came.
    arguments.confirm = arguments.confirm or arguments.backend == "gloo"
    with process_group(arguments.backend):
        if dist.get_world_size() != 2:
            raise SystemExit("this benchmark needs two ranks")
        if dist.get_rank() == 0:
            report.announce(f"torch.distributed {arguments.backend}", arguments.device, arguments.backend)
        rows = report.Report(f"torch.distributed {arguments.backend}", {"dual": arguments.dual})
        sweep(arguments, _TorchDistributed(), rows)


if __name__ == "__main__":
    main()
