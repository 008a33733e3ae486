# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""Live tables of the connections and weights of processes that serve their metrics (UCCL_P2P_METRICS)."""

from __future__ import annotations

import argparse
import http.client
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from uccl._http import ask

_PATIENCE = 5.0
_LINE = re.compile(r'(?P<name>[a-z0-9_]+)(?:\{(?P<labels>.*)\})? (?P<value>[^ ]+)$')
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_MOST_BYTES = 64 << 20

Labels = tuple[tuple[str, str], ...]


@dataclass
class Scrape:
    """All samples of one page, and when it came."""

    at: float
    samples: dict[tuple[str, Labels], float] = field(default_factory=dict)

    @staticmethod
    def of(text: str, at: float) -> Scrape:
        """The samples of a page; other lines say nothing here."""
        made = Scrape(at)
        for line in text.splitlines():
            match = None if line.startswith("#") else _LINE.match(line)
            if match:
                labels = tuple(sorted(_LABEL.findall(match["labels"] or "")))
                made.samples[match["name"], labels] = float(match["value"])
        return made

    def named(self, name: str) -> Iterator[tuple[dict[str, str], float]]:
        for (one, labels), value in self.samples.items():
            if one == name:
                yield dict(labels), value


def fetch(place: str) -> Scrape:
    """The metrics that are served at ``address:port``; all of the answer has ``_PATIENCE`` seconds."""
    connection = http.client.HTTPConnection(place)  # of no proxy
    answer = ask(connection, "GET", "/metrics", headers={"Accept": "text/plain"}, seconds=_PATIENCE, most_bytes=_MOST_BYTES)
    if answer.status != 200:
        raise OSError(f"HTTP {answer.status}: {answer.reason}")
    return Scrape.of(answer.body.decode(), time.monotonic())


def quantile(buckets: Mapping[float, float], share: float) -> float | None:
    """The bound below which so large a share lies, of counts by upper bound (cumulative); None: nothing was counted."""
    total = max(buckets.values(), default=0)
    if total <= 0:
        return None
    return next(bound for bound, count in sorted(buckets.items()) if count >= share * total)


@dataclass
class Line:
    """One connection: what it did since the scrape before, by the second."""

    endpoint: str
    connection: str
    peer: str
    transport: str
    written: float
    read: float
    transfers: float
    under_way: float
    queued: float
    retried: float
    lost: float
    back: float
    resumed: float
    p50: float | None
    p99: float | None


_Key = tuple[str, str]


def _key(labels: Mapping[str, str]) -> _Key:
    return labels["endpoint"], labels["connection"]


def _by_connection(scrape: Scrape, name: str) -> dict[_Key, float]:
    return {_key(labels): value for labels, value in scrape.named(name)}


def _buckets(scrape: Scrape) -> dict[_Key, dict[float, float]]:
    """Of each connection: cumulative counts by upper bound, all transports and directions together."""
    found: dict[_Key, dict[float, float]] = {}
    for labels, value in scrape.named("p2p_connection_transfer_seconds_bucket"):
        counts = found.setdefault(_key(labels), {})
        bound = float(labels["le"])
        counts[bound] = counts.get(bound, 0) + value
    return found


def lines(now: Scrape, before: Scrape | None) -> list[Line]:
    """The connections that are open now, those that move most first; without a scrape before, since their beginning."""
    earlier = before or Scrape(now.at - 1)
    seconds = max(now.at - earlier.at, 1e-9) if before else 1.0

    def since(name: str) -> dict[_Key, float]:
        old = _by_connection(earlier, name)
        return {key: value - old.get(key, 0) for key, value in _by_connection(now, name).items()}

    written, read = since("p2p_connection_written_bytes_total"), since("p2p_connection_read_bytes_total")
    done = since("p2p_connection_transfers_completed_total")
    retried = _by_connection(now, "p2p_connection_batches_retried_total")
    lost = _by_connection(now, "p2p_connection_channels_lost_total")
    back = _by_connection(now, "p2p_connection_channels_returned_total")
    resumed = _by_connection(now, "p2p_connection_session_resumes_total")
    under_way = _by_connection(now, "p2p_transfers_under_way")
    queued = _by_connection(now, "p2p_pieces_queued")
    counts, old_counts = _buckets(now), _buckets(earlier)
    made = []
    for labels, _ in now.named("p2p_connection_written_bytes_total"):
        key = _key(labels)
        old = old_counts.get(key, {})
        times = {bound: count - old.get(bound, 0) for bound, count in counts.get(key, {}).items()}
        made.append(
            Line(
                endpoint=key[0], connection=key[1], peer=labels["peer"], transport=labels["transport"],
                written=written[key] / seconds, read=read[key] / seconds, transfers=done[key] / seconds,
                under_way=under_way[key], queued=queued[key], retried=retried[key], lost=lost[key],
                back=back.get(key, 0), resumed=resumed.get(key, 0),
                p50=quantile(times, 0.5), p99=quantile(times, 0.99),
            )
        )  # fmt: skip
    return sorted(made, key=lambda one: one.written + one.read, reverse=True)


