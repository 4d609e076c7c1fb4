"""``python -m sim.audit``: train with canaries, guess which were used: a lower bound on epsilon.

    python -m sim.audit --mechanism dpsur --clients 1
    python -m sim.audit --clients 10 --black-box --canaries 300 --confidence 0.99

It takes the flags of ``python -m sim.run`` and a few of its own. The run trains as usual, in this
process, with its ledger and report; the result is in its ``audit.json``.
"""

import json
from collections.abc import Sequence

from sim.commands.guard import main_guard


def command(argv: Sequence[str], program: str = "python -m sim.audit") -> None:
    """Audit one training as the arguments say; ``program`` is the command's name in messages.

    Raises:
        ValueError: a user error, in one line.
    """
    from sim.commands.audit import parse

    asked = parse(argv, program)
    from sim.job.environment import prepare

    prepare()
    from sim.auditing.session import audit, show

    found = audit(asked.config, asked.canaries, asked.black_box, asked.confidence, asked.json)
    if asked.json:
        print(json.dumps(found.to_json(), allow_nan=False))
    elif not asked.config.run.quiet:
        show(found)


if __name__ == "__main__":
    raise SystemExit(main_guard(command))
