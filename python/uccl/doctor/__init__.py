# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""p2p-doctor: what this machine has for transfers, which way each pair of memories takes, and how fast it is.

    p2p-doctor                     # this machine
    p2p-doctor --serve             # on one host,
    p2p-doctor --peer HOST         # and from another
"""
