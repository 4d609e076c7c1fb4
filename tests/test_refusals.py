"""What is refused is refused in words that help: setting, value, bound and remedy.

Whole sentences, for the value may be another one's, and the remedy that of another fault.
"""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from client.settings import Local
from client.sums import WeightedSum, mean
from mechanisms import grid
from mechanisms.accounting import accountant, curves
from mechanisms.accounting.allotment import Account, check_settlement, least_multipliers
from mechanisms.accounting.calibration import smallest
from mechanisms.accounting.event import Event
from mechanisms.accounting.events import (
    Allotment,
    Covered,
    DpsurStep,
    Gaussian,
    HeterogeneousGaussian,
    ImportanceSampledGaussian,
    SampledGaussian,
    Unproved,
    from_dict,
)
from mechanisms.accounting.ranges import parse_ranges
from mechanisms.accounting.trial_cap import smallest_cap
from mechanisms.dpagd_plan import DpagdPlan
from mechanisms.dphero import HeroPlan
from mechanisms.dpis_plan import DpisPlan
from mechanisms.dpsur import DpsurPlan
from mechanisms.entropy import SystemEntropy
from mechanisms.gradients.factors import of_pass
from mechanisms.gradients.independence import refuse_mixing_layers
from mechanisms.gradients.record_gradients import RecordGradients
from mechanisms.layout import Layout
from mechanisms.metric import check_metric
from mechanisms.noise_shape import scales
from mechanisms.plan import Terms
from mechanisms.randomness import SystemStreams
from mechanisms.registry import plan_table
from mechanisms.rounded_gaussian import rounded_gaussian
from mechanisms.screening import ScreeningPlan
from mechanisms.settings import Dpagd, Dpis, Dpsur, Privacy, Screening, Settings
from mechanisms.trials import refuse

A = SampledGaussian(0.25, 2.0)
CPU, WORDS = torch.device("cpu"), SystemEntropy().words
LAYOUT = Layout.of(nn.Sequential(nn.Linear(3, 2)))
TWICE = nn.Linear(2, 2)


def one(**changed: object) -> float:
    given = {"charges_of": lambda s: {SampledGaussian(0.25, s): 4}, "epsilon": 2.0, "delta": 1e-5}
    return smallest(**given | changed)


def terms(own: Settings | None = None, **privacy: object) -> Terms:
    return Terms(Privacy(**privacy), own, 2, 3, 50)


def norms(params: tuple[int, ...], x: tuple[int, ...], y: tuple[int, ...]) -> torch.Tensor:
    return RecordGradients(nn.Linear(3, 2)).norms(*map(torch.ones, (params, x, y)))


