"""Every action has one handler, and a service that lacks one does not start."""

from __future__ import annotations

from typing import Any

import pytest
from service_world import ME, Rig

from paddock.daemon.context import handles, table
from paddock.errors import InternalError
from paddock.model import Action, ListTemplates
from paddock.model.any_action import BY_TAG


class Unknown(Action[None], tag="unknown"):
    """An action that is not in the union."""


class Templates:
    @handles(ListTemplates)
    async def list(self, action: ListTemplates, entry: Any) -> tuple[str, ...]:
        return ()


async def test_a_service_has_a_handler_for_every_action_and_refuses_what_is_none(rig: Rig) -> None:
    async with rig.service() as service:
        assert set(service.handlers) == set(BY_TAG.values())
        with pytest.raises(InternalError, match="no handler for 'unknown'"):
            await service.perform(Unknown(), ME)


@pytest.mark.parametrize(
    ("components", "said"), [((Templates(),), "no handler for .*create"), ((Templates(), Templates()), "two handlers")]
)
def test_a_service_without_a_handler_or_with_two_does_not_start(components: Any, said: str) -> None:
    with pytest.raises(InternalError, match=said):
        table(components)
