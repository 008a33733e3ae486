# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""Shows what scripts/gpu_table.py takes for a failure: rows that are missing or unverified, and none that is slow."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))
import gpu_table  # noqa: E402 - it lies in scripts/


def perf_rows(speed):
    """All rows that the table asks for, each at its figure times `speed`."""
    rows = []
    for work in gpu_table.WORKS:
        rate = (work.reach or 1.0) * speed
        for operation in work.operations:
            rows.append({"local": "cuda:0", "remote": "cuda:1", "op": operation, "transport": work.transport,
                         "size_bytes": work.size, "blocks": work.blocks, "depth": work.depth,
                         "gbytes_per_second": rate, "latency_us_p50": work.size * work.blocks / rate / 1e3,
                         "first_us": 30.0, "tenth_us": 10.0, "pause_ms": 0, "awake": False, "verified": True})
    return rows


def part_rows(speed):
    rows = [{"what": "copy engine", "from": "GPU", "to": "host", "block": 256 << 20, "us": 1.0,
             "gbytes_per_second": 100.0, "verified": True}]
    rows += [{"what": what, "from": "GPU", "to": "host", "block": 4096, "us": 1.0,
              "gbytes_per_second": reach * speed, "verified": True} for what, reach in gpu_table.PARTS.items()]
    return rows


class Table(unittest.TestCase):
    def run_with(self, perf, parts):
        with tempfile.TemporaryDirectory() as folder:
            for name, rows in (("perf", perf), ("parts", parts)):
                if rows is not None:
                    pathlib.Path(folder, f"{name}.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
            run = subprocess.run([sys.executable, SCRIPTS / "gpu_table.py", folder], capture_output=True, text=True,
                                 check=False)
        self.assertEqual(run.stderr, "")
        return run.returncode, run.stdout

    def test_what_reaches_its_figures(self):
        code, text = self.run_with(perf_rows(1.01), part_rows(1.01))
        self.assertEqual(code, 0, text)
        self.assertEqual(text.count("reached"), sum(bool(work.reach) for work in gpu_table.WORKS) + 2, text)
        self.assertEqual(text.count("   3.0  above"), len(perf_rows(1)), text)  # first against tenth

    def test_slow_rows_are_marked_and_no_failure(self):
        code, text = self.run_with(perf_rows(0.9), part_rows(0.9))
        self.assertEqual(code, 0, text)
        self.assertNotIn("reached", text)

    def test_missing_rows(self):
        for gone in range(len(perf_rows(1))):
            code, text = self.run_with([row for i, row in enumerate(perf_rows(1)) if i != gone], part_rows(1))
            self.assertEqual(code, 1, text)
            self.assertIn("missing", text)
        self.assertEqual(self.run_with(perf_rows(1), part_rows(1)[:-1])[0], 1)

    def test_unverified_rows(self):
        perf = perf_rows(1)
        perf[3]["verified"] = False
        self.assertEqual(self.run_with(perf, part_rows(1))[0], 1)
        parts = part_rows(1)
        parts[0]["verified"] = False
        self.assertEqual(self.run_with(perf_rows(1), parts)[0], 1)

    def test_empty_and_absent_files(self):
        for nothing in ([], None):
            self.assertEqual(self.run_with(nothing, part_rows(1))[0], 1)
            self.assertEqual(self.run_with(perf_rows(1), nothing)[0], 1)


if __name__ == "__main__":
    unittest.main()
