# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""SGLang's update of weights from a trainer, by uccl.weights in place of a process group: the backend "uccl".

    POST /init_weights_update_group          backend="uccl", master_address and master_port of a Publisher
    POST /begin_weight_update
    publisher.publish(version, batch)
    POST /update_weights_from_distributed    names, dtypes and shapes of the batch; then publisher.withdraw(version)
    POST /end_weight_update

Versions only grow, and there is one at a time. Workers find these hooks by the package's entry point of the group
``sglang.srt.plugins``. Endpoints have the options of their environment (``UCCL_P2P_*``).
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from uccl.weights import Subscriber
from uccl.weights._tensors import dtype_of

_SECONDS = 600.0  # for a batch to be published, and to come
_UPDATER = "sglang.srt.model_executor.model_runner_components.weight_updater.WeightUpdater"


class Group:
    """In place of a process group: where a worker's batches come from. SGLang calls it from one thread."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._subscriber = Subscriber(place, {})
        self._version: int | None = None

    def receive(
        self, names: Sequence[str], dtypes: Sequence[str | torch.dtype], shapes: Sequence[Sequence[int]], device: str
    ) -> list[tuple[str, torch.Tensor]]:
        """The next batch. TimeoutError: none is published in time; and those of ``Subscriber.stage``."""
        tensors = {
            name: torch.empty(tuple(shape), dtype=dtype_of(name, str(kind).removeprefix("torch.")), device="cpu")
            for name, kind, shape in zip(names, dtypes, shapes, strict=True)
        }
        try:
            version = self._subscriber.wait_version(above=self._version, timeout=_SECONDS)
        except TimeoutError as error:
            after = "" if self._version is None else f" after {self._version}"
            raise TimeoutError(f"the trainer at {self._place} has published no version{after} within {_SECONDS:g} s") from error
        self._subscriber.receive_into(tensors)
        self._subscriber.stage(version, in_place=True, timeout=_SECONDS)
        self._version = self._subscriber.commit()
        return [(name, tensor.to(device)) for name, tensor in tensors.items()]

    def close(self) -> None:
        self._subscriber.close()


def register() -> None:
    """Hooks into SGLang's WeightUpdater."""
    hooks = {
        "init_weights_update_group": _init,
        "receive_weights_from_distributed": _receive,
        "destroy_weights_update_group": _destroy,
    }
    for name, hook in hooks.items():
        HookRegistry.register(f"{_UPDATER}.{name}", hook, HookType.AROUND)


def _init(
    original: Callable[..., Any], updater: Any, master_address: str, master_port: int, rank_offset: int, world_size: int,
    group_name: str, backend: str = "nccl",
) -> Any:  # fmt: skip
    if backend != "uccl":
        return original(updater, master_address, master_port, rank_offset, world_size, group_name, backend)
    host = f"[{master_address}]" if ":" in master_address else master_address
    _destroy(lambda *_: None, updater, group_name)  # that of a trainer before
    try:
        updater._model_update_group[group_name] = Group(f"{host}:{master_port}")
    except Exception as error:  # noqa: BLE001 - SGLang answers with it
        return False, f"the group {group_name} by uccl: {error}"
    return True, "Succeeded to initialize the group by uccl."


def _receive(
    original: Callable[..., Any], updater: Any, *, names: Sequence[str], dtypes: Sequence[str], shapes: Sequence[Sequence[int]],
    group_name: str, load_format: str | None = None,
) -> Any:  # fmt: skip
    group = updater._model_update_group.get(group_name)
    if isinstance(group, Group):
        return group.receive(names, dtypes, shapes, updater.device)
    return original(updater, names=names, dtypes=dtypes, shapes=shapes, group_name=group_name, load_format=load_format)


def _destroy(original: Callable[..., Any], updater: Any, group_name: str) -> Any:
    group = updater._model_update_group.get(group_name)
    if not isinstance(group, Group):
        return original(updater, group_name)
    del updater._model_update_group[group_name]
    group.close()
    return True, "Succeeded to end the group by uccl."
