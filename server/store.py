"""The server's part of a run directory: checkpoints, finished rounds, ledger files and uploads."""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from client import tensors
from client.uploads import Uploads
from mechanisms import durable
from mechanisms.accounting import ledger as ledgers
from mechanisms.accounting.events import Event
from mechanisms.journal import Place
from server import manifest, orders, paid
from server.checkpoints import Checkpoint, Checkpoints
from server.records import RoundRecord, whole_lines

MODEL = "model.safetensors"
"""The final model, which no checkpoint knows: it is written after the last one."""
ROUNDS = "rounds.jsonl"
KEPT = "clients/group-*"
"""Folders of what the clients of a group keep."""


def newest_kept(run_dir: Path) -> list[Path]:
    """What the clients of each group keep, after the newest round of the group."""
    kept = [durable.numbered(one, ".safetensors") for one in sorted(run_dir.glob(KEPT))]
    return [found[max(found)] for found in kept if found]


def _is_result(path: Path) -> bool:
    """Whether a file is what a phase has left, and neither somebody's own nor a copy."""
    return path.stem.isidentifier() and tensors.RUN in tensors.labels_of(path)


class Store:
    """The server's view of a run directory, or of one phase in it with the whole run's ledger."""

    def __init__(self, folder: Path, keep_checkpoints: int, ledger: Path | None = None):
        self.folder = folder
        self.ledger = ledger or folder / "ledger"
        self.checkpoints = Checkpoints(folder / "checkpoints", keep_checkpoints)
        self.uploads = Uploads(folder / "uploads", manifest.run_of(self.ledger.parent) or "")
        self.rounds = folder / ROUNDS
        self._places: dict[str, Place] = {}

    def append(self, record: RoundRecord) -> None:
        """Add a round's record; it is on the disk on return.

        Raises:
            ValueError: the run directory is gone.
        """
        manifest.check_there(self.ledger)
        durable.append(self.rounds, (json.dumps(record.to_json()) + "\n").encode())

    def save(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint that knows where the ledger's files are, and what else belongs to it:
        what clients keep, the results of earlier phases, orders, and the rounds' records so far.

        Raises:
            ValueError: a ledger file was put back since the checkpoint before.
        """
        results = [path for path in self.folder.glob("*.safetensors") if _is_result(path)]
        beside = [*newest_kept(self.folder), *sorted(results), *self.folder.glob(orders.FILE)]
        files = {str(path.relative_to(self.folder)): manifest.digest(path) for path in beside}
        self._advance(places := paid.places(self.ledger))
        size = self.rounds.stat().st_size if self.rounds.exists() else 0
        rounds = [size, manifest.digest(self.rounds)] if size else None
        run = manifest.run_of(self.ledger.parent)
        label = {manifest.RUN: run, "ledger": places, "files": files, "rounds": rounds}
        self.checkpoints.save(checkpoint, label)

    def _advance(self, places: dict[str, Place]) -> None:
        """Refuse a ledger file that ends before it did at the last checkpoint, or otherwise.

        Raises:
            ValueError: it was put back since then.
        """
        for name, before in self._places.items():
            now = places.get(name, Place(0, ""))
            if now.number < before.number or (now.number == before.number and now != before):
                raise ValueError(
                    f"{self.ledger / name} was put back while it was in use: {manifest.REMEDY}"
                )
        self._places = places

    def newest(self) -> Checkpoint | None:
        """The newest complete checkpoint, or None, once the files that belong to it have been
        compared; damaged ones are skipped with a warning.

        Raises:
            ValueError: one is missing, or not as it was; or the checkpoint is of another run, or no
                file.
        """
        self.checkpoints.check_files()
        found = self.checkpoints.newest()
        if found is not None:
            label = self.label(found)
            manifest.compare(self.folder, label["files"])
            self._places = {name: Place(*place) for name, place in label["ledger"].items()}
            self._compare_rounds(found)
        return found

    def label(self, checkpoint: Checkpoint) -> Mapping[str, Any]:
        """What the label of a checkpoint says.

        Raises:
            ValueError: it is of another run.
        """
        path, run = self.checkpoints.path(checkpoint.round), checkpoint.label.get(manifest.RUN)
        manifest.check_run(self.ledger.parent, path, run)
        return checkpoint.label

    def check_rounds(self) -> None:
        """Compare the rounds' records with what the newest whole checkpoint knows of them.

        Raises:
            ValueError: they are missing, shorter, or not as they were; or of another run.
        """
        newest = self.checkpoints.newest(warn=False)
        if newest is not None:
            self._compare_rounds(newest)

    def _compare_rounds(self, checkpoint: Checkpoint) -> None:
        if known := self.label(checkpoint)["rounds"]:
            manifest.compare_start(self.rounds, *known)

    def check_ahead(self, round_: int, finished: int) -> None:
        """Refuse what tells of later rounds than a crash leaves, if a round's checkpoint is the
        newest whole one, after so many ``finished`` ones of this phase; and rounds that are not
        paid for.

        Raises:
            ValueError: checkpoints are gone, and perhaps what could tell of them; or checkpoint or
                ledger are older than what is beside them.
        """
        self._refuse_ahead(self._reached(), round_, finished)
        paid.check_rounds(self.ledger.parent)

    def check_unfinished(self) -> None:
        """Refuse what tells of later rounds of training than a crash leaves with the checkpoints
        that there are, of which a run that is not finished needs the newest.

        Raises:
            ValueError: checkpoints are gone, which alone know the ledger.
        """
        reached = self._reached()  # before the checkpoints, as the run may go on meanwhile
        newest = self.checkpoints.newest(warn=False)
        finished = newest.round if newest else 0
        self._refuse_ahead(reached, finished, finished)

    def _reached(self) -> dict[Path, int]:
        """The number of rounds of which the records of this phase and each ledger file tell."""
        known = durable.read(self.rounds).count(b"\n") if self.rounds.exists() else 0
        paid_for = {
            path: max((one.round for one in ledgers.entries(path, passed)), default=0)
            for path, passed in ledgers.files(self.ledger, [])
        }
        return {self.rounds: known, **paid_for}

    def _refuse_ahead(self, reached: Mapping[Path, int], round_: int, finished: int) -> None:
        later = self.checkpoints.after(round_) + 1
        for path, known in reached.items():
            most = (finished if path == self.rounds else max(round_, 0)) + later
            if known > most:
                raise ValueError(
                    f"{path} tells of {known} rounds, of which a crash leaves at most {most} with "
                    "these checkpoints: restore the folder from a copy, or start a new run"
                )

    def paid(self, up_to_round: int | None) -> dict[int, Counter[Event]]:
        """What every client has paid, up to a round if one is given; files that stay as they are
        have been compared by then.

        Raises:
            ValueError: a ledger file is damaged or missing, or older than a checkpoint.
        """
        return ledgers.read(self.ledger, up_to_round, paid.known(self.ledger.parent))

    def records(self, first: int) -> list[RoundRecord]:
        """The first ``first`` records; what a crash left after them is removed."""
        data = durable.read(self.rounds) if self.rounds.exists() else b""
        kept = whole_lines(data)[:first]
        if (content := "".join(line + "\n" for line in kept).encode()) != data:
            durable.write(self.rounds, content)
        return [RoundRecord.from_json(json.loads(line)) for line in kept]
