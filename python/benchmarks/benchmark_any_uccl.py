# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""One-sided writes by any package that is called ``uccl``: whichever ``PYTHONPATH`` names first.

    torchrun --nproc_per_node=2 benchmark_any_uccl.py

Uses the calls alone that every one of them has, so that two packages can be compared by one program. The
blocks of a list follow each other here and lie in another order over there.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import report
import torch
import torch.distributed as dist
from ranks import exchange, local_gpu_index, make_tensor, process_group, route

from uccl import p2p


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    report.add_arguments(parser)
    parser.add_argument("--lists", type=report.parse_list, default="", help="further rows, e.g. 10000x16K,40960x4K")
    parser.add_argument("--name", default="uccl", help="what the report calls the package")
    arguments = parser.parse_args()
    rows = report.Report(arguments.name, {"device": arguments.device})
    with process_group():
        rank = dist.get_rank()
        endpoint = p2p.Endpoint(local_gpu_index(arguments))
        metadata = exchange(endpoint.get_metadata())
        connection = _must(endpoint.add_remote_endpoint(metadata[1])) if rank == 0 else 0
        if rank == 0:
            # Only some of the packages can say what moves the bytes.
            transport = route(endpoint, connection, arguments.device) if hasattr(endpoint, "routes") else "unknown"
            report.announce(arguments.name, arguments.device, transport)
        shapes = [(1, size) for size in arguments.sizes] + arguments.lists
        for count, size in report.progress(shapes, arguments.name, arguments.quiet or rank != 0):
            _one_shape(arguments, endpoint, connection, (count, size), rows)
        if rank == 0:
            rows.finish(arguments)


def _one_shape(
    arguments: argparse.Namespace,
    endpoint: p2p.Endpoint,
    connection: int,
    shape: tuple[int, int],
    rows: report.Report,
) -> None:
    """Rank 0 writes ``count`` blocks of ``size`` bytes; rank 1 looks at every byte afterwards."""
    count, size = shape
    rank = dist.get_rank()
    tensor = make_tensor(arguments, count * size, 0)
    # Block i goes where the order says.
    order = torch.randperm(count, generator=torch.Generator().manual_seed(count)).tolist()
    if rank == 0:
        tensor.view(count, size)[:] = _marks(count).to(tensor.device)[:, None]
        if tensor.is_cuda:
            torch.cuda.synchronize(tensor.device)
    places = [tensor.data_ptr() + at * size for at in (range(count) if rank == 0 else order)]
    sizes = [size] * count
    infos = b"" if rank == 0 else b"".join(_must(endpoint.advertisev_ipc(0, places, sizes)))
    offered = exchange(infos)[1]
    if rank == 0:
        each = len(offered) // count
        blobs = [offered[at : at + each] for at in range(0, len(offered), each)]
        rows.add(report.measure(count * size, count, arguments.iters, _call(endpoint, connection, places, sizes, blobs)))
    dist.barrier()
    if rank == 1:
        expected = torch.empty(count, dtype=torch.uint8)
        expected[torch.tensor(order)] = _marks(count)
        wrong = int((tensor.view(count, size) != expected.to(tensor.device)[:, None]).sum())
        if wrong:
            raise SystemExit(f"{wrong} of {tensor.numel()} bytes are wrong")


def _call(
    endpoint: p2p.Endpoint, connection: int, places: list[int], sizes: list[int], blobs: list[bytes]
) -> Callable[[], None]:
    if len(places) == 1:
        given = (connection, places[0], sizes[0], blobs[0])
        method = endpoint.write_ipc_async
    else:
        given = (connection, places, sizes, blobs)  # type: ignore[assignment]
        method = endpoint.writev_ipc_async

    def start_and_poll() -> None:
        transfer = _must(method(*given))
        done = False
        while not done:
            done = _must(endpoint.poll_async(transfer))

    return start_and_poll


def _marks(count: int) -> torch.Tensor:
    """What each byte of a block is, by block."""
    return (torch.arange(count) % 251 + 1).to(torch.uint8)


def _must(answer: tuple) -> object:
    """The value behind ``(ok, value)``."""
    ok, value = answer
    if not ok:
        raise SystemExit(f"a call failed: {getattr(p2p, 'last_error', str)() or 'the package does not say why'}")
    return value


if __name__ == "__main__":
    main()
