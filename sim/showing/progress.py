"""Shows a run at the terminal: a live line per round, and a closing table."""

import statistics

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as LiveLine

from server.records import Evaluation, RoundRecord, RunInfo, Summary, finite, largest, middle
from sim.config.settings import ACCURACY
from sim.showing import wording


class Progress:
    """Shows a run at the terminal and changes nothing.

    Without a terminal there is no live line, only the closing table.

    Args:
        quiet: print nothing at all.
        console: where to print; by default the standard output.
    """

    def __init__(self, quiet: bool, console: Console | None = None):
        self._quiet = quiet
        self._console = console or Console(highlight=False)
        self._info: RunInfo | None = None
        self._line: LiveLine | None = None
        self._seconds: list[float] = []

    def started(self, info: RunInfo) -> None:
        """Called when a run starts or resumes."""
        self._info = info
        if self._quiet or not self._console.is_terminal:
            return
        bar = [BarColumn(bar_width=12)] if self._console.width >= 100 else []
        self._line = LiveLine(
            TextColumn("round {task.completed:.0f}/{task.total:.0f}"),
            *bar,
            TextColumn("{task.fields[figures]}"),
            console=self._console,
            transient=True,
            refresh_per_second=4,
        )
        several = "" if info.clients == 1 else f", {info.together} clients at a time"
        beginning = f"starting{several}"
        self._line.add_task("", total=info.rounds, completed=info.finished, figures=beginning)
        self._line.start()

    def round(self, record: RoundRecord) -> None:
        """Called when a round is finished."""
        if self._info is None or self._line is None:
            return
        if record.round > self._info.finished and record.seconds is not None:
            self._seconds.append(record.seconds)
        task, text = self._line.task_ids[0], self._figures(record)
        self._line.update(task, completed=record.round, figures=text, refresh=True)

    def finished(self, summary: Summary, where: str = "", scores: Evaluation | None = None) -> None:
        """Called when the run is over: prints the closing table, with further scores of the model
        and where clients trained."""
        self.close()
        if self._quiet:
            return
        for name, value in closing_table(summary, where, scores):
            self._console.print(f"[bold]{name:<18}[/] {escape(value)}", soft_wrap=True)
        if summary.note:
            self._console.print(summary.note, style="dim", soft_wrap=True)
        for limit in summary.caveats:
            self._console.print(limit, style="yellow", soft_wrap=True)

    def close(self) -> None:
        """Remove the live line and restore the terminal."""
        if self._line is not None:
            self._line.stop()
            self._line = None

    @property
    def _metric(self) -> str:
        metric = self._info.metric if self._info else ACCURACY
        return "acc" if metric == ACCURACY else metric

    @property
    def _alone(self) -> bool:
        return self._info is not None and self._info.clients == 1

    def _figures(self, record: RoundRecord) -> str:
        parts = [
            f"{self._metric} {wording.figure(record.accuracy, 3)}",
            f"loss {wording.figure(record.loss, 3)}",
        ]
        if finite(record.epsilon_certified_max) is None:
            parts.append(f"epsilon {wording.epsilon(None)}")
        else:
            median = wording.epsilon(record.epsilon_certified_median, digits=3)
            spread = "" if self._alone else f" (median {median})"
            parts.append(f"eps {wording.epsilon(record.epsilon_certified_max, digits=3)}{spread}")
        if not self._alone:
            parts.append(f"retired {record.retired}")
        # the first round starts processes, so it does not count once there is another
        if self._info is not None and self._seconds:
            each = statistics.mean(self._seconds[1:] or self._seconds)
            parts.append(f"{wording.clock(each * (self._info.rounds - record.round))} left")
        return "  ".join(parts)


def closing_table(
    summary: Summary, where: str = "", scores: Evaluation | None = None
) -> list[tuple[str, str]]:
    """The rows (name, value) of the table printed when a run is finished."""
    certified, published = largest(summary.epsilon_certified), largest(summary.epsilon_published)
    alone = len(summary.epsilon_certified) == 1
    rows = [
        (f"{summary.evaluated_on} {summary.metric}", wording.figure(summary.accuracy)),
        (f"{summary.evaluated_on} loss", wording.figure(summary.loss)),
        ("certified epsilon", wording.epsilon(certified)),
    ]
    if scores is not None:
        further = ", ".join(f"{name} {value}" for name, value in wording.scores(scores))
        rows.insert(2, ("further scores", further))
    if certified is not None:
        whose = "largest client's; " if summary.budgets else ""
        median = f" ({whose}median {wording.epsilon(middle(summary.epsilon_certified))})"
        median = "" if alone else median
        method = f", by {summary.method}" if summary.method else ""
        spent = f"{wording.epsilon(certified)}{median}, delta {summary.delta:g}{method}"
        rows[-1] = ("certified epsilon", spent)
    if certified is not None or published is not None:
        rows.append(("published epsilon", wording.epsilon(published)))
    if certified is not None and finite(summary.order) is not None:
        by_renyi = f"{wording.epsilon(summary.epsilon_renyi)} at order {summary.order:g}"
        rows.append(("by Renyi alone", by_renyi))
    if certified is not None:
        rows.append(("noise multiplier", wording.span(summary.noise_multiplier)))
    rows += wording.protections(summary.guarantees)
    for group, budget, clients, spent in wording.budgets(summary.budgets):
        text = f"budget {budget} of {clients} clients, largest spent {spent}"
        rows.append((f"group {group}", text))
    retired = ("retired clients", f"{summary.retired} of {len(summary.epsilon_certified)}")
    used_up = ("budget", "used up" if summary.retired else "pays for further rounds")
    return [
        *rows,
        used_up if alone else retired,
        ("rounds", str(summary.rounds)),
        *([] if summary.seconds is None else [("time", wording.duration(summary.seconds))]),
        *([("trained in", where)] if where else []),
        ("run directory", summary.run_dir),
    ]
