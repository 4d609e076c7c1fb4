"""``python -m sim.attack``: train, and let membership-inference attacks guess the members.

    python -m sim.attack --epsilon 4
    python -m sim.attack --mechanism dpsur --epsilons 1,2,3,4 --attacks shadow,partial
    python -m sim.attack --preset dpsur-pvldb-fmnist --epsilons 1,2,3,4 --data-dir data

The flags are those of ``python -m sim.central`` and a few of its own. The table has the form of
DPSUR's Tables 3 and 4: a row for each attack and mechanism, a column for each epsilon, and one for
training without privacy. All results go into ``attack.json`` of the run directory.
"""

import json
from collections.abc import Sequence

from sim.commands.guard import main_guard


def command(argv: Sequence[str], program: str = "python -m sim.attack") -> None:
    """Attack trainings as the arguments say; ``program`` is the command's name in messages.

    Raises:
        ValueError: a user error.
    """
    from sim.commands.attack import parse

    question = parse(argv, program)
    from sim.job.environment import prepare

    prepare()
    from sim.attacking.session import attack
    from sim.showing.attack import show

    report = attack(question)
    if question.json:
        print(json.dumps(report.to_json(), allow_nan=False))
    elif not question.configs[0].run.quiet:
        show(report)


if __name__ == "__main__":
    raise SystemExit(main_guard(command))
