"""Suggestions for unknown names in error messages: the name that was probably meant."""

from collections.abc import Iterable
from difflib import get_close_matches

FORMER = {
    "accounting": "dpsur_accounting",
    "validation_rate": "dpsur_validation_rate",
    "validation_noise": "dpsur_validation_noise",
    "loss_clip": "dpsur_loss_clip",
    "beta": "dpsur_beta",
    "cap_share": "dpsur_cap_share",
}
"""Name of a setting in an earlier version -> its current name."""

_BY_FLAG = {
    "activation": "act nonlinearity",
    "batch-size": "bs batch local-batch-size train-batch-size lot-size expected-batch-size",
    "budget": "budget-type",
    "chunk-clients": "chunk chunk-size clients-per-chunk",
    "clients": "num-clients n-clients nodes num-nodes client-num client-num-in-total "
    "total-clients num-supernodes users num-users parties num-parties",
    "clip-norm": "max-grad-norm clip l2-norm-clip clipping-norm clipping-bound "
    "clipping-threshold max-norm grad-clip c norm-clip",
    "clipping": "clipping-mode clipping-method",
    "config": "cfg config-file conf",
    "data-dir": "data-path data-root data-folder datadir root",
    "dataset": "data task data-name dataset-name",
    "delta": "target-delta central-delta local-delta",
    "device": "gpu cuda gpus use-gpu use-cuda no-cuda accelerator",
    "dirichlet": "alpha dirichlet-alpha partition-alpha dir dir-alpha concentration",
    "epochs": "local-epochs epochs-local local-num-epochs num-epochs num-local-epochs epoch "
    "local-ep",
    "epsilon": "eps target-epsilon epsilon-target privacy-budget central-epsilon local-epsilon",
    "evaluate-every": "eval-every evaluation-frequency frequency-of-the-test test-every "
    "eval-interval",
    "evaluation": "metrics scores per-client-accuracy client-metrics evaluate-clients",
    "fraction": "frac participation participation-rate client-fraction fraction-fit "
    "fraction-train sample-ratio sample-fraction clients-per-round client-num-per-round "
    "cohort-size",
    "keep-checkpoints": "max-to-keep num-checkpoints",
    "lr": "learning-rate local-lr local-learning-rate client-lr client-learning-rate",
    "lr-schedule": "scheduler lr-scheduler learning-rate-schedule",
    "max-records": "max-physical-batch-size microbatches num-microbatches",
    "mechanism": "algorithm optimizer-dp dp-optimizer dp dp-mechanism privacy-mechanism local-dp",
    "model": "net arch architecture network model-name",
    "name": "run-name exp-name experiment experiment-name run-id",
    "noise-multiplier": "noise sigma noise-scale noise-std noise-level dp-sigma",
    "optimizer": "client-optimizer local-optimizer opt",
    "out": "output output-dir log-dir logdir save-dir result-dir results-dir outdir",
    "partition": "iid non-iid noniid split partition-method partitioner data-split distribution",
    "proximal-mu": "mu prox-mu fedprox-mu",
    "public-records": "public-data num-public",
    "quiet": "silent verbose verbosity",
    "resume": "restore continue load-checkpoint resume-from from-checkpoint checkpoint",
    "rounds": "num-rounds global-rounds n-rounds comm-round com-round communication-rounds "
    "num-server-rounds global-epochs central-num-iterations",
    "sample-rate": "q sampling-rate sampling-probability sampling-prob subsampling-rate",
    "seed": "random-seed random-state rng-seed manual-seed",
    "server-beta2": "beta-2 beta2 server-beta-2",
    "server-lr": "server-learning-rate global-lr eta eta-g central-learning-rate",
    "server-momentum": "global-momentum fedavgm-momentum beta1 beta-1",
    "server-tau": "tau adaptivity",
    "shards-per-client": "classes-per-client labels-per-client num-shards shards",
    "steps": "local-steps num-steps local-iterations iterations local-updates",
    "strategy": "aggregator aggregation aggregation-rule federated-optimizer server-optimizer",
    "validation-records": "val-records val-size validation-size",
    "workers": "num-workers n-jobs num-cpus threads processes num-processes",
}
SYNONYMS = {word: flag for flag, words in _BY_FLAG.items() for word in words.split()}
"""Name of a flag in other libraries (Opacus, TensorFlow Privacy, Flower, FedML, ...) -> ours."""


def nearest(name: str, known: Iterable[str], likeness: float = 0.6) -> str | None:
    """The known name most similar to this one, up to case; None below ``likeness``, in [0, 1]."""
    by_word = {each.lower(): each for each in known}
    found = get_close_matches(name.lower(), list(by_word), n=1, cutoff=likeness)
    return by_word[found[0]] if found else None


def spelled_otherwise(name: str, known: Iterable[str]) -> str | None:
    """The known name equal to this one or to its synonym, up to dashes and case, or None."""
    word = name.strip("-").lower().replace("_", "-")
    by_word = {each.strip("-").replace("_", "-"): each for each in known}
    return by_word.get(word) or by_word.get(SYNONYMS.get(word, ""))


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``; did you mean X?`` with the closest known name, or an empty string if none is close."""
    names = list(known)
    near = spelled_otherwise(name, names) or nearest(name, names)
    return f"; did you mean {near}?" if near else ""


def suggest(name: str, known: Iterable[str]) -> str:
    """The end of an error message: the closest known name, if any, and all known names."""
    names = list(known)
    near = nearest(name, names)
    hint = f"did you mean {near!r}? " if near else ""
    return f"{hint}known: {('; ' if any(',' in each for each in names) else ', ').join(names)}"
