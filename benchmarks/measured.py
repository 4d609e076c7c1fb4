"""What benchmark scripts have in common: flags, rounds of a run, and a result that is printed, and
kept where that is asked for."""

import argparse
import json
from pathlib import Path


def parser_of(doc: str | None) -> argparse.ArgumentParser:
    """A parser with `--out`, whose help is a script's docstring."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=doc, formatter_class=raw)
    parser.add_argument("--out", type=Path, help="where the result goes")
    return parser


def rounds_of(run: Path) -> list[dict]:
    """The records of a run's rounds."""
    return [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]


def publish(result: dict, out: Path | None) -> None:
    """Print the result as JSON, and write it to the file `out`, if given."""
    text = json.dumps(result, indent=1)
    print(text)
    if out:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text + "\n")


def chip() -> str:
    """The processor's name, and the widest vector registers that it has."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    given = {key.strip(): value.strip() for key, _, value in (n.partition(":") for n in lines)}
    wide = next((f for f in ("avx512f", "avx2") if f in given.get("flags", "").split()), "neither")
    return f"{given.get('model name', 'unknown')}, family {given.get('cpu family')}, {wide}"
