# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""python -m uccl.report: p2p-perf report."""

import sys

from uccl.report import main

sys.exit(main())
