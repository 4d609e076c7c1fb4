"""The settings of local training. No torch here: the command line imports this."""

from typing import Literal, Self

from pydantic import Field, model_validator

from mechanisms.settings import MAX_TIMES, Settings


class Local(Settings):
    """Local training of a client in one round"""

    steps: int | None = Field(1, ge=1, le=MAX_TIMES)
    """local work [steps per round]; 'none' where epochs is given"""
    epochs: float | None = Field(None, gt=0, le=MAX_TIMES)
    """local work [expected passes over the client's records per round], instead of steps"""
    optimizer: Literal["sgd", "adam"] = "sgd"
    """local optimizer's direction from the noisy gradient"""
    lr: float = Field(1.0, gt=0)
    """local learning rate [parameter units per unit of direction]"""
    momentum: float = Field(0.0, ge=0, lt=1)
    """local momentum, afresh in each round (Adam: its beta1)"""
    keep_state: bool = False
    """clients keep momentum (and a moving clip bound) from round to round"""
    personal_layers: str | None = None
    """layers, separated by commas, that clients train and keep to themselves, such as 1 or
    fc.weight; '': none (docs/howto/personal.md)"""
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """decay of lr over the run's local steps"""
    memory_limit: int | None = Field(None, ge=1)
    """tensors of one pass, all clients together [MiB]; 'none': as the cache allows, 64 on a CPU,
    1024 on a GPU"""
    max_records: int | None = Field(None, ge=1)
    """records in one pass, all clients together [records]; 'none': as the cache allows"""

    @model_validator(mode="after")
    def _one_amount_of_work(self) -> Self:
        if self.steps is not None and self.epochs is not None:
            raise ValueError(
                f"steps is {self.steps} and epochs is {self.epochs:g}, but only one may be given: "
                "drop one"
            )
        if self.steps is None and self.epochs is None:
            raise ValueError("steps and epochs are both none: give --steps or --epochs")
        return self
