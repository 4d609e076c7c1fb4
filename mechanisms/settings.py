"""The privacy settings, and the base class of every package's settings. The command line imports
this: no torch."""

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

MAX_WHOLE = 10**9
"""Maximum of a whole number that has no maximum of its own."""
MAX_TIMES = 10**6
"""Maximum of what is done over and over: rounds, steps, passes."""

MAX_BANDS = 1024
"""Maximum of bands: sums with the weights of more could leave the range of int64."""


class Settings(BaseModel):
    """One package's slice of the configuration: frozen, strictly typed, finite numbers, no unknown
    field, whole numbers with a maximum. The text below a field is its description, in the help and
    the documentation."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        defer_build=True,
        use_attribute_docstrings=True,
    )

    @classmethod
    def __pydantic_init_subclass__(cls, **options: Any) -> None:
        for field in cls.model_fields.values():
            field.description = field.description and " ".join(field.description.split())
            is_whole = int in (field.annotation, *get_args(field.annotation))
            if is_whole and not any(hasattr(bound, "le") for bound in field.metadata):
                field.metadata += Field(le=MAX_WHOLE).metadata


OwnSettings = TypeVar("OwnSettings", bound=Settings)


def validated(kind: type[OwnSettings], given: Mapping[str, object]) -> OwnSettings:
    """Settings of this kind.

    Raises:
        ValueError: the first one that is unknown or out of its bound, in one line.
    """
    try:
        return kind(**given)
    except ValidationError as error:
        first = error.errors()[0]
        name, reason = ".".join(map(str, first["loc"])) or ", ".join(given), first["msg"]
        if first["type"] == "extra_forbidden":
            reason = f"unknown; known: {', '.join(kind.model_fields)}"
        value = f" = {given[name]!r}" if name in given else ""
        raise ValueError(f"{name}{value} is refused ({reason}): correct it") from None


def whole(rate: float, records: int) -> int:
    """The whole number of records nearest to a rate, at least 1."""
    return max(1, round(rate * records))


OwnName = Annotated[str, Field(pattern=r"^[^\W\d][\w.]*:[^\W\d]\w*$")]
"""``package.module:NAME``, an object of the user's own."""

MechanismName = Literal["dpsgd", "dpsur", "dpis", "dphero", "screening", "dpagd", "none"]
MECHANISM_NAMES: tuple[str, ...] = get_args(MechanismName)
"""Names that ``mechanism`` takes; the registry has one row for each."""


