"""The loop: plan, execute, observe and feed back, within a budget."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from paddock.agents._budget import Budget, Meter, Stop, Tokens
from paddock.agents._colours import Later, awithin
from paddock.agents._messages import CUT, SYSTEM, Message, Reply, Role, Run, ToolCall, ToolResult
from paddock.agents._trace import Trace
from paddock.client import AsyncSandbox
from paddock.errors import ModelFailedError, SandboxDiedError

from .model import AsyncModel
from .toolbox import AsyncToolbox


class AsyncAgent:
    """A model and the limits of its work. It keeps nothing between runs: many may go on at once.

    Args:
        model: The model that it asks.
        budget: What one run may spend. None: `Budget()`, which is 30 steps and 30 minutes.
        system: The system prompt. None: a short one, which names `directory`.
        directory: Where its commands run and relative paths start.
        step_timeout_seconds: The longest that one command may take.
        observation_chars: How much the model sees of a file, and of each stream of a command.
        trace: Where each event goes.

    Raises:
        InvalidArgumentError: The budget limits money, and the model has no price.

    Example:
        ```python
        agent = AsyncAgent(model, budget=Budget(max_steps=20, max_seconds=600))
        run = await agent.run("Make the tests pass", sandbox)
        print(run.stop, run.text)  # done It is done.
        ```
    """

    def __init__(
        self,
        model: AsyncModel,
        *,
        budget: Budget | None = None,
        system: str | None = None,
        directory: str = "/workspace",
        step_timeout_seconds: float = 120.0,
        observation_chars: int = 4000,
        trace: Trace | None = None,
    ) -> None:
        self.model = model
        self.budget = budget or Budget()
        self.budget.require_price(model.price, model.name)
        self._system = SYSTEM.format(directory=directory) if system is None else system
        self.directory = directory
        self._step_timeout_seconds = step_timeout_seconds
        self._observation_chars = observation_chars
        self._trace = trace

    async def run(
        self,
        task: str,
        sandbox: AsyncSandbox,
        *,
        verify: Callable[[AsyncSandbox], Later[str | None]] | None = None,
        meter: Meter | None = None,
        name: str = "run",
    ) -> Run:
        """Work on a task in a sandbox until the model says that it has finished, or the budget ends.

        Args:
            task: The task, in words.
            sandbox: The caller's. It lives on afterwards.
            verify: Called with the sandbox when the model says that it has finished. It returns None, or a text
                with what is still wrong. The model reads the text and goes on.
            meter: Runs that share one share its budget.
            name: The name of the run in the trace.

        Returns:
            Why it ended (`stop`), the last answer, all messages, and the cost.

        Raises:
            InvalidArgumentError: The meter's budget limits money, and the model has no price.

        Example:
            ```python
            async def verify(sandbox):
                result = await sandbox.exec("test -e answer.txt || true")
                return None if result.ok else "answer.txt is missing"

            run = await AsyncAgent(model).run("Write answer.txt", sandbox, verify=verify)
            print(run.ok, run.steps)  # True 1
            ```
        """
        toolbox = AsyncToolbox(
            sandbox,
            directory=self.directory,
            step_timeout_seconds=self._step_timeout_seconds,
            observation_chars=self._observation_chars,
        )
        work = _Work(self.model, toolbox, meter or Meter(self.budget), self._trace, name)
        work.begin(self._system, task)
        try:
            return work.ended(await work.turns(sandbox, verify))
        except ModelFailedError as error:
            return work.ended(Stop.MODEL, str(error))
        except SandboxDiedError as error:
            return work.ended(Stop.SANDBOX, str(error))


class _Work:
    """One run of an agent: its messages, their cost, and the record of both."""

    def __init__(self, model: AsyncModel, toolbox: AsyncToolbox, meter: Meter, trace: Trace | None, name: str) -> None:
        meter.budget.require_price(model.price, model.name)
        self._model, self._toolbox, self._meter, self._trace, self._name = model, toolbox, meter, trace, name
        self._tools = toolbox.specs
        self._began = time.monotonic()
        self._messages: list[Message] = []
        self._steps = 0
        self._tokens = Tokens()
        self._said = ""

    def begin(self, system: str, task: str) -> None:
        self._record("start", model=self._model.name)
        if system:
            self._messages.append(Message(role=Role.SYSTEM, text=system))
        self._tell(task)

    async def turns(self, sandbox: AsyncSandbox, verify: Callable[[AsyncSandbox], Later[str | None]] | None) -> Stop:
        """Ask and do until the model has finished, or the budget ends."""
        while True:
            if (stop := self._meter.exceeded(self._steps)) is not None:
                return stop
            try:
                reply = await self._ask()
            except TimeoutError:
                return Stop.TIME
            if reply.message.calls:
                results: list[ToolResult] = []
                for call in reply.message.calls:
                    if self._meter.seconds_left() == 0.0:
                        return Stop.TIME
                    results.append(await self._result(call))
                self._messages.append(Message(role=Role.TOOL, results=tuple(results)))
            elif reply.cut:
                self._tell(CUT)
            else:
                wrong = None if verify is None else await verify(sandbox)
                if wrong is None:
                    return Stop.DONE
                self._tell(wrong)

    def _tell(self, text: str) -> None:
        self._messages.append(Message(role=Role.USER, text=text))
        self._record("told", text)

    async def _result(self, call: ToolCall) -> ToolResult:
        seen = await self._toolbox.observe(call, seconds_left=self._meter.seconds_left())
        self._record("observation", seen.text, call=call.id, tool=call.name, failed=seen.failed, exec=seen.exec)
        return ToolResult(call=call.id, text=seen.text, failed=seen.failed)

    async def _ask(self) -> Reply:
        """Ask the model for a reply. Raises TimeoutError when the budget's time is over, and ModelFailedError."""
        began = time.monotonic()
        seconds, budget = self._meter.seconds_left(), self._meter.budget
        reply = await awithin(
            seconds,
            self._model.complete,
            self._messages,
            self._tools,
            max_tokens=self._meter.tokens_left(),
            timeout_seconds=seconds,
        )
        self._steps += 1
        tokens = reply.tokens or Tokens()
        self._tokens += tokens
        self._meter.spend(tokens, self._model.price.of(tokens) if self._model.price else 0.0)
        self._messages.append(reply.message)
        self._said = reply.message.text or self._said
        self._record(
            "reply",
            reply.message.text,
            calls=[{"id": c.id, "tool": c.name, "arguments": c.arguments} for c in reply.message.calls],
            input_tokens=tokens.input,
            output_tokens=tokens.output,
            seconds=round(time.monotonic() - began, 3),
            cut=reply.cut,
        )
        if reply.tokens is None and (budget.max_tokens is not None or budget.max_usd is not None):
            raise ModelFailedError(
                f"{self._model.name} does not report its usage, so a budget of tokens or money cannot be kept",
                hint="limit steps and seconds instead",
            )
        return reply

    def ended(self, stop: Stop, error: str | None = None) -> Run:
        price = self._model.price
        run = Run(
            stop=stop,
            text=self._said,
            steps=self._steps,
            tokens=self._tokens,
            usd=None if price is None else price.of(self._tokens),
            seconds=time.monotonic() - self._began,
            error=error,
            messages=tuple(self._messages),
        )
        self._record(
            "end",
            stop=stop.value,
            error=error,
            steps=run.steps,
            input_tokens=run.tokens.input,
            output_tokens=run.tokens.output,
            usd=run.usd,
            seconds=round(run.seconds, 3),
        )
        return run

    def _record(self, kind: str, text: str | None = None, **fields: Any) -> None:
        if self._trace is not None and text is None:
            self._trace.event(kind, self._name, **fields)
        elif self._trace is not None and text is not None:
            self._trace.text(kind, self._name, text, **fields)
