"""The JSON Schema of `paddock.yaml`, for editors."""

from __future__ import annotations

from inspect import cleandoc
from typing import Any, cast

import msgspec

from paddock.model import PolicyDocument

SAME_NAME = ("env", "stored")
"""Sources that a policy may give as one word: the secret's name is then the name at the source."""

_ONE_OF = {"Allow": ("host", "cidr", "registry", "git"), "Deny": ("host", "cidr")}


def schema() -> dict[str, Any]:
    (root,), parts = msgspec.json.schema_components([PolicyDocument], ref_template="#/$defs/{name}")
    for name, keys in _ONE_OF.items():
        parts[name]["oneOf"] = [{"required": [key]} for key in keys]
    for part in parts.values():
        _tidy(part)
    source = parts["SecretRule"]["properties"]
    source["from"] = {"anyOf": [{"enum": list(SAME_NAME)}, source["from"]]}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "paddock.yaml", **root, "$defs": parts}


def _tidy(part: dict[str, Any]) -> None:
    """Drop null where a key may be left out, and the Python of examples."""
    if "description" in part:
        part["description"] = cleandoc(part["description"]).partition("\n\nExample:")[0]
    for key, kind in part.get("properties", {}).items():
        choices = [one for one in kind.get("anyOf", []) if one != {"type": "null"}]
        if len(choices) < len(kind.get("anyOf", [])):
            kind.pop("default", None)
            kind.pop("anyOf")
            if len(choices) == 1:
                part["properties"][key] = {**cast("dict[str, Any]", kind), **choices[0]}
            else:
                kind["anyOf"] = choices
