"""The privacy settings, and the base class of every package's settings. The command line imports this: no torch."""

from typing import Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Settings(BaseModel):
    """One package's slice of the configuration: frozen, strictly typed, finite numbers, no unknown field."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


MechanismName = Literal["dpsgd", "dphero", "none"]
MECHANISMS: tuple[str, ...] = get_args(MechanismName)
"""Names that ``mechanism`` takes; the registry has one row for each."""


class Privacy(Settings):
    """Privacy of one record of one client"""

    mechanism: MechanismName = Field("dpsgd", description="local optimizer; 'none' trains without privacy")
    epsilon: float | None = Field(
        8.0, gt=0, description="budget of each client over the whole run [nats]; 'none': no bound but the rounds"
    )
    delta: float = Field(1e-5, gt=0, lt=1, description="delta of each client's guarantee [probability]")
    noise_multiplier: float | None = Field(
        None, ge=0, description="noise standard deviation over the clip norm; 'none': the smallest that meets epsilon"
    )
    clip_norm: float = Field(1.0, gt=0, description="bound on a record's gradient [Euclidean norm, all parameters]")
    sample_rate: float = Field(
        1.0, gt=0, le=1, description="probability that a record enters a step's Poisson batch [per step]"
    )
    clipping: Literal["flat", "auto"] = Field(
        "flat", description="min(1, C/|g|), or AUTO-S: every record scaled to nearly the clip norm"
    )
    noise_decay: float = Field(
        0.0, ge=0, description="fall of the noise multiplier's logarithm from a client's round to its next [per round]"
    )
    strict_delta: bool = Field(False, description="refuse delta >= 1 / (records of all clients) instead of warning")

    @model_validator(mode="after")
    def _noise_is_determined(self) -> Self:
        if self.mechanism != "none" and self.noise_multiplier == 0:
            raise ValueError(
                f"noise_multiplier is 0, but {self.mechanism} needs one above 0: raise --noise-multiplier, "
                "or train without privacy by --mechanism none"
            )
        if self.mechanism != "none" and self.noise_multiplier is None and self.epsilon is None:
            raise ValueError("epsilon and noise_multiplier are both none: give --epsilon or --noise-multiplier")
        return self


class Dpsur(Settings):
    """DPSUR: accept a step only if a noisy test says that the loss falls"""


class Dpis(Settings):
    """DPIS: importance sampling by gradient norm"""


class DpHero(Settings):
    """DP-Hero: noise shaped by the previous model"""

    hero_clipping: Literal["whitened", "isotropic"] = Field(
        "whitened", description="clip in the noise's own geometry, or as published, where the guarantee nearly vanishes"
    )
    hero_floor: float = Field(
        0.1, gt=0, le=1, description="least scale of the noise in a direction [share of the mean scale]"
    )
    hero_refresh: int = Field(1, ge=1, description="steps between two looks at the model [steps]")


class Screening(Settings):
    """Noise screening: accept a step with the probability of simulated annealing"""
