"""What an action is."""

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
"""The actions that were imported. `any_action.BY_TAG` has all of them."""


class Action(Value, Generic[R_co]):
    """Something asked.

    `TAG` is its name in messages, policies and records, `RESULT` the R, or the text of it. `REPEATABLE`: it may be
    asked twice, because it changes nothing, or the second time nothing more. To open a stream changes nothing: what is
    written does.
    """

    if TYPE_CHECKING:
        TAG: ClassVar[str]
        REPEATABLE: ClassVar[bool]
        RESULT: ClassVar[Any]
        __orig_bases__: ClassVar[tuple[Any, ...]]

    def __init_subclass__(cls, *, tag: str, repeatable: bool = False) -> None:
        super().__init_subclass__(forbid_unknown_fields=True)
        cls.TAG, cls.REPEATABLE = tag, repeatable
        TAGGED[tag] = cls
        cls.RESULT = cls.__orig_bases__[0].__args__[0]
