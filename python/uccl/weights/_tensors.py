# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""Torch's tensors and NumPy's arrays as boxes of named tensors, in host memory or in that of GPUs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from uccl import _p2p


@dataclass(frozen=True)
class Shard:
    """A part of a tensor: the memory, where the part begins, and the shape of the whole."""

    tensor: Any
    offset: Sequence[int]
    shape: Sequence[int]


# By name: a whole tensor, a part of one, or several parts.
Tensors = Mapping[str, Any]


@dataclass
class Box:
    """A shard with its memory. ``tensor`` is torch's or NumPy's."""

    name: str
    tensor: Any
    offset: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def is_torch(self) -> bool:
        return not isinstance(self.tensor, np.ndarray)

    @property
    def size(self) -> tuple[int, ...]:
        return tuple(int(extent) for extent in self.tensor.shape)

    @property
    def dtype(self) -> str:
        return str(self.tensor.dtype).removeprefix("torch.")

    @property
    def element_bytes(self) -> int:
        return int(self.tensor.element_size() if self.is_torch else self.tensor.itemsize)

    @property
    def bytes(self) -> int:
        return self.element_bytes * math.prod(self.size)

    @property
    def address(self) -> int:
        return int(self.tensor.data_ptr() if self.is_torch else self.tensor.ctypes.data)

    @property
    def gpu(self) -> Any:
        """The torch.device of memory that the engine moves as it lies on a GPU; None: any other memory."""
        usable = self.is_torch and self.tensor.device.type == "cuda" and _p2p.__cuda__
        return self.tensor.device if usable else None

    @property
    def on_host(self) -> bool:
        return not self.is_torch or self.tensor.device.type == "cpu"

    @property
    def dense(self) -> bool:
        return bool(self.tensor.is_contiguous() if self.is_torch else self.tensor.flags.c_contiguous)

    def require_in_place(self) -> None:
        if not self.dense or not (self.on_host or self.gpu):
            raise ValueError(f"tensor '{self.name}' cannot be staged in place: it has gaps or lies on a device")
        if isinstance(self.tensor, np.ndarray) and not self.tensor.flags.writeable:
            raise ValueError(f"tensor '{self.name}' cannot be staged in place: it is read-only")

    def copied(self) -> Box:
        """With memory of its own, on the host."""
        if self.is_torch:
            made = self.tensor.detach().to("cpu", copy=True).contiguous()
        else:
            made = np.array(self.tensor, order="C", copy=True)
        return Box(self.name, made, self.offset, self.shape)


def boxes_of(tensors: Tensors, *, copy: bool = False, writable: bool = False) -> list[Box]:
    """In the order of the mapping. TypeError for what is no tensor; ``copy``: of all, not only where needed."""
    boxes = []
    for name, given in tensors.items():
        for one in given if isinstance(given, (list, tuple)) else [given]:
            shard = one if isinstance(one, Shard) else None
            tensor = shard.tensor if shard else one
            if not isinstance(tensor, np.ndarray) and not hasattr(tensor, "data_ptr"):
                raise TypeError(f"tensor '{name}' is {type(tensor).__name__}, not torch's or NumPy's")
            size = tuple(tensor.shape)
            offset = tuple(shard.offset) if shard else (0,) * len(size)
            box = Box(name, tensor, offset, tuple(shard.shape) if shard else size)
            needed = copy or not box.dense or not (box.on_host or box.gpu)
            boxes.append(box.copied() if needed and not writable else box)
    return boxes


def manifest_of(boxes: Sequence[Box]) -> Any:
    manifest = _p2p.WeightsManifest()
    numbers: dict[str, tuple[int, Box]] = {}
    for box in boxes:
        if box.name not in numbers:
            number = manifest.add_tensor(box.name, box.dtype, box.element_bytes, list(box.shape))
            numbers[box.name] = (number, box)
        number, first = numbers[box.name]
        if (box.dtype, box.shape) != (first.dtype, first.shape):
            raise ValueError(f"shards of tensor '{box.name}' differ in type or shape of the whole")
        manifest.add_shard(number, box.address, list(box.offset), list(box.size))
    return manifest


def dtype_of(tensor: str, name: str) -> Any:
    """Torch's type of that name, which a peer has said of a tensor. ValueError: there is none."""
    import torch

    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"tensor '{tensor}' is announced with the type '{name}', which torch does not have")
    return found


def wait_for_gpus(boxes: Sequence[Box]) -> None:
    """Until the current stream of each GPU among them has done what it has to do now."""
    for gpu in {box.gpu for box in boxes if box.gpu is not None}:
        import torch

        torch.cuda.current_stream(gpu).synchronize()


class Staging:
    """Memory for boxes, one after another: of each box's GPU, or of the host; pinned where it goes to a device."""

    def __init__(self, boxes: Sequence[Box]) -> None:
        ends: dict[Any, int] = {}
        places = []
        for box in boxes:
            # Copies on a GPU are fast between like alignments, and torch aligns tensors so.
            align = box.element_bytes if box.gpu is None else _GPU_ALIGN
            begin = -(-ends.get(box.gpu, 0) // align) * align
            places.append(begin)
            ends[box.gpu] = begin + box.bytes
        pinned = any(box.gpu is None and not box.on_host for box in boxes)
        memory = {gpu: _memory(gpu, size, pinned) for gpu, size in ends.items()}
        self.boxes = [
            Box(box.name, _view(memory[box.gpu][at : at + box.bytes], box), box.offset, box.shape)
            for at, box in zip(places, boxes, strict=True)
        ]

    def copy_to(self, boxes: Sequence[Box]) -> None:
        """Returns when all is copied."""
        gpus = set()
        for staged, box in zip(self.boxes, boxes, strict=True):
            if box.is_torch:
                box.tensor.detach().copy_(staged.tensor, non_blocking=True)
                if not box.on_host:
                    gpus.add(box.tensor.device)
            else:
                np.copyto(box.tensor, staged.tensor)
        for gpu in gpus:
            import torch

            torch.cuda.current_stream(gpu).synchronize()


_GPU_ALIGN = 256


def _memory(gpu: Any, size: int, pinned: bool) -> Any:
    if gpu is None and not pinned:
        return np.empty(size, np.uint8)
    import torch

    if gpu is None:
        return torch.empty(size, dtype=torch.uint8, pin_memory=True).numpy()
    return torch.empty(size, dtype=torch.uint8, device=gpu)


def _view(memory: Any, box: Box) -> Any:
    """Bytes as a tensor of the box's kind, type and shape."""
    if not box.is_torch:
        return memory.view(box.tensor.dtype).reshape(box.size)
    import torch

    if box.bytes == 0:
        return torch.empty(box.size, dtype=box.tensor.dtype, device=box.gpu)
    return (torch.from_numpy(memory) if box.gpu is None else memory).view(box.tensor.dtype).reshape(box.size)
