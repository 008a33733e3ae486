# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""Metrics as collectors read them: over HTTP, by the official parser and promtool; the dashboard; p2p-top."""

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from other_process import Other
from trickling import trickling

from uccl import p2p, top

ROOT = Path(__file__).parents[2]
DASHBOARD = ROOT / "examples" / "grafana_dashboard.json"
OPENMETRICS = "application/openmetrics-text"


def free_place():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def page(place, accept="text/plain", path="/metrics"):
    request = urllib.request.Request(f"http://{place}{path}", headers={"Accept": accept})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=20) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


@pytest.fixture
def served(other):
    """A place at which an endpoint is served that has written 4096 bytes to another process, and read them."""
    place = free_place()
    with p2p.Endpoint(0, 2, metrics=place) as ep:
        ok, conn = ep.add_remote_endpoint(other.open())
        assert ok, p2p.last_error()
        mr_id, pointer = other.memory("m", 4096)
        import numpy as np

        array = np.full(4096, 7, np.uint8)
        ok, mine = ep.reg(array.ctypes.data, array.nbytes)
        assert ok, p2p.last_error()
        blob = other.advertised("m")
        assert ep.write(conn, mine, array.ctypes.data, 4096, blob), p2p.last_error()
        assert ep.read(conn, mine, array.ctypes.data, 4096, blob), p2p.last_error()
        yield place


def status(place, path):
    try:
        return 200, page(place, path=path)[1]
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()


def test_probes(served):
    assert status(served, "/healthz") == (200, "ok, 1 endpoints listen\n")
    assert status(served, "/readyz") == (200, "ok, 1 endpoints listen\n")


def test_openmetrics_by_the_official_parser(served):
    parser = pytest.importorskip("prometheus_client.openmetrics.parser")
    kind, text = page(served, f"{OPENMETRICS};version=1.0.0,text/plain;q=0.5")
    assert kind.startswith(OPENMETRICS)
    families = {family.name: family for family in parser.text_string_to_metric_families(text)}
    (one,) = families["p2p_connection_written_bytes"].samples
    assert one.value == 4096
    assert families["p2p_registered_bytes"].samples[0].value == 4096
    counts = {
        sample.labels["direction"]: sample.value
        for sample in families["p2p_endpoint_transfer_seconds"].samples
        if sample.name.endswith("_count")
    }
    assert counts["write"] == 8  # the first of eight short ones stands for all
    assert all(family.documentation for family in families.values())


def test_the_older_format_by_the_official_parser(served):
    parser = pytest.importorskip("prometheus_client.parser")
    kind, text = page(served)
    assert kind.startswith("text/plain; version=0.0.4")
    families = {family.name: family for family in parser.text_string_to_metric_families(text)}
    assert families["p2p_connection_read_bytes"].samples[0].value == 4096
    assert families["p2p_connection_read_bytes"].type == "counter"


