"""What benchmark scripts have in common: a result is printed, and kept where that is asked for."""

import json
from pathlib import Path

from threadpoolctl import threadpool_info


def publish(result: dict, out: Path | None) -> None:
    """Print the result as JSON, and write it to the file `out`, if given."""
    text = json.dumps(result, indent=1)
    print(text)
    if out:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text + "\n")


def openblas_kernels() -> list[str]:
    """The chips whose kernels NumPy's and SciPy's BLAS use here, or OPENBLAS_CORETYPE."""
    return sorted(
        {
            found["architecture"]
            for found in threadpool_info()
            if found["internal_api"] == "openblas"
        }
    )
