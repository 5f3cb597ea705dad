"""A local HTTP server that answers as the APIs' endpoints do, and keeps what it was asked."""

from __future__ import annotations

import json
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple


class Answer(NamedTuple):
    """`body` as JSON, unless it is bytes. `hangs`: it never answers."""

    body: object
    status: int = 200
    kind: str = "application/json"
    headers: Mapping[str, str] = {}
    hangs: bool = False


class Endpoint:
    def __init__(self, answers: Sequence[Answer]) -> None:
        self._answers = iter(answers)
        self.requests: list[tuple[str, Mapping[str, str], Any]] = []
        self.over = threading.Event()
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                endpoint.requests.append((self.path, dict(self.headers), body))
                answer = next(endpoint._answers)
                if answer.hangs:
                    endpoint.over.wait()
                    return
                data = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
                self.send_response(answer.status)
                for name, value in {"Content-Type": answer.kind, **answer.headers}.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = False
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self.over.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@contextmanager
def serving(*answers: Answer) -> Generator[Endpoint]:
    endpoint = Endpoint(answers)
    try:
        yield endpoint
    finally:
        endpoint.close()


OPENAI = {
    "id": "chatcmpl-B9MHDbslfkBeAs8l4bebGdFOJ6PeG",
    "object": "chat.completion",
    "created": 1741570283,
    "model": "gpt-4o-2024-08-06",
    "choices": [
        {
            "index": 0,
            "message": {
                "role": "assistant",
                "content": None,
                "refusal": None,
                "annotations": [],
                "tool_calls": [
                    {
                        "id": "call_abc123",
                        "type": "function",
                        "function": {"name": "bash", "arguments": '{"command": "ls"}'},
                    }
                ],
            },
            "logprobs": None,
            "finish_reason": "tool_calls",
        }
    ],
    "usage": {
        "prompt_tokens": 82,
        "completion_tokens": 17,
        "total_tokens": 99,
        "prompt_tokens_details": {"cached_tokens": 64, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 0},
    },
    "service_tier": "default",
    "system_fingerprint": "fp_fc9f1d7035",
}
"""The shape that the API's reference shows."""

ANTHROPIC = {
    "id": "msg_01Aq9w938a90dw8q",
    "type": "message",
    "role": "assistant",
    "model": "claude-sonnet-4-5",
    "content": [
        {"type": "text", "text": "I look first."},
        {"type": "tool_use", "id": "toolu_01A09q90qw90lq917835lq9", "name": "bash", "input": {"command": "ls"}},
    ],
    "stop_reason": "tool_use",
    "stop_sequence": None,
    "usage": {
        "input_tokens": 18,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 64,
        "output_tokens": 17,
        "service_tier": "standard",
    },
}


def calls_openai(name: str, arguments: dict[str, object]) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    message = {"role": "assistant", "tool_calls": [{"id": "call_1", "type": "function", "function": function}]}
    return OPENAI | {"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}


def says_openai(text: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    return OPENAI | {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
