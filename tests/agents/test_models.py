"""The real SDKs against a local server: what they send, what comes back, and how it fails."""

from __future__ import annotations

import asyncio
import copy
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paddock.agents import (
    Agent,
    AnthropicModel,
    AsyncAnthropicModel,
    AsyncOpenAIModel,
    Message,
    OpenAIModel,
    Reply,
    Role,
    Stop,
    Tokens,
    ToolCall,
    ToolResult,
)
from paddock.agents._tools import tool_specs
from paddock.errors import ModelFailedError, NotConfiguredError
from tests.agents.endpoint import ANTHROPIC, OPENAI, Answer, Endpoint, serving
from tests.conftest import SandboxFactory

KEY = "sk-very-secret-key"
TALK = (
    Message(role=Role.SYSTEM, text="be good"),
    Message(role=Role.USER, text="list"),
    Message(
        role=Role.ASSISTANT,
        calls=(
            ToolCall(id="t1", name="bash", arguments='{"command": "ls"}'),
            ToolCall(id="t2", name="bash", arguments="{broken"),
        ),
    ),
    Message(
        role=Role.TOOL,
        results=(ToolResult(call="t1", text="a"), ToolResult(call="t2", text="no JSON", failed=True)),
    ),
)

Complete = Callable[..., Reply]


def openai(endpoint: Endpoint, **more: Any) -> Complete:
    return OpenAIModel("m-1", api_key=KEY, base_url=f"{endpoint.url}/v1", **more).complete


def anthropic(endpoint: Endpoint, **more: Any) -> Complete:
    return AnthropicModel("m-1", api_key=KEY, base_url=endpoint.url, **more).complete


def async_openai(endpoint: Endpoint, **more: Any) -> Complete:
    return run(lambda: AsyncOpenAIModel("m-1", api_key=KEY, base_url=f"{endpoint.url}/v1", **more))


def async_anthropic(endpoint: Endpoint, **more: Any) -> Complete:
    return run(lambda: AsyncAnthropicModel("m-1", api_key=KEY, base_url=endpoint.url, **more))


def run(make: Callable[[], Any]) -> Complete:
    async def complete(*args: Any, **more: Any) -> Reply:
        model = make()
        try:
            return await model.complete(*args, **more)
        finally:
            await model.aclose()

    return lambda *args, **more: asyncio.run(complete(*args, **more))


BOTH = pytest.mark.parametrize("make", [openai, async_openai, anthropic, async_anthropic])


def body_of(make: Callable[..., Complete]) -> dict[str, Any]:
    return copy.deepcopy(OPENAI if "openai" in make.__name__ else ANTHROPIC)


@BOTH
def test_a_call_of_a_tool_and_what_it_cost_come_back(make: Callable[..., Complete]) -> None:
    with serving(Answer(body_of(make))) as endpoint:
        reply = make(endpoint)(TALK, tool_specs(), max_tokens=100)
    (call,) = reply.message.calls
    assert (call.name, call.arguments) == ("bash", '{"command": "ls"}')
    assert reply.tokens == Tokens(input=82, output=17, cached=64)
    assert not reply.cut
    ((_, headers, body),) = endpoint.requests
    assert body["model"] == "m-1"
    assert body["max_tokens"] == 100
    assert any(KEY in value for value in headers.values())
    assert len(body["tools"]) == len(tool_specs())


def test_openai_is_told_the_conversation_as_it_writes_it() -> None:
    with serving(Answer(OPENAI)) as endpoint:
        openai(endpoint, options={"temperature": 0.5})(TALK, tool_specs())
    ((path, _, body),) = endpoint.requests
    assert path == "/v1/chat/completions"
    assert body["temperature"] == 0.5
    system, user, assistant, first, second = body["messages"]
    assert (system["role"], user["content"]) == ("system", "list")
    assert [call["function"]["arguments"] for call in assistant["tool_calls"]] == [
        '{"command": "ls"}',
        '{"invalid": "{broken"}',
    ]
    assert first == {"role": "tool", "tool_call_id": "t1", "content": "a"}
    assert second["tool_call_id"] == "t2"
    assert body["tools"][0]["function"]["parameters"]["required"] == ["code"]


def test_anthropic_is_told_the_conversation_as_it_writes_it() -> None:
    with serving(Answer(ANTHROPIC)) as endpoint:
        anthropic(endpoint)(TALK, tool_specs())
    ((path, _, body),) = endpoint.requests
    assert path == "/v1/messages"
    assert body["system"] == "be good"
    user, assistant, results = body["messages"]
    assert user == {"role": "user", "content": [{"type": "text", "text": "list"}]}
    assert [block["input"] for block in assistant["content"]] == [{"command": "ls"}, {"invalid": "{broken"}]
    assert results["role"] == "user"
    assert [block["is_error"] for block in results["content"]] == [False, True]
    assert body["tools"][1]["input_schema"]["properties"]["command"] == {"type": "string"}


