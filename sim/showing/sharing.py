"""The report's section on FedFed's shared records and their price."""

from pathlib import Path

from client.tensors import read
from mechanisms.accounting import ledger
from mechanisms.accounting.accountant import epsilon
from sim.config import caveats
from sim.config.caveats import public_labels
from sim.config.fields import Config
from sim.showing import page, wording

SHARED_FILE = "shared.safetensors"
SHOWN = 40
"""Maximum number of shared records on the sheet."""

_WHAT = {
    "prototypes": "A mean for each class, over all clients, of noisy sums of clipped records. "
    "Single clients' sums are never seen: a group adds them up.",
    "distilled": "Features of single records as they left their clients: the part of a record "
    "that tells its class, clipped, with noise drawn for each record and view. They are in the "
    "order of the clients.",
}


def section(run_dir: Path, config: Config) -> str | None:
    """The sheet and its price; None if clients have shared nothing."""
    from sim.showing import plots

    path, own = run_dir / SHARED_FILE, config.fedfed
    if not path.exists():
        return None
    _, tensors = read(path)
    x, y = tensors["x"], tensors["y"]
    sheet = plots.svg(plots.sheet(x[:SHOWN], y[:SHOWN]))
    caption = f"{min(len(y), SHOWN)} of {len(y)} shared records with their released labels."
    parts = [page.paragraph(_WHAT[own.shared_source])]
    parts += [page.picture(sheet, "shared records", caption)]
    delta, paid = config.privacy.delta, ledger.read(run_dir / "ledger", up_to_round=0).values()
    distinct = {frozenset(charges.items()) for charges in paid}
    largest = max((epsilon(dict(items), delta).epsilon for items in distinct), default=None)
    text = f"Certified epsilon of all that came before training: {wording.epsilon(largest)}"
    parts.append(page.paragraph(f"{text}, at delta {delta:g}; it is part of the run's."))
    if public_labels(config):
        parts.append(page.paragraph(caveats.PUBLIC_LABELS))
    return page.section("What clients share", *parts)
