# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""Stands for mooncake.engine: `python -m uccl.mooncake install` put it here."""

from uccl.mooncake import *  # noqa: F403
