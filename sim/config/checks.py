"""Settings that contradict each other or the data, refused before anything is written."""

import warnings

import numpy as np

from mechanisms import grid
from mechanisms.guide import alone
from mechanisms.registry import mechanism_of
from mechanisms.updates import UPDATE
from server.federation import asked
from sim.config.fields import Config
from sim.config.settings import CROSS_ENTROPY, NEXT_WORD
from strategies import trial
from strategies.registry import strategy_of
from strategies.strategy import Strategy

MAX_DECAY = 100.0
"""Largest decrease of the logarithm of the noise over a run."""


def check_parts(config: Config) -> None:
    """Refuse settings of one part of the configuration that another part cannot work with.

    Raises:
        ValueError: names the settings that contradict each other.
    """
    _check_holdout(config)
    _check_noise_decay(config)
    strategy = strategy_of(config.strategy, config.fedfed)
    _check_strategy(config, strategy)
    _check_release(config)
    _check_targets(config)
    _check_evaluation(config)
    _check_trust(config, strategy)
    _check_turns(config)
    _check_attackers(config)
    _check_buffer(config, strategy)
    _check_personal(config, strategy)
    if config.data.partition != "given":  # else their number is known once the records are
        check_clients(config)


def _check_noise_decay(config: Config) -> None:
    """Refuse noise that all but vanishes before the run ends."""
    decay, rounds = config.privacy.noise_decay, config.rounds.rounds
    if decay * (rounds - 1) > MAX_DECAY:
        raise ValueError(
            f"noise_decay is {decay:g}, which takes the noise of {rounds} rounds next to nothing: "
            f"give at most {MAX_DECAY / (rounds - 1):.3g}"
        )


def check_clients(config: Config) -> None:
    """Refuse more clients at a time than there are.

    Raises:
        ValueError: names the setting that asks for them.
    """
    bands, size, clients = config.privacy.noise_bands, config.rounds.buffer, config.data.clients
    at_once = asked(config.rounds.fraction, clients)
    if bands > clients:
        raise ValueError(
            f"noise_bands is {bands}, but {clients} clients cannot take so many turns: use at most "
            f"--noise-bands {clients}"
        )
    if size is not None and size > at_once:
        raise ValueError(
            f"buffer is {size}, but only {at_once} clients work at the same time: use at most "
            f"--buffer {at_once}, or a larger --fraction"
        )


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


