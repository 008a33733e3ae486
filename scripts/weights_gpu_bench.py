#!/usr/bin/env python3
# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""Weights from one GPU to the others of a machine, beside NCCL's broadcast of the same bytes.

Usage: PYTHONPATH=build/gpu/site scripts/weights_gpu_bench.py [--gib 16] [--gpus 2] [--out FILE]

A process for each GPU; that of GPU 0 publishes. More of them than there are GPUs share these, each as a host of its own
to NCCL: for rows by tcp alone, since NVLink has no other GPU to go to. Rows of the table: NCCL's broadcast; a plain write from GPU 0 to GPU 1,
by the best way and by tcp alone; uccl.weights, by the best way (beside NCCL: W8) and by tcp alone (beside the plain write
by tcp: W9). Times are from a common start until the last process is through, the median of --rounds after one that is
not counted. Of uccl.weights that is publish() and stage(), digests included; commit() stands beside it, and the parts below the table.
"deltas" is uccl.weights where each version is published with the one before as its base, of which one element in 100 has changed.
Every byte is compared at the end of each work. --out writes what was measured as JSON.
"""

import argparse
import datetime
import json
import os
import socket
import statistics
import subprocess
import sys
import time

WORKS = ("nccl", "write", "weights", "write_tcp", "weights_tcp", "deltas", "deltas_tcp")


class Ranks:
    """This process among those of all GPUs."""

    def __init__(self, args):
        import torch
        import torch.distributed as dist

        self.torch, self.dist, self.args = torch, dist, args
        self.rank, self.count = args.rank, args.gpus
        there = torch.cuda.device_count()
        if self.count > there:
            os.environ["NCCL_HOSTID"] = f"rank{self.rank}"
        self.device = torch.device("cuda", self.rank % there)
        torch.cuda.set_device(self.device)
        dist.init_process_group(
            "nccl", init_method=f"tcp://127.0.0.1:{args.port}", rank=self.rank, world_size=self.count,
            timeout=datetime.timedelta(seconds=args.limit), device_id=self.device,
        )  # fmt: skip
        self.gloo = dist.new_group(backend="gloo", timeout=datetime.timedelta(seconds=args.limit))
        self.size = int(args.gib * (1 << 30)) // (256 * args.tensors) * 256 * args.tensors
        self.flat = torch.empty(self.size, dtype=torch.uint8, device=self.device)
        self.staged = None

    def tensors(self, flat=None):
        bf16 = (self.flat if flat is None else flat).view(self.torch.bfloat16)
        return {f"layer{at}": part for at, part in enumerate(bf16.chunk(self.args.tensors))}

    def pattern(self, seed):
        """What the bytes of a round are, a piece at a time."""
        step = 1 << 28
        for begin in range(0, self.size, step):
            size = min(step, self.size - begin)
            values = self.torch.arange(begin // 8, begin // 8 + size // 8, device=self.device)
            yield begin, ((values + seed) * 0x5851F42D4C957F2D).view(self.torch.uint8)

    def fill(self, seed):
        for begin, values in self.pattern(seed):
            self.flat[begin : begin + len(values)] = values if self.rank == 0 else 0
        self.torch.cuda.synchronize()

    def check(self, seed, ranks):
        for begin, values in self.pattern(seed):
            same = self.rank not in ranks or self.torch.equal(self.flat[begin : begin + len(values)], values)
            if not same:
                raise SystemExit(f"rank {self.rank}: wrong bytes from {begin} on")

    def barrier(self):
        self.dist.barrier(group=self.gloo)

    def tell(self, value):
        """What each process has, by rank."""
        rows = [None] * self.count
        self.dist.all_gather_object(rows, value, group=self.gloo)
        return rows

    def timed(self, call):
        """Seconds until the last one is through."""
        self.torch.cuda.synchronize()
        self.barrier()
        start = time.monotonic()
        call()
        return max(self.tell(time.monotonic() - start))

    def nccl(self):
        def broadcast():
            self.dist.broadcast(self.flat, 0)
            self.torch.cuda.synchronize()

        self.fill(1)
        times = [self.timed(broadcast) for _ in range(1 + self.args.rounds)]
        self.check(1, range(self.count))
        return {"seconds": times[1:], "first": times[0]}

    def write(self):
        """From GPU 0 to GPU 1; the others look on."""
        from uccl import p2p

        self.fill(2)
        endpoint = p2p.Endpoint(self.rank, 4, listen_address="127.0.0.1")
        address, port, gpu = p2p.Endpoint.parse_metadata(self.tell(endpoint.get_metadata())[1])
        connection, region, offered = None, None, b""
        if self.rank == 0:
            ok, connection = endpoint.connect(address, gpu, port)
            assert ok, p2p.last_error()
        elif self.rank == 1:
            ok, _, _, connection = endpoint.accept()
            assert ok, p2p.last_error()
        if self.rank < 2:
            ok, region = endpoint.reg(self.flat.data_ptr(), self.size)
            assert ok, p2p.last_error()
        if self.rank == 1:
            ok, offered = endpoint.advertise(connection, region, self.flat.data_ptr(), self.size)
            assert ok, p2p.last_error()
        offered = self.tell(offered)[1]

        def call():
            if self.rank == 0 and not endpoint.write(connection, region, self.flat.data_ptr(), self.size, offered):
                raise SystemExit(p2p.last_error())

        times = [self.timed(call) for _ in range(1 + self.args.rounds)]
        self.check(2, (0, 1))
        self.barrier()
        del endpoint
        return {"seconds": times[1:], "first": times[0]}

    def change(self, flat, seed):
        """Other values in one of 100 elements, here and there."""
        elements = flat.view(self.torch.int16)
        step = 1 << 26
        self.torch.manual_seed(seed)
        for begin in range(0, len(elements), step):
            part = elements[begin : begin + step]
            part[self.torch.randint(len(part), (len(part) // 100,), device=self.device)] += 1
        self.torch.cuda.synchronize()

    def compare(self, flat):
        """With the bytes of the publisher."""
        for begin in range(0, self.size, 1 << 28):
            mine = flat[begin : begin + (1 << 28)]
            published = mine.clone()
            self.dist.broadcast(published, 0)
            if not self.torch.equal(mine, published):
                raise SystemExit(f"rank {self.rank}: wrong bytes from {begin} on")

    def deltas(self):
        return self.weights(deltas=True)

    def weights(self, deltas=False):
        from uccl.weights import Publisher, Subscriber

        self.fill(3)
        versions = [self.flat, self.flat.clone()] if deltas and self.rank == 0 else [self.flat]
        publisher = Publisher(listen_address="127.0.0.1") if self.rank == 0 else None
        place = self.tell(publisher.place if publisher else "")[0]
        subscriber = None if publisher else Subscriber(place, self.tensors(), listen_address="127.0.0.1",
                                                       chunk_bytes=self.args.chunk_mib << 20)  # fmt: skip
        rows = {"seconds": [], "commit": [], "parts": [], "first": None, "from_publisher": None, "from_deltas": None,
                "bridged": 0, "wrong_digests": 0}  # fmt: skip
        for version in range(1, 2 + self.args.rounds):
            progress, parts = [], {}
            flat = versions[version % len(versions)]
            base = version - 1 if deltas and version > 1 else None
            if publisher and base:
                if version > 2:
                    publisher.withdraw(version - 2)
                flat.copy_(versions[base % 2])
                self.change(flat, version)

            def move(version=version, progress=progress, parts=parts, flat=flat, base=base):
                begun = time.monotonic()
                if publisher:
                    publisher.publish(version, self.tensors(flat), base=base)
                    parts["publish"] = time.monotonic() - begun
                    return
                row = subscriber.stage(version, timeout=self.args.limit, in_place=self.args.in_place)
                took = time.monotonic() - begun
                progress.append(row)
                parts |= {name: getattr(row, name) for name in ("offered", "joined", "first", "last")}
                parts["staged"] = took

            took = self.timed(move)
            committed = self.timed(lambda: subscriber and subscriber.commit())
            done = [row for row in self.tell(progress[0] if progress else None) if row]
            every = self.tell(parts)
            if version == 1:
                rows["first"] = took
            else:
                rows["seconds"].append(took)
                rows["commit"].append(committed)
                rows["parts"].append(every)
            rows["from_publisher"] = sum(row.publisher_bytes for row in done) / self.size
            rows["from_deltas"] = sum(row.from_deltas for row in done) / self.size
            rows["bridged"] += sum(row.bridged for row in done)
            rows["wrong_digests"] += sum(row.wrong_digests for row in done)
            if publisher and not deltas:
                publisher.withdraw(version)
        if deltas:
            self.compare(flat)
        else:
            self.check(3, range(self.count))
        self.barrier()
        (publisher or subscriber).close()
        self.barrier()
        self.torch.cuda.empty_cache()
        return rows


def run_rank(args):
    ranks = Ranks(args)
    for work in args.works:
        name, _, transport = work.partition("_")
        if transport:
            os.environ["UCCL_P2P_TRANSPORT"] = transport
        else:
            os.environ.pop("UCCL_P2P_TRANSPORT", None)
        row = getattr(ranks, name)()
        if ranks.rank == 0:
            print(json.dumps({"work": work, "bytes": ranks.size, **row}), flush=True)
    ranks.dist.destroy_process_group()


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def run_all(args):
    """Rows of the works that were done."""
    command = [sys.executable, __file__, *sys.argv[1:], "--port", str(free_port()), "--gpus", str(args.gpus)]
    environment = {"NCCL_NVLS_ENABLE": "0", "OMP_NUM_THREADS": "4", **os.environ}
    started = [
        subprocess.Popen([*command, "--rank", str(rank)], env=environment, text=True,
                         stdout=subprocess.PIPE if rank == 0 else None)  # fmt: skip
        for rank in range(args.gpus)
    ]
    try:
        text, _ = started[0].communicate(timeout=args.limit)
    except subprocess.TimeoutExpired:
        print(f"not done within {args.limit} s", file=sys.stderr)
        started[0].kill()
        text, _ = started[0].communicate()
    finally:
        for process in started:
            process.kill()
            process.wait()
    return {row["work"]: row for row in map(json.loads, filter(lambda line: line.startswith("{"), text.splitlines()))}


def show(rows, args):
    limits = {"weights": ("W8", "nccl", 1.1), "weights_tcp": ("W9", "write_tcp", 1.3)}
    print("| work | seconds, median | GB/s | all | beside |\n| --- | --- | --- | --- | --- |")
    for row in rows.values():
        row["median"] = statistics.median(row["seconds"])
    for work in filter(rows.get, args.works):
        row = rows[work]
        beside = ""
        if "commit" in row:
            beside = (f"commit {statistics.median(row['commit']) * 1e3:.1f} ms, {row['from_publisher']:.2f} B from the "
                      f"publisher, {row['from_deltas']:.2f} B made of deltas, bridged {row['bridged']}, wrong "
                      f"{row['wrong_digests']}")  # fmt: skip
        name, other, most = limits.get(work, ("", "", 0))
        if name and rows.get(other):
            row["ratio"] = row["median"] / rows[other]["median"]
            beside = f"{name}: {row['ratio']:.2f} x {other}, asked {most}; {beside}"
        times = " ".join(f"{seconds:.4f}" for seconds in row["seconds"])
        rate = row["bytes"] / row["median"] / 1e9
        print(f"| {work} | {row['median']:.4f} | {rate:.1f} | {times} (first {row['first']:.3f}) | {beside} |")
    for row in filter(lambda row: row.get("parts"), rows.values()):
        show_parts(row)


def show_parts(row):
    """Milliseconds from the start of a round, by rank: where the time goes."""
    print(f"\nParts of {row['work']}, ms (median): rank 0 has published; the others are offered it, take part, have and have "
          "checked a first chunk, have all bytes, have checked them")  # fmt: skip
    for rank in range(len(row["parts"][0])):
        medians = {name: statistics.median(one[rank][name] for one in row["parts"]) for name in row["parts"][0][rank]}
        print(f"  rank {rank}: " + ", ".join(f"{name} {seconds * 1e3:.2f}" for name, seconds in medians.items()))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("works", nargs="*", default=WORKS, metavar="WORK", help=f"of {', '.join(WORKS)}; all of them")
    parser.add_argument("--gib", type=float, default=16)
    parser.add_argument("--gpus", type=int, default=0, help="processes, one for each; 0: all that torch sees")
    parser.add_argument("--tensors", type=int, default=64, help="the bytes are cut into so many, of bfloat16")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--chunk-mib", type=int, default=0, help="of uccl.weights; 0: its own choice")
    parser.add_argument("--in-place", action="store_true", help="stage over the tensors, without memory beside them")
    parser.add_argument("--limit", type=float, default=240, help="seconds for everything")
    parser.add_argument("--out")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    unknown = set(args.works) - set(WORKS)
    if unknown:
        parser.error(f"no such work: {', '.join(sorted(unknown))}")
    if not args.gpus:
        import torch

        args.gpus = torch.cuda.device_count()
    if args.gpus < 2:
        parser.error(f"two GPUs are needed, and there is {args.gpus}")
    if args.rank is not None:
        run_rank(args)
        return
    rows = run_all(args)
    show(rows, args)
    if args.out:
        with open(args.out, "w", encoding="utf-8") as out:
            json.dump({"gib": args.gib, "gpus": args.gpus, "rows": list(rows.values())}, out, indent=1)
    sys.exit(0 if len(rows) == len(args.works) else 1)


if __name__ == "__main__":
    main()
