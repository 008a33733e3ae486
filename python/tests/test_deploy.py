# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""deploy/kubernetes: each example renders and is what Kubernetes's schemas and the level "restricted" ask; what its
pods run works with the environment that they are given. No cluster."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from test_programs import environment

HERE = Path(__file__).parents[2] / "deploy" / "kubernetes"
EXAMPLES = ["peers", "ray", "vllm", "weights"]
WORKLOADS = ("Deployment", "StatefulSet", "Job")
KEY = "of a test" * 5


def rendered(example, tmp_path):
    """The objects, as parsed."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    yaml = pytest.importorskip("yaml")
    folder = tmp_path / "kubernetes"
    shutil.copytree(HERE, folder)
    (folder / "uccl" / "key").write_text(KEY)
    (folder / "ray" / "token").write_text(KEY)
    done = subprocess.run(
        ["kubectl", "kustomize", str(folder / example)], capture_output=True, text=True, timeout=50, check=False
    )
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def pods_of(objects):
    return [(one["metadata"]["name"], one["spec"]["template"]["spec"]) for one in objects if one["kind"] in WORKLOADS]


@pytest.mark.parametrize("example", EXAMPLES)
def test_it_is_what_the_schemas_ask(example, tmp_path):
    schemas = pytest.importorskip("kubernetes_validate")
    for one in rendered(example, tmp_path):
        schemas.validate(one, "1.32", strict=True)


@pytest.mark.parametrize("example", EXAMPLES)
def test_what_one_object_names_another_has(example, tmp_path):
    objects = rendered(example, tmp_path)
    named = {(one["kind"], one["metadata"]["name"]) for one in objects}
    for name, pod in pods_of(objects):
        (container,) = pod["containers"]
        assert container["image"].startswith("registry.example/"), name
        volumes = {volume["name"]: volume for volume in pod.get("volumes", [])}
        for volume in volumes.values():
            if "secret" in volume:
                assert ("Secret", volume["secret"]["secretName"]) in named
                assert re.fullmatch(r".+-[a-z0-9]{10}", volume["secret"]["secretName"]), "of this very key"
            if "configMap" in volume:
                assert ("ConfigMap", volume["configMap"]["name"]) in named
        assert {mount["name"] for mount in container["volumeMounts"]} == set(volumes), name
        ports = {port["name"] for port in container["ports"]}
        for kind in ("livenessProbe", "readinessProbe", "startupProbe"):
            ways = [container.get(kind, {}).get(way) for way in ("httpGet", "tcpSocket")]
            assert {way["port"] for way in ways if way} <= ports, (name, kind)
        assert "livenessProbe" in container or "readinessProbe" in container, name
    labels = [one["spec"]["template"]["metadata"]["labels"] for one in objects if one["kind"] in WORKLOADS]
    for one in objects:
        if one["kind"] in ("Service", "NetworkPolicy"):
            chosen = one["spec"]["selector"] if one["kind"] == "Service" else one["spec"]["podSelector"]["matchLabels"]
            assert any(chosen.items() <= these.items() for these in labels), one["metadata"]["name"]


@pytest.mark.parametrize("example", EXAMPLES)
def test_pods_are_as_small_as_the_level_restricted_asks(example, tmp_path):
    for name, pod in pods_of(rendered(example, tmp_path)):
        assert pod["automountServiceAccountToken"] is False, name
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
        (container,) = pod["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}
        }  # fmt: skip
        others = [volume for volume in pod["volumes"] if not {"secret", "configMap", "emptyDir"} & set(volume)]
        # What the component one_host adds, which such a namespace leaves out.
        assert others in ([], [{"name": "sockets", "hostPath": {"path": "/run/uccl", "type": "Directory"}}]), name


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_variables_are_known(example, tmp_path):
    from uccl import p2p

    known = set(re.findall(r"UCCL_P2P_\w+", (HERE.parents[1] / "docs" / "options.md").read_text()))
    assert p2p.__name__
    for name, pod in pods_of(rendered(example, tmp_path)):
        given = {one["name"] for one in pod["containers"][0].get("env", []) if one["name"].startswith("UCCL_")}
        assert given <= known, name


def variables(example):
    """Those of the example's own manifest, each on a line of its own."""
    lines = (HERE / example / f"{example}.yaml").read_text().splitlines()
    return dict(re.findall(r'- \{name: (\w+), value: "?([^"}]+)"?\}', "\n".join(lines)))


