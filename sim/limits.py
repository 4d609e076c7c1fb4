"""What a run's guarantee does not cover, or takes for granted, as its configuration says."""

from sim.config import Config
from sim.showing import wording


def limits(config: Config) -> tuple[str, ...]:
    """A sentence each; none without privacy, for there is no guarantee."""
    found = {wording.PUBLIC_LABELS: public_labels(config), wording.HIDDEN: hides_rejections(config)}
    private = config.privacy.mechanism != "none"
    return tuple(text for text, holds in found.items() if private and holds)


def public_labels(config: Config) -> bool:
    """Whether records are shared one by one with the labels that they have."""
    own = config.fedfed
    return config.strategy.strategy == "fedfed" and own.shared_source == "distilled" and own.public_labels


def hides_rejections(config: Config) -> bool:
    """Whether the guarantee rests on rejections that nobody notices."""
    hidden = {
        "dpsur": config.dpsur.accounting == "selective",
        "screening": config.screening.screening_data == "own" and config.screening.screening_clip is not None,
    }
    return hidden.get(config.privacy.mechanism, False)
