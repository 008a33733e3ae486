# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""The benchmark scripts under torchrun and the examples, as users run them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PYTHON = Path(__file__).parents[1]
BENCHMARKS = PYTHON / "benchmarks"
SECONDS = 100

pytestmark = pytest.mark.timeout(SECONDS + 20)


def run(command, **keywords):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, timeout=SECONDS, capture_output=True, text=True, env=environment, check=False, **keywords
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def torchrun(script, *arguments):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    return run([*launcher, str(BENCHMARKS / script), "--sizes=1K,256K", "--iters=3", *arguments])


@pytest.mark.parametrize(
    ("script", "arguments"),
    [
        ("benchmark_uccl.py", ["--device=cpu"]),
        ("benchmark_uccl.py", ["--dual", "--async-api", "--num-iovs=4"]),
        ("benchmark_uccl.py", ["--ipc", "--dual"]),
        ("benchmark_uccl_read.py", ["--async-api"]),
        ("benchmark_uccl_write.py", ["--num-iovs=8"]),
        ("benchmark_uccl_write.py", ["--ipc", "--num-iovs=8", "--async-api"]),
        ("benchmark_uccl_collective.py", ["--dual"]),
        ("benchmark_nccl.py", []),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value) or "plain",
)
def test_benchmarks(script, arguments, tmp_path):
    rows, picture = tmp_path / "rows.json", tmp_path / "plot.png"
    out = torchrun(script, *arguments, f"--json={rows}", f"--plot={picture}")
    report = json.loads(rows.read_text())
    assert [row["size"] for row in report["rows"]] == [1 << 10, 256 << 10]
    assert all(row["gigabytes_per_second"] > 0 for row in report["rows"])
    assert "256 KiB" in out and "GB/s" in out
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("send_numpy.py", "received 4000000 bytes"),
        ("write_torch.py", "wrote 8192 bytes"),
        ("write_vectors.py", "wrote 10000 blocks"),
        ("await_transfers.py", "read 16777216 bytes"),
    ],
)
def test_examples(name, says):
    assert says in run([sys.executable, str(PYTHON / "examples" / name)])


@pytest.mark.parametrize(
    ("text", "size"), [("1", 1), ("256", 256), ("4K", 4096), ("4KiB", 4096), ("10m", 10 << 20), ("1G", 1 << 30)]
)
def test_sizes(text, size, monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import report

    assert report.parse_size(text) == size
    assert report.parse_size(report.size_text(size).replace(" ", "")) == size
    for bad in ("", "x", "-4K", "0", "4T"):
        with pytest.raises(ValueError, match="."):
            report.parse_size(bad)
