"""Settings that contradict each other or the data, refused before anything is written."""

import warnings

import numpy as np

from mechanisms import grid
from mechanisms.guide import alone
from mechanisms.registry import MECHANISMS
from mechanisms.updates import UPDATE
from sim.config.fields import Config
from strategies.registry import strategy_of

CROSS_ENTROPY = "cross-entropy"


def check_parts(config: Config) -> None:
    """Refuse settings of one part of the configuration that another part cannot work with.

    Raises:
        ValueError: names the settings that contradict each other.
    """
    _check_holdout(config)
    _check_strategy(config)
    _check_release(config)
    _check_targets(config)


def _check_holdout(config: Config) -> None:
    """Refuse screening on public, or evaluation on validation records, where there are none."""
    if config.data.evaluate_on == "validation" and not config.data.validation_records:
        raise ValueError(
            "evaluate_on is validation, but validation_records is 0: give --validation-records"
        )
    looks = config.privacy.mechanism == "screening" and config.screening.screening_data == "public"
    if looks and not config.data.public_records:
        raise ValueError("screening_data is public, but public_records is 0: give --public-records")


def _check_release(config: Config) -> None:
    """Refuse a release with a mechanism that has no exact sums."""
    isotropic = config.privacy.mechanism == "dphero" and config.dphero.hero_clipping == "isotropic"
    if config.run.release and isotropic:
        raise ValueError(
            "hero_clipping is isotropic, for which a release has no exact sums: use "
            "--hero-clipping whitened, or leave out --release"
        )


def _check_targets(config: Config) -> None:
    """Refuse a release by classes if the targets are no classes."""
    loss, shares = config.data.loss, config.strategy.strategy == "fedfed"
    source = config.fedfed.shared_source
    if loss != CROSS_ENTROPY and shares and source not in ("none", "public"):
        raise ValueError(
            f"shared_source is {source}, which needs classes, and loss is {loss}: use "
            "--shared-source public or none, or --loss cross-entropy"
        )


def check_classes(config: Config, command: str) -> None:
    """Refuse a loss other than cross-entropy for a command that guesses by classes.

    Raises:
        ValueError: the loss is another.
    """
    if config.data.loss != CROSS_ENTROPY:
        raise ValueError(
            f"loss is {config.data.loss}, but {command} knows classes only: leave --loss out"
        )


def _check_strategy(config: Config) -> None:
    """Refuse a strategy that guides or counts local steps if the mechanism sizes them itself."""
    name = config.strategy.strategy
    strategy = strategy_of(config.strategy, config.fedfed)
    leads = strategy.guide is not alone or strategy.sent is not UPDATE
    if leads and MECHANISMS[config.privacy.mechanism].searches:
        raise ValueError(
            f"strategy is {name}, but {config.privacy.mechanism} chooses the size of its steps by "
            "the client's own losses, which ignore the strategy: use --strategy fedavg or another "
            "--mechanism"
        )


def check_delta(config: Config, records: int) -> None:
    """Warn if delta allows publishing whole records; refuse it with ``strict_delta``."""
    privacy = config.privacy
    if config.private and privacy.delta >= 1 / records:
        fault = (
            f"delta = {privacy.delta:g} is not below 1 / {records} records = {1 / records:.2g}: "
            "a mechanism that publishes a random record would meet it; lower --delta"
        )
        if privacy.strict_delta:
            raise ValueError(fault)
        warnings.warn(fault, stacklevel=2)


def check_sizes(config: Config, sizes: np.ndarray) -> None:
    """Refuse a release if a client has more records than an exact sum can hold."""
    if config.run.release:
        grid.check_sizes(sizes.tolist())
