"""Reference values of the accounting, from `reference_values.json`; its `provenance` says how they
were made."""

import json
from pathlib import Path
from typing import Any

REFERENCE: dict[str, Any] = json.loads(
    Path(__file__).with_suffix(".json").read_text(encoding="utf-8")
)
