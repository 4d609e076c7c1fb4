"""Checks and measures everything on a GPU, in less than ten minutes.

    python -m benchmarks.gpu --out benchmarks/results

It needs this project without Flower and Ray, and PyTorch for CUDA. What cannot run is named with
its reason, and everything else runs. Results are written after each part: ``gpu.json``, and the
same as a page, ``gpu.md``. The exit code is 1 if a part failed. ``--device cpu --quick`` takes all
parts in a small form without a GPU, to try the program itself.
"""

import argparse
import json
import platform
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from sim.job import environment

environment.prepare()

import torch  # noqa: E402

from benchmarks.gpu import checks, speed  # noqa: E402
from mechanisms.kernels import fix_kernels  # noqa: E402

LIMIT = 420.0
"""Seconds after which no further part begins."""
PARTS: tuple[Callable[[torch.device, bool], checks.Rows], ...] = (
    checks.equality,
    checks.replay,
    checks.tests,
    checks.runs,
    speed.steps,
    speed.one_step,
    speed.cohort,
    speed.opacus,
    speed.chunks,
    speed.yardstick,
    speed.evaluation,
    speed.precision,
    speed.convolutions,
    speed.shapes,
)


def machine(device: torch.device) -> dict[str, object]:
    """What the figures are from."""
    found: dict[str, object] = {"python": platform.python_version(), "torch": torch.__version__}
    if device.type == "cuda":
        own = torch.cuda.get_device_properties(device)
        found |= {"gpu": own.name, "gpus": torch.cuda.device_count(), "bytes": own.total_memory}
        found |= {"cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
    return found


def taken(part: Callable, device: torch.device, quick: bool) -> dict[str, object]:
    """What a part found, or why it could not run; its seconds, and the GPU's largest memory."""
    began, found = time.perf_counter(), dict[str, object]()
    try:
        if device.type == "cuda":  # these fail, too, after a fault that a GPU does not recover from
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
        found["rows"] = part(device, quick)
    except ImportError as why:
        found["not run"] = f"{why}"
    except Exception:  # whatever is wrong with one part, the others are worth their time
        found["failed"] = traceback.format_exc()[-8000:]
    found["seconds"] = time.perf_counter() - began
    if device.type == "cuda" and "failed" not in found:
        found["peak bytes"] = torch.cuda.max_memory_allocated(device)
    return found


def page(result: dict) -> str:
    """The result as Markdown."""
    own = ", ".join(f"{name} {value}" for name, value in result["machine"].items())
    lines = [f"# `{result['command']}`", "", own, ""]
    for name, found in result["parts"].items():
        lines += [f"## {name}", "", found["what"], ""]
        for reason in {"not run", "failed"} & found.keys():
            lines += [f"{reason}:", "", "```", found[reason].strip(), "```", ""]
        if rows := found.get("rows"):
            lines += [_line(rows[0]), _line("---" for _ in rows[0])]
            lines += [*(_line(row.values()) for row in rows), ""]
        memory = f", {found['peak bytes'] / 2**30:.2f} GiB" if "peak bytes" in found else ""
        lines += [f"{found['seconds']:.1f} s{memory}", ""]
    return "\n".join(lines)


def _line(row: Iterable[object]) -> str:
    cells = (f"{one:.4g}" if isinstance(one, float) else str(one) for one in row)
    return "| " + " | ".join(cells) + " |"


def main(argv: Sequence[str] | None = None) -> int:
    """Take all parts; 1 if one failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="all parts in a small form")
    parser.add_argument("--out", type=Path, help="folder for gpu.json and gpu.md")
    given = parser.parse_args(argv)
    if given.device == "cuda" and not torch.cuda.is_available():
        parser.error("device = cuda, but no CUDA device is present: try --device cpu --quick")
    device, began = torch.device(given.device), time.perf_counter()
    torch.set_num_threads(1)
    if device.type == "cuda":
        fix_kernels()
    parts: dict[str, dict] = {}
    result = {"command": "python -m benchmarks.gpu", "machine": machine(device), "parts": parts}
    for part in PARTS:
        found: dict[str, object] = {"not run": "no time left", "seconds": 0.0}
        if time.perf_counter() - began <= LIMIT:
            found = taken(part, device, given.quick)
        parts[part.__name__] = {"what": " ".join((part.__doc__ or "").split())} | found
        state = next(word for word in ("rows", "not run", "failed") if word in found)
        print(f"{part.__name__}: {found[state]}", file=sys.stderr, flush=True)
        if given.out:
            given.out.mkdir(parents=True, exist_ok=True)
            (given.out / "gpu.json").write_text(json.dumps(result, indent=1) + "\n")
            (given.out / "gpu.md").write_text(page(result))
    print(page(result))
    return int(any("failed" in found for found in parts.values()))


if __name__ == "__main__":
    raise SystemExit(main())
