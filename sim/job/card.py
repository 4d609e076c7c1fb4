"""The model card of a finished run: one Markdown page beside the model, from its files."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from mechanisms import durable
from mechanisms.settings import Privacy
from server.records import Epsilon, Summary, largest
from sim.data.dataset import Dataset
from sim.job.job import Job
from sim.showing import wording
from sim.showing.run import Run, read_run

FILE = "model_card.md"

_UNITS = {
    "record": "One training record of one client. Adjacency is zero-out: the record is replaced by "
    "a null record that adds to no sum and to no count. How many records a client holds is public.",
    "client": "One client with all of its records. Adjacency is zero-out: the client is replaced "
    "by a null client that adds to no sum.",
}
_NOT_PRIVATE = "This model was trained without privacy: it may reveal any of its training records."


def write(folder: Path, job: Job, summary: Summary) -> None:
    """Write the model card into the run directory of a run that has come to its end.

    Raises:
        ValueError: a file of the run directory is damaged.
    """
    run = read_run(folder, summary)
    title = f"{folder.resolve().name}: {run.config.data.model} for {run.config.data.dataset}"
    parts = [
        f"# {escape(_line(title), quote=False)}",
        _facts(run, job.canaries),
        "## Guarantee",
        _guarantee(run),
        "## Use",
        _use(run, job.dataset),
        f"```text\n{job.model}\n```",
    ]
    durable.write(folder / FILE, ("\n\n".join(parts) + "\n").encode())


def _facts(run: Run, canaries: int) -> str:
    config, sizes = run.config, run.sizes
    rounds = f"{len(run.records)} rounds of {config.strategy.strategy}"
    divided = "" if run.alone else f", {len(sizes)} clients, partition {config.data.partition}"
    accuracy = run.summary.accuracy if run.summary else None
    judged = f"{wording.figure(accuracy)} on the {config.data.evaluate_on} part"
    rows = [
        ("data", f"`{config.data.dataset}`: {int(sizes.sum())} training records{divided}"),
        ("trained by", f"{config.data.loss}, {rounds}"),
        (config.data.metric_name, f"{judged}, which is not protected"),
    ]
    if canaries:
        rows.append(("canaries", f"{canaries} of an audit, which it has learnt: do not use it"))
    return _table(("Model", config.data.model), rows)


def _guarantee(run: Run) -> str:
    summary, privacy = run.summary, run.config.privacy
    if not run.config.private or summary is None:
        return _NOT_PRIVATE
    noise = wording.span(summary.noise_multiplier)
    rows = [
        ("certified epsilon", _proved(largest(summary.epsilon_certified), summary.method)),
        ("delta", f"{summary.delta:g}"),
        ("unit", _UNITS[privacy.unit]),
        ("mechanism", f"{privacy.mechanism}, clip norm {_clip_norm(privacy)}, noise {noise}"),
        ("noise", wording.RELEASED if summary.release else "A simulation: see the limits."),
    ]
    for group, budget, clients, spent in wording.budgets(summary.budgets):
        rows.append((f"group {group}", f"{clients} clients, budget {budget}, largest {spent}"))
    limits = "\n".join(f"- {line}" for line in summary.caveats)
    said = "What it does not cover, or takes for granted:"
    against = _table(wording.AGAINST, wording.guarantees(summary.guarantees))
    return "\n\n".join((_table(("Privacy", "proved"), rows), against, said, limits))


def _clip_norm(privacy: Privacy) -> str:
    moves = f", moving to the quantile {privacy.clip_quantile:g}" if privacy.clip_quantile else ""
    return f"{privacy.clip_norm:g}{moves}"


def _proved(epsilon: Epsilon, method: str) -> str:
    return wording.epsilon(epsilon) + (f", by {method}" if method and epsilon is not None else "")


def _use(run: Run, dataset: Dataset) -> str:
    x, scaled = dataset.x, run.config.data.standardize == "private"
    text = (
        f"The model takes records [B, {', '.join(map(str, x.shape[1:]))}] of {x.dtype} and gives "
        f"{dataset.classes} outputs for each. A module of the form below loads its weights without "
        "anything of this project."
    )
    text += " Records are first scaled by statistics.safetensors." if scaled else ""
    code = "from safetensors.torch import load_file\n\n"
    return f'{text}\n\n```text\n{code}model.load_state_dict(load_file("model.safetensors"))\n```'


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)


def _cell(text: str) -> str:
    return _line(text).replace("|", r"\|")


def _line(text: str) -> str:
    return " ".join(text.split())
