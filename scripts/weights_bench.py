#!/usr/bin/env python3
# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""How fast a set of weights reaches many hosts, and what its publisher sends for it.

Hosts are network namespaces at a bridge, each with a link of the given rate (`tc tbf` at both ends). The unit is
B/R: the bytes of the set by what iperf3 gets between two of these hosts, in the same run. Every byte is compared.
Needs root, iperf3, and the program weights_member (tests/weights). Prints rows of a table for docs/weights.md.
"""

import argparse
import json
import os
import pathlib
import random
import subprocess
import sys
import time


def run(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


class Hosts:
    """The bridge, and hosts 10.95.0.1, 10.95.0.2 and so on."""

    def __init__(self, count: int, mbit: int) -> None:
        self.names = [f"wb{os.getpid()}-{number}" for number in range(count + 1)]  # the last one has the bridge
        self.bridge = self.names.pop()
        self.mbit = mbit

    def __enter__(self) -> "Hosts":
        run("ip", "netns", "add", self.bridge)
        run("ip", "-n", self.bridge, "link", "add", "br0", "type", "bridge")
        run("ip", "-n", self.bridge, "link", "set", "br0", "up")
        for number, name in enumerate(self.names):
            run("ip", "netns", "add", name)
            run("ip", "-n", name, "link", "set", "lo", "up")
            run("ip", "-n", name, "link", "add", "cable", "type", "veth", "peer", "name", f"port{number}", "netns",
                self.bridge)
            run("ip", "-n", self.bridge, "link", "set", f"port{number}", "master", "br0", "up")
            run("ip", "-n", name, "addr", "add", f"{self.address(number)}/24", "dev", "cable")
            run("ip", "-n", name, "link", "set", "cable", "up")
            self.limit(number, self.mbit)
        return self

    def __exit__(self, *_: object) -> None:
        for name in (*self.names, self.bridge):
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)

    def address(self, number: int) -> str:
        return f"10.95.0.{number + 1}"

    def limit(self, number: int, mbit: int) -> None:
        for host, device in ((self.names[number], "cable"), (self.bridge, f"port{number}")):
            run("ip", "netns", "exec", host, "tc", "qdisc", "replace", "dev", device, "root", "tbf", "rate",
                f"{mbit}mbit", "burst", "256k", "latency", "50ms")

    def sent(self, number: int) -> int:
        """Bytes that have left the host."""
        rows = json.loads(run("ip", "netns", "exec", self.names[number], "tc", "-s", "-j", "qdisc", "show", "dev",
                              "cable"))
        return int(rows[0]["bytes"])

    def rate(self) -> float:
        """Bytes a second that iperf3 gets between two hosts."""
        server = subprocess.Popen(["ip", "netns", "exec", self.names[1], "iperf3", "-s", "-1"],
                                  stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        try:
            for _ in range(50):
                made = subprocess.run(["ip", "netns", "exec", self.names[0], "iperf3", "-c", self.address(1), "-t", "5",
                                       "-J"], check=False, capture_output=True, text=True, timeout=60)
                rows = json.loads(made.stdout).get("end", {}) if made.returncode == 0 else {}
                if "sum_received" in rows:
                    return float(rows["sum_received"]["bits_per_second"]) / 8
                time.sleep(0.1)  # it does not listen yet
        finally:
            server.kill()
            server.wait()
        raise SystemExit(f"weights_bench: iperf3 says {made.stdout}")


class Process:
    """A program on a host, which says lines of words and is told what to do."""

    def __init__(self, hosts: Hosts, number: int, *words: str) -> None:
        self.process = subprocess.Popen(["ip", "netns", "exec", hosts.names[number], *words], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)

    def begin(self, line: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def row(self) -> list[str]:
        """What it says next."""
        assert self.process.stdout
        return self.process.stdout.readline().split() or ["nothing"]

    def answer(self) -> list[str]:
        words = self.row()
        if words[0] != "ok":
            raise SystemExit(f"weights_bench: a member said {' '.join(words)!r}")
        return words

    def end(self) -> tuple[float, int]:
        """When its stage ended, once it says so, and of how many bytes."""
        words = self.answer()
        return float(words[5]), int(words[1])


class Member(Process):
    def __init__(self, program: str, hosts: Hosts, number: int, *words: str) -> None:
        kind, rest = words[0], words[1:]
        super().__init__(hosts, number, program, kind, hosts.address(number), *rest)
        _, address, port = self.answer()
        self.place = f"{address}:{port}"

    def holds(self) -> None:
        """Version 1, and knows of what 2 will be."""
        self.begin("descend 2 1 100")
        self.answer()
        self.begin("stage 1")
        self.answer()


def measure(work: str, program: str, args: argparse.Namespace) -> None:
    size = args.mib << 20
    with Hosts(args.receivers + 1, args.mbit) as hosts:
        rate = hosts.rate()
        if work == "W2":
            hosts.limit(2, args.mbit // 10)
        setup = ["0", str(size), "0"]
        publisher = Member(program, hosts, 0, "publish", *setup)
        subscribers = [Member(program, hosts, number, "subscribe", *setup, "0", publisher.place)
                       for number in range(1, args.receivers + 1)]
        late = [subscribers.pop()] if work == "W4" else []
        if work == "W7":
            publisher.begin("publish 1")
            publisher.answer()
            for member in subscribers:
                member.holds()
        for member in subscribers:
            member.begin("beside 2" if work == "W7" else "stage 1")
        before = hosts.sent(0)
        publisher.begin("publish 2 1 100" if work == "W7" else "publish 1")
        publisher.answer()
        start = time.monotonic()
        if work == "W4":
            time.sleep(size / rate / 2)
            joined = time.monotonic()
            late[0].begin("stage 1")
        if work == "W5":
            publisher.begin("copies 1 1")
            publisher.answer()
            publisher.process.kill()
        counted = [member for at, member in enumerate(subscribers) if work != "W2" or at != 1]
        if work == "W7":
            publisher.begin("own 2")
            changed = int(publisher.answer()[1])
            rows = [member.answer() for member in counted]
            if any(row[7] != row[1] for row in rows):
                raise SystemExit(f"weights_bench: chunks came whole: {rows}")
            print(f"W7: {int(rows[0][6]) / changed:.2f} bytes for each of {changed} changed elements")
            last = max(float(row[5]) for row in rows)
        else:
            last, size = max(member.end() for member in counted)
        took = last - start
        if work == "W4":
            took = late[0].end()[0] - joined
        sent = hosts.sent(0) - before if work != "W5" else 0
        for member in (*subscribers, *late, publisher):
            member.process.kill()
            member.process.wait()
    share = f"{sent / size:.{3 if work == 'W7' else 2}f} B" if sent else ""
    print(f"| {work} | {size >> 20} MiB to {args.receivers} at {rate * 8 / 1e6:.0f} Mbit/s | {took:.1f} s | "
          f"{took * rate / size:.2f} B/R | {share} |", flush=True)


def kill_relays(program: str, args: argparse.Namespace) -> None:
    """One version after the other; of those who receive it one is killed at a random moment, and another comes."""
    size = args.kill_mib << 20
    dice = random.Random(args.seed)
    times, late, wrong = [], 0, 0
    with Hosts(args.receivers + 1, args.mbit) as hosts:
        rate = hosts.rate()
        publisher = Member(program, hosts, 0, "publish", "0", str(size), "0")

        def join(number: int) -> Member:
            return Member(program, hosts, number, "subscribe", "0", str(size), "0", str(size // 128), publisher.place)

        members = {number: join(number) for number in range(1, args.receivers + 1)}
        for version in range(1, args.kills + 1):
            for member in members.values():
                member.begin(f"stage {version}")
            publisher.begin(f"publish {version}")
            publisher.answer()
            start = time.monotonic()
            time.sleep(dice.uniform(0, size / rate))
            victim = dice.choice(list(members))
            killed = members.pop(victim)
            killed.process.kill()
            rows = [member.row() for member in members.values()]
            for row in rows:
                if row[0] != "ok" or int(row[1]) != size:
                    wrong += 1
                    print(f"W3: cycle {version}: {' '.join(row)}", flush=True)
            times.append(max((float(row[5]) for row in rows if row[0] == "ok"), default=start) - start)
            late += times[-1] > 1.15 * size / rate + 1
            killed.process.wait()
            publisher.begin(f"withdraw {version}")
            publisher.answer()
            members[victim] = join(victim)
        for member in (*members.values(), publisher):
            member.process.kill()
            member.process.wait()
    times.sort()
    middle = times[len(times) // 2]
    print(f"| W3 | {args.kill_mib} MiB to {args.receivers} at {rate * 8 / 1e6:.0f} Mbit/s, {args.kills} kills | "
          f"{middle:.2f} s, at most {times[-1]:.2f} s | {middle * rate / size:.2f} B/R, at most "
          f"{times[-1] - 1.15 * size / rate:.2f} s past 1.15 B/R; past 1 s: {late}; not whole or mixed: {wrong} | |",
          flush=True)


def beside(kind: str, args: argparse.Namespace) -> None:
    """The same bytes by what is no chain of ours (weights_peer.py)."""
    size = args.mib << 20
    with Hosts(args.receivers + 1, args.mbit) as hosts:
        rate = hosts.rate()
        peers = [Process(hosts, number, sys.executable, str(pathlib.Path(__file__).with_name("weights_peer.py")), kind,
                         str(number), str(args.receivers + 1), str(size), hosts.address(number), hosts.address(0))
                 for number in range(args.receivers + 1)]
        for peer in peers:
            peer.answer()
        before, start = hosts.sent(0), time.monotonic()
        for peer in reversed(peers):
            peer.begin("go")
        ends = [peer.end()[0] for peer in peers]
        took = (ends[0] if kind == "writes" else max(ends)) - start
        sent = hosts.sent(0) - before
        for peer in peers:
            peer.process.kill()
            peer.process.wait()
    print(f"| {kind} | {args.mib} MiB to {args.receivers} at {rate * 8 / 1e6:.0f} Mbit/s | {took:.1f} s | "
          f"{took * rate / size:.2f} B/R | {sent / size:.2f} B |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", nargs="*", default=["W1", "W2", "W3", "W4", "W5", "W7"],
                        help="W1: all at once; W2: one receiver has a tenth of the rate, the time is the others'; W3: one is killed at "
                        "a random moment, again and again, and the time is that of the others; W4: "
                        "the last one joins at half time, the time is its own; W5: the publisher is killed once one "
                        "copy is out; W7: one of a hundred elements of two bytes has changed since the version that "
                        "all have; beside them: gloo: torch.distributed's broadcast, writes: uccl.p2p's, to all at "
                        "once, verl: its checkpoint engine over UCX. These need torch and uccl in this Python, the last "
                        "verl and NIXL, too")
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--receivers", type=int, default=8)
    parser.add_argument("--mbit", type=int, default=1000)
    parser.add_argument("--kills", type=int, default=100, help="of W3")
    parser.add_argument("--kill-mib", type=int, default=16, help="the bytes of each of them")
    parser.add_argument("--seed", type=int, default=1, help="of the moments and of whom they meet")
    parser.add_argument("--member", default="build/release/tests/weights/weights_member")
    args = parser.parse_args()
    print("| work | what | time | of B/R | the publisher sent |\n| --- | --- | --- | --- | --- |", flush=True)
    for work in args.work:
        if work == "W3":
            kill_relays(args.member, args)
        elif work in ("gloo", "writes", "verl"):
            beside(work, args)
        else:
            measure(work, args.member, args)


if __name__ == "__main__":
    main()
