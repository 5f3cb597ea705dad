"""The base class of actions."""

from __future__ import annotations

from types import GenericAlias

from .value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, ClassVar, Generic, TypeVar

    R_co = TypeVar("R_co", covariant=True)
else:
    R_co = object

    class Generic:
        __class_getitem__ = classmethod(GenericAlias)


TAGGED: dict[str, type[Action[Any]]] = {}
"""The actions imported so far, by tag. `any_action.BY_TAG` has all of them."""


class Action(Value, Generic[R_co]):
    """A request to paddock, with its arguments.

    `TAG` is its name in messages, policies and records. `RESULT` is the type R, or its name. `REPEATABLE`: a client may
    send it twice, because the second time changes nothing. Opening a stream changes nothing: writing to it does.
    """

    if TYPE_CHECKING:
        TAG: ClassVar[str]
        REPEATABLE: ClassVar[bool]
        RESULT: ClassVar[Any]
        __orig_bases__: ClassVar[tuple[Any, ...]]

    def __init_subclass__(cls, *, tag: str = "", repeatable: bool = False) -> None:
        super().__init_subclass__(forbid_unknown_fields=True)
        cls.TAG, cls.REPEATABLE = tag, repeatable
        if tag:  # otherwise it is the base class of some
            TAGGED[tag] = cls
        cls.RESULT = cls.__orig_bases__[0].__args__[0]


class SandboxAction(Action[R_co]):
    """An action on one sandbox: its id, a unique prefix of one, or its name."""

    sandbox: str


class FileAction(SandboxAction[R_co]):
    """An action on the file or the directory at one path inside."""

    path: str
