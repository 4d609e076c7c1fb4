"""``python -m sim.account``: the most that a planned run can cost, or what a run has cost.

    python -m sim.account --dataset mnist --clients 100 --mechanism dpis --epsilon 3
    python -m sim.account --records 600 --clients 100 --mechanism dpis --epsilon 3
    python -m sim.account dpsgd --sample-rate 0.01 --noise-multiplier 1.1 --steps 1000 --orders 2,4
    python -m sim.account dpsgd --sample-rate 0.01 --epsilon 3 --steps 1000
    python -m sim.account --ledger runs/example --group 4
    python -m sim.account --verify runs/example
    python -m sim.account --check runs/example
    python -m sim.account --node /lab/node-0.toml

The flags are those of ``python -m sim.run``, whose plans are priced. A first word asks for one
client's single round of a mechanism, or with ``fedfed`` for its shared records.
"""

from collections.abc import Sequence

from sim.commands.guard import main_guard


def command(argv: Sequence[str], program: str = "python -m sim.account") -> None:
    """Print what the arguments ask for; ``program`` is the command's name in messages.

    Raises:
        ValueError: a user error.
        SystemExit: with status 1, if an epsilon of a run is not proved, or a file of it not whole.
    """
    from sim.commands.account import parse

    question = parse(argv, program)
    from sim.showing import account as shown

    if question.verify is not None:
        from sim.verifying.session import verify

        result, show = verify(question.verify), shown.show_verified
    elif question.check is not None:
        from sim.library.whole import look

        result, show = look(question.check), shown.show_whole
    elif question.node is not None:
        from sim.library.node import look as look_at_node

        result, show = look_at_node(question.node), shown.show_node
    elif question.ledger is not None:
        from sim.showing.ledger import spent

        result, show = spent(question.ledger, question.delta, question.group), shown.show_ledger
    else:
        from sim.phases.questions import answer

        result, show = answer(question), shown.show_price
    shown.show_json(result) if question.json else show(result)
    if not result.get("confirmed", result.get("whole", True)):
        raise SystemExit(1)


if __name__ == "__main__":
    raise SystemExit(main_guard(command))
