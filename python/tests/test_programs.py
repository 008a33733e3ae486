# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""The benchmark scripts under torchrun and the examples, as users run them."""

import json
import os
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

PYTHON = Path(__file__).parents[1]
BENCHMARKS = PYTHON / "benchmarks"
SECONDS = 240  # importing torch takes most of it where the machine is busy

pytestmark = pytest.mark.timeout(SECONDS + 20)


def run(command):
    done = subprocess.run(
        command, timeout=SECONDS, capture_output=True, text=True, env=environment(), check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def environment(**more):
    return {**os.environ, "OMP_NUM_THREADS": "1", **more}


def run_side_by_side(commands, environments):
    """The output of each of the commands, which run at the same time."""
    processes = [
        subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for command, env in zip(commands, environments, strict=True)
    ]
    try:
        outputs = [process.communicate(timeout=SECONDS)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, output in zip(processes, outputs, strict=True):
        assert process.returncode == 0, output
    return outputs


def rank_environment(rank, address, port, **more):
    """What torchrun gives to one of two ranks."""
    ranks = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    return environment(**{**ranks, "MASTER_ADDR": address, "MASTER_PORT": str(port), **more})


def check_rows(path, sizes):
    rows = json.loads(path.read_text())["rows"]
    assert [row["size"] for row in rows] == sizes
    assert all(row["gigabytes_per_second"] > 0 for row in rows)


SHORT = ["--sizes=1K,256K", "--iters=3"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")


@needs_torch
@pytest.mark.parametrize(
    "command",
    [
        "benchmark_uccl.py",
        "benchmark_uccl_read.py --async-api",
        "benchmark_uccl_write.py --num-iovs=8",
        "benchmark_uccl_collective.py",
        "benchmark_nccl.py --backend=gloo",
    ],
)
def test_torchrun(command, tmp_path):
    script, *arguments = command.split()
    rows, picture = tmp_path / "rows.json", tmp_path / "plot.png"
    whole = [*TORCHRUN, "--standalone", "--nproc_per_node=2", str(BENCHMARKS / script), *arguments, *SHORT]
    out = run([*whole, f"--json={rows}", f"--plot={picture}"])
    check_rows(rows, [1 << 10, 256 << 10])
    assert "256 KiB" in out and "GB/s" in out
    assert out.startswith("backend "), out
    assert picture.read_bytes().startswith(b"\x89PNG")


def run_two_ranks(whole):
    """What torchrun would start, without the time that it takes to start itself: rank 0's output."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    environments = [rank_environment(rank, "127.0.0.1", port) for rank in range(2)]
    return run_side_by_side([whole] * 2, environments)[0]


@needs_torch
def test_what_any_package_can_do(tmp_path):
    rows = tmp_path / "rows.json"
    whole = [sys.executable, str(BENCHMARKS / "benchmark_any_uccl.py"), *SHORT, "--lists=300x4K,7x1K"]
    run_two_ranks([*whole, f"--json={rows}"])
    check_rows(rows, [1 << 10, 256 << 10, 300 << 12, 7 << 10])


@needs_torch
@pytest.mark.parametrize(
    "command",
    [
        "benchmark_uccl.py --dual --async-api --num-iovs=4",
        "benchmark_uccl.py --ipc --dual",
        "benchmark_uccl_write.py --ipc --num-iovs=8 --async-api",
        "benchmark_nccl.py --backend=gloo --dual",
        "benchmark_uccl_collective.py --dual",
    ],
)
def test_benchmarks(command, tmp_path):
    script, *arguments = command.split()
    rows = tmp_path / "rows.json"
    out = run_two_ranks([sys.executable, str(BENCHMARKS / script), *arguments, *SHORT, f"--json={rows}"])
    check_rows(rows, [1 << 10, 256 << 10])
    assert "256 KiB" in out and "GB/s" in out
    assert out.startswith("backend ") and ", transport " in out.splitlines()[0], out


@needs_torch
def test_nccl_is_not_gloo():
    import torch

    if torch.cuda.is_available():
        pytest.skip("there are GPUs")
    command = [sys.executable, str(BENCHMARKS / "benchmark_nccl.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 2 and "--backend gloo" in done.stderr


def test_comparison_with_perf(tmp_path):
    """Against a program that answers as p2p-perf does."""
    perf, rows = tmp_path / "perf", tmp_path / "rows.json"
    row = json.dumps({"verified": True, "gbytes_per_second": 0.001})
    perf.write_text(f"#!/bin/sh\necho '{row}'\n")
    perf.chmod(0o755)
    command = [sys.executable, str(BENCHMARKS / "compare_perf.py"), str(perf), f"--json={rows}"]
    out = run([*command, "--rounds=1", "--seconds=0.01", "--shapes=1x64K,100x4K", "--depth=1,2"])
    assert "cma write   100 x   4 KiB, 2 in flight" in out
    compared = json.loads(rows.read_text())
    assert len(compared) == 8
    assert compared[-1].items() >= {"transport": "tcp", "size_bytes": 4096, "blocks": 100, "depth": 2}.items()
    assert all(row["perf"] == 0.001 and row["ratio"] == row["python"] / 0.001 for row in compared)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("send_numpy.py", "received 4000000 bytes"),
        pytest.param("write_torch.py", "wrote 8192 bytes", marks=needs_torch),
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


def test_lists(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import report

    assert report.parse_list("") == []
    assert report.parse_list("10000x16K,3x1") == [(10000, 16 << 10), (3, 1)]
    for bad in ("x", "16K", "0x16K", "ax16K", "4x", "4x0"):
        with pytest.raises(ValueError, match="."):
            report.parse_list(bad)


# Says what Mooncake's program says, and whether it was told what to do.
MOONCAKE = """#!/bin/sh
case "$*" in
  --help) echo '-use_vram (Allocate memory from GPU)'; exit 1 ;;
  *--use_vram=false*--mode=target* | *--mode=target*--use_vram=false*)
    echo 'I1 Transfer Engine RPC using P2P handshake, listening on 127.0.0.1:16394' >&2; exec sleep 100 ;;
  *--mode=initiator*--segment_id=127.0.0.1:16394*--block_size=65536*--batch_size=1*)
    echo 'I1 Test completed: duration 2.00, batch count 1000, throughput 0.03 GB/s' >&2 ;;
  *) exit 2 ;;
esac
"""


def test_mooncakes_own_benchmark(tmp_path):
    program = tmp_path / "transfer_engine_bench"
    program.write_text(MOONCAKE)
    program.chmod(0o755)
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "benchmark_mooncake.py"), "--device", "cpu", "--sizes", "64K", "--quiet",
         "--json", str(tmp_path / "rows.json")],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}, capture_output=True, text=True,
        timeout=SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("backend mooncake, device cpu, transport tcp")
    (row,) = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert (row["size"], row["iters"], row["median"]) == (65536, 1000, 0.002)
