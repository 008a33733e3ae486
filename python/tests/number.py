# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
class Number:
    """An integer that runs a function when it is read."""

    def __init__(self, value, then=lambda: None):
        self.value, self.then = value, then

    def __index__(self):
        self.then()
        return self.value
