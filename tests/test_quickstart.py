"""The notebook of the documentation runs from top to bottom, and is committed as nobody has run
it."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
NOTEBOOK = ROOT / "docs" / "quickstart.ipynb"
CELLS = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
PLAYER = """
import ast, json, sys
for cell in json.loads(sys.stdin.read()):
    tree = ast.parse("".join(cell["source"]))
    exec(compile(tree, "cell", "exec"), globals())
print("result:", result.epsilon, result.accuracy, again.finished, result.report().is_file())
"""
"""As a kernel does: one cell after the other in the namespace of `__main__`."""


def test_every_cell_runs(tmp_path):
    cells = [cell for cell in CELLS if cell["cell_type"] == "code"]
    variables = os.environ | {"PYTHONPATH": str(ROOT), "MPLBACKEND": "Agg"}
    words, said = [sys.executable, "-c", PLAYER], json.dumps(cells)
    done = subprocess.run(
        words, input=said, cwd=tmp_path, env=variables, capture_output=True, text=True
    )
    assert done.returncode == 0 and len(cells) >= 6, done.stderr
    *lines, last = done.stdout.splitlines()
    _, epsilon, accuracy, *flags = last.split()
    assert 7.9 < float(epsilon) <= 8 and float(accuracy) > 0.7 and flags == ["True", "True"]
    assert f"accuracy {float(accuracy):.3f}, certified epsilon {float(epsilon):.2f}" in lines
    assert any(line.startswith("   10 ") for line in lines)


def test_nothing_of_a_run_is_committed_with_it():
    for cell in CELLS:
        assert set(cell) == {"cell_type", "id", "metadata", "source"} | (
            {"execution_count", "outputs"} if cell["cell_type"] == "code" else set()
        )
        assert (
            not cell.get("outputs")
            and cell.get("execution_count") is None
            and cell["metadata"] == {}
        )
