#!/usr/bin/env python3
# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""A short run of scripts/compare.sh; P2P_PERF names the program to measure with."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "python"))

from uccl import report  # noqa: E402


class CompareTest(unittest.TestCase):
    def test_one_short_round(self):
        with tempfile.TemporaryDirectory() as folder:
            short = {"ROUNDS": "1", "SIZES": "64K", "ROW_SECONDS": "0.05", "ITERS": "3", "PYTHON": sys.executable}
            done = subprocess.run([ROOT / "scripts" / "compare.sh", folder], env={**os.environ, **short},
                                  capture_output=True, text=True, timeout=280, check=False)
            logs = "".join(path.read_text() for path in pathlib.Path(folder).glob("*.log"))
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr + logs)
            results = report.read(map(str, sorted(pathlib.Path(folder).glob("*.json"))))
            _, writes = results.works["write", 1, False]
            self.assertIn("uccl_p2p tcp", writes)
            for points in writes.values():
                self.assertTrue(all(point.gigabytes > 0 and point.verified is not False for point in points))
            self.assertTrue(any(limit.unit == "GB/s" for limit in results.limits))
            page = pathlib.Path(folder) / "report.html"
            self.assertEqual(page.exists(), "no page without matplotlib" not in done.stdout)


if __name__ == "__main__":
    unittest.main()
