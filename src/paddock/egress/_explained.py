"""What secrets are refused for, as a refusal."""

from __future__ import annotations

from paddock.errors import SecretUnavailable

from ._refusal import Refused
from ._swap import Misdirected


class explained:
    """What secrets are refused for, as a refusal."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Misdirected):
            raise Refused(str(error), rule="secret") from None
        if isinstance(error, SecretUnavailable):
            raise Refused(error.message, status=424, rule="secret", hint=error.hint or "") from None
