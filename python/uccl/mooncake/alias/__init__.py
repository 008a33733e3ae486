# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""Stands for the package mooncake: `python -m uccl.mooncake install` put it here."""
