#!/usr/bin/env python3
# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""PyTorch's own NCCL over softnet: send/recv, all_reduce and all_gather between two GPUs with right sums.

Usage: gpu_nccl_proof.py PLUGIN [LARGEST_BYTES]. Starts one process a GPU, with peer access and shared memory off,
so that every byte takes the plugin; NCCL's device code does the unpacking. Exits with 1 if a sum is wrong, NCCL
did not load the plugin, or did not use it for GPU memory.
"""

import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile

SIZES = [1, 3, 17, 4096, 65537, 1 << 20, (16 << 20) + 5, 64 << 20, 256 << 20]

# What has to be in NCCL's log, and what it shows. The plugin leaves the buffers of receives into GPU memory alone, and
# NCCL's host code copies nothing: right bytes in them were put there by NCCL's device code.
EVIDENCE = (
    (r"NET/Plugin: .*softnet|Using network softnet", "NCCL loaded the plugin"),
    (r"via NET/softnet/\d+/GDRDMA", "NCCL gave it GPU memory"),
    (r"received bytes stay in the pool as \d+ fragments, and the buffer at \S+ as it was",
     "the plugin wrote no buffer, so that NCCL's device code unpacked"),
)


def check(name, size, good):
    if not good:
        sys.exit(f"{name} of {size} bytes: wrong result")


def run_rank(rank, largest):
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(rank)
    device = torch.device("cuda", rank)
    dist.init_process_group("nccl", rank=rank, world_size=2, device_id=device)
    for size in [size for size in SIZES if size <= largest]:
        index = torch.arange(size, device=device, dtype=torch.int64)
        mine = ((index * 7 + rank * 13) % 251).to(torch.uint8)
        theirs = ((index * 7 + (1 - rank) * 13) % 251).to(torch.uint8)

        got = torch.zeros_like(mine)
        for operation in dist.batch_isend_irecv([dist.P2POp(dist.isend, mine, 1 - rank),
                                                 dist.P2POp(dist.irecv, got, 1 - rank)]):
            operation.wait()
        check("send/recv", size, torch.equal(got, theirs))

        total = mine.to(torch.uint8) % 100
        expected = total + theirs % 100
        dist.all_reduce(total)
        check("all_reduce", size, torch.equal(total, expected))

        both = torch.zeros(2 * size, device=device, dtype=torch.uint8)
        dist.all_gather_into_tensor(both, mine)
        parts = [both[:size], both[size:]]
        check("all_gather", size, torch.equal(parts[rank], mine) and torch.equal(parts[1 - rank], theirs))
        torch.cuda.synchronize()
        if rank == 0:
            print(f"nccl {size:>10} bytes: send/recv, all_reduce, all_gather right", flush=True)
    dist.barrier()
    dist.destroy_process_group()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def main():
    plugin = str(pathlib.Path(sys.argv[1]).resolve())
    largest = sys.argv[2] if len(sys.argv) > 2 else str(SIZES[-1])
    environment = dict(
        os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=free_port(), NCCL_NET_PLUGIN=plugin, NCCL_NET="softnet",
        NCCL_P2P_DISABLE="1", NCCL_SHM_DISABLE="1", NCCL_PROTO="Simple", NCCL_ALGO="Ring", NCCL_NVLS_ENABLE="0",
        NCCL_NET_GDR_LEVEL="SYS", NCCL_NET_GDR_READ="1", NCCL_SOCKET_IFNAME="lo", NCCL_IB_DISABLE="1",
        NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="INIT,NET,ENV", SOFTNET_CUDA="1", SOFTNET_INTERFACES="lo",
        SOFTNET_POOL_MIB="512")
    with tempfile.TemporaryDirectory() as folder:
        logs = [pathlib.Path(folder) / f"rank{rank}" for rank in (0, 1)]
        ranks = []
        for rank in (0, 1):
            environment["NCCL_DEBUG_FILE"] = str(logs[rank])
            ranks.append(subprocess.Popen([sys.executable, __file__, "--rank", str(rank), largest],
                                          env=environment))
        failed = False
        try:
            for process in ranks:
                failed |= process.wait(timeout=120) != 0
        except subprocess.TimeoutExpired:
            print("nccl: not finished within 120 s")
            failed = True
        finally:
            for process in ranks:
                process.kill()
                process.wait()
        text = "\n".join(log.read_text(errors="replace") if log.exists() else "" for log in logs)
    for pattern, meaning in EVIDENCE:
        found = re.findall(f".*(?:{pattern}).*", text)
        line = found[0].strip()[-170:] if found else "no such line"
        print(f"nccl {'ok    ' if found else 'FAILED'} {meaning}: {line}")
        failed |= not found
    if failed:
        print("\n".join(text.splitlines()[-80:]))
        sys.exit(1)
    print("nccl: all right")


if __name__ == "__main__":
    if sys.argv[1] == "--rank":
        run_rank(int(sys.argv[2]), int(sys.argv[3]))
    else:
        main()
