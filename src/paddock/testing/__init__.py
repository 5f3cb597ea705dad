"""Shipped test tools: the conformance suite of backends, and a detector of what was left behind."""

from __future__ import annotations

import pytest

# Before the suite is first imported, or its assertions would fail without saying what they compared.
pytest.register_assert_rewrite("paddock.testing.conformance", "paddock.testing.pool")
