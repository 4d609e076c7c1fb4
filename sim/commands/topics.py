"""Which flags ``--help`` shows: the common ones, or those of a topic."""

from sim.config.fields import SETTINGS, TABLES
from sim.config.names import did_you_mean
from sim.config.use import USES

_COMMON = """
    dataset data_dir features model loss standardize clients partition dirichlet shards_per_client
    public_records validation_records evaluate_on evaluation
    mechanism trust epsilon delta budget noise_multiplier clip_norm sample_rate batch_size
    clipping
    steps epochs optimizer lr momentum
    strategy server_lr server_momentum weighting
    rounds fraction max_participations evaluate_every
    seed release engine workers device out name quiet
"""
COMMON = frozenset(_COMMON.split())
"""The settings that plain ``--help`` shows."""

CHOSEN = ("dataset", "mechanism", "strategy", "engine")
"""Settings whose choices are topics, if other settings belong to that choice."""


def _topics() -> dict[str, frozenset[str]]:
    found = {table: frozenset(model.model_fields) for table, model in TABLES.items()}
    for name, ways in USES.items():
        for need in (need for way in ways for need in way if need.owns):
            for choice in need.values if need.setting in CHOSEN else ():
                found[choice] = found.get(choice, frozenset()) | {name}
    return {**found, "all": frozenset(SETTINGS)}


TOPICS = _topics()
"""Topic of ``--help`` (a table of the file, or a choice with its own settings) -> its settings."""


def settings_of(topic: str) -> frozenset[str]:
    """The settings that ``--help TOPIC`` shows; the common ones for no topic.

    Raises:
        ValueError: there is no such topic.
    """
    if not topic:
        return COMMON
    if topic not in TOPICS:
        hint = did_you_mean(topic, TOPICS)
        raise ValueError(f"--help {topic} is no topic{hint} (topics: {', '.join(TOPICS)})")
    return TOPICS[topic]


def hint() -> str:
    """How to see the flags that are not shown."""
    return f"More flags: --help TOPIC, one of {', '.join(TOPICS)}."
