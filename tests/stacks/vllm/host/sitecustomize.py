# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""On PYTHONPATH of vLLM with MooncakeConnector. Python imports it by itself.

The connector asks torch for the number of the accelerator, and there is none. And it keeps no reference to the task that
looks for the prefill process, so that the garbage collection may take it away.
"""

import asyncio

import torch

torch.accelerator.current_device_index = lambda: 0

_tasks = set()
_create = asyncio.create_task


def _kept(*arguments, **named):
    task = _create(*arguments, **named)
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)
    return task


asyncio.create_task = _kept
