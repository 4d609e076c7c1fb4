"""Several runs on one page: their curves, their results, and the settings in which they differ."""

from collections.abc import Callable, Sequence
from pathlib import Path

from mechanisms import durable
from server.guarantees import UNITS
from server.records import Epsilon, RoundRecord, finite, largest, total_seconds
from sim.config.caveats import TRIES
from sim.config.fields import SETTINGS
from sim.config.use import in_use
from sim.showing import page, wording
from sim.showing.run import Run, read_run, so_far

FILE = "comparison.html"
"""The page's name, in the folder that holds the first run directory."""
OUTPUT = frozenset({"name", "out", "quiet", "track"})
"""Settings that say where results go; runs always differ in some of them."""

_OTHER_RECORDS = (
    "These runs are not evaluated on the same records, so their scores cannot be compared."
)
_OTHER_GUARANTEE = (
    "These runs differ in delta, in what is protected, or in whom clients trust, so their epsilons "
    "cannot be compared as they are."
)


def write_comparison(run_dirs: Sequence[Path], path: Path | None = None) -> Path:
    """Write the page that compares runs; its path.

    Args:
        run_dirs: directories of at least two runs, finished or not.
        path: of the page; None: ``FILE`` beside the first run directory.

    Raises:
        ValueError: one of them is no run directory, is damaged, or is given twice.
    """
    runs = by_label(run_dirs)
    head = ("Run", "Score", "Certified epsilon", "Delta", "Protected unit", "Rounds", "Time")
    results = page.table(head, [_result(label, run) for label, run in runs.items()])
    notes = [page.paragraph(note) for note in _notes(list(runs.values()))]
    parts = [page.section("Results", results, *notes)]
    for metric in dict.fromkeys(run.config.data.metric_name for run in runs.values()):
        alike = {label: run for label, run in runs.items() if run.config.data.metric_name == metric}
        curves = _curves(alike, metric, lambda one: one.accuracy)
        parts.append(page.section(metric.capitalize(), curves))
    spent = _curves(runs, "certified epsilon", lambda one: one.epsilon_certified_max)
    parts.append(page.section("Privacy spent", spent))
    parts.append(page.section("Settings that differ", _settings(runs)))
    path = path or run_dirs[0].resolve().parent / FILE
    title = f"{len(runs)} runs compared"
    durable.write(path, page.page(title, ", ".join(runs), parts).encode(), shared=True)
    return path


def by_label(run_dirs: Sequence[Path]) -> dict[str, Run]:
    """The runs by the names of their folders, or by their paths if two have one name.

    Raises:
        ValueError: one of them is no run directory, is damaged, or is given twice.
    """
    folders = [folder.resolve() for folder in run_dirs]
    for number, folder in enumerate(folders):
        if folder in folders[:number]:
            raise ValueError(f"{run_dirs[number]} is given twice: leave one out")
    unique = len({folder.name for folder in folders}) == len(folders)
    labels = [folder.name if unique else str(folder) for folder in folders]
    return {label: read_run(folder) for label, folder in zip(labels, run_dirs, strict=True)}


def _result(label: str, run: Run) -> tuple[str, ...]:
    seconds, private = total_seconds(run.records), run.config.private
    data, privacy = run.config.data, run.config.privacy
    return (
        label,
        f"{wording.figure(run.accuracy)} ({data.evaluate_on} {data.metric_name})",
        _epsilon(run),
        f"{privacy.delta:g}" if private else "none",
        UNITS[privacy.unit] if private else "nothing",
        f"{len(run.records)} of {run.config.rounds.rounds}",
        "unknown" if seconds is None else wording.duration(seconds),
    )


def _epsilon(run: Run) -> str:
    """The largest of all clients; of an unfinished run, what is spent so far."""
    if run.summary:
        whose = " (largest client's)" if run.summary.budgets else ""
        return wording.epsilon(largest(run.summary.epsilon_certified)) + whose
    if not run.records:
        return "unknown"
    if not run.config.private:
        return wording.epsilon(None)
    return f"{wording.epsilon(so_far(run.folder, run.config, run.paid))}, not finished"


def _notes(runs: Sequence[Run]) -> list[str]:
    """What to know before comparing them."""
    private = [run for run in runs if run.config.private]
    notes = [_OTHER_RECORDS] if len(set(map(_records, runs))) > 1 else []
    guarantees = [run.config.privacy for run in private]
    if len({(own.delta, own.unit, own.trust) for own in guarantees}) > 1:
        notes.append(_OTHER_GUARANTEE)
    if any(run.summary is None for run in private):
        notes.append(wording.UNDER_WAY)
    return [*notes, TRIES] if private else notes


def _records(run: Run) -> tuple[object, ...]:
    """What says which records a run was evaluated on."""
    data = run.config.data
    drawn = data.evaluate_on == "validation"
    return data.dataset, drawn, *([data.validation_records, run.config.run.seed] if drawn else [])


def _curves(runs: dict[str, Run], name: str, value: Callable[[RoundRecord], Epsilon]) -> str:
    """A value by round, a line for each run that has it."""
    from sim.showing import plots

    lines = {
        label: [(one.round, y) for one in run.records if (y := finite(value(one))) is not None]
        for label, run in runs.items()
    }
    lines = {label: points for label, points in lines.items() if points}
    if not lines:
        return page.paragraph("No run has a value here.")
    picture = plots.svg(plots.curves(lines, "round", name))
    caption = f"{name.capitalize()} after each round."
    return page.picture(picture, f"{name} by round", caption)


def _settings(runs: dict[str, Run]) -> str:
    """A row for each setting that differs, a column for each run."""
    rows = []
    for name in SETTINGS:
        shown = [_shown(run, name) for run in runs.values()]
        if name not in OUTPUT and len(set(shown)) > 1:
            rows.append((name, *map(wording.shortened, shown)))
    if not rows:
        return page.paragraph("None but where results go.")
    return page.table(("Setting", *runs), rows)


def _shown(run: Run, name: str) -> str:
    value = run.config.value(name)
    if not in_use(name, run.config.value):
        return "not used"
    return "not set" if value is None else str(value)
