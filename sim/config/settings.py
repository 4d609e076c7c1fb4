"""The settings of the data and of the simulation. Imports no torch, as the command line uses it."""

import re
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from mechanisms.settings import OwnName, Settings

RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")

TABLES = (".csv", ".tsv", ".parquet")
"""Ends of the names of tables."""


def is_table(dataset: str) -> bool:
    """Whether a data set is a table, by its name."""
    return dataset.lower().endswith(TABLES)


def expanded(path: str) -> Path:
    """A path of the user's, whose ``~`` or ``~name`` is a home folder.

    Raises:
        ValueError: nobody of that name has one.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as fault:
        raise ValueError(f"{path} is no path here ({fault}): write the folder in full") from None


CROSS_ENTROPY, BINARY_CROSS_ENTROPY = "cross-entropy", "binary-cross-entropy"
SQUARED_ERROR, NEXT_WORD = "squared-error", "next-word"
LOSS_NAMES = (CROSS_ENTROPY, BINARY_CROSS_ENTROPY, SQUARED_ERROR, NEXT_WORD)
"""The built-in losses."""
ACCURACY = "accuracy"
BY_LABEL = ("dirichlet", "shards")
"""Partitions that divide each class."""
UNPROTECTED = (
    "Unprotected: computed from the clients' private records, for the experimenter only, not part "
    "of the release."
)
"""Said of every score by client."""
HUB = "hf:"
"""Prefix of the name of a data set of Hugging Face's."""


def is_hub(dataset: str) -> bool:
    """Whether a data set is one of Hugging Face's, by its name."""
    return dataset.startswith(HUB)


class Data(Settings):
    """Records, model, and who holds which record"""

    dataset: str = "digits"
    """digits, mnist, fmnist, cifar10, imdb; the path of an .npz, .csv, .tsv or .parquet file or of
    a folder; package.module:function; or hf:NAME (docs/howto/own-data.md)"""
    data_dir: str | None = None
    """folder of downloaded data sets; '': $DP_FED_DATA, or the user's cache"""
    label_column: str = "label"
    """column of a table that holds the labels"""
    client_column: str | None = None
    """column of a table that says whose record a row is; '': none; implies --partition given"""
    columns: str | None = None
    """TOML file of what is known of a table's columns beforehand: bounds or categories, or that one
    is unused; '': types, categories and classes are read off the table"""
    categories: Literal["one-hot", "codes"] = "one-hot"
    """a table's texts: a column of 0 and 1 for each category, or the category's number"""
    features: Literal["pixels", "scattering"] | OwnName = "pixels"
    """what models see of images: pixels, fixed wavelet features at a quarter of the resolution, or
    the output of a frozen network (docs/howto/transfer.md)"""
    features_settings: str | None = None
    """arguments of such a network, as in a TOML file but with commas: "weights = 'net.pth'"; '':
    its defaults"""
    feature_pixels: Literal["unit", "imagenet", "opponent"] = "unit"
    """what scattering sees: pixels in [0, 1], three colours normalised by ImageNet's mean and
    deviation, or brightness and two differences of these colours"""
    feature_deskew: bool = False
    """shear images of bright strokes on black, such as digits, until they stand upright"""
    feature_flips: bool = False
    """scattering features are the mean of an image's and its mirror image's"""
    feature_scales: int = Field(1, ge=1, le=4)
    """resolutions of an image whose scattering features are taken, each half of the one before"""
    feature_whitening: bool = False
    """whiten the channels of scattering features by moments of synthetic images, at no charge"""
    feature_groups: int = Field(0, ge=0)
    """groups of channels in which each record's features are normalised to mean 0 and variance 1;
    0: none; with --features scattering 27"""
    model: str = "linear"
    """a model's name, or package.module:Class; each data set has its default"""
    loss: str = CROSS_ENTROPY
    """cross-entropy, binary-cross-entropy (several labels), squared-error (regression), next-word,
    or package.module:function (docs/howto/losses.md)"""
    metric: str | None = None
    """package.module:function, a number by which models are judged on test records; '': accuracy,
    the absolute error with --loss squared-error, the loss with one of your own"""
    init_from: str | None = None
    """.safetensors file of a model, or a run directory, whose parameters training starts from; '':
    random ones"""
    activation: Literal["tanh", "relu"] = "tanh"
    """activation of the built-in models"""
    word_vectors: str | None = None
    """text file of word vectors, such as GloVe's; '': random vectors of 100 numbers"""
    train_embedding: bool = False
    """train the word vectors, too; else they are constants"""
    standardize: Literal["none", "private"] = "none"
    """scale channels to mean 0 and variance 1, by statistics that clients release once with
    noise"""
    standardize_noise: float = Field(8.0, gt=0, le=1e6)
    """noise on these statistics [multiples of standardize_clip]"""
    standardize_clip: float = Field(1.0, ge=1e-6, le=1e30)
    """bound on a record's contribution to them [Euclidean norm of its channels' means and mean
    squares]"""
    clients: int = Field(100, ge=1, le=10**7)  # what a ledger can name
    """clients, among whom the records are divided; with --partition given the data set's own
    [clients]"""
    partition: Literal["dirichlet", "iid", "shards", "quantity", "given"] | OwnName = "dirichlet"
    """how the records are divided among the clients; given: as the data set's own clients say"""
    partition_settings: str | None = None
    """arguments of a partition of your own, as in a TOML file but with commas: "skew = 0.3"; '':
    its defaults"""
    dirichlet: float = Field(0.5, gt=0)
    """concentration of label or quantity skew; smaller is more skewed; implies --partition
    dirichlet"""
    min_records: int = Field(2, ge=1)
    """minimum records per client [records]"""
    shards_per_client: int = Field(2, ge=1)
    """pieces of the label-sorted records per client [shards]; implies --partition shards"""
    public_records: int = Field(0, ge=0)
    """training records set aside as public: no client holds them, and they are not protected
    [records]"""
    validation_records: int = Field(0, ge=0)
    """training records held out for tuning: no client holds them, and they are not protected
    [records]"""
    evaluate_on: Literal["test", "validation"] = "test"
    """records that models are evaluated on; choose settings by validation, never by test"""
    evaluation: Literal["basic", "detailed", "clients", "released"] = "basic"
    """of the final model: accuracy and loss alone; also by class, with F1, AUROC and calibration,
    or perplexity; also by client on its own records, unprotected, or released with noise and
    charged (docs/howto/evaluation.md)"""
    score_noise: float = Field(8.0, gt=0, le=1e6)
    """released scores: noise on the number of a client's records that are found [records]"""
    client_holdout: float = Field(0.0, ge=0, lt=1)
    """what a client does not train on, for scores by client: drawn from its records, at least one
    stays [share of them, rounded up]"""

    @property
    def metric_name(self) -> str:
        """What a run calls the number by which its models are judged."""
        if self.metric is not None:
            return self.metric.rpartition(":")[2]
        own = "loss" if ":" in self.loss else ACCURACY
        return "absolute error" if self.loss == SQUARED_ERROR else own


