"""The settings of aggregation. No torch here: the command line imports this."""

from typing import Literal

from pydantic import Field

from mechanisms.settings import MAX_TIMES, OwnName, Settings

StrategyName = Literal[
    "fedavg", "fedadagrad", "fedadam", "fedyogi", "fedprox", "fednova", "mrmtl", "fedfed"
]


class Aggregation(Settings):
    """How the clients' uploads become the next model"""

    strategy: StrategyName | OwnName = "fedavg"
    """rule of aggregation; a strategy of Flower's is named as one of your own"""
    strategy_settings: str | None = None
    """arguments of a strategy of your own or of Flower's, as in a TOML file but with commas: "eta =
    0.1, tau = 0.01"; '': its defaults"""
    server_lr: float | None = Field(None, gt=0)
    """server learning rate [models per averaged update; fedadagrad, fedadam, fedyogi: parameter
    units]; 'none': 1, or 0.3, 0.05, 0.05 for these three"""
    server_momentum: float = Field(0.9, ge=0, lt=1)
    """server momentum over rounds; beta1 of fedadagrad, fedadam, fedyogi"""
    server_beta2: float = Field(0.99, ge=0, lt=1)
    """fedadam, fedyogi: memory of squared updates over rounds"""
    server_tau: float = Field(1e-3, gt=0)
    """fedadagrad, fedadam, fedyogi: updates below it are not enlarged [parameter units]"""
    proximal_mu: float = Field(0.01, ge=0)
    """fedprox, mrmtl: pull of a local step towards the round's model [gradient per parameter
    unit]"""
    weighting: Literal["records", "uniform"] = "records"
    """weight of a client's update: its public number of records, or the same for all"""


class FedFed(Settings):
    """FedFed: a data set that all clients share, released once before training"""

    shared_source: Literal["prototypes", "distilled", "public", "none"] = "prototypes"
    """noisy means of each class; distilled features of single records; the --public-records;
    nothing"""
    share_budget: float = Field(0.3, gt=0, lt=1)
    """what sharing may spend of epsilon; training gets the rest [share of epsilon]"""
    share_noise: float | None = Field(None, gt=0, le=1e6)
    """noise on what is shared [share clips]; 'none': the least that share_budget pays for"""
    share_clip: float | None = Field(None, ge=1e-6, le=1e30)
    """bound on a shared record [Euclidean norm]; 'none': half that of a record of ones"""
    share_rate: float = Field(1.0, gt=0, le=1)
    """distilled: probability that a record is shared"""
    share_views: int = Field(1, ge=1)
    """distilled: releases of each shared record, each paid for [views]"""
    label_epsilon: float | None = Field(None, ge=1e-6)
    """distilled: of a label's randomized response [nats]; 'none': a quarter of share_budget"""
    public_labels: bool = False
    """distilled: labels are shared as they are; the guarantee then covers the features alone"""
    shared_weight: float = Field(0.2, ge=0, lt=1)
    """weight of the shared records' gradient in a local step [share of the step]"""
    shared_batch: int = Field(64, ge=1)
    """shared records drawn for a local step [records]"""
    prototype_features: Literal["fixed", "distilled"] = "fixed"
    """prototypes: of records as the model sees them, or of their distilled features"""
    distill_budget: float = Field(0.5, gt=0, lt=1)
    """what training the generator may spend of the share budget [share of it]"""
    distill_rounds: int = Field(20, ge=1, le=MAX_TIMES)
    """rounds that train the generator, all clients in each [rounds]"""
    distill_lr: float = Field(0.5, gt=0)
    """local learning rate of the generator"""
    distill_clip: float = Field(1.0, ge=1e-6, le=1e30)
    """bound on a record's gradient there [Euclidean norm]"""
    distill_latent: int = Field(8, ge=1)
    """length of the generator's code [numbers]"""
    distill_penalty: float = Field(1.0, ge=0)
    """weight of the sensitive part's mean square, which keeps it small [nats per unit]"""

    @property
    def distills(self) -> bool:
        """Whether a generator is trained."""
        return self.shared_source == "distilled" or (
            self.shared_source == "prototypes" and self.prototype_features == "distilled"
        )
