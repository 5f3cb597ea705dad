"""Forges: what hosts repositories and has an API for pull requests. GitHub's dialect, and Gitea's and Forgejo's."""

from ._site import DIALECTS as DIALECTS
from ._site import Forge as Forge
from ._site import open_forge as open_forge
