"""The settings of the round loop. No torch here: the command line imports this."""

from typing import Self

from pydantic import Field, model_validator

from mechanisms.settings import MAX_TIMES, Settings


class Rounds(Settings):
    """Rounds, and who takes part in them"""

    rounds: int = Field(20, ge=1, le=MAX_TIMES)
    """length of the run [rounds]"""
    fraction: float = Field(1.0, gt=0, le=1)
    """share of the clients picked in each round; with a buffer, of those that work at the same
    time"""
    dropout: float = Field(0.0, ge=0, lt=1)
    """probability that a client trains and pays, but its answer is lost or late, simulated by a
    coin of its own [per round]"""
    dropout_trace: str | None = None
    """rounds in which clients' answers are lost, in place of dropout: clients and rounds, such as
    0@2-4,7;5-6@1-3, or a .csv file with the columns client, first_round and last_round
    (docs/howto/heterogeneity.md)"""
    buffer: int | None = Field(None, ge=1)
    """answers that end a round, while clients that are slower go on with earlier models (FedBuff);
    'none': the server waits for all that it asked [answers]"""
    stragglers: float = Field(0.0, ge=0, lt=1)
    """share of the clients that are slow, the same in all rounds [share, rounded up to clients]"""
    straggler_factor: float = Field(10.0, gt=0, le=1e6)
    """how much longer a slow client needs than others need on average [times]"""
    attackers: float = Field(0.0, ge=0, lt=1)
    """share of the clients that attack the training, the same in all rounds, for simulations
    [share, rounded up to clients]"""
    attack_factor: float = Field(-1.0, ge=-1e3, le=1e3)
    """what an attacker multiplies its update by before it sends it [factor]"""
    max_participations: int | None = Field(None, ge=1)
    """rounds that a client's budget is planned for; 'none': fraction * rounds, rounded up"""
    evaluate_every: int = Field(1, ge=1)
    """rounds from one look at the test part to the next; the last model is always seen [rounds]"""
    keep_checkpoints: int = Field(2, ge=2)
    """finished rounds kept on disk [checkpoints]"""

    @model_validator(mode="after")
    def _one_kind_of_dropout(self) -> Self:
        if self.dropout and self.dropout_trace is not None:
            raise ValueError(
                f"dropout is {self.dropout:g} and dropout_trace is {self.dropout_trace[:60]!r}, "
                "but only one may be given: drop one"
            )
        return self
