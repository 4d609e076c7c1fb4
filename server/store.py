"""The server's part of a run directory: checkpoints, finished rounds, ledger files and uploads."""

import json
import os
from pathlib import Path

from client.uploads import Uploads
from mechanisms import durable
from server.checkpoints import Checkpoints
from server.records import RoundRecord


class Store:
    """The server's view of a run directory, or of one phase in it with the whole run's ledger."""

    def __init__(self, folder: Path, keep_checkpoints: int, ledger: Path | None = None):
        self.folder = folder
        self.ledger = ledger or folder / "ledger"
        self.checkpoints = Checkpoints(folder / "checkpoints", keep_checkpoints)
        self.uploads = Uploads(folder / "uploads")
        self._rounds = folder / "rounds.jsonl"

    def append(self, record: RoundRecord) -> None:
        """Add a round's record, flushed to disk.

        The file's entry is flushed with its first record; what an earlier process left unflushed,
        the session has flushed when it began.
        """
        if begins := not self._rounds.exists():
            durable.make_folder(self.folder)
        with open(self._rounds, "a") as file:
            file.write(json.dumps(record.to_json()) + "\n")
            file.flush()
            os.fsync(file.fileno())
        if begins:
            durable.sync_folder(self.folder)

    def records(self, first: int) -> list[RoundRecord]:
        """The first ``first`` records; what a crash left after them is removed."""
        lines = self._rounds.read_text().splitlines() if self._rounds.exists() else []
        kept = [line for line in lines[:first] if line.endswith("}")]
        if len(kept) < len(lines):
            durable.write(self._rounds, "".join(line + "\n" for line in kept).encode())
        return [RoundRecord.from_json(json.loads(line)) for line in kept]
