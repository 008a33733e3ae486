# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""``python -m uccl.weights demo``."""

import sys

from uccl.weights.demo import main

if __name__ == "__main__":
    sys.exit(main())
