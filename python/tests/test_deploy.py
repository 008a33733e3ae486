# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""deploy/kubernetes: it renders, and what its pods run works with the environment that they are given."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from test_programs import environment

HERE = Path(__file__).parents[2] / "deploy" / "kubernetes"


def rendered(tmp_path):
    """The documents, by kind and name, as text."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    folder = tmp_path / "kubernetes"
    shutil.copytree(HERE, folder)
    (folder / "key").write_text("of a test" * 5)
    done = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\n---\n")


def test_it_renders(tmp_path):
    documents = rendered(tmp_path)
    kinds = sorted(next(line for line in text.splitlines() if line.startswith("kind: ")) for text in documents)
    assert kinds == [f"kind: {kind}" for kind in ("ConfigMap", "NetworkPolicy", "Secret", "Service", "StatefulSet")]
    pods = next(text for text in documents if "kind: StatefulSet" in text)
    assert "name: peers-key\n" not in pods and "secretName: peers-key-" in pods, "of this very key"
    assert "name: peers-worker-" in pods
    assert "image: registry.example/uccl-p2p:0.1.0" in pods


def variables():
    """Those of the manifest, each on a line of its own."""
    lines = [line.strip() for line in (HERE / "peers.yaml").read_text().splitlines() if "value:" in line]
    pairs = (line.removeprefix("- {name: ").removesuffix("}").split(", value: ") for line in lines)
    return {name: value.strip('"') for name, value in pairs}


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def test_the_worker_runs_with_the_variables_of_the_manifest(tmp_path):
    given = variables()
    sockets = tempfile.mkdtemp()  # a short path
    key = tmp_path / "key"
    key.write_text("of a test" * 5)
    key.chmod(0o600)
    workers = []
    try:
        for number in (0, 1):
            # What differs here: one network namespace, so each takes ports of its own and a folder is the directory.
            own = {"PEERS": f"folder://{tmp_path}/names", "UCCL_P2P_PORT": "0", "UCCL_P2P_METRICS": f"127.0.0.1:{free_port()}"}
            own |= {"UCCL_P2P_KEY_FILE": str(key), "UCCL_P2P_SOCKET_DIR": sockets, "HOSTNAME": f"peers-{number}"}
            workers.append(
                subprocess.Popen(
                    [sys.executable, str(HERE / "worker.py")], env=environment(**{**given, **own}),
                    stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                )
            )  # fmt: skip
        for number, worker in enumerate(workers):
            said = worker.stdout.readline()
            assert said.startswith(f"peers-{number}: 64 MiB by cma"), (said, worker.kill(), worker.stderr.read())
        for worker in workers:
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(timeout=30) == 0
        assert os.listdir(sockets) == []
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
        shutil.rmtree(sockets)