@pytest.fixture
def same(tmp_path):
    """What the pods of the tests share, and what differs from a cluster: one network namespace, so each takes ports of
    its own and a folder is the directory."""
    key = tmp_path / "key"
    key.write_text(KEY)
    key.chmod(0o600)
    sockets = tempfile.mkdtemp()  # a short path
    yield {
        "PEERS": f"folder://{tmp_path}/names", "WEIGHTS": f"folder://{tmp_path}/names", "UCCL_P2P_PORT": "0",
        "UCCL_P2P_METRICS": f"127.0.0.1:{free_port()}", "UCCL_P2P_KEY_FILE": str(key), "UCCL_P2P_SOCKET_DIR": sockets,
    }  # fmt: skip
    assert os.listdir(sockets) == []
    shutil.rmtree(sockets)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@contextmanager
def running(example, own):
    workers = [
        subprocess.Popen(
            [sys.executable, str(HERE / example / "worker.py")], env=environment(**{**variables(example), **one}),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for one in own
    ]  # fmt: skip
    try:
        yield workers
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


def test_peers_meet(same):
    with running("peers", [same | {"HOSTNAME": f"peers-{number}"} for number in (0, 1)]) as workers:
        for number, worker in enumerate(workers):
            said = worker.stdout.readline()
            assert said.startswith(f"peers-{number}: 64 MiB by cma"), (said, worker.kill(), worker.stderr.read())
        for worker in workers:
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(timeout=30) == 0


def test_the_job_brings_weights_to_all_its_pods(same):
    own = [same | {"JOB_COMPLETION_INDEX": str(index), "SUBSCRIBERS": "2"} for index in range(3)]
    with running("weights", own) as workers:
        said = [worker.communicate(timeout=100) for worker in workers]
        assert [worker.returncode for worker in workers] == [0, 0, 0], said
    assert said[0][0] == "every subscriber has all\n"
    assert all(text.startswith("64 MiB are right, ") for text, _ in said[1:])


class Half(BaseHTTPRequestHandler):
    """Answers as vLLM's servers do, as far as a router sees."""

    def do_GET(self):
        self.answer({"path": self.path})

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        where = asked["kv_transfer_params"]
        if where.get("do_remote_decode"):
            assert asked["max_tokens"] == 1 and asked["stream"] is False
            self.answer({"kv_transfer_params": {"do_remote_prefill": True, "remote_block_ids": [7]}})
        elif asked["prompt"] == "bad":
            self.send_error(400, "no such prompt")
        else:
            self.answer({"choices": [{"text": f"{asked['prompt']} {where['remote_block_ids']} {asked['max_tokens']}"}]})

    def answer(self, what):
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(what).encode())

    def log_message(self, *_):
        pass


def test_the_router_of_vllm():
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    halves = [ThreadingHTTPServer(("127.0.0.1", 0), Half) for _ in range(2)]
    for half in halves:
        threading.Thread(target=half.serve_forever, daemon=True).start()
    places = [f"http://127.0.0.1:{half.server_port}" for half in halves]
    port = free_port()
    router = subprocess.Popen([sys.executable, str(HERE / "vllm" / "router.py"), *places, str(port)])
    try:
        while True:
            try:
                opener.open(f"http://127.0.0.1:{port}/health", timeout=20).close()
                break
            except OSError:
                assert router.poll() is None

        def complete(prompt):
            body = json.dumps({"prompt": prompt, "max_tokens": 9, "stream": False}).encode()
            request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", body)
            with opener.open(request, timeout=20) as answer:
                return json.load(answer)["choices"][0]["text"]

        assert complete("hello") == "hello [7] 9"
        with pytest.raises(urllib.error.HTTPError, match="400"):
            complete("bad")
        halves[0].shutdown()
        halves[0].server_close()
        for path in ("/health", "/v1/completions"):
            with pytest.raises(urllib.error.HTTPError, match="502"):
                complete("hello") if "v1" in path else opener.open(f"http://127.0.0.1:{port}{path}", timeout=20)
    finally:
        router.kill()
        router.wait()
        for half in halves:
            half.server_close()