def bytes_text(count: float) -> str:
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count / 1024:.0f} KiB"


def time_text(seconds: float | None) -> str:
    """Bounds of buckets, so "at most"."""
    if seconds is None:
        return "-"
    if seconds == float("inf"):
        return "> 17 s"
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} us"


def table(rows: list[Line], most: int | None = None) -> str:
    """The rows as text, `most` lines of it. Connections of several endpoints are told apart by the endpoints' ports."""
    several = len({one.endpoint for one in rows}) > 1
    heads = ("conn", "peer", "by", "GB/s out", "GB/s in", "done/s", "open", "queued", "p50 <", "p99 <", "again", "lost", "back", "resumed")
    cells = [
        (
            f"{one.endpoint.split()[-1]}/{one.connection}" if several else one.connection,
            one.peer, one.transport, f"{one.written / 1e9:.3f}", f"{one.read / 1e9:.3f}",
            f"{one.transfers:.0f}", f"{one.under_way:.0f}", f"{one.queued:.0f}", time_text(one.p50),
            time_text(one.p99), f"{one.retried:.0f}", f"{one.lost:.0f}", f"{one.back:.0f}", f"{one.resumed:.0f}",
        )
        for one in rows
    ]  # fmt: skip
    return _aligned([heads, *cells], 3, most)


@dataclass
class WeightsLine:
    """A version at one publisher or subscriber. Rates are bytes a second since the scrape before; None: there was none."""

    endpoint: str
    process: str
    version: str
    role: str
    size: float
    held: float
    came: float | None
    given: float | None
    copies: float | None  # of a publisher
    source: str
    waits: str  # on whom; empty: it does not
    waited: float  # seconds


_Version = tuple[str, str, str]


def _version(labels: Mapping[str, str]) -> _Version:
    return labels.get("process", ""), labels["endpoint"], labels["version"]


def _by_version(scrape: Scrape, name: str) -> dict[_Version, float]:
    found: dict[_Version, float] = {}
    for labels, value in scrape.named(f"p2p_weights_{name}"):
        found[_version(labels)] = found.get(_version(labels), 0) + value
    return found


def weights(now: Scrape, before: Scrape | None) -> list[WeightsLine]:
    """The versions of weights at each member: newer ones first, of each the publisher first."""

    def rate(name: str) -> dict[_Version, float]:
        if before is None:
            return {}
        old, seconds = _by_version(before, name), max(now.at - before.at, 1e-9)
        return {key: max(value - old.get(key, 0), 0) / seconds for key, value in _by_version(now, name).items()}

    def named(name: str, label: str) -> dict[_Version, str]:
        return {_version(labels): labels[label] for labels, _ in now.named(f"p2p_weights_{name}")}

    came, given = rate("received_bytes_total"), rate("given_bytes_total")
    held, waited = _by_version(now, "held_bytes"), _by_version(now, "waited_seconds_total")
    copies = _by_version(now, "copies")
    source, waits = named("source", "from"), named("waiting", "on")
    none = None if before is None else 0.0
    made = []
    for labels, size in now.named("p2p_weights_bytes"):
        key = _version(labels)
        made.append(
            WeightsLine(
                endpoint=key[1], process=key[0], version=key[2], role=labels["role"], size=size, held=held.get(key, 0),
                came=came.get(key, none), given=given.get(key, none), copies=copies.get(key), source=source.get(key, ""),
                waits=waits.get(key, ""), waited=waited.get(key, 0),
            )
        )  # fmt: skip
    return sorted(made, key=lambda one: (-int(one.version), one.role, one.endpoint))


