"""The report of a run: one self-contained HTML page, from the files of its directory alone."""

import functools
import math
import statistics
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mechanisms import durable
from mechanisms.accounting import group
from server import closing
from server.guarantees import guarantees
from server.records import Epsilon, Summary, finite, largest, middle, total_seconds
from sim.config.caveats import caveats
from sim.config.configuration import Config
from sim.config.fields import SETTINGS, TABLES
from sim.config.settings import ACCURACY
from sim.config.use import used_by_table
from sim.showing import audit as audit_result
from sim.showing import page, wording
from sim.showing import sharing as sharing_report
from sim.showing.run import Run, read_run, so_far

_epsilon = functools.partial(wording.epsilon, infinite="∞ (not private)")

_GROUPS = (1, 2, 4, 8)
"""Records of one person for which epsilon is shown."""
_NOT_PRIVATE = (
    "This run was trained without privacy: no record of any client is protected, and epsilon is "
    "infinite."
)


def write_report(run_dir: Path) -> Path:
    """Write the report and ``partition.svg``, its owner's alone; of a release a public report only.

    Raises:
        ValueError: it is not a run directory, or a file in it is damaged.
    """
    run = read_run(run_dir)
    partition = _drawn_partition(run)
    if partition is not None:
        durable.write(run_dir / "partition.svg", partition, private=True, shared=True)
    path, content = run_dir / "report.html", _page(run, partition).encode()
    durable.write(path, content, private=not run.config.run.release, shared=True)
    return path


def live_report(run_dir: Path, refresh: int) -> str:
    """The same page, of which nothing is written; until the run is finished it loads itself anew
    after ``refresh`` seconds.

    Raises:
        ValueError: it is not a run directory, or a file in it is damaged.
    """
    run = read_run(run_dir)
    return _page(run, _drawn_partition(run), None if run.summary else refresh)


def _drawn_partition(run: Run) -> bytes | None:
    from sim.showing import plots

    return None if run.counts is None else plots.svg(plots.partition(run.counts))


def _page(run: Run, partition: bytes | None, refresh: int | None = None) -> str:
    parts = [_headline(run)]
    if run.records:
        parts.append(page.section("Model", _quality(run)))
    parts += _scores(run.folder)
    parts += [_privacy(run)] if run.config.private else []
    parts += _mechanism(run)
    sections = (sharing_report.section(run.folder, run.config), audit_result.section(run.folder))
    parts += [section for section in sections if section]
    parts += [_guarantee(run), _partition(run, partition)]
    parts += [_configuration(run.config), _recompute(run)]
    return page.page(_title(run), _subtitle(run), parts, refresh)


def _title(run: Run) -> str:
    return f"{run.folder.resolve().name}: {run.config.data.dataset}, {_clients(run)}"


def _clients(run: Run) -> str:
    return "1 client" if run.alone else f"{len(run.sizes)} clients"


def _subtitle(run: Run) -> str:
    config = run.config
    parts = [
        config.privacy.mechanism if run.config.private else "no privacy",
        config.strategy.strategy,
        f"model {config.data.model}",
        "a release" if config.run.release else f"a simulation with seed {config.run.seed}",
    ]
    state = "finished" if run.summary else "not finished"
    seconds = total_seconds(run.records)
    time = "" if seconds is None else f" in {wording.duration(seconds)}"
    rounds = f"{len(run.records)} of {config.rounds.rounds} rounds{time}"
    return f"{', '.join(parts)}. {rounds}, {state}."


def _headline(run: Run) -> str:
    """The tiles, from the summary or, if the run is unfinished, from its last round."""
    if not run.records:
        text = page.paragraph("Results appear after the first round.")
        return page.section("No round is finished yet", text)
    last, summary, delta = run.records[-1], run.summary, run.config.privacy.delta
    certified, proviso = (
        (largest(summary.epsilon_certified), "") if summary else _before_the_end(run)
    )
    published = largest(summary.epsilon_published) if summary else last.epsilon_published_max
    accuracy = summary.accuracy if summary else last.accuracy
    budget = run.config.privacy.budget
    named = "largest budget" if run.budgets else "target"
    goal = {budget: f"; {named} {run.target:g}"} if run.target is not None else {}
    several = "" if run.alone else f", largest of {_clients(run)}"
    note = f"at delta {delta:g}{several}{goal.get('certified', '')}{proviso}"
    note = note if run.config.private else "trained without privacy"
    metric = run.config.data.metric_name
    shown = wording.figure(accuracy)
    if finite(accuracy) is not None and metric == ACCURACY:
        shown = f"{accuracy:.1%}"
    when = f"after round {last.round} of {run.config.rounds.rounds}"
    part = run.config.data.evaluate_on.capitalize()
    entries = [
        (f"{part} {metric}", shown, f"{when}; loss {wording.figure(last.loss)}"),
        ("Certified epsilon", _epsilon(certified if run.config.private else None), note),
    ]
    if run.config.private:
        claim = f"the paper's claim, for comparison; not the guarantee{goal.get('published', '')}"
        entries.append(("Published epsilon", _epsilon(published), claim))
    if run.alone:
        used = "used up" if last.retired else "not used up"
        entries.append(("Budget", used, "whether it pays for a further round"))
    else:
        note = f"of {len(run.sizes)}: their budget pays for no further round"
        entries.append(("Retired clients", str(last.retired), note))
    return page.tiles(entries)


