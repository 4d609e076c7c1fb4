"""Python imports this as it starts where this folder is on PYTHONPATH: its runs draw no report."""

import sys
from contextlib import nullcontext
from types import SimpleNamespace

sys.modules["sim.showing.report"] = SimpleNamespace(write_report=lambda folder: folder)
sys.modules["sim.engines.drawer"] = SimpleNamespace(
    Report=object, drawing=lambda run: nullcontext()
)