def weights_table(rows: list[WeightsLine], most: int | None = None) -> str:
    """The rows as text, `most` lines of it; empty if there are none."""
    if not rows:
        return ""

    def rate(value: float | None) -> str:
        return "-" if value is None else f"{value / 1e9:.3f}"

    heads = ("weights", "role", "member", "from", "waits for", "here", "of", "%", "GB/s in", "GB/s out", "copies", "waited")
    cells = [
        (
            one.version, one.role, one.endpoint, one.source or "-", one.waits or "-", bytes_text(one.held), bytes_text(one.size),
            f"{100 * one.held / one.size:.0f}" if one.size else "100", rate(one.came), rate(one.given),
            "-" if one.copies is None else f"{one.copies:.0f}", f"{one.waited:.1f} s",
        )
        for one in rows
    ]  # fmt: skip
    return _aligned([heads, *cells], 5, most)


def _aligned(rows: list[tuple[str, ...]], left: int, most: int | None) -> str:
    """`most` lines of columns, of which the first `left` are names."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    text = [
        "  ".join(cell.ljust(width) if i < left else cell.rjust(width) for i, (cell, width) in enumerate(zip(row, widths)))
        for row in rows
    ]
    return "\n".join(line.rstrip() for line in text[:most])


def summary(now: Scrape, rows: list[Line]) -> str:
    """One line over the table."""

    def total(name: str) -> float:
        return sum(value for _, value in now.named(name))

    return (
        f"{len(rows)} {'connection' if len(rows) == 1 else 'connections'}, {sum(one.written for one in rows) / 1e9:.3f} GB/s out, "
        f"{sum(one.read for one in rows) / 1e9:.3f} in; "
        f"{bytes_text(total('p2p_registered_bytes'))} registered, regions: {total('p2p_registered_regions'):.0f}; "
        f"{total('p2p_endpoint_strangers_refused_total'):.0f} strangers refused, "
        f"{total('p2p_endpoint_transfers_failed_total'):.0f} transfers failed"
    )


def show(place: str, interval: float, once: bool) -> int:
    """Until interrupted, or once."""
    terminal = sys.stdout.isatty()
    before = None
    while True:
        try:
            now = fetch(place)
            rows, versions = lines(now, before), weights(now, before)
        except (LookupError, ValueError) as error:
            print(f"p2p-top: what is served at {place} are not this library's metrics: {error!r}", file=sys.stderr)
            return 1
        except OSError as error:
            text = error.strerror or error
            remedy = "the process has ended" if before else f"run the process with UCCL_P2P_METRICS={place}"
            told = text if isinstance(error, TimeoutError) else f"{text}; {remedy}"
            print(f"p2p-top: no metrics at {place}: {told}", file=sys.stderr)
            return 1
        if terminal and not once:
            height = max(shutil.get_terminal_size().lines - 3, 4)
            shown = weights_table(versions, height // 2)
            shown += "\n\n" if shown else ""
            below = table(rows, height - shown.count("\n"))
            print("\033[H\033[2J" + f"p2p-top {place}  {summary(now, rows)}\n\n{shown}{below}", flush=True)
        else:
            print("\n".join(filter(None, (summary(now, rows), table(rows), weights_table(versions)))) + "\n", flush=True)
        if once:
            return 0
        before = now
        time.sleep(interval)


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="p2p-top", description=__doc__)
    parser.add_argument(
        "place", nargs="?", default=os.environ.get("UCCL_P2P_METRICS"),
        help="address:port at which the process serves its metrics; default: UCCL_P2P_METRICS",
    )  # fmt: skip
    parser.add_argument("--interval", type=float, default=1.0, metavar="SECONDS", help="between two looks (1)")
    parser.add_argument("--once", action="store_true", help="one table, of all since the connections began")
    arguments = parser.parse_args(words)
    if not arguments.place:
        parser.error("no place is given, and UCCL_P2P_METRICS is not set")
    if not re.fullmatch(r".+:\d+", arguments.place):
        parser.error(f"{arguments.place} is no address:port")
    if not 0.05 <= arguments.interval <= 86400:
        parser.error("--interval must be from 0.05 to 86400 seconds")
    try:
        return show(arguments.place, arguments.interval, arguments.once)
    except KeyboardInterrupt:
        return 0


if __name__ == "__main__":
    sys.exit(main())
