"""JSON objects that carry their own digest."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

DIGEST = "sha256"


def dumps(entries: Mapping[str, Any]) -> bytes:
    """The object as text, a line for each entry, with the digest of all others."""
    whole = {**entries, DIGEST: _digest(entries)}
    lines = (f"{json.dumps(name)}: {json.dumps(value)}" for name, value in whole.items())
    return ("{\n " + ",\n ".join(lines) + "\n}").encode()


def loads(content: bytes) -> dict[str, Any]:
    """The inverse of `dumps`.

    Raises:
        ValueError: it is not what was written.
    """
    try:
        entries = json.loads(content)
        if not isinstance(entries, dict) or entries.pop(DIGEST, None) != _digest(entries):
            raise ValueError("its digest does not match")
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    return entries


def _digest(entries: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()
