# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""Point-to-point transfers between GPUs and hosts, with and without RDMA.

``uccl.p2p`` is the engine, ``uccl.aio`` the same for coroutines; ``uccl.collective`` and ``uccl.transfer`` are
built on it and need torch. ``uccl.weights`` brings sets of weights to many processes.
Importing starts no thread, opens no socket and touches no GPU.
"""

import importlib

__version__ = "0.1.0"
__all__ = ["aio", "collective", "directory", "files", "nixl", "p2p", "transfer", "utils", "weights"]


def __getattr__(name: str) -> object:
    # On first use, so that a program that needs uccl.p2p alone never imports torch.
    if name == "__cuda__":
        # The version of CUDA that the engine was built with; empty: GPU memory cannot be moved.
        return importlib.import_module(f"{__name__}._p2p").__cuda__
    if name in __all__:
        return importlib.import_module(f"{__name__}.{name}")
    if name in ("nccl_plugin_path", "rccl_plugin_path", "efa_plugin_path", "efa_nccl_path"):
        raise AttributeError(f"{__name__}.{name}: this package contains no plugin for NCCL")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