def test_promtool_has_nothing_to_say(served):
    found = subprocess.run([ROOT / "scripts" / "promtool.sh"], capture_output=True, text=True, timeout=50, check=False)
    if found.returncode != 0:
        pytest.skip(found.stderr.strip())
    _, text = page(served)
    checked = subprocess.run(
        [found.stdout.strip(), "check", "metrics"], input=text, capture_output=True, text=True, timeout=50, check=False
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


def test_every_metric_of_the_dashboard_is_there(served):
    dashboard = json.loads(DASHBOARD.read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    expressions += [one["query"]["query"] for one in dashboard["templating"]["list"] if one["type"] == "query"]
    assert len(expressions) >= 8
    _, text = page(served)
    there = {re.match(r"[a-z0-9_]+", line)[0] for line in text.splitlines() if line[:1] not in ("", "#")}
    named = {name for expression in expressions for name in re.findall(r"\bp2p_[a-z0-9_]+", expression)}
    assert named
    assert named <= there


def test_one_place_serves_all_endpoints_of_the_process(served):
    with p2p.Endpoint(0, 2, metrics=served):
        _, text = page(served)
        assert len(re.findall(r"^p2p_registered_regions\{", text, re.MULTILINE)) == 2
    _, text = page(served)
    assert len(re.findall(r"^p2p_registered_regions\{", text, re.MULTILINE)) == 1


def test_other_pages_are_not_there(served):
    with pytest.raises(urllib.error.HTTPError, match="404"):
        page(served, path="/")


def test_nothing_is_served_once_the_endpoint_has_gone():
    place = free_place()
    p2p.Endpoint(0, 2, metrics=place).close()
    with pytest.raises(urllib.error.URLError):
        page(place)


def test_places_that_others_reach_must_be_allowed():
    with pytest.raises(Exception, match="UCCL_P2P_METRICS_PUBLIC=1"):
        p2p.Endpoint(0, 2, metrics="0.0.0.0:0")
    with pytest.raises(Exception, match="no address:port"):
        p2p.Endpoint(0, 2, metrics="9400")
    p2p.Endpoint(0, 2, metrics="0.0.0.0:0", metrics_public=True).close()


def test_a_place_that_is_taken_stops_nobody():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        p2p.Endpoint(0, 2, metrics=f"127.0.0.1:{taken.getsockname()[1]}").close()


def until_served(place, path, holds):
    """The page at ``path`` once ``holds`` of its status and text; whoever served it may just have been killed."""
    deadline = time.monotonic() + 60
    told = None
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, http.client.HTTPException):
            told = status(place, path)
            if holds(*told):
                return told[1]
    raise AssertionError(told)


def test_processes_of_a_host_are_behind_one_port():
    place = free_place()
    others = []
    try:
        for _ in range(3):
            others.append(Other())
            others[-1].open(metrics=place)
        first, second, third = (other.process.pid for other in others)
        text = until_served(place, "/metrics", lambda _, text: text.count("p2p_registered_regions{") == 3)
        assert {re.search(r'process="(\d+)"', line)[1] for line in text.splitlines() if "p2p_process_up{" in line} == {
            str(first), str(second), str(third)
        }  # fmt: skip
        assert list(prometheus_families(text)["p2p_process_up"]) == [1, 1, 1]
        os.kill(second, signal.SIGSTOP)
        # A client of /metrics, and not the probe, is first to wait for it.
        text = until_served(place, "/metrics", lambda _, text: f'p2p_process_up{{process="{second}"}} 0' in text)
        assert f'p2p_registered_regions{{process="{third}"' in text
        until_served(place, "/readyz", lambda code, text: code == 503 and f"process {second}: does not answer" in text)
        os.kill(second, signal.SIGCONT)
        until_served(place, "/readyz", lambda code, text: code == 200 and text.count(" listen\n") == 3)
        others[0].kill()
        text = until_served(place, "/metrics", lambda _, text: text.count("p2p_registered_regions{") == 2)
        assert f'process="{first}"' not in text
        others[1].kill()
        until_served(place, "/healthz", lambda code, text: (code, text) == (200, "ok, 1 endpoints listen\n"))
    finally:
        for other in others:
            other.kill()


def prometheus_families(text):
    """The values of each metric, by the official parser."""
    parser = pytest.importorskip("prometheus_client.parser")
    families = parser.text_string_to_metric_families(text)
    return {family.name: [sample.value for sample in family.samples] for family in families}


def run_top(*words):
    return subprocess.run(
        [sys.executable, "-m", "uccl.top", *words], capture_output=True, text=True, timeout=50, check=False,
        env={name: value for name, value in os.environ.items() if name != "UCCL_P2P_METRICS"},
    )  # fmt: skip


def test_top_shows_the_connection(served):
    shown = run_top(served, "--once")
    assert shown.returncode == 0, shown.stderr
    first, heads, row = shown.stdout.strip().splitlines()
    assert first.startswith("1 connection, ")
    assert heads.split()[:3] == ["conn", "peer", "by"]
    assert row.split()[0] == "0"


def test_top_says_where_nothing_is_served():
    refused = run_top(free_place(), "--once")
    assert refused.returncode == 1
    assert "Connection refused; run the process with UCCL_P2P_METRICS=" in refused.stderr
    assert "urlopen" not in refused.stderr
    assert run_top().returncode == 2
    nowhere = run_top("here", "--once")
    assert (nowhere.returncode, nowhere.stderr.splitlines()[-1]) == (2, "p2p-top: error: here is no address:port")


@pytest.mark.parametrize("first", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"])
def test_top_waits_a_bounded_time_for_an_answer_that_trickles(first, monkeypatch):
    monkeypatch.setattr(top, "_PATIENCE", 1.0)
    with trickling(first) as place, pytest.raises(TimeoutError, match="not there within 1 s"):
        top.fetch(place)


@pytest.mark.parametrize(
    "page",
    [
        b"hello world\n",
        b"caf\xe9 1\n",
        b'p2p_connection_up{peer="x"} 1\np2p_connection_bytes_total{peer="x"} 1\np2p_connection_transfer_seconds_bucket{le="1"} 1\n',
        b'p2p_weights_bytes{endpoint="1",version="main",role="publisher"} 4\n',
    ],
)
def test_top_says_that_something_else_is_served(page, capsys):
    def answer(listener):
        client, _ = listener.accept()
        with client:
            client.recv(4096)
            client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(page), page))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=answer, args=(listener,))
        server.start()
        place = f"127.0.0.1:{listener.getsockname()[1]}"
        assert top.show(place, 1, True) == 1
        server.join()
    assert f"what is served at {place} are not this library's metrics" in capsys.readouterr().err


