"""Make lines for `doctor`, and of a sandbox's posture."""

from __future__ import annotations

from paddock.model import Check

EGRESS = "policies hold: packets are led to the gateway, which asks them"
SLEEP = "what is paused uses no processor time, and keeps its memory"


def ok(area: str, name: str, detail: str) -> Check:
    return Check(area=area, name=name, status="ok", detail=detail)


def weak(area: str, name: str, detail: str, fix: str | None = None) -> Check:
    return Check(area=area, name=name, status="weak", detail=detail, fix=fix)


def missing(area: str, name: str, detail: str, fix: str | None = None) -> Check:
    return Check(area=area, name=name, status="missing", detail=detail, fix=fix)


def posture(name: str, problem: str | None, detail: str) -> Check:
    """One line about the isolation of a sandbox."""
    return missing("posture", name, problem) if problem else ok("posture", name, detail)
