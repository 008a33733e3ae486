# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""The page of uccl.report: what it takes, what it shows, and that a browser finds nothing to load or to complain of."""

import json
import re
import shutil
import struct
import subprocess
import sys
from html.parser import HTMLParser

import pytest

from uccl import files as package_files
from uccl import report
from uccl.doctor import figures, finding
from uccl.report import plots, results

pytest.importorskip("matplotlib")

BROWSER = next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "google-chrome"))), None)


def perf_row(size, speed, **more):
    row = {
        "op": "write", "transport": "tcp", "size_bytes": size, "blocks": 1, "depth": 1, "streams": 0,
        "gbytes_per_second": speed, "messages_per_second": 1.0, "latency_us_p50": 10.0, "latency_us_p99": 20.0,
        "post_us": 1.0, "verified": True,
    }  # fmt: skip
    return {**row, **more}


def write_lines(path, values):
    path.write_text("".join(json.dumps(value) + "\n" for value in values))
    return str(path)


@pytest.fixture
def files(tmp_path):
    """One of each kind."""
    benchmark = {
        "benchmark": "nixl",
        "settings": {"backend": "ucx", "op": "WRITE"},
        "rows": [
            {"size": size, "iovs": 1, "iters": 3, "seconds": 1e-4, "median": 9e-5, "p99": 2e-4, "gigabytes_per_second": 3.5}
            for size in (4096, 65536, 1 << 20)
        ],
    }
    iperf = {"start": {"connected": [{}, {}]}, "end": {"sum_received": {"bits_per_second": 40e9}}}
    limit = {"name": "memcpy", "text": "memcpy <64 MiB>", "value": 9.0, "unit": "GB/s"}
    return [
        write_lines(tmp_path / "tcp.jsonl", [perf_row(4096, 0.5), perf_row(65536, 2.0), perf_row(4096, 0.7), perf_row(1 << 20, 3.0)]),
        write_lines(tmp_path / "wrong.jsonl", [perf_row(65536, 4.0, transport="cma", verified=False)]),
        write_lines(tmp_path / "lists.jsonl", [perf_row(4096, 3.0, blocks=512, depth=8)]),
        write_lines(tmp_path / "machine.jsonl", [limit]),
        write_lines(tmp_path / "nixl.json", [benchmark]),
        write_lines(tmp_path / "iperf.json", [iperf]),
    ]


def test_each_kind_of_file_is_understood(files):
    found = report.read([*files[:-1], f"two sockets={files[-1]}"])
    work, by_series = found.works["write", 1, False]
    assert work.title == "write, one at a time"
    assert set(by_series) == {"uccl_p2p tcp", "uccl_p2p cma", "nixl ucx"}
    assert [point.gigabytes for point in by_series["uccl_p2p tcp"]] == [0.5, 0.7, 2.0, 3.0]
    assert by_series["nixl ucx"][0].p50 == pytest.approx(90)
    (lists,) = found.works["write", 8, True][1].values()
    assert (lists[0].size, lists[0].blocks) == (512 * 4096, 512)
    assert [(one.name, one.value) for one in found.limits] == [("memcpy <64 MiB>", 9.0), ("two sockets", 5.0)]


def test_what_our_other_tools_write(tmp_path):
    tcpx = [{"command": "perf", "bytes": size, "channels": 2, "chunk_bytes": 1, "window": 16, "rounds": 3, "best_us": 8.0,
             "median_us": 9.5, "gb_per_s": 3.0, "verified": True} for size in (4096, 65536)]  # fmt: skip
    compared = [{"work": "x", "transport": "cma", "size_bytes": 4096, "blocks": 100, "depth": 2, "python": 4.0, "perf": 5.0,
                 "ratio": 0.8, "ratios": [0.8]}]  # fmt: skip
    findings = [finding.Finding("machine", "kernel", "Linux"), figures.judge("tcp, host to host", 4.1, "a raw socket", 4.4)]
    doctor = tmp_path / "doctor.json"
    doctor.write_text(finding.as_json(findings))
    found = report.read(
        [write_lines(tmp_path / "tcpx.jsonl", tcpx), write_lines(tmp_path / "both.json", [compared]), str(doctor)]
    )
    (sent,) = found.works["send", 1, False][1].items()
    assert sent[0] == "tcpx, 2 channels" and [(one.size, one.p50) for one in sent[1]] == [(4096, 9.5), (65536, 9.5)]
    by_series = found.works["write", 2, True][1]
    assert {name: points[0].gigabytes for name, points in by_series.items()} == {"cma, Python": 4.0, "cma, p2p-perf": 5.0}
    (measured,) = found.works["write", 1, False][1].items()
    assert measured[0] == "p2p-doctor, tcp, host to host" and measured[1][0].gigabytes == 4.1
    assert [(one.name, one.value) for one in found.limits] == [("a raw socket", 4.4)]
    assert "p2p-doctor, tcp, host to host" in report.page(found, "all")


