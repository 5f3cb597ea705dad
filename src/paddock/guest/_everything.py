"""All of the guest, imported now: after this import nothing in here imports anything again."""

from ._agent import run_agent as run_agent
from ._agent import run_agent_on as run_agent_on
from ._config import AgentConfig as AgentConfig
from ._config import InitConfig as InitConfig
from ._config import UserEntry as UserEntry
from ._init import run_init as run_init
from ._seal import seal_imports as seal_imports
