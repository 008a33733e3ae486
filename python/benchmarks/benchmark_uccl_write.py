# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""One-sided write: rank 0 writes, rank 1 offers memory.

    torchrun --nproc_per_node=2 benchmark_uccl_write.py
"""

from one_sided import run

if __name__ == "__main__":
    run("write", __doc__.split("\n")[0])