def _quality(run: Run) -> str:
    """Metric and loss by round."""
    from sim.showing import plots

    data = run.config.data
    unit = "nats" if data.loss.endswith("cross-entropy") else ""
    part, metric = data.evaluate_on, data.metric_name
    score, loss = plots.accuracy_and_loss(run.records, part, metric, unit)
    caption = f"{part.capitalize()} part, after each round."
    pictures = {f"{metric} by round": score, "loss by round": loss}
    return "".join(page.picture(plots.svg(p), alt, caption) for alt, p in pictures.items())


def _mechanism(run: Run) -> list[str]:
    """The mechanism's metrics by round; nothing without any."""
    from sim.showing import plots

    mean = "Public metric of the mechanism: mean over each round's clients."
    pictures = [
        page.picture(plots.svg(figure), f"{name} by round", wording.METRICS.get(name, mean))
        for name, figure in plots.mechanism_metrics(run.records).items()
    ]
    return [page.section("Mechanism", *pictures)] if pictures else []


def _scores(run_dir: Path) -> list[str]:
    """Further scores of the final model, by class and by client; none if there are none."""
    from sim.showing import plots

    if (found := closing.evaluation(run_dir)) is None:
        return []
    parts = [page.table(("Score", "Value"), wording.scores(found))]
    if found.accuracy_by_class:
        picture = plots.svg(plots.by_class(found.accuracy_by_class))
        caption = f"Accuracy of each class, {found.evaluated_on} part."
        parts.append(page.picture(picture, "accuracy by class", caption))
    if found.unprotected:
        picture = plots.svg(plots.by_client(found.accuracy_by_client))
        caption = f"Clients by accuracy on their {found.clients_on} records. {found.unprotected}"
        parts.append(page.picture(picture, "accuracy by client", caption))
    return [page.section("Scores of the final model", *parts)]


def _before_the_end(run: Run) -> tuple[Epsilon, str]:
    """An unfinished run's proved epsilon, the budget or what is spent so far; and a note."""
    if run.target is not None and run.config.privacy.budget == "certified":
        return run.target, f". {wording.UNFINISHED}"
    spent = so_far(run.folder, run.config, run.paid) if run.config.private else None
    return spent, f", so far. {wording.UNDER_WAY}"


def _privacy(run: Run) -> str:
    """Epsilon by round and by client, and the ledger's summary."""
    from sim.showing import plots

    parts = []
    if run.records:
        picture = plots.svg(plots.epsilon_by_round(run.records, run.target))
        caption = "Spent so far, after each round, at the run's delta."
        parts.append(page.picture(picture, "epsilon by round", caption))
    if run.budgets:
        parts.append(page.table(wording.BUDGETS, wording.budgets(run.budgets)))
    if summary := run.summary:
        certified, published = summary.epsilon_certified, summary.epsilon_published
        shown = {(_epsilon(c), _epsilon(p)) for c, p in zip(certified, published, strict=True)}
        if not run.alone and len(shown) == 1:
            ((proved, claim),) = shown
            text = f"certified epsilon {proved}, published epsilon {claim}"
            text = f"All {len(certified)} clients have spent the same: {text}."
            parts.append(page.paragraph(text))
        elif not run.alone:
            picture = plots.svg(plots.epsilon_per_client(certified, published, run.target))
            caption = "Spent by each client in the whole run."
            parts.append(page.picture(picture, "epsilon per client", caption))
        if summary.note:
            parts.append(page.paragraph(f"Published and certified: {summary.note}"))
        parts.append(page.table(("Ledger", "Least", "Median", "Largest"), _ledger_rows(summary)))
        parts += _several_records(run)
    return page.section("Privacy spent", *parts)


