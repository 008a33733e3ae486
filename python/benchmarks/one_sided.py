# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""The one-sided sweep behind benchmark_uccl_read.py and benchmark_uccl_write.py."""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
import report
import torch
import torch.distributed as dist
from ranks import Pair, check, connect_pair, exchange, make_tensor, pieces, process_group, route, verify

_SOURCE = 0x5A


def run(operation: str, description: str) -> None:
    """Rank 0 reads or writes; rank 1 offers its memory and calls nothing."""
    parser = argparse.ArgumentParser(description=description)
    report.add_arguments(parser)
    parser.add_argument("--ipc", action="store_true", help="both ranks on one host, without registration")
    parser.add_argument("--num-iovs", type=int, default=1, help="pieces of one operation")
    parser.add_argument("--async-api", action="store_true", help="start, then poll")
    arguments = parser.parse_args()
    with process_group():
        pair = connect_pair(arguments, local=arguments.ipc)
        if pair.rank == 0:
            transport = route(pair.endpoint, pair.connection, arguments.device)
            report.announce(f"uccl {operation}", arguments.device, transport)
        rows = report.Report(
            f"uccl {operation}", {"device": arguments.device, "ipc": arguments.ipc, "async": arguments.async_api}
        )
        for size in report.progress(arguments.sizes, operation, arguments.quiet or pair.rank != 0):
            _one_size(arguments, pair, operation, size, rows)
        if pair.rank == 0:
            rows.finish(arguments)


def _one_size(arguments: argparse.Namespace, pair: Pair, operation: str, size: int, rows: report.Report) -> None:
    source_here = (pair.rank == 0) == (operation == "write")
    tensor = make_tensor(arguments, size, _SOURCE if source_here else 0)
    addresses, sizes = pieces(tensor, arguments.num_iovs)
    offered = exchange(b"" if pair.rank == 0 else _offer(arguments, pair, tensor))[1]
    if pair.rank == 0:
        each = len(offered) // arguments.num_iovs
        blobs = [offered[at : at + each] for at in range(0, len(offered), each)]
        call = _call(arguments, pair, operation, tensor, (addresses, sizes, blobs))
        rows.add(report.measure(size, arguments.num_iovs, arguments.iters, call))
    dist.barrier()
    if not source_here:
        verify(tensor, _SOURCE)


def _offer(arguments: argparse.Namespace, pair: Pair, tensor: torch.Tensor) -> bytes:
    addresses, sizes = pieces(tensor, arguments.num_iovs)
    if arguments.ipc:
        ok, blobs = pair.endpoint.advertisev_ipc(pair.connection, addresses, sizes)
    else:
        regions = [pair.region(tensor)] * arguments.num_iovs
        ok, blobs = pair.endpoint.advertisev(pair.connection, regions, addresses, sizes, arguments.num_iovs)
    check(ok)
    return b"".join(blobs)


def _call(
    arguments: argparse.Namespace,
    pair: Pair,
    operation: str,
    tensor: torch.Tensor,
    lists: tuple[list[int], list[int], list[bytes]],
) -> Callable[[], None]:
    endpoint, connection = pair.endpoint, pair.connection
    addresses, sizes, blobs = lists
    suffix = ("_ipc" if arguments.ipc else "") + ("_async" if arguments.async_api else "")
    if arguments.num_iovs == 1:
        method = getattr(endpoint, operation + suffix)
        region = () if arguments.ipc else (pair.region(tensor),)
        given = (connection, *region, addresses[0], sizes[0], blobs[0])
    else:
        method = getattr(endpoint, f"{operation}v{suffix}")
        count = arguments.num_iovs
        arrays = (np.array(addresses, np.uint64), np.array(sizes, np.uint64))
        infos = np.frombuffer(b"".join(blobs), np.uint8).reshape(count, -1)
        region = () if arguments.ipc else (np.full(count, pair.region(tensor), np.uint64),)
        given = (connection, *region, *arrays, infos)
    if not arguments.async_api:
        return lambda: check(method(*given))

    def start_and_poll() -> None:
        ok, transfer = method(*given)
        done = False
        while ok and not done:
            ok, done = endpoint.poll_async(transfer)
        check(ok)

    return start_and_poll
