"""What a run's guarantee does not cover or takes for granted, from its configuration."""

from collections.abc import Callable, Iterable

from mechanisms.accounting.events import Event, PublicLabels, TrialCap
from sim.config.fields import Config
from sim.config.settings import UNPROTECTED, is_hub, is_table

PUBLISHED_BUDGET = (
    "The budget bounded the published epsilon, which is the paper's claim. The guarantee is the "
    "certified epsilon, whatever it has become."
)
PERSONAL = (
    "Clients have budgets of their own: an epsilon of the run is that of the client with the "
    "largest. Who has which budget counts as public."
)
PUBLIC_LABELS = (
    "Labels are shared as they are and count as public: the guarantee covers the features of "
    "records alone, not their labels."
)
HIDDEN = (
    "Rejected steps are hidden: it is taken for granted that nobody learns how often a client "
    "rejected, not even from the time that it computes."
)
TRUSTED = (
    "The server is trusted: it sees what each client sends before there is any noise. It keeps "
    "that and who took part in which round to itself, and messages to it are encrypted."
)
AGGREGATED = (
    "Secure aggregation is assumed, and simulated by adding up in one place: nobody sees what a "
    "client sends, but only sums. Of the asked clients at least the share --honest has answered, "
    "added its noise as it was told and, but for one, told nobody what it added: only how many "
    "answered is checked. Who answers may depend on nobody's records."
)
TRACED = (
    "Who answers follows from a trace, which counts as public and is taken to depend on nobody's "
    "records."
)
OWN_MODEL = (
    "The model's own Python code is trusted: it must not pass anything from one record to "
    "another by files, global variables or other means outside PyTorch."
)
OWN_LOSS = (
    "The loss's own Python code is trusted: it must not pass anything from one record to "
    "another by files, global variables or other means outside PyTorch."
)
OWN_MECHANISM = (
    "The mechanism's own Python code is trusted: that it looks at records as its plan charges, and "
    "that all it says of them leaves through the noise that it was given."
)
OWN_STRATEGY = (
    "The strategy's own Python code is trusted: that what it has clients send, and what it guides "
    "their steps by, says no more of records than the mechanism has released."
)
OWN_PARTITION = (
    "The partition is by code of your own and taken as given. The number of records of each client "
    "counts as public, with all that it tells of the records."
)
OWN_DATA = (
    "What the data set's own code takes from all records, such as scales, vocabularies or a choice "
    "of records, is not covered."
)
BACKBONE = (
    "The features are those of a frozen network. What it was trained on is not covered, and its "
    "Python code is trusted to keep nothing from one record to the next."
)
STARTED = (
    "What the initial parameters were trained on is not covered. If those were the same records, "
    "both costs add up."
)
PUBLIC_RECORDS = "The training records that were taken out as public are not protected."
VALIDATION = (
    "The training records that were held out for validation, and the scores on them, are not "
    "protected."
)
TEST = "The test part, and the scores on it, are not protected."
CLIENT_SCORES = f"Accuracy by client: {UNPROTECTED[0].lower()}{UNPROTECTED[1:]}"
OWN_LAYERS = (
    "Accuracy and loss are of the server's model, whose personal layers are as they were "
    "initialised: they say little of the clients' own models."
)
TIMES = "The times that rounds took are written down, and are not protected."
TRIES = "The choice of settings is not covered: all runs on the same records add up."
PARTITION = (
    "The partition is drawn from the seed and taken as given. The number of records of each "
    "client and the number of classes count as public."
)
PARTITION_BY_LABEL = (
    "The partition is drawn by label from the seed and taken as given. The number of records of "
    "each client counts as public, and with it the number of records of each class, which "
    "follows from it."
)
GIVEN = (
    "The partition is the data set's own and taken as given. The number of clients and of the "
    "records of each one count as public."
)
ONE_RECORD = (
    "What is protected is one record. A client that is one person has as many as it holds: python "
    "-m sim.account --ledger RUN --group K gives the epsilon of K records together."
)
COLUMNS = (
    "Types of columns, categories and classes were read off the table and count as public: state "
    "them by --columns where they must not be."
)
PLACES = (
    "Sums and noise are exact. It is taken for granted that a kernel gives a record the same "
    "bits at every place of a pass, as was tried at the start."
)
SEEDED = (
    "This is a seeded simulation: whoever knows the seed can subtract the noise. Noise comes "
    "from a statistical generator and sums are rounded in float32, so epsilon is that of the "
    "mechanism, not of these bits. For a model that leaves your hands, use --release."
)


