"""The command line of ``python -m sim.attack``: a central run's settings and its own flags."""

from collections.abc import Sequence
from dataclasses import dataclass

from mechanisms.settings import MAX_TIMES
from sim.commands import flags
from sim.commands.flags import number
from sim.commands.parser import OwnFlags
from sim.config.fields import SETTINGS, Config
from sim.config.names import did_you_mean

PROGRAM = "python -m sim.attack"
DESCRIPTION = (
    "Membership-inference attacks: how well an attacker guesses which records a model was trained "
    "on, without privacy, with DPSGD and with the given mechanism. A low success rate is no "
    "guarantee."
)
ATTACKS = ("shadow", "partial", "lira")
MIN_RECORDS, MIN_MODELS = 24, 8
"""The fewest records that leave every attack two members and two others; LiRA's fewest models."""
OWN: OwnFlags = {
    "--attacks": ("NAME[,NAME...]", f"attacks to run: {', '.join(ATTACKS)} (default: all)"),
    "--epsilons": ("E[,E...]", "budgets to train with, instead of --epsilon, such as 1,2,3,4"),
    "--targets": ("INT", "repetitions, each with its own split and models (default: 3)"),
    "--models": ("INT", f"LiRA's models per repetition, at least {MIN_MODELS} (default: 16)"),
    "--records": ("INT", f"training records to use, at least {MIN_RECORDS} (default: all)"),
    "--confidence": ("NUMBER", "confidence of the intervals (default: 0.95)"),
    "--json": (None, "print attack.json and nothing else"),
}


@dataclass(frozen=True)
class Question:
    """A parsed command line of ``sim.attack``.

    Attributes:
        configs: configurations of the trainings to attack: the given mechanism and DPSGD, each
            at every epsilon, and last training without privacy.
        attacks: names from `ATTACKS`, in its order.
        targets: repetitions of everything.
        models: LiRA's models in each repetition.
        records: training records to use, or None for all.
        confidence: confidence of the intervals.
        json: whether to print JSON.
    """

    configs: tuple[Config, ...]
    attacks: tuple[str, ...]
    targets: int
    models: int
    records: int | None
    confidence: float
    json: bool


def parse(argv: Sequence[str], program: str = PROGRAM) -> Question:
    """Parse a command line.

    Raises:
        ValueError: in one line, with the name, the value, its bound and a remedy.
    """
    anew = "an attack trains from the beginning"
    request = flags.parse(argv, program, DESCRIPTION, central=True, own=OWN, anew=anew)
    _refuse_what_trains_otherwise(request.config)
    own = request.own
    if "epsilons" in own and "epsilon" in request.given:
        raise ValueError(
            f"--epsilons {own['epsilons']} is instead of --epsilon: drop one of the two"
        )
    attacks = _attacks(own.get("attacks", ",".join(ATTACKS)))
    if "models" in own and "lira" not in attacks:
        raise ValueError(
            f"--models {own['models']} is LiRA's, which --attacks leaves out: drop --models, or "
            "add lira"
        )
    return Question(
        configs=_configs(argv, request.config, own.get("epsilons")),
        attacks=attacks,
        targets=_integer("--targets", own.get("targets", "3"), 1),
        models=_integer("--models", own.get("models", "16"), MIN_MODELS),
        records=_integer("--records", own["records"], MIN_RECORDS) if "records" in own else None,
        confidence=_confidence(own.get("confidence", "0.95")),
        json="json" in own,
    )


def _configs(argv: Sequence[str], given: Config, epsilons: str | None) -> tuple[Config, ...]:
    """Each training's configuration: that of the same command line with its mechanism and epsilon.

    A preset thus gives the paper's settings for each epsilon. Settings that a training does not
    use are dropped.
    """

    def of(mechanism: str, *words: str) -> Config:
        words = (*argv, f"--mechanism={mechanism}", *words)
        asked = flags.parse(words, PROGRAM, DESCRIPTION, central=True, own=OWN, lenient=SETTINGS)
        return asked.config

    budgets = [()] if epsilons is None else [(f"--epsilon={text}",) for text in _epsilons(epsilons)]
    private = dict.fromkeys(name for name in (given.privacy.mechanism, "dpsgd") if name != "none")
    trained = [of(mechanism, *budget) for mechanism in private for budget in budgets]
    return (*trained, _whole_gradients(of("none"), of("dpsgd").privacy.clip_norm))


def _whole_gradients(config: Config, clip_norm: float) -> Config:
    """The learning rate times the clip norm, because gradients are longer without clipping."""
    rate = config.local.lr * clip_norm
    return config.model_copy(update={"local": config.local.model_copy(update={"lr": rate})})


def _refuse_what_trains_otherwise(config: Config) -> None:
    """Refuse settings that the trainings under attack would ignore."""
    refused = {
        "--standardize private": config.data.standardize != "none",
        "--noise-decay": config.privacy.noise_decay != 0.0,
        "--evaluation": config.data.evaluation != "basic",
        "--evaluate-every": config.rounds.evaluate_every != 1,
        "--release": config.run.release,
        "--track": config.run.track != "none",
    }
    for flag, is_set in refused.items():
        if is_set:
            raise ValueError(
                f"{flag} has no effect here: models to attack are trained in one seeded round, "
                "without a phase before it; leave it out, or override a preset that has it"
            )


def _attacks(text: str) -> tuple[str, ...]:
    names = text.split(",")
    for name in names:
        if name not in ATTACKS:
            known = f"known: {', '.join(ATTACKS)}"
            raise ValueError(f"--attacks has {name!r}{did_you_mean(name, ATTACKS)} ({known})")
    return tuple(name for name in ATTACKS if name in names)


def _epsilons(text: str) -> list[str]:
    parts = text.split(",")
    values = [number("--epsilons", part, float) for part in parts]
    if len(set(values)) < len(values):
        raise ValueError(f"--epsilons {text} has a value twice: leave one out")
    return parts


def _confidence(text: str) -> float:
    value = float(number("--confidence", text, float))
    if not 0 < value < 1:
        raise ValueError(f"--confidence {text} must be in (0, 1): give 0.95, for instance")
    return value


def _integer(flag: str, text: str, least: int) -> int:
    value = int(number(flag, text, int))
    if not least <= value <= MAX_TIMES:
        raise ValueError(f"{flag} {text} must be from {least} to {MAX_TIMES}: correct it")
    return value
