# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""What benchmark_nixl.py moves: plain sizes, and the KV cache blocks of models as servers page them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

_BF16 = 2


@dataclass(frozen=True)
class Layout:
    """``regions`` registrations of ``blocks`` blocks each; all blocks are moved, in table order on each side."""

    regions: int
    blocks: int
    block: int  # bytes
    shuffle: bool

    @property
    def count(self) -> int:
        return self.regions * self.blocks

    @property
    def bytes(self) -> int:
        return self.count * self.block

    def table(self, there: bool) -> np.ndarray:
        """The places of a request's blocks within each region: as a pager hands them out, another on each side."""
        if not self.shuffle:
            return np.arange(self.blocks)
        return np.random.default_rng(2 if there else 1).permutation(self.blocks)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Model:
    """The geometry of a model's cache: K and V are separate regions unless ``latent`` holds both."""

    layers: int
    heads: int
    head_dim: int
    latent: int = 0  # elements of a token and layer, the same on all ranks
    page: int = 16  # tokens of a block


MODELS = {
    "llama-3.1-8b": Model(layers=32, heads=8, head_dim=128),
    "llama-3.1-70b": Model(layers=80, heads=8, head_dim=128),
    "llama-3.1-405b": Model(layers=126, heads=8, head_dim=128),
    "qwen3-32b": Model(layers=64, heads=8, head_dim=128),
    "qwen3-235b-a22b": Model(layers=94, heads=4, head_dim=128),
    "deepseek-r1": Model(layers=61, heads=0, head_dim=0, latent=576, page=64),
    "gpt-oss-120b": Model(layers=36, heads=8, head_dim=64),
}


def blocks_of_size(size: int, blocks: int, shuffle: bool) -> Layout:
    """``size`` bytes in so many equal blocks of one region."""
    if blocks < 1 or size % blocks:
        raise ValueError(f"{size} bytes cannot be cut into {blocks} equal blocks")
    return Layout(regions=1, blocks=blocks, block=size // blocks, shuffle=shuffle)


def kv_blocks(model: Model, tp: int, isl: int, page: int | None = None) -> Layout:
    """The share of one of ``tp`` ranks of the cache of ``isl`` tokens, in bf16."""
    tokens = page or model.page
    if model.latent:
        regions, block = model.layers, tokens * model.latent * _BF16
    else:
        if model.heads % tp:
            raise ValueError(f"{model.heads} KV heads cannot be split over {tp} ranks")
        regions, block = 2 * model.layers, tokens * model.heads // tp * model.head_dim * _BF16
    return Layout(regions=regions, blocks=-(-isl // tokens), block=block, shuffle=True)