REFUSED: list[tuple[Callable[[], object], str]] = [
    (
        lambda: accountant.rdp({A: 1.5}, (2.0,), "certified"),
        "count = 1.5 of SampledGaussian(sample_rate=0.25, noise_multiplier=2.0) must be an "
        "integer, at least 0; charge whole applications",
    ),
    (
        lambda: accountant.epsilon({A: -1}, 1e-5),
        "count = -1 of SampledGaussian(sample_rate=0.25, noise_multiplier=2.0) must be an "
        "integer, at least 0; charge whole applications",
    ),
    (
        lambda: accountant.epsilon({A: 1}, 1.5),
        "delta = 1.5 must be in (0, 1); take it below one over the number of records",
    ),
    (
        lambda: accountant.within({A: 1}, 1.0, 0.0),
        "delta = 0.0 must be in (0, 1); take it below one over the number of records",
    ),
    (
        lambda: curves.rdp(A, (2.0,), "proved"),
        "column = 'proved' must be one of certified, published; certified is the proved one",
    ),
    (
        lambda: curves.rdp(A, (2.0, 1.0), "certified"),
        "orders = [2.0, 1.0] must all be above 1; Renyi divergence is used above 1 only",
    ),
    (
        lambda: curves.rdp(Event(), (2.0,), "certified"),
        "event Event() has no curve; register one for Event in mechanisms.accounting.curves",
    ),
    (
        lambda: Account(4.0, 0.5, 0.25).pay({Gaussian(2.0): 1}),
        "{Gaussian(noise_multiplier=2.0): 1} would bring spending at order 4 to 0.75, above "
        "the allotted 0.5: more noise is needed",
    ),
    (
        lambda: check_settlement({A: 1}),
        "SampledGaussian(sample_rate=0.25, noise_multiplier=2.0) was not paid for when its "
        "round started: put it into the plan's round_charges, or, where it depends on "
        "outputs, give the plan an allotment that covers it",
    ),
    (
        lambda: least_multipliers(np.array([0.5]), np.array([-0.25]), 4.0, np.array([1.0])),
        "limits = -0.25 must be above 0; nothing is left for a release",
    ),
    (
        lambda: one(epsilon=0.0),
        "epsilon = 0.0 must be above 0 and finite; name a budget to calibrate to",
    ),
    (
        lambda: one(epsilon=1e-9),
        "budget too small for a single step: epsilon = 1e-09 at delta = 1e-05 is below "
        "2.48106e-05, what noise multiplier 10000 still costs; raise epsilon or delta, plan fewer "
        "steps, lower the rates, or add noise to what else is released",
    ),
    (
        lambda: SampledGaussian(1.5, 2.0),
        "sampled_gaussian: sample_rate = 1.5 must be in (0, 1]; it is a probability",
    ),
    (
        lambda: SampledGaussian(0.5, 0.0),
        "sampled_gaussian: noise_multiplier = 0.0 must be above 0; without noise no epsilon "
        "is finite",
    ),
    (
        lambda: SampledGaussian("0.5", 2.0),
        "sampled_gaussian: sample_rate = '0.5' must be a finite number; give it as int or float",
    ),
    (
        lambda: HeterogeneousGaussian(0.5, 2.0, -0.25),
        "heterogeneous_gaussian: smallest_scale = -0.25 must be in [0, 1]; give it as a fraction",
    ),
    (
        lambda: Allotment(1.0, 0.5, 2),
        "allotment: order = 1.0 must be above 1; Renyi divergence is used above 1 only",
    ),
    (
        lambda: Allotment(2.0, 0.5, 2.5),
        "allotment: shares = 2.5 must be a whole number of at least 1; it is a count",
    ),
    (
        lambda: Covered(None, 2.0),
        "covered: event = None must be an event; wrap the release that was made",
    ),
    (
        lambda: Unproved(" "),
        "unproved: release = ' ' must be a non-empty text; name it",
    ),
    (
        lambda: DpsurStep(0.5, 2.0, 0.5, 2.0, 0.0, "hidden"),
        "dpsur_step: accounting = 'hidden' must be one of visible, selective, every-trial; name it",
    ),
    (
        lambda: ImportanceSampledGaussian(5.0, 0.5, 2.0, 9.0, 1.0),
        "importance_sampled_gaussian: norm_sum = 2.0 must be at least b C = 2.5; raise K to "
        "it last",
    ),
    (
        lambda: from_dict({"kind": "sampled_gausian"}),
        "event kind = 'sampled_gausian' must be one of sampled_gaussian, fixed_batch_gaussian, "
        "gaussian, gaussian_allotment, paper_claim, classic_claim, unprotected, unproved, "
        "importance_sampled_gaussian, noisy_norm_sum, heterogeneous_gaussian, visible_choice, "
        "partial_pass, randomized_response, public_labels, summed_shares, dpsur_step, "
        "screened_step, trial_cap, allotment, covered; was it written by a newer version?",
    ),
    (
        lambda: from_dict({"kind": "gaussian", "noise": 2.0}),
        "gaussian: fields ['noise'] must be ['noise_multiplier']; the record is damaged",
    ),
    (
        lambda: parse_ranges("1;2"),
        "ranges = '1;2' must be ids below 10^7 and first-last pairs; write 0-99,105",
    ),
    (
        lambda: parse_ranges("4-7,5"),
        "ranges = '4-7,5' must ascend without overlap; write 0-99,105",
    ),
    (
        lambda: smallest_cap(0.0, 3, 0.25),
        "lowest_acceptance = 0.0 must be in (0, 1]; add noise to the test",
    ),
    (
        lambda: smallest_cap(0.5, 0, 0.25),
        "steps = 0 must be at least 1; plan one accepted step or more",
    ),
    (
        lambda: smallest_cap(0.5, 3, 1.0),
        "delta_cap = 1.0 must be in (0, 1); take a tenth of delta",
    ),
    (
        lambda: DpagdPlan.of(terms(), 1.0),
        "own = None must be the settings of DPAGD; give its table",
    ),
    (
        lambda: DpagdPlan.of(terms(Dpagd(agd_raises=101)), 1.0),
        "agd_raises = 101 must be at most 100: lower --agd-raises",
    ),
    (
        lambda: DpagdPlan.of(terms(Dpagd(), mechanism="dpagd", clip_quantile=0.5), 1.0),
        "clip_quantile = 0.5 must be none with dpagd, whose noise follows its searches: drop "
        "--clip-quantile",
    ),
    (
        lambda: DpagdPlan.of(terms(Dpagd(), mechanism="dpagd", noise_decay=0.25), 1.0),
        "noise_decay = 0.25 must be 0.0 with dpagd, whose noise follows its searches: drop "
        "--noise-decay",
    ),
    (
        lambda: DpisPlan.of(terms(), 1.0),
        "own = None must be the settings of DPIS; give its table",
    ),
    (
        lambda: DpisPlan.of(terms(Dpis(), mechanism="dpis", clipping="auto"), 1.0),
        "clipping = auto must be flat with dpis, which sets clip bound and noise by its own "
        "rules: drop --clipping",
    ),
    (
        lambda: HeroPlan.of(terms(), 1.0),
        "own = None must be the settings of DP-Hero; give its table",
    ),
    (
        lambda: DpsurPlan.of(terms(), 1.0),
        "own = None must be the settings of DPSUR; give its table",
    ),
    (
        lambda: ScreeningPlan.of(terms(), 1.0),
        "own = None must be the settings of noise screening; give its table",
    ),
    (
        lambda: ScreeningPlan.of(terms(Screening(screening_clip=None)), 1.0),
        "screening_clip is none with screening_data = own: no finite epsilon is proved for "
        "that; give --screening-clip, take --screening-data public, or say --allow-unproved",
    ),
    (
        lambda: ScreeningPlan.of(
            terms(Screening(screening_clip=None, allow_unproved=True), epsilon=2.5), 1.0
        ),
        "epsilon is 2.5, but screening own records without a clip has no finite epsilon: "
        "give --epsilon none and --noise-multiplier, or bound the paper's claim by --budget "
        "published",
    ),
    (
        lambda: refuse(1e-9),
        "a step's probability of acceptance may be as low as 1e-09, so more than 100000 "
        "rejections in a row would have to be allowed: test more gently (dpsur: more noise "
        "or a higher threshold; screening: a lower gain or clip)",
    ),
    (
        lambda: SystemEntropy().integers(5, 5, 1),
        "low and high must satisfy -2^63 <= low < high <= 2^63; they are 5 and 5",
    ),
    (
        lambda: SystemEntropy().choice(3, 4),
        "size must lie between 0 and n = 3 without replacement; it is 4",
    ),
    (
        lambda: SystemStreams(2, CPU).normal("noise", 3),
        "float noise for 'noise' was asked for in a release, where noise is on a grid",
    ),
    (
        lambda: rounded_gaussian(WORDS, -1),
        "size must be at least 0; it is -1",
    ),
    (
        lambda: rounded_gaussian(lambda n: np.zeros(n + 1, np.uint64), 1),
        "words(12) must give uint64 [12]; it gave uint64 [13]",
    ),
    (
        lambda: of_pass(lambda norms: norms[0], torch.ones(2, 3), slice(0, 1), slice(0, 3)),
        "factors returned shape (3,), it must be [K, B] = (2, 3): give one factor per record",
    ),
    (
        lambda: refuse_mixing_layers(nn.BatchNorm1d(3)),
        "the model (BatchNorm1d) mixes the records of a batch, so a record's influence "
        "cannot be bounded: replace it by GroupNorm or LayerNorm, as sim.to_group_norm does",
    ),
    (
        lambda: refuse_mixing_layers(nn.Sequential(nn.Embedding(3, 2, sparse=True))),
        "layer '0' (Embedding) has sparse = True: it rewrites its weights in a forward pass, "
        "or has no dense gradient; leave sparse at its default",
    ),
    (
        lambda: refuse_mixing_layers(nn.Sequential(nn.Embedding(3, 2, max_norm=0.5))),
        "layer '0' (Embedding) has max_norm = 0.5: it rewrites its weights in a forward "
        "pass, or has no dense gradient; leave max_norm at its default",
    ),
    (
        lambda: refuse_mixing_layers(nn.Sequential(nn.Dropout(0.25))),
        "layer '0' (Dropout) has dropout p = 0.25, which must be 0: its draws come from the "
        "global generator and are not reproducible; set p to 0 or remove the layer",
    ),
    (
        lambda: norms((2, 7), (2, 5, 3), (2, 5)),
        "params has shape (2, 7), it must be [K, P] with P = 8",
    ),
    (
        lambda: norms((2, 8), (2, 5, 3), (2, 4)),
        "y has shape (2, 4), it must start with [K, B] where K = 2 as in params and B is the "
        "same for x and y: pad the clients' batches to one length",
    ),
    (
        lambda: grid.check_sizes([7, 2**18]),
        "a client holds 262144 records, in a release it must hold fewer than 262144, the "
        "most that an exact sum has room for: raise --clients, or leave out --release",
    ),
    (
        lambda: grid.slack(100, 1e9),
        "noise_multiplier = 1e+09 is too large for a release of 100 numbers, where rounding "
        "would double it: lower --noise-multiplier",
    ),
    (
        lambda: Layout.of(nn.Sequential(TWICE, nn.ReLU(), TWICE)),
        "layer '2' is layer '0' again: keep it under one name, and call it twice in forward, or "
        "have two layers share its tensors",
    ),
    (
        lambda: Layout.of(nn.ReLU()),
        "module ReLU has 0 trainable parameters, at least 1 is needed: set requires_grad on "
        "the parameters to train",
    ),
    (
        lambda: LAYOUT.unflatten(torch.ones(2, 7)),
        "flat has shape (2, 7), its last dimension must be P = 8: flatten the parameters "
        "with the layout of the same model",
    ),
    (
        lambda: LAYOUT.flatten({"0.weight": torch.ones(2, 3), "1.bias": torch.ones(2)}),
        "named has missing or unknown parameters ['0.bias', '1.bias'], expected exactly "
        "['0.weight', '0.bias']",
    ),
    (
        lambda: LAYOUT.flatten({"0.weight": torch.ones(3, 2), "0.bias": torch.ones(2)}),
        "parameter 0.weight has shape (3, 2), it must end in (2, 3)",
    ),
    (
        lambda: check_metric({"1": torch.ones(4, 2, 2)}, LAYOUT, 4),
        "metric names layer '1', which has no trainable parameter: use one of ['0']",
    ),
    (
        lambda: check_metric({"0": torch.ones(3, 2, 2)}, LAYOUT, 4),
        "metric of layer '0' has shape (3, 2, 2), parameter 0.weight of shape (2, 3) and K = "
        "4 clients need (4, 2, 2): give one [out, out] matrix per client",
    ),
    (
        lambda: scales([0.5, -1.0]),
        "eigenvalues = [0.5, -1.0] must be finite, at least 0 and not all 0; W W^T has no others",
    ),
    (
        lambda: WeightedSum(2).add(torch.tensor([[0.5, 1.0], [2.0, -3e9]]), np.array([1, 1])),
        "the update of client 1 of this chunk has a coordinate of size 3e+09: training "
        "diverged (the weighted sum must stay below 2.14748e+09); lower --lr",
    ),
    (
        lambda: mean([np.array([2**62]), np.array([2**62])], 2),
        "training diverged (the groups' sums together exceed 2.14748e+09); lower --lr",
    ),
    (
        lambda: Local(steps=3, epochs=0.5),
        "steps is 3 and epochs is 0.5, but only one may be given: drop one",
    ),
    (
        lambda: Local(steps=None),
        "steps and epochs are both none: give --steps or --epochs",
    ),
    (
        lambda: Privacy(sample_rate=0.25, batch_size=6),
        "sample_rate is 0.25 and batch_size is 6, but only one may be given: drop one",
    ),
    (
        lambda: Privacy(mechanism="dpis", noise_multiplier=0.0),
        "noise_multiplier is 0, but dpis needs one above 0: raise --noise-multiplier, or "
        "train without privacy by --mechanism none",
    ),
    (
        lambda: Privacy(epsilon=None),
        "epsilon and noise_multiplier are both none: give --epsilon or --noise-multiplier",
    ),
    (
        lambda: DpisPlan(0.5, 1e-200, 1.0, 2, 3, 1e-5, 9, Dpis()).allotment,
        "noise_multiplier = 1e-200 is too small for any guarantee: raise --noise-multiplier",
    ),
    (
        lambda: plan_table(
            Privacy(mechanism="dpsur", budget="published", noise_multiplier=2.0),
            Dpsur(),
            1,
            2,
            np.array([9]),
        ),
        "budget is published, but what dpsur accepts is public here, so that the run's length "
        "would depend on it and no epsilon would be proved: use a test with hidden rejections "
        "(--dpsur-accounting selective; --screening-data own with --screening-clip), or --budget "
        "certified",
    ),
    (
        lambda: plan_table(Privacy(epsilon=0.125, noise_multiplier=2.0), None, 4, 2, np.array([9])),
        "epsilon = 0.125 is too small for a single round, which costs 4.379 at delta = 1e-05: "
        "raise --epsilon or --noise-multiplier, or lower --steps or --sample-rate",
    ),
]


@pytest.mark.parametrize(("call", "message"), REFUSED, ids=[row[1][:60] for row in REFUSED])
def test_a_refusal_names_what_is_wrong_its_bound_and_a_remedy(call, message):
    with pytest.raises((ValueError, TypeError)) as error:
        call()
    said = str(error.value)
    # pydantic says more around the sentence
    assert said == message or f"Value error, {message} [type=" in said