@BOTH
def test_an_answer_that_reached_its_length_says_so(make: Callable[..., Complete]) -> None:
    body = body_of(make)
    if "choices" in body:
        body["choices"][0] |= {"finish_reason": "length", "message": {"role": "assistant", "content": "I thi"}}
    else:
        body |= {"stop_reason": "max_tokens", "content": [{"type": "text", "text": "I thi"}]}
    with serving(Answer(body)) as endpoint:
        reply = make(endpoint)(TALK, ())
    assert (reply.message.text, reply.message.calls, reply.cut) == ("I thi", (), True)
    assert "tools" not in endpoint.requests[0][2]


@BOTH
def test_what_passes_is_tried_again_and_not_forever(make: Callable[..., Complete]) -> None:
    soon = {"retry-after-ms": "1"}
    failing = [
        Answer({"error": {"message": "slow down"}}, 429, headers=soon),
        Answer({"error": {"message": "oops"}}, 500, headers=soon),
    ]
    with serving(*failing, Answer(body_of(make))) as endpoint:
        assert make(endpoint)(TALK, ()).message.calls
    assert len(endpoint.requests) == 3
    with serving(*failing, *failing) as endpoint, pytest.raises(ModelFailedError, match="oops") as failed:
        make(endpoint, max_retries=1)(TALK, ())
    assert len(endpoint.requests) == 2
    assert failed.value.details["http_status"] == 500


@BOTH
@pytest.mark.parametrize(
    ("answer", "status", "says"),
    [
        (Answer({"error": {"message": f"Incorrect API key provided: {KEY}"}}, 401), 401, "key right"),
        (Answer({"error": {"message": "no such model"}}, 404), 404, "name of the model"),
        (Answer(b"{half", 200), None, "not its protocol"),
        (Answer(b"<html>hello</html>", 200, "text/html"), None, "not its protocol"),
        (Answer({"hello": 1}, 200), None, "not its protocol"),
        (Answer({"choices": [], "content": "text"}, 200), None, "answered"),
        (Answer({}, hangs=True), None, "imeout"),
    ],
    ids=["key", "model", "half", "html", "other", "empty", "hangs"],
)
def test_what_is_no_answer_is_an_error_that_says_why_and_not_the_key(
    make: Callable[..., Complete], answer: Answer, status: int | None, says: str
) -> None:
    with serving(answer) as endpoint, pytest.raises(ModelFailedError) as failed:
        make(endpoint, max_retries=0)(TALK, (), timeout_seconds=0.3 if answer.hangs else None)
    assert says in str(failed.value)
    assert KEY not in str(failed.value)
    assert failed.value.details.get("http_status") == status


@BOTH
def test_an_endpoint_that_is_not_there_is_an_error_that_says_so(make: Callable[..., Complete]) -> None:
    with serving() as endpoint:
        pass
    with socket.socket() as deaf:  # which nobody else listens at, either
        deaf.bind(("127.0.0.1", 0))
        endpoint.url = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        with pytest.raises(ModelFailedError, match="Connection"):
            make(endpoint, max_retries=0)(TALK, ())


@pytest.mark.parametrize(("name", "model"), [("openai", OpenAIModel), ("anthropic", AnthropicModel)])
def test_an_extra_that_is_not_installed_is_named(name: str, model: type[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(NotConfiguredError) as refused:
        model("m-1", api_key=KEY)
    assert refused.value.hint == f"pip install 'paddock-sandbox[{name}]'"


@pytest.mark.parametrize(("name", "model"), [("OPENAI", OpenAIModel), ("ANTHROPIC", AnthropicModel)])
def test_a_missing_key_is_named_at_once(
    name: str, model: type[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for variable in [variable for variable in os.environ if variable.startswith(name)]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(NotConfiguredError, match=f"{name}_API_KEY"):
        model("m-1")


@BOTH
def test_importing_the_loop_imports_no_sdk(make: Callable[..., Complete]) -> None:
    import subprocess

    script = "import paddock.agents, sys; print({'openai', 'anthropic', 'sqlalchemy'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout == "set()\n"


def test_a_whole_run_through_an_endpoint(sandbox: SandboxFactory) -> None:
    done = copy.deepcopy(OPENAI)
    done["choices"][0] |= {"finish_reason": "stop", "message": {"role": "assistant", "content": "two files"}}  # type: ignore[index]
    with serving(Answer(OPENAI), Answer(done)) as endpoint:
        model = OpenAIModel("m-1", api_key=KEY, base_url=f"{endpoint.url}/v1")
        result = Agent(model).run("list", sandbox())
        model.close()
    assert (result.stop, result.text, result.tokens.input) == (Stop.DONE, "two files", 164)
    told = endpoint.requests[1][2]["messages"][-1]
    assert told["role"] == "tool"
    assert told["tool_call_id"] == "call_abc123"
    assert told["content"].startswith("[exit code 0")