class Privacy(Settings):
    """Privacy of one record of one client"""

    mechanism: MechanismName | OwnName = "dpsgd"
    """local optimizer; 'none' trains without privacy"""
    mechanism_settings: str | None = None
    """settings of a mechanism of your own, as in a TOML file but with commas: "beta = 0.9, window =
    5"; '': its defaults"""
    epsilon: float | None = Field(8.0, gt=0)
    """budget of each client over the whole run [nats]; 'none': no bound but the rounds"""
    budgets: str | None = None
    """budgets that differ, in place of epsilon: groups by shares of the clients, such as
    conservative=1:0.5,liberal=8:0.5, or by their numbers, such as conservative=1@0-4,liberal=8@5-9;
    or a .csv file with the columns client and epsilon (docs/howto/budget.md)"""
    trust: Literal["local", "aggregate", "server"] = "local"
    """whom a client trusts with what it sends: nobody, so that it adds all noise itself; secure
    aggregation, so that it adds a share of the noise; or the server, which adds the noise to the
    sum of all clients (docs/trust.md)"""
    unit: Literal["record", "client"] = "record"
    """what is protected: one record of a client, or all records of a client together"""
    honest: float = Field(1.0, gt=0, le=1)
    """least share of the asked clients that answer and add their noise; fewer answers are not
    opened [share of them]"""
    noise_bands: int = Field(1, ge=1, le=MAX_BANDS)
    """rounds over which the server's noise is correlated, and from one round of a client to its
    next; 1: clients enter by coins, and each round has noise of its own [rounds]"""
    aggregate_bits: int = Field(32, ge=2, le=62)
    """size of each number that is aggregated; sums are modulo a power of two [bits]"""
    delta: float = Field(1e-5, ge=1e-300, lt=1)
    """delta of each client's guarantee [probability]"""
    budget: Literal["certified", "published"] = "certified"
    """the figure that epsilon bounds: the proved one, or the paper's own claim, for comparison with
    it; what is proved is printed either way"""
    noise_multiplier: float | None = Field(None, ge=0)
    """noise standard deviation over the clip norm; 'none': the smallest that meets epsilon"""
    clip_norm: float = Field(1.0, ge=1e-6, le=1e30)
    """bound on a record's gradient, or with --unit client on a client's update [Euclidean norm, all
    parameters]"""
    sample_rate: float = Field(1.0, gt=0, le=1)
    """probability that a record enters a step's Poisson batch [per step]"""
    batch_size: int | None = Field(None, ge=1)
    """expected batch of every client, instead of sample_rate; at most all it has [records]"""
    sampling: Literal["poisson", "fixed", "shuffled"] = "poisson"
    """how records enter batches: each by a coin of its own; a fixed number drawn afresh in each
    step; or in shuffled passes, as from a data loader. The last two need more noise, but not with
    --unit client"""
    clipping: Literal["flat", "auto"] = "flat"
    """min(1, C/|g|), or AUTO-S: every record scaled to nearly the clip norm"""
    clip_quantile: float | None = Field(None, gt=0, lt=1)
    """share of records, or with --unit client of clients, that a moving clip bound leaves whole;
    'none': it stays"""
    noise_decay: float = Field(0.0, ge=0)
    """fall of the noise multiplier's logarithm from a client's round to its next [per round]"""
    strict_delta: bool = False
    """refuse delta >= 1 / (records of all clients) instead of warning"""

    def rate(self, size: int) -> float:
        """The sampling rate of a client of ``size`` records: in batches of a fixed size that of a
        whole number of them."""
        rate = self.sample_rate if self.batch_size is None else min(1.0, self.batch_size / size)
        return rate if self.sampling == "poisson" else whole(rate, size) / size

    def of_size(self, size: int) -> Self:
        """These settings as they are for a client of ``size`` records, with its own rate."""
        return self.model_copy(update={"sample_rate": self.rate(size), "batch_size": None})

    def of_budget(self, epsilon: float) -> Self:
        """These settings for clients with this budget; infinite for none."""
        own = epsilon if math.isfinite(epsilon) else None
        return self.model_copy(update={"epsilon": own, "budgets": None})

    @model_validator(mode="after")
    def _one_budget(self) -> Self:
        if self.budgets is not None and self.epsilon is not None:
            raise ValueError(
                f"epsilon is {self.epsilon:g} and budgets is {self.budgets[:60]!r}, but only one "
                "may be given: drop one"
            )
        return self

    @model_validator(mode="after")
    def _one_rate(self) -> Self:
        if self.batch_size is not None and self.sample_rate != 1.0:
            raise ValueError(
                f"sample_rate is {self.sample_rate:g} and batch_size is {self.batch_size}, but "
                "only one may be given: drop one"
            )
        return self

    @model_validator(mode="after")
    def _noise_is_determined(self) -> Self:
        if self.mechanism != "none" and self.noise_multiplier == 0:
            raise ValueError(
                f"noise_multiplier is 0, but {self.mechanism} needs one above 0: raise "
                "--noise-multiplier, or train without privacy by --mechanism none"
            )
        unset = self.epsilon is None and self.budgets is None and self.noise_multiplier is None
        if self.mechanism != "none" and unset:
            raise ValueError(
                "epsilon and noise_multiplier are both none: give --epsilon or --noise-multiplier"
            )
        return self


class Dpsur(Settings):
    """DPSUR: accept a step only if a noisy test says that the loss falls"""

    dpsur_accounting: Literal["visible", "selective", "every-trial"] = "visible"
    """what is released: accept/reject bits too; accepted steps alone; rejected steps too"""
    dpsur_validation_rate: float = Field(1.0, gt=0, le=1)
    """probability that a record enters a trial's own test batch [per trial]"""
    dpsur_validation_noise: float | None = Field(None, gt=0, le=1e6)
    """noise of the test [2 loss clips]; 'none': three times the noise multiplier"""
    dpsur_loss_clip: float = Field(0.001, gt=0)
    """C_v, bound on the tested change of the mean loss [nats]"""
    dpsur_beta: float = -1.0
    """threshold below which the noisy change must lie [loss clips]"""
    dpsur_cap_share: float = Field(0.1, gt=0, lt=0.995)
    """selective: share of delta for giving up after too many rejections [fraction]"""


