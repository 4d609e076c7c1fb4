"""Privacy events: immutable records of what was released.

An event says which mechanism ran and with which parameters; how often it ran is a count kept beside
it (the ledger, the accountant). Events are hashable, compare by value and survive JSON exactly.
`accounting.curves` has the cost of one application; a new kind of event is one frozen class, listed
in `KINDS`, and one curve there.

Each event has a certified and a published cost. If a paper counts other things than the proof does
(accepted steps instead of trials), two events are charged: one that costs nothing in the published
column, and a `PaperClaim` that costs nothing in the certified one. A mechanism's plan combines
them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from mechanisms.accounting.adaptive_events import Allotment, Covered
from mechanisms.accounting.event import Event, positive, rate, share, text, whole
from mechanisms.accounting.selection_events import DpsurStep, ScreenedStep, TrialCap
from mechanisms.accounting.sum_events import SummedShares


@dataclass(frozen=True)
class SampledGaussian(Event):
    """One Poisson-sampled sum with Gaussian noise, SGM(q, s) (Mironov, Talwar, Zhang 2019).

    Attributes:
        sample_rate: q, probability with which each record enters, in (0, 1].
        noise_multiplier: s, noise standard deviation over the sum's L2 sensitivity, positive.
    """

    kind: ClassVar[str] = "sampled_gaussian"
    sample_rate: float = rate()
    noise_multiplier: float = positive()


@dataclass(frozen=True)
class FixedBatchGaussian(Event):
    """One sum over exactly b of n records, drawn without replacement, with Gaussian noise
    (`accounting.fixed_batch`).

    Attributes:
        batch_size: b, at least 1.
        records: n, at least b.
        noise_multiplier: s, noise standard deviation over the bound on a record's part, positive.
    """

    kind: ClassVar[str] = "fixed_batch_gaussian"
    batch_size: float = whole()
    records: float = whole()
    noise_multiplier: float = positive()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.records < self.batch_size:
            raise ValueError(
                f"{self.kind}: records = {self.records:g} must be at least batch_size = "
                f"{self.batch_size:g}; draw fewer"
            )

    @property
    def sample_rate(self) -> float:
        """b / n, the probability that a record is in the batch."""
        return self.batch_size / self.records


@dataclass(frozen=True)
class Gaussian(Event):
    """One vector or sum of all records with Gaussian noise: a / (2 s^2).

    Attributes:
        noise_multiplier: s, noise standard deviation over the L2 sensitivity, positive.
    """

    kind: ClassVar[str] = "gaussian"
    noise_multiplier: float = positive()


@dataclass(frozen=True)
class GaussianAllotment(Gaussian):
    """One equal share of an adaptive run's budget for Gaussian releases of all records: together
    they cost what one Gaussian with this noise multiplier does.

    It pays for releases that are recorded beside it as `Covered` events, whose ``1 / s^2`` add up
    to no more than its own (`accounting.allotment`). Published 0, as of `Allotment`.

    Attributes:
        noise_multiplier: s, positive.
        shares: number of shares in the run's plan.
    """

    kind: ClassVar[str] = "gaussian_allotment"
    order: ClassVar[float] = 2.0
    """The Renyi order of its account, at which a Gaussian costs ``1 / s^2``."""
    shares: float = whole()

    @property
    def rdp(self) -> float:
        """What it adds to its account."""
        return 1.0 / self.noise_multiplier**2


@dataclass(frozen=True)
class PaperClaim(Event):
    """What a paper charges where the proof charges other events: certified 0, published SGM(q, s).

    It is a claim, not a release: never charge it without the events that the proof needs.

    Attributes:
        sample_rate: q, in (0, 1].
        noise_multiplier: s, positive.
    """

    kind: ClassVar[str] = "paper_claim"
    sample_rate: float = rate()
    noise_multiplier: float = positive()


@dataclass(frozen=True)
class ClassicClaim(PaperClaim):
    """A claim of a paper that converts by ``rdp + log(1/delta) / (a - 1)`` (Mironov 2017, Prop. 3).

    If one is among the charges, the published epsilon of all of them is converted so
    (`accountant.guarantee`).
    """

    kind: ClassVar[str] = "classic_claim"


@dataclass(frozen=True)
class Unprotected(Event):
    """A step without noise: infinite in both columns.

    Attributes:
        sample_rate: probability with which each record enters, in (0, 1].
    """

    kind: ClassVar[str] = "unprotected"
    sample_rate: float = rate()


@dataclass(frozen=True)
class Unproved(Event):
    """A release for which no finite epsilon is proved: certified infinite, published 0 (its claim
    is a `PaperClaim`).

    Attributes:
        release: what was released, in words.
    """

    kind: ClassVar[str] = "unproved"
    release: str = text()


@dataclass(frozen=True)
class ImportanceSampledGaussian(Event):
    """DPIS (Wei et al., CCS 2022, Lemma 3.1): one importance-sampled step, SGM(b C / K, s C N / K).

    Attributes:
        batch_size: b, expected batch size [records], positive.
        clip_norm: C, bound on a record's gradient, positive.
        norm_sum: K, the noisy sum of gradient norms in use, at least b C.
        records: N, number of records, positive.
        noise_multiplier: s, noise standard deviation over C, positive.
    """

    kind: ClassVar[str] = "importance_sampled_gaussian"
    batch_size: float = positive()
    clip_norm: float = positive()
    norm_sum: float = positive()
    records: float = positive()
    noise_multiplier: float = positive()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.norm_sum < self.batch_size * self.clip_norm:
            least = self.batch_size * self.clip_norm
            raise ValueError(
                f"{self.kind}: norm_sum = {self.norm_sum} must be at least b C = {least}; raise K "
                "to it last"
            )


@dataclass(frozen=True)
class NoisyNormSum(Event):
    """DPIS' release of K (Eq. 11): noise s_K C outside the factor 1 / p_K, so multiplier s_K p_K.

    Certified SGM(p_K, s_K p_K), published SGM(p_K, s_K).

    Attributes:
        sample_rate: p_K, in (0, 1].
        noise_multiplier: s_K as the paper writes it, positive.
    """

    kind: ClassVar[str] = "noisy_norm_sum"
    sample_rate: float = rate()
    noise_multiplier: float = positive()


@dataclass(frozen=True)
class HeterogeneousGaussian(Event):
    """DP-Hero with isotropic clipping: certified SGM(q, s min(v)), published SGM(q, s).

    Attributes:
        sample_rate: q, in (0, 1].
        noise_multiplier: s, positive.
        smallest_scale: min(v) over all layers and directions, in [0, 1]; 0 leaves a direction
            without noise.
    """

    kind: ClassVar[str] = "heterogeneous_gaussian"
    sample_rate: float = rate()
    noise_multiplier: float = positive()
    smallest_scale: float = share()


@dataclass(frozen=True)
class VisibleChoice(Event):
    """A Gaussian release of a record alone, in which it takes part with some probability, by a draw
    that is public: FedFed's sharing (Yang et al., NeurIPS 2023).

    Attributes:
        share_rate: p, in (0, 1].
        noise_multiplier: s, noise standard deviation over the bound on a record's norm, positive.
    """

    kind: ClassVar[str] = "visible_choice"
    share_rate: float = rate()
    noise_multiplier: float = positive()


@dataclass(frozen=True)
class PartialPass(VisibleChoice):
    """A shuffled pass that a round's end cuts off, p of the records having been in its batches.

    One record pays as for a `VisibleChoice`; but several of one person may be in one batch.
    """

    kind: ClassVar[str] = "partial_pass"


@dataclass(frozen=True)
class RandomizedResponse(Event):
    """One label by k-ary randomized response.

    Attributes:
        epsilon: its pure epsilon, positive.
    """

    kind: ClassVar[str] = "randomized_response"
    epsilon: float = positive()


@dataclass(frozen=True)
class PublicLabels(Event):
    """Labels released as they are: 0 in both columns; the guarantee covers the features alone."""

    kind: ClassVar[str] = "public_labels"


KINDS: dict[str, type[Event]] = {
    cls.kind: cls
    for cls in (
        SampledGaussian,
        FixedBatchGaussian,
        Gaussian,
        GaussianAllotment,
        PaperClaim,
        ClassicClaim,
        Unprotected,
        Unproved,
        ImportanceSampledGaussian,
        NoisyNormSum,
        HeterogeneousGaussian,
        VisibleChoice,
        PartialPass,
        RandomizedResponse,
        PublicLabels,
        SummedShares,
        DpsurStep,
        ScreenedStep,
        TrialCap,
        Allotment,
        Covered,
    )
}


def to_dict(event: Event) -> dict[str, Any]:
    """A JSON-ready dictionary of the event's fields and its `kind`; nested events likewise."""
    values = {field.name: getattr(event, field.name) for field in fields(event)}
    return {"kind": event.kind} | {
        n: to_dict(v) if isinstance(v, Event) else v for n, v in values.items()
    }


def from_dict(data: Mapping[str, Any]) -> Event:
    """The event that :func:`to_dict` wrote; the values are validated again.

    Raises:
        ValueError: unknown kind, missing or unknown field, or a value out of bounds.
    """
    kind = data.get("kind")
    cls = KINDS.get(kind) if isinstance(kind, str) else None
    if cls is None:
        raise ValueError(
            f"event kind = {kind!r} must be one of {', '.join(KINDS)}; was it written by a newer "
            "version?"
        )
    expected = {field.name for field in fields(cls)}
    found = set(data) - {"kind"}
    if found != expected:
        raise ValueError(
            f"{kind}: fields {sorted(found)} must be {sorted(expected)}; the record is damaged"
        )
    return cls(
        **{n: from_dict(data[n]) if isinstance(data[n], Mapping) else data[n] for n in expected}
    )