def caveats(config: Config) -> tuple[str, ...]:
    """The run's caveats, a line each; none without privacy, where there is no guarantee."""
    return tuple(text for text, holds in CAVEATS.items() if config.private and holds(config))


def caveats_of(charged: Iterable[Event]) -> tuple[str, ...]:
    """The caveats that follow from charges alone, a line each."""
    kinds = {type(event) for event in charged}
    texts = {PublicLabels: PUBLIC_LABELS, TrialCap: HIDDEN}
    return tuple(text for kind, text in texts.items() if kind in kinds)


def public_labels(config: Config) -> bool:
    """Whether records are shared one by one with their true labels."""
    own, shares = config.fedfed, config.strategy.strategy == "fedfed"
    return shares and own.shared_source == "distilled" and own.public_labels


def hides_rejections(config: Config) -> bool:
    """Whether the guarantee assumes that nobody observes rejections."""
    own = config.screening
    hidden = {
        "dpsur": config.dpsur.dpsur_accounting == "selective",
        "screening": own.screening_data == "own" and own.screening_clip is not None,
    }
    return hidden.get(config.privacy.mechanism, False)


def tells_times(config: Config) -> bool:
    """Whether the run records the times of rounds; a release that hides rejections, or who takes
    part, does not, nor one by a mechanism of the user's own, which may."""
    draws_clients = config.privacy.trust == "server" and config.rounds.fraction < 1
    hides = hides_rejections(config) or draws_clients or _own_mechanism(config)
    return not (config.run.release and hides)


def _own_mechanism(config: Config) -> bool:
    return ":" in config.privacy.mechanism


def _is_given(config: Config) -> bool:
    """Whether the data set says who holds which record."""
    return config.data.partition == "given"


CAVEATS: dict[str, Callable[[Config], bool]] = {
    PUBLISHED_BUDGET: lambda c: (
        c.privacy.budget == "published" and (c.privacy.epsilon or c.privacy.budgets) is not None
    ),
    PERSONAL: lambda c: c.privacy.budgets is not None,
    PUBLIC_LABELS: public_labels,
    HIDDEN: hides_rejections,
    TRUSTED: lambda c: c.privacy.trust == "server",
    AGGREGATED: lambda c: c.privacy.trust == "aggregate",
    TRACED: lambda c: c.rounds.dropout_trace is not None,
    OWN_MECHANISM: _own_mechanism,
    OWN_STRATEGY: lambda c: (
        ":" in c.strategy.strategy and not c.strategy.strategy.startswith("flwr.")
    ),
    OWN_MODEL: lambda c: ":" in c.data.model,
    OWN_LOSS: lambda c: ":" in c.data.loss,
    OWN_DATA: lambda c: ":" in c.data.dataset and not is_hub(c.data.dataset),
    BACKBONE: lambda c: ":" in c.data.features,
    STARTED: lambda c: c.data.init_from is not None,
    PUBLIC_RECORDS: lambda c: c.data.public_records > 0,
    VALIDATION: lambda c: c.data.validation_records > 0,
    TEST: lambda c: c.data.evaluate_on == "test",
    CLIENT_SCORES: lambda c: c.data.evaluation == "clients",
    OWN_LAYERS: lambda c: c.local.personal_layers is not None,
    TIMES: tells_times,
    TRIES: lambda c: True,
    PARTITION: lambda c: c.run.release and c.data.partition in ("iid", "shards", "quantity"),
    PARTITION_BY_LABEL: lambda c: c.run.release and c.data.partition == "dirichlet",
    OWN_PARTITION: lambda c: ":" in c.data.partition,
    GIVEN: _is_given,
    ONE_RECORD: lambda c: _is_given(c) and c.privacy.unit == "record",
    COLUMNS: lambda c: is_table(c.data.dataset) and c.data.columns is None,
    PLACES: lambda c: c.run.release,
    SEEDED: lambda c: not c.run.release,
}
"""Line -> whether it holds for a configuration with privacy, in the order shown."""
