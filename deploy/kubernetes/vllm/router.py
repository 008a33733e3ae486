# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""Gives each request to vLLM's prefill servers, and then, with where its KV cache lies, to the decode servers, whose
answer goes to the client as it comes. For one prefill and one decode server, or several behind a Service each."""

import http.client
import json
import sys
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_SECONDS = 600
_WHERE = ("remote_engine_id", "remote_block_ids", "remote_host", "remote_port")


def ask(url: str, body: dict[str, Any] | None, seconds: float = _SECONDS) -> http.client.HTTPResponse:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    answer: http.client.HTTPResponse = opener.open(request, timeout=seconds)
    return answer


class Router(BaseHTTPRequestHandler):
    prefill = decode = ""

    def do_GET(self) -> None:
        self._guarded(self._health if self.path == "/health" else lambda: self._pass_on(ask(self.decode + self.path, None)))

    def do_POST(self) -> None:
        self._guarded(self._complete)

    def _health(self) -> None:
        for half in (self.prefill, self.decode):
            ask(f"{half}/health", None, seconds=5).close()
        self._begin(200, "text/plain")

    def _complete(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        asks = {"do_remote_decode": True, "do_remote_prefill": False} | dict.fromkeys(_WHERE)
        first = {key: value for key, value in body.items() if key not in ("stream_options", "max_completion_tokens")}
        first |= {"max_tokens": 1, "stream": False, "kv_transfer_params": asks}
        with ask(self.prefill + self.path, first) as answer:
            where = json.load(answer)["kv_transfer_params"]
        self._pass_on(ask(self.decode + self.path, body | {"kv_transfer_params": where}))

    def _guarded(self, serve: Any) -> None:
        try:
            serve()
        except urllib.error.HTTPError as refused:
            self._begin(refused.code, refused.headers.get_content_type())
            self.wfile.write(refused.read())
        except (OSError, ValueError, KeyError, TypeError, http.client.HTTPException) as error:
            self._begin(502, "text/plain")
            self.wfile.write(f"{type(error).__name__}: {error}\n".encode())

    def _pass_on(self, answer: http.client.HTTPResponse) -> None:
        with answer:
            self._begin(answer.status, answer.headers["Content-Type"] or "text/plain")
            while part := answer.read1(1 << 16):
                self.wfile.write(part)
                self.wfile.flush()

    def _begin(self, status: int, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


if __name__ == "__main__":
    Router.prefill, Router.decode = sys.argv[1:3]
    ThreadingHTTPServer(("", int(sys.argv[3]) if len(sys.argv) > 3 else 8000), Router).serve_forever()
