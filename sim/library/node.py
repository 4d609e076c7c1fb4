"""What all runs together have cost a Flower node that has a policy file of its own."""

from typing import Any


def look(policy_file: str) -> dict[str, Any]:
    """The node's folder, its number of runs, its budget, and the share of it that they have used.

    Raises:
        ValueError: the file cannot be used, or a ledger is damaged, missing, or older than the last
            answer.
    """
    from client.own_budget import OwnBudget
    from sim.engines import policy

    own = policy.read("--node", policy_file)
    budget = OwnBudget(own.home, own.epsilon, own.delta)
    return {
        "folder": str(own.home),
        "runs": len(budget.runs()),
        "epsilon_budget": own.epsilon,
        "delta": own.delta,
        "used": budget.used(),
    }
