# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""Shows what scripts/gpu_ratio.py makes of the rounds of several builds: medians, and a failure where a row lacks."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts"


class Ratio(unittest.TestCase):
    def run_with(self, rounds):
        """`rounds`: label to the GB/s of each round, written and read."""
        with tempfile.TemporaryDirectory() as folder:
            for label, rates in rounds.items():
                for number, rate in enumerate(rates, 1):
                    rows = [{"op": operation, "gbytes_per_second": rate} for operation in ("write", "read")]
                    text = "\n".join(json.dumps(row) for row in rows)
                    for work in ("engine", "engine_blocks"):
                        (pathlib.Path(folder) / f"{work}_{label}_{number}.log").write_text(f"# a line\n{text}\n")
            return subprocess.run([sys.executable, str(SCRIPTS / "gpu_ratio.py"), folder, "0.9"], capture_output=True,
                                  text=True, check=False)

    def test_medians_of_all_builds(self):
        done = self.run_with({"tcp": [50, 10, 40], "tcpx": [30, 38, 90], "against0": [20, 20, 20]})
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("256 MiB, read: nccl_net 38.0, tcp 40.0 GB/s, 0.95 of 0.9: reached", done.stdout)
        self.assertIn("4 KiB, write, against0: nccl_net 20.0, tcp 40.0 GB/s, 0.50 of 0.9: below", done.stdout)
        self.assertEqual(len(done.stdout.splitlines()), 8)

    def test_a_row_that_lacks_is_a_failure(self):
        done = self.run_with({"tcp": [50]})
        self.assertEqual(done.returncode, 1)
        self.assertIn("256 MiB, read: a row is missing", done.stdout)


if __name__ == "__main__":
    unittest.main()