def _ledger_rows(summary: Summary) -> list[tuple[str, ...]]:
    def row(name: str, values: Sequence[float]) -> tuple[str, ...]:
        figures = (min(values), statistics.median(values), max(values))
        return (name, *(f"{figure:.6g}" for figure in figures))

    def guarantees(name: str, values: Sequence[Epsilon]) -> tuple[str, ...]:
        least = min((math.inf if e is None else e for e in values), default=None)
        return (name, *(_epsilon(e) for e in (least, middle(values), largest(values))))

    rows = [
        guarantees("certified epsilon per client", summary.epsilon_certified),
        guarantees("published epsilon per client", summary.epsilon_published),
        row("privacy events charged per client", summary.events),
        row("noise multiplier", summary.noise_multiplier),
    ]
    if summary.method:
        rows.append(("what proves the largest certified epsilon", "", "", summary.method))
    if finite(summary.order) is not None:
        name = f"certified epsilon by Rényi order {summary.order:g} alone"
        rows.append((name, "", "", _epsilon(summary.epsilon_renyi)))
    return rows


def _several_records(run: Run) -> list[str]:
    """Epsilons for several records of one person; none without a charge or a proved epsilon."""
    certified = run.summary.epsilon_certified if run.summary else ()
    by_client = run.config.privacy.unit == "client"  # which covers all records of a person there
    if by_client or largest(certified) is None:
        return []
    worst = max(range(len(certified)), key=lambda client: certified[client] or 0.0)
    if not (spent := run.paid.get(worst)):
        return []
    found = [group.epsilon(spent, run.config.privacy.delta, size) for size in _GROUPS]
    whose = "" if run.alone else f" with client {worst}, whose certified epsilon is the largest"
    text = (
        f"Epsilon of a person who has several records{whose}, all of them replaced at once. "
        f"For other numbers: python -m sim.account --ledger {run.folder} --group K."
    )
    shown = (wording.epsilon(one.epsilon, infinite="not proved") for one in found)
    rows = [("certified epsilon", *shown), ("what proves it", *(one.method for one in found))]
    head = ("Records of one person", *map(str, _GROUPS))
    return [page.paragraph(text), page.table(head, rows)]


def _guarantee(run: Run) -> str:
    privacy, delta = run.config.privacy, run.config.privacy.delta
    records = int(run.sizes.sum()) if privacy.unit == "record" else len(run.sizes)
    if not run.config.private:
        return page.section("No guarantee", page.paragraph(_NOT_PRIVATE), notice=True)
    spent = largest(run.summary.epsilon_certified) if run.summary else _before_the_end(run)[0]
    rows = guarantees(privacy.trust, privacy.unit, len(run.sizes), spent)
    says = wording.guaranteed(privacy, run.alone)
    says += [wording.RELEASED] if run.config.run.release else []
    parts = [page.paragraph("What it says:"), page.listing(says)]
    parts.append(page.table(wording.AGAINST, wording.guarantees(rows)))
    left_out = list(caveats(run.config))
    if delta * records >= 1:
        text = f"Delta {delta:g} is not below 1 / {records} {privacy.unit}s"
        allows = f"it allows that some {privacy.unit} is given away entirely."
        left_out.insert(0, f"{text}: {allows}")
    parts += [page.paragraph("What it leaves out, or takes for granted:"), page.listing(left_out)]
    return page.section("What the guarantee means", *parts, notice=not run.config.run.release)


def _partition(run: Run, svg: bytes | None) -> str:
    title, sizes = "Who holds which records", run.sizes
    several = (
        f"Partition {run.config.data.partition}: {int(sizes.sum())} records, {int(sizes.min())} "
        f"to {int(sizes.max())} per client (median {np.median(sizes):g})."
    )
    held = f"One client holds all {int(sizes.sum())} records." if run.alone else several
    if svg is None:
        release = " A release does not show their labels." if run.config.run.release else ""
        return page.section(title, page.paragraph(f"{held}{release}"))
    above = "" if run.alone else "Above: records of each client. "
    caption = f"{held} {above}Below: of each class."
    return page.section(title, page.picture(svg, "records by client and class", caption))


def _configuration(config: Config) -> str:
    rows: list[tuple[str, ...]] = []
    for table, names in used_by_table(config).items():
        rows.append((f"{TABLES[table].__doc__} [{table}]",))
        for name in names:
            value, meaning = config.value(name), SETTINGS[name].info.description or ""
            rows.append((name, "" if value is None else wording.shortened(str(value)), meaning))
    table = page.table(("Setting", "Value", "Meaning"), rows)
    return page.section("Configuration", table, folded=True)


def _recompute(run: Run) -> str:
    text = "Every epsilon follows from the ledger's files alone; this page, from the run directory."
    lines = [f"python -m sim.account --ledger {run.folder}", f"python -m sim.report {run.folder}"]
    if run.summary is None:
        lines.append(f"python -m sim.run --resume {run.folder}")
    return page.section("Recompute", page.paragraph(text), page.commands(lines))