class Page(HTMLParser):
    """What a page holds; fails for tags that do not close in order."""

    VOID = {"meta", "br"}

    def __init__(self, text):
        super().__init__()
        self.open, self.seen, self.ids, self.text = [], [], [], ""
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.seen.append((tag, dict(attributes)))
        self.ids += [value for name, value in attributes if name == "id"]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.seen.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


@pytest.fixture
def made(files, tmp_path):
    out = tmp_path / "report.html"
    assert report.main([*files, "-o", str(out), "--title", "A & B"]) == 0
    return out


def test_the_page_is_whole_and_needs_nothing_else(made):
    page = Page(made.read_text())
    tags = [tag for tag, _ in page.seen]
    assert tags.count("svg") == 2  # the work of several sizes: speed and latency
    assert not {"script", "link", "img", "iframe", "object"} & set(tags)
    for tag, attributes in page.seen:
        for name in ("src", "href", "xlink:href"):
            assert attributes.get(name, "#").startswith("#"), (tag, attributes)
    assert not re.search(r"url\((?!#)|@import", made.read_text())
    assert len(page.ids) == len(set(page.ids))
    for words in ("A & B", "memcpy <64 MiB>", "nixl ucx", "uccl_p2p cma", "64 KiB", "NO", "iperf3, 2 streams"):
        assert words in page.text


def test_lines_are_medians(files):
    points = report.read(files).works["write", 1, False][1]["uccl_p2p tcp"]
    assert results.medians(points, lambda point: point.gigabytes) == ([4096, 65536, 1 << 20], [0.7, 2.0, 3.0])


BASELINES = [("tcp_stream", 4.0, "GB/s"), ("process_vm_writev", 10.0, "GB/s"), ("tcp_blocks_4k", 2.0, "GB/s"),
             ("tcp_round_trip_4k", 5.0, "us")]  # fmt: skip
LARGE = 64 << 20


def tour():
    """Single figures, as the tour of p2p-perf writes them."""
    where = {"machine": "host-7, a processor, 8 cores", "date": "2026-11-05"}
    rows = [
        perf_row(4096, 0.02, **where),
        perf_row(64, 0.008, op="notify", depth=64, **where),
        perf_row(1 << 20, 8.0, depth=8, transport="cma", **where),
        perf_row(LARGE, 3.0, depth=2, **where),
        perf_row(LARGE, 7.5, depth=2, transport="cma", **where),
        perf_row(4096, 1.9, depth=2, blocks=8192, **where),
    ]
    return rows + [{"name": name, "text": f"raw {name}", "value": value, "unit": unit} for name, value, unit in BASELINES]


