"""FedFed's shared features (Yang et al., NeurIPS 2023) in ``python -m sim.account``: what their release costs.

A client releases ``clip(x_s, R) + N(0, s^2 R^2 I)`` for each record that a public coin of rate p has chosen, in one or
several views, each with noise of its own, and once its label. A null record in a chosen slot releases noise alone, so a
view's sensitivity is R.

- All V views of a record hang on one coin: ``VisibleChoice(p, s / sqrt(V))``. Coins of their own would cost less.
- Without a clip, R is the largest norm that a record of P numbers in [-r, r] can have, ``r sqrt(P)``; noise of standard
  deviation sigma in each number then has ``s = sigma / R``.
- One noise image for a whole batch hides nothing: the difference of two records of the batch is released as it is.
- A label goes through k-ary randomized response (the true one is kept with probability ``e^E / (e^E + k - 1)``, a null
  record has a uniform one), or counts as public, and the figures then cover the features alone.

The original charges nothing, so there is no published figure.
"""

import math

from mechanisms.accounting import events
from sim.pricing.row import Charges, Flag, Mechanism, Values

DRAWS = ("record", "batch")
"""What has a noise image of its own."""


def norm_bound(flags: Values) -> float | None:
    """R of records that are not clipped; None where their size is not given.

    Raises:
        ValueError: a size or a range out of bounds.
    """
    pixels, span = flags["pixels"], flags["pixel_range"]
    if not 0 < span < math.inf:
        raise ValueError(f"--pixel-range = {span} must be above 0 and finite; images in [0, 1] have 1")
    if pixels is None:
        return None
    if pixels < 1:
        raise ValueError(f"--pixels = {pixels} must be at least 1; an image of 1x28x28 has 784")
    return span * math.sqrt(pixels)


def multiplier(flags: Values) -> float | None:
    """The noise multiplier that is given, or follows from the noise of each number; None where there is none.

    Raises:
        ValueError: noise of each number, but not how many there are.
    """
    bound, std = norm_bound(flags), flags["noise_std"]
    if std is None:
        return flags["noise_multiplier"]
    if bound is None:
        raise ValueError("--pixels is missing; --noise-std needs it for the largest norm of a record")
    return std / bound


def charges(flags: Values, noise_multiplier: float, views: int) -> Charges:
    """What a record's shared views and label cost.

    Raises:
        ValueError: neither or both ways to share labels, or a parameter out of bounds.
    """
    epsilon, classes = flags["label_epsilon"], flags["classes"]
    if (epsilon is None) != flags["public_labels"]:
        raise ValueError(
            "give one of --label-epsilon (randomized response) and --public-labels (features alone are covered)"
        )
    if classes < 2:
        raise ValueError(f"--classes = {classes} must be at least 2; it is the number of labels there are")
    features = events.VisibleChoice(flags["share_rate"], noise_multiplier / math.sqrt(views))
    released: dict[events.Event, int] = {features: 1}
    if flags["noise_draws"] == DRAWS[1]:
        released[events.Unproved("records of a batch with one noise image")] = 1
    released[events.PublicLabels() if epsilon is None else events.RandomizedResponse(epsilon)] = 1
    return released


def _figures(flags: Values, noise_multiplier: float) -> dict[str, float]:
    """The largest norm and the noise of each number, where the size is known; how many labels stay true."""
    bound, epsilon, figures = norm_bound(flags), flags["label_epsilon"], {}
    if bound is not None:
        figures |= {"norm_bound": bound, "noise_std": noise_multiplier * bound}
    if epsilon is not None:
        figures |= {"labels_kept": 1 / (1 + (flags["classes"] - 1) * math.exp(-epsilon))}
    return figures


SHARING = Mechanism(
    "FedFed's shared features (Yang et al. 2023): noise on each record, and labels",
    (
        Flag("noise_std", float, "noise of each number of a record that is not clipped [units of the numbers]"),
        Flag("pixels", int, "numbers in a record, such as 784 for 1x28x28"),
        Flag("pixel_range", float, "largest absolute value of a number", 1.0),
        Flag("noise_draws", str, "what has noise of its own", DRAWS[0], choices=DRAWS),
        Flag("share_rate", float, "probability that a record is shared, by a public coin, in (0, 1]", 1.0),
        Flag("classes", int, "number of labels there are", 10),
        Flag("label_epsilon", float, "randomized response of a record's label [nats]"),
        Flag("public_labels", bool, "labels count as public: what is printed covers the features alone", False),
    ),
    charges,
    _figures,
    count=Flag("views", int, "noisy views of each shared record", 1),
    noise=("noise_multiplier", "noise_std"),
    multiplier=multiplier,
    claim=False,
)
