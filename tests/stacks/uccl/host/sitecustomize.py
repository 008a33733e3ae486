# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""Python imports this by itself: torch then takes host memory where a program asks for that of a GPU."""

import functools

import torch

_MAKERS = ("arange", "empty", "full", "ones", "rand", "randint", "randn", "tensor", "zeros")


def _on_host(make):
    @functools.wraps(make)
    def made(*arguments, device=None, **named):
        on_gpu = device is not None and torch.device(device).type == "cuda"
        return make(*arguments, device="cpu" if on_gpu else device, **named)

    return made


for _name in _MAKERS:
    setattr(torch, _name, _on_host(getattr(torch, _name)))
torch.cuda.set_device = lambda _device: None
torch.cuda.synchronize = lambda _device=None: None
torch.Tensor.pin_memory = lambda tensor, *_: tensor