class Dpis(Settings):
    """DPIS: importance sampling by gradient norm"""

    dpis_sampling: Literal["importance", "uniform"] = "importance"
    """records enter by gradient norm (helps below sample rate 1) or all alike, as in DPSGD"""
    dpis_slack: float = Field(2.0, gt=0)
    """k, how much a gradient norm may grow in an epoch before it counts for less [factor]"""
    dpis_floor: float = Field(0.05, gt=0, le=1)
    """g_L, least norm that a record is proposed by [share of the clip bound]"""
    dpis_norm_rate: float = Field(1.0, gt=0, le=1)
    """p_K, probability that a record's norm is looked at [per epoch]"""
    dpis_norm_share: float = Field(0.01, gt=0, lt=1)
    """most that releases of norm sums may cost [share of what the steps cost]"""
    dpis_clip: float | None = Field(None, gt=0)
    """clip bound [noisy mean gradient norms], at most the clip norm; 'none': the clip norm"""
    dpis_first_phase: float = Field(0.1, ge=0, le=1)
    """a_E, epochs with noise for the worst norm sum; then what is left is used [share]"""


class DpHero(Settings):
    """DP-Hero: noise shaped by the previous model"""

    hero_clipping: Literal["whitened", "isotropic"] = "whitened"
    """clip in the noise's own geometry, or as published, where the guarantee nearly vanishes"""
    hero_floor: float = Field(0.1, gt=0, le=1)
    """least scale of the noise in a direction [share of the mean scale]"""
    hero_refresh: int = Field(1, ge=1)
    """steps between two looks at the model [steps]"""


class Screening(Settings):
    """Noise screening: accept a step with the probability of simulated annealing"""

    screening_data: Literal["own", "public"] = "own"
    """tested on the client's own records with hidden rejections, or on --public-records"""
    screening_gain: float = Field(1.0, ge=0)
    """inverse temperature at the run's end; it grows with the steps from 0 [per nat]"""
    screening_q0: float | None = Field(None, ge=0)
    """Q0, growth of the inverse temperature with each step, as the paper gives it [per nat and
    step]; 'none': screening_gain over the planned steps"""
    screening_stages: int = Field(5, ge=1)
    """equal steps in which the inverse temperature grows [stages]"""
    screening_rate: float = Field(1.0, gt=0, le=1)
    """own: probability that a record enters a trial's test batch [per trial]"""
    screening_clip: float | None = Field(0.1, gt=0)
    """own: c, bound on the tested change of the mean loss [nats]; 'none': --allow-unproved"""
    screening_cap_share: float = Field(0.1, gt=0, lt=0.995)
    """own: share of delta for giving up after too many rejections [fraction]"""
    forced_after: int = Field(5, ge=1)
    """public or unproved: rejections in a row after which a step is accepted anyway [trials]"""
    allow_unproved: bool = False
    """let own records be tested without a clip, as published: no finite epsilon is proved"""


class Dpagd(Settings):
    """DPAGD: step sizes, and the gradient's share of the budget, follow noisy searches"""

    agd_search_share: float = Field(0.1, gt=0, lt=1)
    """privacy of a step at the start that its search gets [share of 1/noise^2]"""
    agd_candidates: int = Field(4, ge=1)
    """m, step sizes above 0 that are compared, evenly spaced [number]"""
    agd_largest: float = Field(1.0, gt=0)
    """alpha_max, largest step size at the start [learning rates]"""
    agd_window: int = Field(10, ge=1)
    """tau, moves after which alpha_max follows the chosen sizes [moves]"""
    agd_stretch: float = Field(0.1, ge=0)
    """eta, by how much alpha_max then exceeds the largest of them [share]"""
    agd_loss_clip: float = Field(5.0, ge=1e-6, le=1e30)
    """C_obj, bound on a record's loss in a search [nats]"""
    agd_change_clip: float | None = Field(0.1, ge=1e-6, le=1e30)
    """bound on the change of a record's loss [nats]; 'none': the loss clip, as published"""
    agd_growth: float = Field(0.1, gt=0, le=1)
    """gamma, growth of the gradient's budget where no step size helps [share]"""
    agd_raises: int = Field(10, ge=0)
    """how often the gradient's budget may grow [times], at most 100"""