def _check_evaluation(config: Config) -> None:
    """Refuse scores that no loss of the run gives, and those of clients in a release."""
    judged = config.data.evaluation
    if judged == "clients" and config.run.release:
        raise ValueError(
            "evaluation is clients, whose scores come from private records without noise: use "
            "--evaluation released or detailed, or leave out --release"
        )
    if judged == "released" and (not config.private or config.privacy.trust != "local"):
        given = f"trust is {config.privacy.trust}" if config.private else "mechanism is none"
        raise ValueError(
            f"evaluation is released, for which each client adds noise of its own, but {given}: "
            "use --evaluation clients, or a private --mechanism with --trust local"
        )
    if judged != "basic" and config.data.loss not in (CROSS_ENTROPY, NEXT_WORD):
        raise ValueError(
            f"evaluation is {judged}, which needs --loss {CROSS_ENTROPY} or {NEXT_WORD}, and loss "
            f"is {config.data.loss}: use --evaluation basic"
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


def _check_attackers(config: Config) -> None:
    """Refuse attackers in a release."""
    if config.rounds.attackers and config.run.release:
        raise ValueError(
            f"attackers is {config.rounds.attackers:g}, and a release has none that are simulated: "
            "leave out --attackers or --release"
        )


def _check_buffer(config: Config, strategy: Strategy) -> None:
    """Refuse a buffer whose late answers would be taken for what they are not."""
    size = config.rounds.buffer
    if size is None:
        return
    if config.run.release:
        raise ValueError(
            f"buffer is {size}, and a release has no answers that are simulated to come late: "
            "leave out --buffer or --release"
        )
    if strategy.personal:
        raise ValueError(
            f"buffer is {size}, but strategy = {config.strategy.strategy} takes the mean of the "
            "clients' own models, which must be of one round: use --strategy fedavg, or leave "
            "--buffer out"
        )


def _check_personal(config: Config, strategy: Strategy) -> None:
    """Refuse what does not go with models of clients' own."""
    layers, name = config.local.personal_layers, config.strategy.strategy
    if layers is None and not strategy.personal:
        return
    given = f"strategy is {name}" if layers is None else f"personal_layers is {layers!r}"
    if layers is not None and strategy.guide is not alone:
        raise ValueError(
            f"{given}, but strategy = {name} steers all layers by the round's model or by shared "
            "records: use --strategy fedavg, or leave --personal-layers out"
        )
    mechanism = config.privacy.mechanism
    if mechanism == "dphero" or ":" in mechanism:
        raise ValueError(
            f"{given}, but mechanism = {mechanism} may begin a round by a look at the server's "
            "model, which is not the client's: use --mechanism dpsgd"
        )
    judged = config.data.evaluation
    if judged in ("clients", "released") and not config.data.client_holdout:
        raise ValueError(
            f"{given} and evaluation is {judged}, but the records that a client's own model was "
            "trained on are no test of it: add --client-holdout 0.2"
        )


def _check_trust(config: Config, strategy: Strategy) -> None:
    """Refuse what noise on a sum of clients does not cover."""
    privacy, local = config.privacy, config.local
    trust, by_record = f"--trust {privacy.trust}", privacy.unit == "record"
    if privacy.trust == "local":
        return
    if privacy.mechanism != "dpsgd":
        raise ValueError(
            f"mechanism is {privacy.mechanism}, but with {trust} noise is added to a sum of "
            "clients, as dpsgd's is: use --mechanism dpsgd, or --trust local"
        )
    if config.data.standardize == "private":
        raise ValueError(
            "standardize is private, for which each client adds noise of its own: use "
            "--standardize none, or --trust local"
        )
    name = config.strategy.strategy
    moves_null = name != "fedprox"  # whose pull is 0 at the round's model; a null client sends 0
    guides = strategy.guide is not alone and (by_record or moves_null)
    if guides or strategy.sent is not UPDATE or strategy.each is not None or strategy.personal:
        raise ValueError(
            f"strategy is {name}, which needs more of the clients than a bounded sum: use "
            "--strategy fedavg, fedadagrad, fedadam or fedyogi, or --trust local"
        )
    if by_record and (local.epochs is not None or local.steps != 1):
        work = f"steps is {local.steps}" if local.epochs is None else f"epochs is {local.epochs:g}"
        raise ValueError(
            f"{work}, but with {trust} --unit record a client takes 1 step a round, as clipping "
            "does not bound what a record does to an update of several: use --steps 1, --unit "
            "client, or --trust local"
        )
    if by_record and privacy.trust == "server" and config.rounds.fraction < 1:
        raise ValueError(
            f"fraction is {config.rounds.fraction:g}, but with {trust} --unit record all clients "
            "enter each round, and records do by --sample-rate: use --fraction 1"
        )
    if privacy.budgets is not None and privacy.noise_multiplier is not None:
        raise ValueError(
            f"noise_multiplier is {privacy.noise_multiplier:g}, but with {trust} the noise of "
            "--budgets follows from the largest of them: leave --noise-multiplier out"
        )
    if config.run.release and not by_record and config.run.chunk_clients not in (None, 1):
        raise ValueError(
            f"chunk_clients is {config.run.chunk_clients}, but in a release with --unit client "
            "each client is computed by itself, so that none moves another's bits: leave it out"
        )


def _check_turns(config: Config) -> None:
    """Refuse what correlated noise leaves no room for."""
    bands = config.privacy.noise_bands
    if bands == 1:
        return
    if config.rounds.fraction < 1:
        raise ValueError(
            f"fraction is {config.rounds.fraction:g}, but with --noise-bands {bands} each client "
            f"takes part in every {bands}th round: leave --fraction out"
        )
    if config.privacy.budgets is not None:
        raise ValueError(
            f"noise_bands is {bands}, but clients with smaller --budgets enter rounds by coins, "
            "for which correlated noise is not proved: leave --noise-bands out, or give --epsilon"
        )
    if config.privacy.noise_decay:
        raise ValueError(
            f"noise_decay is {config.privacy.noise_decay:g}, but with --noise-bands {bands} the "
            "noise of all rounds is of one scale: leave --noise-decay out"
        )


def refuse_trust(config: Config) -> None:
    """Refuse what attacks on models of clients that trust nobody cannot train.

    Raises:
        ValueError: the clients trust somebody, or have budgets of their own.
    """
    if config.privacy.budgets is not None:
        raise ValueError(
            "budgets are of many clients, but what is attacked here is one at a time: use --epsilon"
        )
    if config.privacy.trust != "local":
        raise ValueError(
            f"trust is {config.privacy.trust}, but what is attacked here are clients that trust "
            "nobody: use --trust local"
        )


def _check_strategy(config: Config, strategy: Strategy) -> None:
    """Refuse a strategy of the user's own that fails, and one that guides or counts local steps if
    the mechanism sizes them itself."""
    name = config.strategy.strategy
    if ":" in name:
        trial.check(name, strategy, asked(config.rounds.fraction, config.data.clients))
    leads = strategy.guide is not alone or strategy.sent is not UPDATE
    if leads and mechanism_of(config.privacy).searches:
        raise ValueError(
            f"strategy is {name}, but {config.privacy.mechanism} chooses the size of its steps by "
            "the client's own losses, which ignore the strategy: use --strategy fedavg or another "
            "--mechanism"
        )


def check_delta(config: Config, records: int) -> None:
    """Warn if delta allows publishing whole records, or all of a client's where that is the unit;
    refuse it with ``strict_delta``."""
    privacy, unit = config.privacy, config.privacy.unit
    number = records if unit == "record" else config.data.clients
    if config.private and privacy.delta >= 1 / number:
        fault = (
            f"delta = {privacy.delta:g} is not below 1 / {number} {unit}s = {1 / number:.2g}: "
            f"a mechanism that publishes a random {unit} would meet it; lower --delta"
        )
        if privacy.strict_delta:
            raise ValueError(fault)
        warnings.warn(fault, stacklevel=2)


def check_sizes(config: Config, sizes: np.ndarray) -> None:
    """Refuse more than an exact sum has room for: in a release, of a client's records; where noise
    is added to a sum of clients, of what they contribute."""
    if config.run.release:
        grid.check_sizes(sizes.tolist())
    privacy, parts = config.privacy, len(sizes)
    if privacy.unit == "record":
        parts = int(sizes.sum() if privacy.trust == "server" else max(sizes.max(), parts))
    if privacy.trust != "local" and parts >= grid.MAX_RECORDS:
        raise ValueError(
            f"{parts} parts are added up, but with --trust {privacy.trust} an exact sum "
            f"has room for fewer than {grid.MAX_RECORDS}: use fewer, or --trust local"
        )
