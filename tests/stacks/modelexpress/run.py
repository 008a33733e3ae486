# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""ModelExpress' NixlTransferManager in two processes, which asks NIXL for UCX and gets the backend TCPX, on host memory:
all tensors of a source by name, then pieces of them, by a source's metadata and by NIXL's listener; then a source that is
killed.

NIXL_PLUGIN_DIR names a folder where the backend is installed as UCX. ModelExpress knows no accelerator that is none; the
one that it is given here is given as its loaders give theirs.
"""

import os
import signal
import socket
import time
from multiprocessing.connection import Connection
from typing import Any

import other_process
import torch
from modelexpress.nixl_transfer import NixlTransferManager
from modelexpress.types import ManifestMismatchError

from uccl import nixl

_SHAPES = [(1024, 4096), (7,), (333, 1001), (1 << 22,)]
_PIECES, _PIECE = 500, 2112
_SECONDS = 30


class Host:
    """An accelerator whose memory is the host's."""

    name, torch_device_type, nixl_mem_type = "host", "cpu", "DRAM"

    def set_device(self, device_id: int) -> None:
        pass

    def synchronize(self, device_id: int | None = None) -> None:
        pass


def tensors(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {f"layer.{at}": torch.randn(shape, generator=generator).bfloat16() for at, shape in enumerate(_SHAPES)}


def manager(name: str, port: int | None = None) -> NixlTransferManager:
    made = NixlTransferManager(name, 0, listen_port=port, accelerator_backend=Host())
    made.initialize()
    with open("/proc/self/maps") as maps:
        plugins = {line.split()[-1] for line in maps if "libplugin_" in line}
    assert plugins == {str(nixl.plugin())} and made.backends == ["UCX"], (plugins, made.backends)
    return made


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def source(target: Connection) -> None:
    port = free_port()
    mine, kept = manager("source", port), tensors(1)
    metadata = mine.register_tensors(kept)
    target.send((metadata, mine.tensor_descriptors, port, os.getpid()))
    other_process.hear(target, "until it is killed")


def equal(got: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one.view(torch.int16), got[name].view(torch.int16)) for name, one in tensors(1).items())


def pieces(mine: NixlTransferManager, got: dict[str, torch.Tensor], there: list[Any]) -> None:
    """A scattered read of a tensor's pieces, as a change of shards makes them."""
    into = got["layer.0"].zero_()
    start = next(one.addr for one in there if one.name == "layer.0")
    order = torch.randperm(_PIECES, generator=torch.Generator().manual_seed(3)).tolist()
    ranges = [(start + at * _PIECE, into.data_ptr() + to * _PIECE, _PIECE, 0) for to, at in enumerate(order)]
    assert mine.execute_read_batch("source", ranges, timeout_seconds=_SECONDS)[:2] == (_PIECES * _PIECE, _PIECES)
    want = tensors(1)["layer.0"].view(torch.uint8).view(-1)[: _PIECES * _PIECE].view(_PIECES, _PIECE)
    assert torch.equal(into.view(torch.uint8).view(-1)[: _PIECES * _PIECE].view(_PIECES, _PIECE), want[order])


def main() -> None:
    other, here = other_process.start(source)
    metadata, there, port, pid = other_process.hear(here, "a source's start")
    size = sum(one.nbytes for one in tensors(1).values())
    for by in ("metadata", "listener"):
        mine, got = manager(f"target by {by}", free_port() if by == "listener" else None), {name: torch.zeros_like(one) for name, one in tensors(1).items()}
        mine.register_tensors(got)
        if by == "listener":
            mine.fetch_remote_and_wait("source", "127.0.0.1", port, timeout_seconds=_SECONDS)
        read, count, _ = mine.receive_from_source(
            metadata, there, _SECONDS, remote_agent_name="source" if by == "listener" else None, require_exact_match=True
        )
        assert (read, count) == (size, len(_SHAPES)) and equal(got), f"by {by}: tensors differ"
        pieces(mine, got, there)
        print(f"ModelExpress' NixlTransferManager, by {by}: {read} bytes of {count} tensors, {_PIECES} pieces, compared", flush=True)
        if by == "metadata":
            got["layer.1"] = torch.zeros(8, dtype=torch.bfloat16)
            try:
                mine.receive_from_source(metadata, there, _SECONDS, remote_agent_name="source", destination_tensors=got)
                raise AssertionError("a tensor of another size was taken")
            except ManifestMismatchError:
                pass
            mine.shutdown()
    os.kill(pid, signal.SIGKILL)
    other.join(_SECONDS)
    start = time.monotonic()
    try:
        mine.execute_read_batch("source", [(there[0].addr, got["layer.0"].data_ptr(), 4096, 0)], timeout_seconds=_SECONDS)
        raise AssertionError("read from a process that was killed")
    except TimeoutError:
        raise
    except Exception as error:
        print(f"source killed: {type(error).__name__} after {time.monotonic() - start:.1f} s: {error}", flush=True)
    assert time.monotonic() - start < _SECONDS / 2 and mine.is_healthy() in (True, False)
    mine.shutdown()


if __name__ == "__main__":
    main()
