# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""p2p-doctor"""

from __future__ import annotations

import argparse
import sys

from uccl.doctor import machine, net_plugin, paths, peer
from uccl.doctor.finding import as_json, as_text, problems


def _parse(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="p2p-doctor",
        description="Says what this machine has for transfers, which way each pair of memories takes and why not a "
        "faster one, and how fast it is. Ends with 1 if there is a problem. Takes less than 20 seconds.",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object in place of text")
    parser.add_argument("--serve", action="store_true", help="answer doctors on other hosts, until interrupted")
    parser.add_argument("--peer", metavar="HOST[:PORT]", help="examine the way to a host where it serves; [ADDRESS]:PORT for IPv6")
    parser.add_argument("--port", type=int, default=peer.PORT, help="of --serve (default: %(default)s)")
    parser.add_argument("--listen", default="", metavar="ADDRESS", help="of --serve (default: all, IPv4 and IPv6)")
    parser.add_argument("--clients", type=int, default=None, help="end --serve after so many")
    return parser.parse_args(words)


def _host_and_port(text: str) -> tuple[str, int]:
    """Of HOST, HOST:PORT, an IPv6 address, or [ADDRESS]:PORT."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or (":" in host and not host.endswith("]")):
        host, port = text, str(peer.PORT)
    return host.removeprefix("[").removesuffix("]"), int(port)


def main(words: list[str] | None = None) -> int:
    arguments = _parse(words)
    if arguments.serve:
        try:
            peer.serve(arguments.listen, arguments.port, arguments.clients)
        except KeyboardInterrupt:
            pass
        except OSError as error:
            print(f"p2p-doctor: serve on {arguments.listen or '*'}:{arguments.port}: {error}", file=sys.stderr)
            return 1
        return 0
    if arguments.peer:
        findings = peer.examine(*_host_and_port(arguments.peer))
    else:
        findings = [*machine.examine(), *net_plugin.examine(), *paths.examine()]
    print(as_json(findings) if arguments.json else as_text(findings), flush=True)
    return 1 if problems(findings) else 0


if __name__ == "__main__":
    sys.exit(main())