def test_single_figures_are_bars(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # not needed for them
    found = report.read([write_lines(tmp_path / "tour.jsonl", tour())])
    shares = {(work.title, series): point.share for work, series, point in found.typical() if point.share}
    assert shares == {
        ("write, 2 in flight", "uccl_p2p tcp"): 0.75,
        ("write, 2 in flight", "uccl_p2p cma"): 0.75,
        ("write, 2 in flight, in blocks", "uccl_p2p tcp"): 0.95,
        ("write, one at a time", "uccl_p2p tcp"): 0.5,  # 5 us of 10
    }
    text = report.page(found, "the tour")
    seen = Page(text)
    assert not {"svg", "figure"} & {tag for tag, _ in seen.seen}
    headline, shown = seen.text.split("Share of what the machine gives")
    assert "host-7, a processor, 8 cores \xb7 5 November 2026" in headline
    # Not the 8 GB/s of 1 MiB, which nothing is known to compare with.
    assert "uccl_p2p cma, 7.50 GB/s (write 64 MiB, 2 in flight), 75% of the machine's 10.00 GB/s" in headline
    order = ["write 64 MiB, 2 in flight", "write 8192 x 4 KiB, 2 in flight", "write 4 KiB, one at a time",
             "Other big transfers", "write 1 MiB, 8 in flight", "Small messages", "notify 64 B, 64 in flight",
             "125,000 a second", "The machine without an engine"]  # fmt: skip
    places = [shown.index(words) for words in order]
    assert places == sorted(places)
    widths = [float(width) for width in re.findall(r'class="fill" style="width:([\d.]+)%"', text)]
    assert widths[:4] == [75.0, 75.0, 95.0, 50.0] and max(widths) == 100.0


def test_more_than_the_machine_gave_stays_within_the_page(tmp_path):
    found = report.read([write_lines(tmp_path / "tour.jsonl", [perf_row(LARGE, 8.0), *tour()[-4:]])])
    text = report.page(found, "all")
    assert "200%: 8.00 of 4.00 GB/s" in text
    assert re.findall(r"(width|left):([\d.]+)%\"", text) == [("width", "100.0"), ("left", "50.0")]


def test_messages_over_sizes_are_told_a_second(tmp_path):
    rows = [perf_row(size, size / 1e3, op="send") for size in (64, 512, 4096)]
    (section,) = report.page(report.read([write_lines(tmp_path / "rows.jsonl", rows)]), "all").split("<h2>send")[1:]
    assert "messages a second, over bytes" in section and "GB/s, over" not in section


def test_wrong_bytes_are_told_first(files):
    text = Page(report.page(report.read(files), "all")).text
    assert 0 < text.index("Of 1 figure the bytes arrived wrong") < text.index("over bytes")


def test_without_matplotlib_the_error_names_the_extra(files, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert report.main([*files, "-o", str(tmp_path / "out.html")]) == 1
    said = capsys.readouterr().err
    assert "matplotlib" in said and "pip install 'uccl-p2p[report]'" in said


@pytest.mark.parametrize("text", ["", "no JSON", "[1]", '{"a": 1}', '{"benchmark": "x", "rows": [{}]}'])
def test_other_files_are_refused(text, tmp_path, capsys):
    path = tmp_path / "other.json"
    path.write_text(text)
    assert report.main([str(path), "-o", str(tmp_path / "out.html")]) == 1
    assert "report: " in capsys.readouterr().err
    assert not (tmp_path / "out.html").exists()


def test_as_a_program(files, tmp_path):
    out = tmp_path / "page.html"
    subprocess.run([sys.executable, "-m", "uccl.report", *files, "-o", str(out)], check=True, timeout=50)
    assert out.read_text().startswith("<!DOCTYPE html>")


def test_as_a_part_of_the_command_p2p_perf(files, tmp_path, monkeypatch):
    out = tmp_path / "page.html"
    monkeypatch.setattr(sys, "argv", ["p2p-perf", "report", *files, "-o", str(out)])
    with pytest.raises(SystemExit) as ended:
        package_files.perf()
    assert ended.value.code == 0 and out.read_text().startswith("<!DOCTYPE html>")


def test_a_series_looks_the_same_in_all_plots(tmp_path):
    rows = [perf_row(size, 1.0, transport=transport, op=op) for size in (4096, 8192, 1 << 20) for op, transport in
            (("send", "cma"), ("send", "tcp"), ("write", "tcp"))]  # fmt: skip
    text = report.page(report.read([write_lines(tmp_path / "rows.jsonl", rows)]), "all")
    write, send = (section for section in text.split("<h2>")[1:] if "<svg" in section)
    colours = [set(re.findall("|".join(plots._COLOURS), section)) for section in (send, write)]
    assert colours == [set(plots._COLOURS[:2]), {plots._COLOURS[0]}]


@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
def test_a_phone_shows_figures_beside_long_names(tmp_path):
    limit = {"name": "x", "text": "process_vm_writev, 8192 x 4 KiB shuffled, two threads", "value": 9.0, "unit": "GB/s"}
    probe = tmp_path / "probe.html"
    text = report.page(report.read([write_lines(tmp_path / "machine.jsonl", [limit])]), "all")
    script = (
        "<script>const t = document.querySelector('.wide');"
        "document.title = [t.clientWidth, t.scrollWidth].join()</script>"
    )
    probe.write_text(text.replace("</body>", script + "</body>"))
    dumped = subprocess.run(
        [BROWSER, "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}", "--window-size=390,900",
         "--dump-dom", probe.as_uri()], capture_output=True, text=True, timeout=50, check=True,
    )  # fmt: skip
    room, wide = map(int, re.search(r"<title>(\d+),(\d+)</title>", dumped.stdout).groups())
    assert wide <= room


@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
@pytest.mark.parametrize(("width", "dark"), [(390, False), (1280, True)])
def test_a_browser_shows_it_without_scrolling_sideways(made, tmp_path, width, dark):
    """The page itself says how wide it came out; a picture shows whether it is light or dark."""
    probe = tmp_path / "probe.html"
    script = "<script>document.title = [innerWidth, document.documentElement.scrollWidth].join()</script>"
    probe.write_text(made.read_text().replace("</body>", script + "</body>"))
    picture = tmp_path / "page.png"
    options = ["--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={tmp_path / 'profile'}",
               f"--window-size={width},900", f"--blink-settings=preferredColorScheme={0 if dark else 1}"]  # fmt: skip
    dumped = subprocess.run(
        [BROWSER, *options, "--dump-dom", probe.as_uri()], capture_output=True, text=True, timeout=50, check=True
    )
    inner, wide = map(int, re.search(r"<title>(\d+),(\d+)</title>", dumped.stdout).groups())
    assert wide <= inner
    subprocess.run(
        [BROWSER, *options, f"--screenshot={picture}", made.as_uri()], capture_output=True, timeout=50, check=True
    )
    data = picture.read_bytes()
    assert struct.unpack(">II", data[16:24]) == (width, 900)
    from matplotlib import image

    corner = image.imread(picture)[2, 2, :3].mean()
    assert corner < 0.3 if dark else corner > 0.9