def test_top_says_that_the_process_has_ended(other):
    place = free_place()
    other.open(metrics=place)
    watching = subprocess.Popen(
        [sys.executable, "-m", "uccl.top", place, "--interval", "0.05"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert watching.stdout.readline().startswith("0 connections, ")
        other.call("close")
        _, told = watching.communicate(timeout=50)
    finally:
        watching.kill()
    assert watching.returncode == 1 and told.strip().endswith("; the process has ended")


def test_top_tells_endpoints_of_one_process_apart():
    now = scrape(12.0, 5000, {"+Inf": 15})
    now.samples.update(scrape(12.0, 4000, {"+Inf": 15}, endpoint="a 2").samples)
    assert [row.split()[0] for row in top.table(top.lines(now, None)).splitlines()] == ["conn", "1/0", "2/0"]
    assert [top.bytes_text(count) for count in (2048, 2 << 20, 3 << 30)] == ["2 KiB", "2.0 MiB", "3.0 GiB"]


def scrape(at, written, counts, endpoint="a 1"):
    labels = f'endpoint="{endpoint}",connection="0",peer="b, \\"c\\" 2"'
    rows = [f'p2p_connection_written_bytes_total{{{labels},transport="tcp"}} {written}']
    for name in ("connection_read_bytes_total", "connection_transfers_completed_total",
                 "connection_batches_retried_total", "connection_channels_lost_total", "transfers_under_way",
                 "pieces_queued"):  # fmt: skip
        rows.append(f'p2p_{name}{{{labels},transport="tcp"}} 1')
    for direction in ("write", "read"):
        for bound, count in counts.items():
            rows.append(
                f'p2p_connection_transfer_seconds_bucket{{{labels},transport="tcp",'
                f'direction="{direction}",le="{bound}"}} {count}'
            )
    return top.Scrape.of("# HELP x y\n" + "\n".join(rows) + "\n# EOF\n", at)


def test_top_counts_what_came_since_the_last_look():
    before = scrape(10.0, 1000, {"0.001": 5, "0.002": 5, "+Inf": 5})
    now = scrape(12.0, 5000, {"0.001": 5, "0.002": 14, "+Inf": 15})
    (line,) = top.lines(now, before)
    assert (line.written, line.read, line.peer) == (2000.0, 0.0, 'b, \\"c\\" 2')
    assert (line.p50, line.p99) == (0.002, float("inf"))
    assert top.table([line]).splitlines()[1].endswith("> 17 s      1     1     0        0")
    assert top.lines(now, now)[0].p50 is None
