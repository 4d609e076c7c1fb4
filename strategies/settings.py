"""The settings of aggregation. No torch here: the command line imports this."""

from typing import Literal, get_args

from pydantic import Field

from mechanisms.settings import Settings

StrategyName = Literal["fedavg"]
STRATEGIES: tuple[str, ...] = get_args(StrategyName)
"""Names that ``strategy`` takes."""


class Aggregation(Settings):
    """How the clients' uploads become the next model"""

    strategy: StrategyName = Field("fedavg", description="rule of aggregation")
    server_lr: float = Field(1.0, gt=0, description="server learning rate [models per averaged update]")
    server_momentum: float = Field(0.9, ge=0, lt=1, description="server momentum over rounds")
    weighting: Literal["records", "uniform"] = Field(
        "records", description="weight of a client's update: its public number of records, or the same for all"
    )
