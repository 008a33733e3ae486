#!/usr/bin/env python3
# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""PyTorch's own NCCL over softnet: send/recv, all_reduce and all_gather between GPUs with right sums.

Usage: gpu_nccl_proof.py PLUGIN [LARGEST_BYTES [RANKS [SECONDS]]]. Starts RANKS processes (2), with peer access and
shared memory off, so that every byte takes the plugin; NCCL's device code does the unpacking. Ranks beyond the number
of GPUs share them: each is a host of its own to NCCL, which allows no two ranks of a host on one GPU. NCCL_ALGO (Ring)
is what the caller has set; trees are for sums alone: "allreduce:tree;allgather:ring". Exits with 1 if a sum is wrong,
NCCL did not load the plugin, did not use it for GPU memory, or was not done within SECONDS (120).
"""

import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import time

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


def run_rank(rank, ranks, largest):
    import torch
    import torch.distributed as dist

    gpus = torch.cuda.device_count()
    if ranks > gpus:
        os.environ["NCCL_HOSTID"] = f"rank{rank}"
    torch.cuda.set_device(rank % gpus)
    device = torch.device("cuda", rank % gpus)
    dist.init_process_group("nccl", rank=rank, world_size=ranks, device_id=device)
    following, previous = (rank + 1) % ranks, (rank - 1) % ranks
    for size in [size for size in SIZES if size <= largest]:
        index = torch.arange(size, device=device, dtype=torch.int64)

        def bytes_of(some):
            return ((index * 7 + some * 13) % 251).to(torch.uint8)

        got = torch.zeros_like(bytes_of(rank))
        for operation in dist.batch_isend_irecv([dist.P2POp(dist.isend, bytes_of(rank), following),
                                                 dist.P2POp(dist.irecv, got, previous)]):
            operation.wait()
        check("send/recv", size, torch.equal(got, bytes_of(previous)))

        total = bytes_of(rank) % (200 // ranks)
        expected = sum(bytes_of(some) % (200 // ranks) for some in range(ranks))
        dist.all_reduce(total)
        check("all_reduce", size, torch.equal(total, expected))

        every = torch.zeros(ranks * size, device=device, dtype=torch.uint8)
        dist.all_gather_into_tensor(every, bytes_of(rank))
        for some in range(ranks):
            check("all_gather", size, torch.equal(every[some * size:(some + 1) * size], bytes_of(some)))
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
    ranks = int(sys.argv[3]) if len(sys.argv) > 3 else 2
    seconds = int(sys.argv[4]) if len(sys.argv) > 4 else 120
    environment = dict(
        os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=free_port(), NCCL_NET_PLUGIN=plugin, NCCL_NET="softnet",
        NCCL_P2P_DISABLE="1", NCCL_SHM_DISABLE="1", NCCL_PROTO="Simple", NCCL_NVLS_ENABLE="0",
        NCCL_NET_GDR_LEVEL="SYS", NCCL_SOCKET_IFNAME="lo", NCCL_IB_DISABLE="1",
        NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="INIT,NET,ENV,TUNING", SOFTNET_CUDA="1", SOFTNET_INTERFACES="lo",
        SOFTNET_POOL_MIB="512")
    environment.setdefault("NCCL_ALGO", "Ring")
    with tempfile.TemporaryDirectory() as folder:
        logs = [pathlib.Path(folder) / f"rank{rank}" for rank in range(ranks)]
        processes = []
        for rank, log in enumerate(logs):
            environment["NCCL_DEBUG_FILE"] = str(log)
            processes.append(subprocess.Popen([sys.executable, __file__, "--rank", str(rank), str(ranks), largest],
                                              env=environment))
        end = time.monotonic() + seconds
        failed = False
        try:
            for process in processes:
                failed |= process.wait(timeout=max(0, end - time.monotonic())) != 0
        except subprocess.TimeoutExpired:
            print(f"nccl: not finished within {seconds} s")
            failed = True
        finally:
            for process in processes:
                process.kill()
                process.wait()
        text = "\n".join(log.read_text(errors="replace") if log.exists() else "" for log in logs)
    algorithm = "TREE" if "tree" in environment["NCCL_ALGO"].lower() else "RING"
    chosen = (f"AllReduce: .*Algo {algorithm}", "sums took the algorithm that was asked for")
    for pattern, meaning in (*EVIDENCE, chosen):
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
        run_rank(*map(int, sys.argv[2:5]))
    else:
        main()
