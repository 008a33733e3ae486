# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""What entry points of this package name. Nothing is imported here before the one who asks for it has called."""

import contextlib


def vllm() -> None:
    """Makes the backend "uccl" of weight transfer known to vLLM; again, or with a vLLM that has none, nothing changes."""
    try:
        from vllm.distributed.weight_transfer import factory
    except ImportError:
        return
    module = "uccl.weights.vllm"
    with contextlib.suppress(ValueError):  # it is there
        factory.WeightTransferEngineFactory.register_engine("uccl", module, "UcclWeightTransferEngine")
    with contextlib.suppress(ValueError):
        factory.WeightTransferTrainerFactory.register_engine("uccl", module, "UcclTrainerWeightTransferEngine")


def sglang() -> None:
    """Hooks the backend "uccl" into SGLang's update of weights; with an SGLang that has none of it, nothing changes."""
    try:
        from sglang.srt.model_executor.model_runner_components import weight_updater  # noqa: F401
        from sglang.srt.plugins import hook_registry  # noqa: F401
    except ImportError:
        return
    from uccl.weights.sglang import register

    register()
