"""What services ask about pausing: the keeper's operations `pause`, `resume`, `awake` and `rest`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paddock.keeper._undertaker import Life, Undertaker

Message = dict[str, Any]
Reply = Callable[..., None]
Order = Callable[[object, Message, Reply], None]


def orders(undertaker: Undertaker) -> dict[str, Order]:
    """By name. The first argument of each is the connection that it came over."""

    def of(message: Message) -> Life | None:
        life = undertaker.lives.get(str(message["id"]))
        known = life is not None and life.cause is None and life.record.incarnation == message["incarnation"]
        return life if known else None

    def pause(connection: object, message: Message, reply: Reply) -> None:
        """Until `resume` or `awake`, whoever lives. Answered when none of its processes runs."""
        life = of(message)
        if life is not None:
            undertaker.rest.pause(life)
        reply({"known": life is not None, **_times(life)})

    def resume(connection: object, message: Message, reply: Reply) -> None:
        life = of(message)
        woken = life is not None and undertaker.rest.resume(life)
        reply({"known": life is not None, "woken": woken, **_times(life)})

    def awake(connection: object, message: Message, reply: Reply) -> None:
        """It is resumed if it is paused, and not paused for idleness until `rest`, or the end of the connection."""
        life = of(message)
        woken = life is not None and undertaker.rest.keep_awake(life, (connection, int(message["hold"])))
        reply({"known": life is not None, "woken": woken})

    def rest(connection: object, message: Message, reply: Reply) -> None:
        undertaker.rest.let_go(str(message["id"]), (connection, int(message["hold"])))
        reply({})

    def _times(life: Life | None) -> Message:
        return {} if life is None else {"left": life.record.left_seconds, "deadline": life.record.deadline}

    return {"pause": pause, "resume": resume, "awake": awake, "rest": rest}
