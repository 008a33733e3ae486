# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""benchmark_nixl.py, server and client as a user starts them."""

import json
import pathlib
import re
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).parents[2] / "python" / "benchmarks" / "benchmark_nixl.py"


@pytest.mark.parametrize(
    "options, rows",
    [
        (["--sizes=4K,1M", "--op-type=write"], [(4096, 1), (1 << 20, 1)]),
        (["--sizes=1M", "--op-type=read", "--num-kvblocks=64", "--shuffle", "--dual"], [(1 << 20, 64)]),
        (["--model=gpt-oss-120b", "--tp=8", "--isl=100", "--op-type=read"], [(72 * 7 * 2048, 72 * 7)]),
    ],
    ids=["sizes", "dual", "model"],
)
def test_rows(options, rows, tmp_path):
    server = subprocess.Popen(
        [sys.executable, SCRIPT, "--role=server", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        first = server.stdout.readline()  # what is measured
        assert "TCPX" in first, first
        port = re.search(r"port (\d+)", server.stdout.readline())[1]
        result = tmp_path / "rows.json"
        client = subprocess.run(
            [sys.executable, SCRIPT, "--role=client", f"--port={port}", "--iters=3", "--quiet", f"--json={result}", *options],
            capture_output=True, text=True, timeout=60,
        )
        assert client.returncode == 0, client.stdout + client.stderr
        assert "GB/s" in client.stdout and "every byte verified" in client.stdout
        written = json.loads(result.read_text())
        assert [(row["size"], row["iovs"]) for row in written["rows"]] == rows
        assert len(written["requests"]) == len(rows)
        assert server.wait(30) == 0, server.stdout.read()
    finally:
        server.kill()
        server.wait()
