"""What a run's guarantee does not cover, or takes for granted, as its configuration says."""

from collections.abc import Callable

from sim.config.configuration import Config
from sim.showing import wording


def limits(config: Config) -> tuple[str, ...]:
    """A line each, for the terminal, the summary and the report; none without privacy, for there is no guarantee."""
    private = config.privacy.mechanism != "none"
    return tuple(text for text, holds in LIMITS.items() if private and holds(config))


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


def tells_times(config: Config) -> bool:
    """Whether the run writes down how long its rounds took: not in a release that hides rejections."""
    return not (config.run.release and hides_rejections(config))


def _sizes_tell_classes(config: Config) -> bool:
    """Whether the clients' sizes, with the seed, tell the exact number of records of each class."""
    return config.data.partition == "dirichlet"


LIMITS: dict[str, Callable[[Config], bool]] = {
    wording.PUBLISHED_BUDGET: lambda c: c.privacy.budget == "published" and c.privacy.epsilon is not None,
    wording.PUBLIC_LABELS: public_labels,
    wording.HIDDEN: hides_rejections,
    wording.OWN_MODEL: lambda c: ":" in c.data.model,
    wording.PUBLIC_RECORDS: lambda c: c.data.public_records > 0,
    wording.VALIDATION: lambda c: c.data.validation_records > 0,
    wording.TEST: lambda c: c.data.evaluate_on == "test",
    wording.TIMES: tells_times,
    wording.TRIES: lambda c: True,
    wording.PARTITION: lambda c: c.run.release and not _sizes_tell_classes(c),
    wording.PARTITION_BY_LABEL: lambda c: c.run.release and _sizes_tell_classes(c),
    wording.PLACES: lambda c: c.run.release,
    wording.SEEDED: lambda c: not c.run.release,
}
"""Line -> whether it holds for a configuration with privacy. Lines stand in the order in which they are shown."""
