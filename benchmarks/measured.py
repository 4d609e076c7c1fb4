"""What benchmark scripts have in common: a result is printed, and kept where that is asked for."""

import json
from pathlib import Path


def publish(result: dict, out: Path | None) -> None:
    """Print the result as JSON, and write it to the file `out`, if given."""
    text = json.dumps(result, indent=1)
    print(text)
    if out:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text + "\n")
