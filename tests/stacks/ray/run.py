# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""Ray's direct transport by uccl.p2p between two actors: tensors of several types and sizes, compared with what Ray's
own object store carries; then the owner is killed. Ends with status 75 where Ray never asked for a read: Ray 2.60 does
that now and then, with its own transport NIXL as well.

run.py [DEVICE [TRANSPORT]]: with NIXL, NIXL_PLUGIN_DIR names a folder where the backend TCPX is installed as UCX, and the
reading actor asks for the tensors itself, which Ray does not forget.
"""

import hashlib
import sys
from typing import Any

import ray
import torch

from uccl import nixl
from uccl import ray as uccl_ray

DEVICE = sys.argv[1] if len(sys.argv) > 1 else "cpu"
TRANSPORT = sys.argv[2] if len(sys.argv) > 2 else uccl_ray.NAME
_SECONDS = 30

CASES: list[list[tuple[tuple[int, ...], torch.dtype]]] = [
    [((3,), torch.float32)],
    [((0, 4), torch.float32)],
    [((1024, 1024), torch.bfloat16), ((5, 7), torch.int64), ((0,), torch.uint8), ((1 << 20,), torch.uint8)],
    [((64 << 20,), torch.uint8)],
]


def made(case: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(case)
    tensors = []
    for shape, dtype in CASES[case]:
        count = torch.empty(shape, dtype=dtype).nbytes
        drawn = torch.randint(0, 255, (count,), generator=generator, dtype=torch.uint8)
        tensors.append(drawn.view(dtype).reshape(shape).to(DEVICE))
    return tensors


def digests(tensors: list[torch.Tensor]) -> list[str]:
    plain = [tensor.cpu().contiguous().view(-1) for tensor in tensors]
    return [hashlib.sha256(one.view(torch.uint8).numpy().tobytes() if one.numel() else b"").hexdigest() for one in plain]


if TRANSPORT == uccl_ray.NAME:
    uccl_ray.register()


@ray.remote
class Source:
    @ray.method(tensor_transport=TRANSPORT)
    def tensors(self, case: int) -> list[torch.Tensor]:
        return made(case)


def offered(source: Any, case: int) -> Any:
    """A reference whose tensors are there: of one that is handed on before, Ray often forgets the read."""
    reference = source.tensors.remote(case)
    ready, _ = ray.wait([reference], timeout=_SECONDS, fetch_local=False)
    assert ready, f"case {case}: the owner is not done"
    if TRANSPORT == uccl_ray.NAME:
        return reference
    manager = ray._private.worker.global_worker.rdt_manager
    assert manager.wait_for_tensor_transport_metadata(reference.hex(), _SECONDS), f"case {case}: nobody told where it lies"
    return [reference]


def fetched(given: list[Any]) -> list[torch.Tensor]:
    return ray.get(given[0], timeout=_SECONDS) if isinstance(given[0], ray.ObjectRef) else given


@ray.remote
class Sink:
    def digests(self, tensors: list[torch.Tensor]) -> list[str]:
        return digests(fetched(tensors))

    def described(self, tensors: list[torch.Tensor]) -> list[tuple[Any, ...]]:
        return [(tuple(one.shape), one.dtype, one.device.type) for one in fetched(tensors)]

    def moved(self) -> int:
        """Bytes that were read by the endpoint; -1 where NIXL's backend did that."""
        if TRANSPORT != uccl_ray.NAME:
            with open("/proc/self/maps") as maps:
                plugins = {line.split()[-1] for line in maps if "libplugin_" in line}
            assert plugins == {str(nixl.plugin())}, plugins
            return -1
        from ray.experimental.rdt.util import get_tensor_transport_manager

        return get_tensor_transport_manager(uccl_ray.NAME).endpoint().stats()["bytes_read"]


def main() -> None:
    gpus = 1 if DEVICE == "cuda" else 0
    ray.init(num_cpus=4, num_gpus=2 * gpus, include_dashboard=False, logging_level="warning")
    source, sink = Source.options(num_gpus=gpus).remote(), Sink.options(num_gpus=gpus).remote()
    bytes_in_all = 0
    for case in range(len(CASES)):
        expected = made(case)
        reference = offered(source, case)
        for _ in range(2):  # a reference may be read more than once
            assert ray.get(sink.digests.remote(reference), timeout=_SECONDS) == digests(expected), case
            bytes_in_all += sum(tensor.nbytes for tensor in expected)
        shapes = [(tuple(one.shape), one.dtype, one.device.type) for one in expected]
        assert ray.get(sink.described.remote(reference), timeout=_SECONDS) == shapes, case
        bytes_in_all += sum(tensor.nbytes for tensor in expected)
        print(f"case {case}: {len(expected)} tensors right", flush=True)
    moved = ray.get(sink.moved.remote(), timeout=_SECONDS)
    assert moved in (bytes_in_all, -1), (moved, bytes_in_all)

    reference = offered(source, 3)
    ray.get(sink.described.remote(reference), timeout=_SECONDS)
    ray.kill(source)
    try:
        ray.get(sink.digests.remote(reference), timeout=_SECONDS)
    except ray.exceptions.GetTimeoutError:
        raise
    except ray.exceptions.RayError as error:
        print(f"owner killed: {type(error).__name__}", flush=True)
    else:
        raise AssertionError("read from an actor that was killed")
    print(f"ray {ray.__version__}, transport {TRANSPORT}: {bytes_in_all} bytes read, all right")


if __name__ == "__main__":
    try:
        main()
    except (ray.exceptions.GetTimeoutError, TimeoutError) as error:
        print(f"Ray asked for no read within {_SECONDS} s: {type(error).__name__}", flush=True)
        sys.exit(75)