class Execution(Settings):
    """Seeds, machines and output"""

    seed: int = Field(0, ge=0, le=2**63 - 1)
    """seed of every random stream; whoever knows it can subtract the noise"""
    release: bool = False
    """draw noise and batches from the system's entropy, and store no seed"""
    engine: Literal["auto", "ray", "inline"] = "auto"
    """where clients run: Ray workers, this process alone (inline), or this process and then Ray
    workers if a move pays (auto)"""
    workers: int | None = Field(None, ge=1)
    """Ray workers; 'none': one per GPU if clients train there, else as many as this machine, or the
    named cluster's, have CPU cores for"""
    groups: int | None = Field(None, ge=1)
    """groups of clients, one Flower node each; 'none': as many as workers, but no more than
    chunks"""
    chunk_clients: int | None = Field(None, ge=1)
    """clients computed together [clients]; affects float rounding; 'none': chosen from the number
    of clients and the size of the model"""
    ray_address: str | None = None
    """address of a Ray cluster, or auto; '': start one on this machine"""
    cpus_per_worker: float = Field(1.0, gt=0)
    """CPU cores that Ray reserves for a worker [cores]"""
    gpus_per_worker: float | None = Field(None, ge=0)
    """GPUs that Ray reserves for a worker, 1 or a part of one [GPUs]; 'none': 1, or as many workers
    share one as must"""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """device for tensors; auto: cuda if available"""
    tf32: bool = False
    """on a GPU, products of float32 by the first 10 binary digits of their factors, except in sums
    of clipped gradients: faster, but affects results"""
    bf16: bool = False
    """forward and backward passes of convolutions and dense layers by the first 8 binary digits of
    their factors, not the gradients of weights that are clipped, nor their sums: faster on a
    processor that computes with bfloat16, but affects results"""
    out: str = "runs"
    """parent folder of run directories"""
    name: str | None = None
    """the run directory's name; '': unique, from the time"""
    track: Literal["none", "tensorboard", "mlflow", "wandb"] = "none"
    """write the rounds for an experiment tracker, too, in the run directory
    (docs/howto/track.md)"""
    quiet: bool = False
    """print errors and warnings only"""

    @field_validator("name")
    @classmethod
    def _is_a_folder_name(cls, name: str | None) -> str | None:
        if name is not None and not RUN_NAME.fullmatch(name):
            raise ValueError(
                f"name is {name!r}; it must consist of at most 200 letters, digits, '.', '_' and "
                "'-' and begin with a letter or digit: choose another --name, and the parent "
                "folder by --out"
            )
        return name


EXECUTION_ONLY = frozenset(
    {"workers", "engine", "ray_address", "cpus_per_worker", "gpus_per_worker", "track", "quiet"}
)
"""Settings that do not affect the result: a resumed run may change them."""
