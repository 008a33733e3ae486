# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""One-sided read: rank 0 reads, rank 1 offers memory.

    torchrun --nproc_per_node=2 benchmark_uccl_read.py
"""

from one_sided import run

if __name__ == "__main__":
    run("read", __doc__.split("\n")[0])
