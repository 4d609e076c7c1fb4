"""Every privacy-critical line has a test that fails without it: ``python tests/mutants/run.py [--only NAME]``.

Each mutant is one edit that would void the guarantee silently. It is made in a copy of the tree, and the tests that
answer for the line are run: one of them must fail. The same tests must pass on the tree as it is.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Queue

ROOT = Path(__file__).resolve().parent.parent.parent
IGNORED = shutil.ignore_patterns(".*", "runs", "__pycache__", "*.egg-info")
FAILED = 1
"""pytest's exit code where a test failed; others mean that no test could be run."""


@dataclass(frozen=True)
class Mutant:
    """An edit: ``old``, which stands exactly once in ``file``, becomes ``new``; one of ``tests`` must then fail."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


DPSGD, NODE, LOOP, LEDGER = "mechanisms/dpsgd.py", "client/node.py", "server/loop.py", "mechanisms/accounting/ledger.py"
CLIP, STREAMS = "mechanisms/clipping.py", "mechanisms/randomness.py"
TRIALS, DPSUR, SCREENING = "mechanisms/trials.py", "mechanisms/dpsur.py", "mechanisms/screening.py"
DPSUR_TEST, SCREENING_TEST = "tests/test_dpsur.py::test_", "tests/test_screening.py::test_"
CHARGES_TEST = "tests/test_dpsur_charges.py::test_"
BOOK = "tests/test_dpsgd.py::test_a_step_is_that_of_the_book"
NOISE = "tests/test_dpsgd.py::test_the_noise_is_gaussian_with_the_charged_scale_and_new_in_every_step"

CURVES, ALLOTMENT = "mechanisms/accounting/curves.py", "mechanisms/accounting/allotment.py"
DPIS, DPIS_PLAN = "mechanisms/dpis.py", "mechanisms/dpis_plan.py"
ALLOTMENT_TEST, DPIS_TEST = "tests/test_allotment.py::test_", "tests/test_dpis.py::test_"
SHARING, SHARING_TEST = "sim/pricing/sharing.py", "tests/test_account_sharing.py"
DPAGD, DPAGD_PLAN = "mechanisms/dpagd.py", "mechanisms/dpagd_plan.py"
CENTRAL_TEST = "tests/test_central.py::test_"
DPAGD_TEST, DPAGD_BUDGET_TEST = "tests/test_dpagd.py::test_", "tests/test_dpagd_budget.py::test_"
RELEASES, RELEASES_TEST = "mechanisms/sharing.py", "tests/test_sharing.py::test_"
ACCOUNT_TEST = "tests/test_account_command.py::test_"
FEDFED_TEST, CHARGING = "tests/test_fedfed.py::test_", "client/charging.py"
RELEASE_TEST, INPUTS_TEST, LIMITS_TEST = (
    "tests/test_release_files.py",
    "tests/test_rundir.py::test_",
    "tests/test_limits.py::test_",
)

AUDIT_BOUNDS = "sim/auditing/bounds.py"
ENTROPY, GAUSSIAN = "mechanisms/entropy.py", "mechanisms/rounded_gaussian.py"
ENTROPY_TEST, GAUSSIAN_TEST = "tests/test_entropy.py::test_", "tests/test_rounded_gaussian.py::test_"

GRID, ARITHMETIC, FORMS = "mechanisms/grid.py", "mechanisms/arithmetic.py", "mechanisms/gradients/forms.py"
RECORD, PASSES = "mechanisms/gradients/record_gradients.py", "mechanisms/gradients/passes.py"
IMPORTANCE, SAMPLING = "mechanisms/importance.py", "mechanisms/sampling.py"
GRID_TEST, BITS_TEST = "tests/test_grid.py::test_", "tests/test_bits.py::test_"

MUTANTS = (
    Mutant(
        "a write of equal numbers is no write",
        "mechanisms/gradients/module_state.py",
        "value.detach().clone(), value._version",
        "value.detach().clone(), 0",
        ("tests/test_independence.py::test_a_layer_that_keeps_something_is_refused_by_its_path",),
    ),
    Mutant(
        "noise on the grid is not raised by the slack",
        GRID,
        "s * (1.0 + slack(total.shape[1], s))",
        "s",
        (GRID_TEST + "the_noise_is_at_least_the_charged_multiple_of_what_a_record_moves",),
    ),
    Mutant(
        "points of the grid may leave what float64 tells apart",
        GRID,
        ".clamp(-MAX_POINT, MAX_POINT)",
        "",
        (GRID_TEST + "sums_beyond_the_grid_are_held_at_its_edge",),
    ),
    Mutant(
        "a sum is in other units than its noise",
        GRID,
        "2.0**SCALE_BITS / PART / raised",
        "2.0 * 2.0**SCALE_BITS / PART / raised",
        (GRID_TEST + "a_noisy_sum_is_the_sum_and_so_many_steps_of_the_grid",),
    ),
    Mutant(
        "the number of records is not looked at",
        GRID,
        ">= MAX_RECORDS",
        "> 100 * MAX_RECORDS",
        (GRID_TEST + "too_many_records_for_an_exact_sum_are_refused_by_their_public_number",),
    ),
    Mutant(
        "a release takes floats",
        ARITHMETIC,
        "return GRID if seed is None else FLOATS",
        "return FLOATS",
        (BITS_TEST + "a_release_trains_on_the_grid",),
    ),
    Mutant(
        "a node's sums do not follow the seed",
        NODE,
        "            arithmetic=of_seed(training.seed),\n",
        "",
        (BITS_TEST + "a_release_trains_on_the_grid",),
    ),
    Mutant(
        "a test's bound reaches the edge of its point",
        ARITHMETIC,
        "most = (2.0**SCALE_BITS / (2.0 * noise) - 1.0).floor()",
        "most = (2.0**SCALE_BITS / (2.0 * noise) + 1.0).floor()",
        (GRID_TEST + "a_test_s_acceptance_lies_within_what_is_charged",),
    ),
    Mutant(
        "a test on the grid accepts one point more",
        ARITHMETIC,
        "noisy <= (threshold * units).floor()",
        "noisy <= 1 + (threshold * units).ceil()",
        (GRID_TEST + "a_test_s_acceptance_lies_within_what_is_charged",),
    ),
    Mutant(
        "losses of a test depend on the order of records",
        ARITHMETIC,
        "math.fsum(row) if",
        "float(np.float32(sum(row))) if",
        (GRID_TEST + "a_mean_loss_does_not_depend_on_the_order_of_records",),
    ),
    Mutant(
        "exact sums of held gradients are not rounded record by record",
        FORMS,
        "(rows[:, at] * scales[:, at, None]).round_().sum(1)",
        "(rows[:, at] * scales[:, at, None]).sum(1).round_()",
        (GRID_TEST + "an_exact_sum_is_the_sum_of_each_record_s_own_part",),
    ),
    Mutant(
        "exact outer products are longer than their norm",
        FORMS,
        "** 0.5 / 2.0 / DIRECTION",
        "* 0.0",
        (GRID_TEST + "the_norm_of_an_outer_product_covers_its_rounding",),
    ),
    Mutant(
        "an exact part may exceed the bound",
        RECORD,
        "torch.minimum(scale, most)",
        "scale",
        (GRID_TEST + "a_factor_too_large_is_cut",),
    ),
    Mutant(
        "passes of a release follow the number drawn",
        PASSES,
        "            step = _even(width, fitting)",
        "            step = _even(records, fitting)",
        (GRID_TEST + "passes_have_one_shape_whoever_was_drawn",),
    ),
    Mutant(
        "places of a pass are not tried",
        PASSES,
        "self._alike[key] = length == 1 or _alike(x, y, length, shown)",
        "self._alike[key] = True",
        (GRID_TEST + "where_a_kernel_sees_a_record_s_place_records_go_one_by_one",),
    ),
    Mutant(
        "passes stand where they lie in memory",
        PASSES,
        "    return filled\n",
        "    return part if length == part.shape[1] else filled\n",
        (GRID_TEST + "a_pass_is_a_copy",),
    ),
    Mutant(
        "models of the user's own are computed together in a release",
        RECORD,
        "width if tapped else 1",
        "width",
        (GRID_TEST + "records_of_a_model_that_is_not_traced_go_one_by_one",),
    ),
    Mutant(
        "proposals are gathered by their estimates in a release",
        IMPORTANCE,
        "limits if cohort.width(levels) is None else levels",
        "limits",
        (BITS_TEST + "who_is_gathered_in_a_release_depends_on_coins_alone",),
    ),
    Mutant(
        "who is gathered is proposed",
        IMPORTANCE,
        "    mask = batch.mask & (_padded(proposed, batch) > 0)\n",
        "    mask = batch.mask\n",
        (BITS_TEST + "proposals_have_the_same_law_in_both_arithmetics",),
    ),
    Mutant(
        "coins are compared with more than the charged rate",
        SAMPLING,
        "np.floor(rate / COIN) * COIN",
        "np.ceil(rate / COIN + 1) * COIN",
        (GRID_TEST + "a_coin_is_below_its_threshold_with_the_charged_probability_at_most",),
    ),
    Mutant(
        "a label is told more often than is charged",
        RELEASES,
        "(math.floor(lie * (1.0 + 2.0**-40) / COIN) + 1) * COIN",
        "math.floor(lie / COIN) * COIN",
        ("tests/test_sharing.py::test_a_label_is_never_told_more_often_than_is_charged",),
    ),
    Mutant(
        "a release without exact sums is begun",
        "sim/checks.py",
        "    _check_release(config)\n",
        "",
        ("tests/test_limits.py::test_a_release_without_exact_sums_is_refused_before_it_is_made",),
    ),
    Mutant(
        "records are not clipped",
        CLIP,
        "torch.where(norms <= bound, torch.ones_like(norms), bound / norms)",
        "torch.ones_like(norms)",
        ("tests/test_clipping.py",),
    ),
    Mutant(
        "clip bounds lie along the records",
        CLIP,
        "bound = clip_norm[:, None]",
        "bound = clip_norm[None, :]",
        ("tests/test_clipping.py",),
    ),
    Mutant(
        "clip bounds are those of the first client",
        DPSGD,
        'bound, clip = state.memory["clip_norm"], CLIPPING',
        'bound, clip = state.memory["clip_norm"][:1], CLIPPING',
        (BOOK,),
    ),
    Mutant(
        "a record that is not finite counts whole",
        CLIP,
        "usable = torch.isfinite(norms) & (",
        "usable = ~torch.isfinite(norms) | (",
        ("tests/test_clipping.py",),
    ),
    Mutant(
        "factors that have lost their digits",
        CLIP,
        " & (factors >= torch.finfo(factors.dtype).tiny)",
        "",
        ("tests/test_clipping.py",),
    ),
    Mutant(
        "padding counts as records",
        DPSGD,
        "clip(norms, bound) * batch.mask",
        "clip(norms, bound)",
        (BOOK,),
    ),
    Mutant(
        "noise without the clip norm",
        DPSGD,
        "torch.where(scale > 0, scale * bound, 0.0)",
        "torch.where(scale > 0, scale, 0.0)",
        (NOISE,),
    ),
    Mutant(
        "noise below what is charged",
        DPSGD,
        'return cohort.noised(total, bound, std, "noise")',
        'return cohort.noised(total, bound, 0.9 * std, "noise")',
        (NOISE,),
    ),
    Mutant(
        "no noise is added",
        DPSGD,
        "descend(cohort, state, noised(cohort, state, total), norms, batch)",
        "descend(cohort, state, total, norms, batch)",
        (BOOK, NOISE),
    ),
    Mutant(
        "noise that falls is charged as if it did not",
        DPSGD,
        "{SampledGaussian(self.sample_rate, self.multiplier(nth)): self.steps}",
        "{SampledGaussian(self.sample_rate, self.noise_multiplier): self.steps}",
        (NOISE, "tests/test_node.py"),
    ),
    Mutant(
        "a round is charged as one step",
        DPSGD,
        "{SampledGaussian(self.sample_rate, self.multiplier(nth)): self.steps}",
        "{SampledGaussian(self.sample_rate, self.multiplier(nth)): 1}",
        ("tests/test_dpsgd.py", "tests/test_node.py"),
    ),
    Mutant(
        "the divisor is the drawn batch size",
        DPSGD,
        "    size = expected_size(cohort)\n    after",
        "    size = batch.mask.sum(dim=1).clamp(min=1)\n    after",
        (BOOK,),
    ),
    Mutant(
        "every step has the same noise",
        STREAMS,
        "for stream, row in zip(self.of(purpose), rows, strict=True):",
        "for stream, row in zip([generator(self._key, purpose, self._round, c) for c in self._clients], rows):",
        ("tests/test_randomness.py", NOISE),
    ),
    Mutant(
        "every client has the same noise",
        STREAMS,
        '{purpose}|{round_}|{client}".encode()',
        '{purpose}|{round_}".encode()',
        ("tests/test_randomness.py",),
    ),
    Mutant(
        "every round has the same noise",
        STREAMS,
        '{purpose}|{round_}|{client}".encode()',
        '{purpose}|{client}".encode()',
        ("tests/test_randomness.py",),
    ),
    Mutant(
        "gradients are not clipped",
        DPSGD,
        'lambda norms: clip(norms, bound) * batch.mask, bound, cohort.exact("sample_rate"), metric',
        'lambda norms: torch.ones_like(norms) * batch.mask, bound, cohort.exact("sample_rate"), metric',
        (BOOK,),
    ),
    Mutant(
        "batches of a fixed size",
        "mechanisms/sampling.py",
        "records[streams[k].random(len(records)) < threshold(rate)]",
        "records[streams[k].random(len(records)).argsort() < rate * len(records)]",
        ("tests/test_sampling.py",),
    ),
    Mutant(
        "batches larger than is charged",
        "mechanisms/sampling.py",
        "streams[k].random(len(records)) < threshold(rate)]",
        "streams[k].random(len(records)) < 1.1 * rate]",
        ("tests/test_sampling.py",),
    ),
    Mutant(
        "a rejected step leaves its momentum",
        "mechanisms/cohort.py",
        "tuple(choose(a, b) for a, b in zip(self.optimizer, other.optimizer, strict=True))",
        "self.optimizer",
        ("tests/test_dpsgd.py::test_a_rejected_step_leaves_no_trace",),
    ),
    Mutant(
        "the conversion forgets delta's share",
        "mechanisms/accounting/accountant.py",
        "(math.log(delta) + np.log(grid)) / (grid - 1.0)",
        "math.log(delta) / grid",
        ("tests/test_accountant.py",),
    ),
    Mutant(
        "counts are not multiplied",
        "mechanisms/accounting/accountant.py",
        "total + count * curves.rdp",
        "total + curves.rdp",
        ("tests/test_accountant.py",),
    ),
    Mutant(
        "counts of slow curves are not multiplied",
        "mechanisms/accounting/accountant.py",
        "count * curves.at(event, orders[place], column)",
        "curves.at(event, orders[place], column)",
        ("tests/test_order_search.py",),
    ),
    Mutant(
        "of a slow curve the cheapest order is taken for every other",
        CURVES,
        "float(_checked(event, (order,), column)[0])",
        "float(_checked(event, (1.25,), column)[0])",
        ("tests/test_order_search.py",),
    ),
    Mutant(
        "of two kinds of slow releases the first one is charged",
        "mechanisms/accounting/accountant.py",
        "for event, count in slow.items() if count)",
        "for event, count in list(slow.items())[:1] if count)",
        ("tests/test_order_search.py",),
    ),
    Mutant(
        "an epsilon below that of any order is taken for found",
        "mechanisms/accounting/accountant.py",
        "others[places] + np.array([found[k] for k in places])",
        "np.array([found[k] for k in places])",
        ("tests/test_order_search.py",),
    ),
    Mutant(
        "acceptance at the third and fourth corner is left out",
        "mechanisms/accounting/visible.py",
        "np.maximum(corners[:2], corners[2:])",
        "np.maximum(corners[:2], corners[:2])",
        ("tests/test_selective.py",),
    ),
    Mutant(
        "the worst corner of a hidden rejection is another one",
        "mechanisms/accounting/selective.py",
        "np.where(upper, right + np.int8(2), left)",
        "np.where(upper, left + np.int8(2), left)",
        ("tests/test_selective.py",),
    ),
    Mutant(
        "calibration returns the side that overspends",
        "mechanisms/accounting/calibration.py",
        "            low = middle\n    return high",
        "            low = middle\n    return low",
        ("tests/test_calibration.py", "tests/test_dpsgd.py"),
    ),
    Mutant(
        "noise between searched rates is not checked",
        "mechanisms/accounting/calibration_many.py",
        "if meets(rows[k], one, (low, high)))",
        "if one)",
        ("tests/test_calibration_many.py::test_what_lies_between_searches_is_never_taken_unchecked",),
    ),
    Mutant(
        "calibration plans for a single round",
        "mechanisms/plan.py",
        "return merge(planned(plan, self.rounds), dict(self.prior))",
        "return merge(planned(plan, 1), dict(self.prior))",
        ("tests/test_dpsgd.py::test_a_calibrated_plan_meets_its_target_and_one_more_round_would_overspend",),
    ),
    Mutant(
        "clients train before they are charged",
        NODE,
        "        charge_round(self._ledger, self._plans, request, release)\n        if self._carry:\n",
        "        if self._carry:\n",
        ("tests/test_node.py::test_the_charge_is_on_disk_before_a_record_is_looked_at",),
    ),
    Mutant(
        "a release draws from the seed",
        CHARGING,
        "        return SystemStreams(len(clients), device)",
        "        return Streams(seed_key(0), round_, clients.tolist(), device)",
        ("tests/test_node.py",),
    ),
    Mutant(
        "a release asked again goes by its first name",
        CHARGING,
        'request.release if seed is not None else f"{request.release}-{secrets.token_hex(8)}"',
        "request.release",
        ("tests/test_node.py",),
    ),
    Mutant(
        "an upload of another model is taken",
        "client/uploads.py",
        'if labels["model"] == _digest(params):',
        "if True:",
        ("tests/test_node.py",),
    ),
    Mutant(
        "a replayed release is charged again",
        LEDGER,
        "            ids = ids[~known]\n",
        "",
        ("tests/test_ledger.py", "tests/test_node.py"),
    ),
    Mutant(
        "a charge is not flushed to the disk",
        LEDGER,
        "written += os.write(self._file, data[written:])\n            os.fsync(self._file)",
        "written += os.write(self._file, data[written:])",
        ("tests/test_ledger.py",),
    ),
    Mutant(
        "a new release under a new name costs nothing",
        LEDGER,
        "np.add.at(sums, where, np.concatenate([counts for _, counts in parts]))",
        "np.maximum.at(sums, where, np.concatenate([counts for _, counts in parts]))",
        ("tests/test_ledger.py",),
    ),
    Mutant(
        "many clients are calibrated for a single round",
        "mechanisms/plan.py",
        "[t.steps * t.rounds for t in terms]",
        "[t.steps for t in terms]",
        (f"{CENTRAL_TEST}thousands_of_sizes_are_calibrated_together",),
    ),
    Mutant(
        "clients of all sizes get the rate of the first",
        "mechanisms/registry.py",
        "Terms(privacy.of_size(size), own",
        "Terms(privacy.of_size(int(sizes[0])), own",
        (f"{CENTRAL_TEST}a_batch_size_is_a_rate_and_an_amount_of_work_by_client",),
    ),
    Mutant(
        "the length of a run may follow from public outputs",
        "mechanisms/registry.py",
        'if terms.privacy.budget == "published" and charges and',
        'if terms.privacy.budget == "published" and not charges and',
        (f"{CENTRAL_TEST}a_length_that_would_follow_from_public_outputs_is_refused",),
    ),
    Mutant(
        "claims that are settled after a round are not expected",
        "mechanisms/plan.py",
        "return merge(charges, plan.most_claims(nth)) if isinstance(plan, Claimant) else charges",
        "return charges",
        (f"{CENTRAL_TEST}claims_settled_after_a_round_are_expected_before_it",),
    ),
    Mutant(
        "validation records are trained on",
        "sim/public.py",
        "return rest if held is None or not evaluate else replace(rest,",
        "return dataset if held is None or not evaluate else replace(dataset,",
        (f"{CENTRAL_TEST}validation_records_are_held_by_nobody_and_stand_in_for_the_test",),
    ),
    Mutant(
        "a checkpoint is not flushed to the disk",
        "mechanisms/durable.py",
        "            os.fsync(file.fileno())\n        part",
        "        part",
        ("tests/test_checkpoints.py",),
    ),
    Mutant(
        "what is shown during a run is at the best order of the moment",
        "server/budgets.py",
        "self._delta, orders=(self._order(int(p)),))",
        "self._delta)",
        ("tests/test_budgets.py",),
    ),
    Mutant(
        "a client may overspend by its last round",
        "server/budgets.py",
        "epsilon(c, self._delta, self._column).epsilon <= self._target for c in after",
        "epsilon(c, self._delta, self._column).epsilon <= 1.01 * self._target for c in after",
        ("tests/test_budgets.py",),
    ),
    Mutant(
        "a client is judged by what it has spent before",
        "server/budgets.py",
        "merge(self._histories[h], cost(self._plans.plans[p], int(n))) for h, p, n in distinct]",
        "merge(self._histories[h]) for h, p, n in distinct]",
        ("tests/test_budgets.py",),
    ),
    Mutant(
        "a resumed release forgets what its last round cost",
        LOOP,
        "up_to_round=None if federation.seed is None else now.round",
        "up_to_round=now.round",
        ("tests/test_loop.py::test_a_release_never_passes_its_target_however_often_it_dies",),
    ),
    Mutant(
        "a resumed release asks finished groups again",
        LOOP,
        "        eligible[federation.group_of == upload.group] = False\n",
        "",
        ("tests/test_loop.py::test_a_resumed_release_uses_finished_uploads_and_asks_the_others_again",),
    ),
    Mutant(
        "retired clients are asked",
        LOOP,
        "able = np.flatnonzero(eligible)",
        "able = np.arange(len(eligible))",
        ("tests/test_loop.py::test_the_run_ends_when_every_client_has_retired",),
    ),
    Mutant(
        "a group's sum wraps around",
        "client/sums.py",
        "self._largest += float(largest @ weights)",
        "self._largest = float(largest.max(initial=0.0))",
        ("tests/test_sums.py",),
    ),
    Mutant(
        "a rejected trial leaves its momentum",
        TRIALS,
        "candidate.where(accept, before).remember",
        "candidate.where(accept, LocalState(before.params, candidate.optimizer, before.taken, before.memory)).remember",
        (f"{DPSUR_TEST}a_rejected_trial_leaves_no_trace",),
    ),
    Mutant(
        "the two models are tested on different records",
        TRIALS,
        "cohort.losses(state.params, batch, rates) for state in (candidate, before))",
        "cohort.losses(state.params, batch, rates).roll(n, 1) for n, state in enumerate((candidate, before)))",
        (f"{DPSUR_TEST}a_trial_is_that_of_the_book",),
    ),
    Mutant(
        "a loss that is not finite is refused for certain",
        TRIALS,
        "torch.where(change.isfinite(), change.clamp(-bound, bound), bound)",
        "change.clamp(-bound, bound)",
        (f"{DPSUR_TEST}a_loss_that_is_not_finite_counts_as_the_largest_change",),
    ),
    Mutant(
        "the cap on rejections is ignored",
        TRIALS,
        '(state.memory["refused"] < most)',
        "(most > 0)",
        (f"{DPSUR_TEST}a_client_gives_up_after_the_cap_and_begins_to_count_again_when_it_accepts",),
    ),
    Mutant(
        "public trials go on until enough are accepted",
        TRIALS,
        'state.memory["tried"] < steps',
        "state.taken < steps",
        (f"{CHARGES_TEST}where_bits_are_public_trials_are_paid_in_advance_and_claims_recorded_afterwards",),
    ),
    Mutant(
        "hidden rejections are reported",
        TRIALS,
        'if cohort.plan("most_rejections").any():',
        "if False:",
        (f"{CHARGES_TEST}where_rejections_are_hidden_nothing_tells_them",),
    ),
    Mutant(
        "the test batch is drawn with the training batch",
        DPSUR,
        'cohort.streams.of("validation")',
        'cohort.streams.of("batch")',
        (f"{DPSUR_TEST}a_trial_is_that_of_the_book",),
    ),
    Mutant(
        "the tested change is not clipped",
        DPSUR,
        'trials.clipped(trials.loss_change(cohort, state, candidate, batch, rates), cohort.plan("loss_clip"))',
        "trials.loss_change(cohort, state, candidate, batch, rates)",
        (f"{DPSUR_TEST}a_trial_is_that_of_the_book",),
    ),
    Mutant(
        "the test's noise lacks its factor 2",
        ARITHMETIC,
        "change + 2 * bound * noise",
        "change + bound * noise",
        (f"{DPSUR_TEST}acceptance_has_its_probability_at_both_ends",),
    ),
    Mutant(
        "the test's threshold has the other sign",
        ARITHMETIC,
        "< threshold * bound",
        "< -threshold * bound",
        (f"{DPSUR_TEST}acceptance_has_its_probability_at_both_ends",),
    ),
    Mutant(
        "the cap on rejections costs nothing",
        "mechanisms/accounting/accountant.py",
        'lost = cap_delta(charges) if column == "certified" else 0.0',
        "lost = 0.0",
        (f"{CHARGES_TEST}the_cap_is_paid_out_of_delta",),
    ),
    Mutant(
        "screening is charged at its first temperature",
        SCREENING,
        "self.inverse_temperature(nth, taken)) for taken",
        "self.inverse_temperature(1, 0)) for taken",
        (f"{SCREENING_TEST}the_temperature_falls_in_stages_and_is_the_one_that_is_charged",),
    ),
    Mutant(
        "screening clips nothing",
        SCREENING,
        "max(math.exp(-max(dE, 0.0) * slope), lowest(plan, slope))",
        "math.exp(-max(dE, 0.0) * slope)",
        (f"{SCREENING_TEST}worse_proposals_are_accepted_with_the_probability_that_is_charged",),
    ),
    Mutant(
        "screening forces steps on own records",
        SCREENING,
        "math.inf if p.most_rejections else p.forced_after",
        "p.forced_after",
        (f"{SCREENING_TEST}on_own_records_nothing_is_forced_and_the_cap_ends_the_round",),
    ),
    Mutant(
        "screening on public records pays for one trial",
        SCREENING,
        "{self._event(nth, 0.0): self.steps}",
        "{self._event(nth, 0.0): 1}",
        (f"{SCREENING_TEST}on_public_records_every_trial_is_paid_like_dpsgd",),
    ),
    Mutant(
        "an allotment holds at every order",
        CURVES,
        "np.where(orders == event.order, event.rdp, np.inf)",
        "np.where(orders > 1.0, event.rdp, np.inf)",
        (f"{ALLOTMENT_TEST}an_allotment_is_a_guarantee_at_its_own_order_alone",),
    ),
    Mutant(
        "covered releases are free without an allotment",
        "mechanisms/accounting/accountant.py",
        'if column == "certified" and allotment.overdrawn(charges):',
        "if False:",
        (f"{ALLOTMENT_TEST}covered_releases_are_free_as_far_as_their_allotments_go",),
    ),
    Mutant(
        "the filter lets everything pass",
        ALLOTMENT,
        "if not spent <= self.allotted:",
        "if spent != spent:",
        (f"{ALLOTMENT_TEST}an_account_refuses_what_it_does_not_cover",),
    ),
    Mutant(
        "a round may settle what nobody has paid for",
        ALLOTMENT,
        "if not isinstance(event, Covered | PaperClaim):",
        "if event is None:",
        (f"{ALLOTMENT_TEST}after_a_round_only_covered_releases_and_claims_are_written_down",),
    ),
    Mutant(
        "a replayed round sees its own releases",
        LEDGER,
        "(m.round == at_round and not m.spent)",
        "m.round == at_round",
        (f"{ALLOTMENT_TEST}a_replayed_round_sees_the_account_as_it_was",),
    ),
    Mutant(
        "a release forgets its attempts",
        NODE,
        "at_round = None if self._training.seed is None else request.round",
        "at_round = request.round",
        (f"{DPIS_TEST}a_release_counts_every_attempt",),
    ),
    Mutant(
        "the realized sum is printed as the guarantee",
        DPIS_PLAN,
        "return {self.allotment: 1, **claims}",
        "return claims",
        (f"{DPIS_TEST}the_printed_epsilon_is_the_target_and_the_ledger_confirms_it",),
    ),
    Mutant(
        "norm sums are charged as if their noise were within 1/p",
        CURVES,
        'factor = event.sample_rate if column == "certified" else 1.0',
        "factor = 1.0",
        (f"{DPIS_TEST}a_norm_sum_has_noise_outside_the_factor_one_over_p",),
    ),
    Mutant(
        "norm sums have less noise than is charged",
        DPIS,
        "rate * plan.norm_noise * clip_norm)",
        "rate * rate * plan.norm_noise * clip_norm)",
        (f"{DPIS_TEST}a_norm_sum_has_noise_outside_the_factor_one_over_p",),
    ),
    Mutant(
        "an accepted record is divided by its probability",
        DPIS,
        "(k * c)[:, None] / norms",
        "1.0 / proposals.estimates.clamp(min=1e-6).to(norms)",
        (f"{DPIS_TEST}whoever_enters_adds_a_vector_of_norm_k_over_n",),
    ),
    Mutant(
        "all proposals are accepted",
        "mechanisms/importance.py",
        "(below < torch.minimum(norms, bound))",
        "(norms > 0)",
        (f"{DPIS_TEST}records_enter_with_probability_b_norm_over_k",),
    ),
    Mutant(
        "K may fall below b C",
        DPIS,
        "return max(plan.sample_rate, min(share, 1.0))",
        "return min(max(plan.sample_rate / 2, share), 1.0)",
        (f"{DPIS_TEST}k_is_above_b_c_and_the_clip_bound_above_its_floor",),
    ),
    Mutant(
        "estimates may pass the clip bound",
        DPIS,
        "floor[:, None]).clamp(max=1.0)",
        "floor[:, None]).clamp(max=2.0)",
        (f"{DPIS_TEST}estimates_stay_within_the_clip_bound_when_it_moves",),
    ),
    Mutant(
        "the steps have the planned noise where less was charged",
        DPIS,
        "multiplier.to(state.params) * clip.to(state.params)",
        'cohort.plan("noise_multiplier") * clip.to(state.params)',
        (f"{DPIS_TEST}the_noise_is_gaussian_with_the_charged_scale",),
    ),
    Mutant(
        "noise without the adaptive clip bound",
        DPIS,
        "multiplier.to(state.params) * clip.to(state.params)",
        "multiplier.to(state.params)",
        (f"{DPIS_TEST}the_noise_is_gaussian_with_the_charged_scale",),
    ),
    Mutant(
        "norm sums of DPIS are not paid for",
        DPIS_PLAN,
        "accounts = [e.account.pay(e.plan.norm_sum_charges) for e in epochs]",
        "accounts = [e.account for e in epochs]",
        (f"{DPIS_TEST}what_is_released_is_what_was_paid_for",),
    ),
    Mutant(
        "measurements of DPAGD have half the charged noise",
        DPAGD,
        'std = table[rows, kind, memory["level"]] * bound',
        'std = 0.5 * table[rows, kind, memory["level"]] * bound',
        (f"{DPAGD_TEST}the_averaged_gradient_is_unbiased_and_has_the_variance_of_its_budget",),
    ),
    Mutant(
        "a further measurement has the noise of a fresh one",
        DPAGD,
        'std = table[rows, kind, memory["level"]]',
        'std = table[rows, 0, memory["level"]]',
        (f"{DPAGD_TEST}the_averaged_gradient_is_unbiased_and_has_the_variance_of_its_budget",),
    ),
    Mutant(
        "measurements are averaged with equal weights",
        DPAGD,
        '(memory["gradient"] + gamma * noisy) / (1.0 + gamma)',
        '(memory["gradient"] + noisy) / 2.0',
        (f"{DPAGD_TEST}the_averaged_gradient_is_unbiased_and_has_the_variance_of_its_budget",),
    ),
    Mutant(
        "further measurements are charged as fresh ones",
        DPAGD,
        'counts[rows, kind, memory["level"]] += 1',
        "counts[rows, 0, 0] += 1",
        (f"{DPAGD_TEST}zero_raises_the_budget_and_another_choice_moves",),
    ),
    Mutant(
        "the noise of a search is that of one candidate",
        DPAGD,
        'multiplier * count**0.5 * bound, "search"',
        'multiplier * bound, "search"',
        (f"{DPAGD_TEST}a_search_has_the_noise_of_its_whole_vector",),
    ),
    Mutant(
        "changes of loss are not clipped",
        DPAGD,
        "change.clamp(-bound, bound)",
        "change",
        (f"{DPAGD_TEST}a_record_moves_a_search_by_at_most_its_sensitivity",),
    ),
    Mutant(
        "a zero keeps the momentum",
        DPAGD,
        ".where(chosen > 0, _raise(cohort, state))",
        ".where(chosen > 0, _raise(cohort, LocalState(state.params, full.optimizer, state.taken, state.memory)))",
        (f"{DPAGD_TEST}zero_raises_the_budget_and_another_choice_moves",),
    ),
    Mutant(
        "a client of DPAGD goes on when nothing is left",
        DPAGD,
        "spent + plan.costs[place] <= account.allotted",
        "spent <= account.allotted",
        (f"{DPAGD_BUDGET_TEST}without_the_filter_it_would_overspend",),
    ),
    Mutant(
        "searches are free",
        DPAGD_PLAN,
        "{SampledGaussian(self.sample_rate, multiplier): count}, self._searches(count))",
        "{SampledGaussian(self.sample_rate, multiplier): count})",
        (f"{DPAGD_BUDGET_TEST}charged_measurements_have_together_the_precision_that_is_reached",),
    ),
    Mutant(
        "further measurements are too cheap",
        DPAGD_PLAN,
        "self.gradient_multiplier(level - 1) / math.sqrt(self.own.agd_growth)",
        "self.gradient_multiplier(level - 1) / self.own.agd_growth",
        (f"{DPAGD_BUDGET_TEST}charged_measurements_have_together_the_precision_that_is_reached",),
    ),
    Mutant(
        "views of a shared record are priced as one",
        SHARING,
        'events.VisibleChoice(flags["share_rate"], noise_multiplier / math.sqrt(views))',
        'events.VisibleChoice(flags["share_rate"], noise_multiplier)',
        (SHARING_TEST,),
    ),
    Mutant(
        "views of a shared record are priced as if each had a coin",
        SHARING,
        "noise_multiplier / math.sqrt(views))\n    released: dict[events.Event, int] = {features: 1}",
        "noise_multiplier)\n    released: dict[events.Event, int] = {features: views}",
        (SHARING_TEST,),
    ),
    Mutant(
        "shared labels are free",
        SHARING,
        "else events.RandomizedResponse(epsilon)] = 1",
        "else events.RandomizedResponse(epsilon)] = 0",
        (SHARING_TEST,),
    ),
    Mutant(
        "one noise image for a batch is priced as one for each record",
        SHARING,
        'if flags["noise_draws"] == DRAWS[1]:',
        "if False:",
        (SHARING_TEST,),
    ),
    Mutant(
        "the largest norm is taken for one number",
        SHARING,
        "return span * math.sqrt(pixels)",
        "return span",
        (SHARING_TEST,),
    ),
    Mutant(
        "one noise image serves all records of a client",
        RELEASES,
        "arithmetic.noised_from(draws, sent, self.plan.clip_norm, self.plan.noise_std)",
        "sent + (arithmetic.noised_from(draws, sent[:1], self.plan.clip_norm, self.plan.noise_std) - sent[:1])",
        (RELEASES_TEST + "the_noise_is_gaussian_with_the_charged_scale_and_each_record_has_its_own",),
    ),
    Mutant(
        "shared features are not clipped",
        RELEASES,
        "factors = clip_factors(norms[None], norms.new_tensor([plan.clip_norm]))[0]",
        "factors = clip_factors(norms[None], norms.new_tensor([float('inf')]))[0]",
        (RELEASES_TEST + "no_feature_leaves_longer_than_the_bound",),
    ),
    Mutant(
        "the noise on shared features forgets the bound",
        RELEASES,
        "return self.noise_multiplier * self.clip_norm if self.noise_multiplier else 0.0",
        "return self.noise_multiplier",
        (RELEASES_TEST + "the_noise_is_gaussian_with_the_charged_scale_and_each_record_has_its_own",),
    ),
    Mutant(
        "a second view is free",
        RELEASES,
        "VisibleChoice(self.share_rate, self.noise_multiplier / math.sqrt(self.views)): 1,",
        "VisibleChoice(self.share_rate, self.noise_multiplier): 1,",
        (RELEASES_TEST + "every_view_and_every_label_is_charged",),
    ),
    Mutant(
        "each view of a record is charged as if it had a coin of its own",
        RELEASES,
        "VisibleChoice(self.share_rate, self.noise_multiplier / math.sqrt(self.views)): 1,",
        "VisibleChoice(self.share_rate, self.noise_multiplier): self.views,",
        (RELEASES_TEST + "views_that_share_a_coin_cost_what_the_pair_of_releases_diverges_by",),
    ),
    Mutant(
        "labels that are shared as they are leave no trace in the ledger",
        RELEASES,
        "PublicLabels() if self.label_epsilon is None else RandomizedResponse(self.label_epsilon)",
        "RandomizedResponse(self.label_epsilon or 1e-9)",
        (RELEASES_TEST + "every_view_and_every_label_is_charged",),
    ),
    Mutant(
        "the account takes accepted steps for trials",
        "sim/pricing/mechanisms.py",
        'if flags["trials"] is None:',
        "if False:",
        (ACCOUNT_TEST + "where_every_trial_is_charged_accepted_steps_do_not_say_how_many",),
    ),
    Mutant(
        "the account's hidden rejections have no cap to pay for",
        "sim/pricing/mechanisms.py",
        "return Counter({events.TrialCap(lowest_acceptance, most): steps})",
        "return Counter({events.TrialCap(1.0, most): steps})",
        (ACCOUNT_TEST + "hidden_rejections_cost_what_the_plan_of_a_run_costs",),
    ),
    Mutant(
        "a release whose rejections are hidden tells its times",
        "sim/job.py",
        "timed=tells_times(config)",
        "timed=True",
        ("tests/test_limits.py::test_hidden_rejections_are_said_and_a_release_tells_no_times",),
    ),
    Mutant(
        "a release writes how many records of each class a client holds",
        "sim/rundir.py",
        "if not job.config.run.release:",
        "if True:",
        (RELEASE_TEST,),
    ),
    Mutant(
        "the report of a release draws the labels that an earlier version wrote",
        "sim/report.py",
        'None if config.run.release else arrays["counts"]',
        'arrays["counts"]',
        ("tests/test_report.py::test_a_release_shows_no_labels",),
    ),
    Mutant(
        "the digest of the records has no key",
        "sim/inputs.py",
        "hashlib.blake2b(key=key, digest_size=16)",
        "hashlib.blake2b(digest_size=16)",
        (INPUTS_TEST + "the_digest_of_the_records_tells_nothing_without_its_key",),
    ),
    Mutant(
        "everybody may read the key of the digest",
        "sim/inputs.py",
        "os.open(path, flags, 0o600)",
        "os.open(path, flags, 0o644)",
        (INPUTS_TEST + "the_digest_of_the_records_tells_nothing_without_its_key",),
    ),
    Mutant(
        "a run goes on with other records",
        "sim/inputs.py",
        "if began[name] != now:",
        "if False:",
        (INPUTS_TEST + "a_resumed_run_keeps_its_records",),
    ),
    Mutant(
        "a run that was broken off is priced at the order that is best by then",
        "sim/pricing/report.py",
        "return accountant.epsilon(charges, delta, orders=(order_of[client],))",
        "return accountant.epsilon(charges, delta)",
        (ACCOUNT_TEST + "a_run_that_was_broken_off_has_the_figure_that_its_last_round_showed",),
    ),
    Mutant(
        "the figure of a run that is not finished is taken for that of a finished one",
        "sim/pricing/report.py",
        "if private and not finished:",
        "if False:",
        (ACCOUNT_TEST + "of_an_unfinished_run_the_figure_is_at_the_order_that_was_fixed_before_it_began",),
    ),
    Mutant(
        "the budget is shown at another delta than its own",
        "sim/pricing/report.py",
        'own == (delta, "certified")',
        'own[1] == "certified"',
        (ACCOUNT_TEST + "of_an_unfinished_run_without_an_order_the_budget_is_what_is_proved",),
    ),
    Mutant(
        "the order of a running run is named while it runs",
        "server/orders.py",
        "    if (folder / FILE).exists():\n        return\n",
        "",
        (INPUTS_TEST + "the_orders_that_were_written_down_stay",),
    ),
    Mutant(
        "the terminal leaves a limit out",
        "sim/showing/progress.py",
        "for limit in summary.limits:",
        "for limit in summary.limits[1:]:",
        (LIMITS_TEST + "every_limit_is_one_line_in_the_terminal_the_summary_and_the_report",),
    ),
    Mutant(
        "the report leaves a limit out",
        "sim/report.py",
        "page.listing(limits(run.config))",
        "page.listing(limits(run.config)[1:])",
        (LIMITS_TEST + "every_limit_is_one_line_in_the_terminal_the_summary_and_the_report",),
    ),
    Mutant(
        "records held out for validation are passed over in silence",
        "sim/limits.py",
        "wording.VALIDATION: lambda c: c.data.validation_records > 0",
        "wording.VALIDATION: lambda c: False",
        (LIMITS_TEST + "a_limit_is_named_where_it_holds_and_not_elsewhere",),
    ),
    Mutant(
        "a release says nothing of what its clients' sizes tell",
        "sim/limits.py",
        'return config.data.partition == "dirichlet"',
        "return False",
        (LIMITS_TEST + "a_limit_is_named_where_it_holds_and_not_elsewhere",),
    ),
    Mutant(
        "the PLD epsilon is that of one client",
        "sim/rundir.py",
        "_largest_pld(budgets.histories(), delta)",
        "_largest_pld([worst], delta)",
        ("tests/test_rundir.py::test_the_pld_epsilon_is_the_largest_of_all_clients",),
    ),
    Mutant(
        "labels are shared as they are",
        RELEASES,
        "return np.where(source.random(len(labels)) < lie, others, labels)",
        "return labels",
        (RELEASES_TEST + "labels_go_through_randomized_response",),
    ),
    Mutant(
        "what clients share is not charged",
        "client/sharing.py",
        "charge_round(self._ledger, self._plans, request, name)",
        "pass",
        (FEDFED_TEST + "every_client_pays_for_sharing_and_training_what_was_planned_and_no_more",),
    ),
    Mutant(
        "training is planned as if nothing had been shared",
        "sim/job.py",
        "sharing.charges if sharing else {})",
        "{})",
        (FEDFED_TEST + "every_client_pays_for_sharing_and_training_what_was_planned_and_no_more",),
    ),
    Mutant(
        "statistics of channels are free",
        "sim/job.py",
        "prior = merge(statistics.round_charges(1) if statistics else {}, ",
        "prior = merge(",
        (
            "tests/test_standardize.py::test_statistics_are_one_charged_release_of_each_client_and_training_gets_the_rest",
        ),
    ),
    Mutant(
        "the shared records' gradient is joined before the private sum is weighted",
        "strategies/fedfed.py",
        "return (1 - own.shared_weight) * gradient + own.shared_weight * total / rows.shape[1]",
        "return gradient + own.shared_weight * total / rows.shape[1]",
        (FEDFED_TEST + "shared_records_join_the_step_after_the_private_sum_and_stay_out_of_it",),
    ),
    Mutant(
        "groups that had released are asked again after a crash",
        "client/sharing.py",
        "self._uploads.keep(upload, request.params)",
        "pass",
        (FEDFED_TEST + "a_release_that_was_finished_is_not_made_again",),
    ),
    Mutant(
        "an LSTM's recurrent weights meet the states after their step",
        "mechanisms/gradients/lstm_tap.py",
        "h[:, :, :-1].detach()",
        "h[:, :, 1:].detach()",
        ("tests/test_lstm.py::test_gradients_are_those_of_autograd",),
    ),
    Mutant(
        "both directions of an LSTM count as the first",
        "mechanisms/gradients/lstm_tap.py",
        'way = int(name.endswith("_reverse"))',
        "way = 0",
        ("tests/test_lstm.py::test_gradients_are_those_of_autograd",),
    ),
    Mutant(
        "an LSTM's memory keeps what its gate forgets, on the way back",
        "mechanisms/gradients/recurrence.py",
        "from_c = from_c * f[:, t]",
        "from_c = from_c * 1",
        ("tests/test_lstm.py::test_the_recurrence_has_the_gradient_of_its_differences",),
    ),
    Mutant(
        "the one-run bound forgets delta",
        AUDIT_BOUNDS,
        "return min(1.0, tail + 2 * coins * delta * steepest)",
        "return min(1.0, tail)",
        ("tests/test_audit_bounds.py::test_the_p_value_is_the_theorem_term_by_term",),
    ),
    Mutant(
        "a threshold is judged by the runs that chose it",
        AUDIT_BOUNDS,
        "first, second = (values[1::2] for values in pairs[number])",
        "first, second = (values[::2] for values in pairs[number])",
        ("tests/test_audit_bounds.py::test_a_threshold_is_judged_by_runs_that_did_not_choose_it",),
    ),
    Mutant(
        "both errors of a ratio are the whole error",
        AUDIT_BOUNDS,
        "error = (1 - confidence) / 2",
        "error = 1 - confidence",
        ("tests/test_audit_bounds.py::test_rates_are_those_of_clopper_and_pearson",),
    ),
    Mutant(
        "sizes tell how many null records there are",
        "sim/auditing/canaries.py",
        "return torch.tensor(self.public_sizes, dtype=torch.float64)",
        "return super().sizes()",
        ("tests/test_audit_one_run.py::test_null_records_count_and_are_never_drawn",),
    ),
    Mutant(
        "every number of guesses has the whole error",
        "sim/auditing/one_run.py",
        "each = 1 - (1 - confidence) / len(SHARES)",
        "each = confidence",
        ("tests/test_audit_one_run.py::test_the_error_is_shared_by_the_choices",),
    ),
    Mutant(
        "trial records are small ones only",
        "mechanisms/gradients/record_trial.py",
        "SCALES = (1.0, 1e2, 1e4)",
        "SCALES = (1.0,)",
        ("tests/test_record_trial.py::test_records_that_mix_are_refused_before_any_loss_or_gradient_is_given",),
    ),
    Mutant(
        "trial records are alike in size",
        "mechanisms/gradients/record_trial.py",
        "        if self.sizes:\n",
        "        if False:\n",
        ("tests/test_record_trial.py::test_records_that_mix_are_refused_before_any_loss_or_gradient_is_given",),
    ),
    Mutant(
        "records that mix are let pass",
        "mechanisms/gradients/record_trial.py",
        "if not same or bool(",
        "if False and bool(",
        ("tests/test_record_trial.py::test_records_that_mix_are_refused_before_any_loss_or_gradient_is_given",),
    ),
    Mutant(
        "losses are taken without a trial",
        "mechanisms/gradients/record_gradients.py",
        "        self._routes.independent(x, y)\n        if width",
        "        if width",
        ("tests/test_record_trial.py",),
    ),
    Mutant(
        "a loss that may mix records is evaluated as one",
        "mechanisms/gradients/record_gradients.py",
        "if together is None:",
        "if False:",
        ("tests/test_independence.py::test_losses_that_mix_where_no_trial_looks_are_those_of_each_record_alone",),
    ),
    Mutant(
        "a model that may mix records is evaluated as one",
        "mechanisms/gradients/record_gradients.py",
        "if program is None and x.shape[:2].numel() > 0:",
        "if False:",
        ("tests/test_independence.py::test_a_record_that_is_replaced_changes_no_other_though_the_trial_sees_nothing",),
    ),
    Mutant(
        "records of different dimensions are broadcast",
        "mechanisms/gradients/placements.py",
        "_allow(all((one.tensor.dim(), one.at) == (dims, at) for one in records))",
        "pass",
        ("tests/test_independence.py::test_what_may_reach_from_record_to_record_is_not_computed_together",),
    ),
    Mutant(
        "a constant may differ from record to record",
        "mechanisms/gradients/placements.py",
        "_allow(value.dim() <= dims and (place < 0 or value.shape[place] == 1))",
        "pass",
        ("tests/test_independence.py::test_what_may_reach_from_record_to_record_is_not_computed_together",),
    ),
    Mutant(
        "operations run along the records",
        "mechanisms/gradients/placements.py",
        "_allow(bool(dims) and at not in dims and not",
        "_allow(bool(dims) and not",
        ("tests/test_independence.py::test_what_may_reach_from_record_to_record_is_not_computed_together",),
    ),
    Mutant(
        "a negative dimension is taken as it is",
        "mechanisms/gradients/placements.py",
        "    return dim % dims\n",
        "    return dim\n",
        ("tests/test_independence.py::test_what_may_reach_from_record_to_record_is_not_computed_together",),
    ),
    Mutant(
        "records are chosen by index",
        "mechanisms/gradients/placements.py",
        "            _allow(one == slice(None))\n",
        "",
        ("tests/test_independence.py::test_what_may_reach_from_record_to_record_is_not_computed_together",),
    ),
    Mutant(
        "records are columns of a matrix",
        "mechanisms/gradients/placements.py",
        "_allow(left.dim() == 2 and right.at < right.tensor.dim() - 2)",
        "pass",
        ("tests/test_independence.py::test_what_may_reach_from_record_to_record_is_not_computed_together",),
    ),
    Mutant(
        "convolutions take records as channels",
        "mechanisms/gradients/placements.py",
        "_allow(at == 0 and least <= x.dim() <= (most or x.dim()))",
        "pass",
        ("tests/test_independence.py::test_what_may_reach_from_record_to_record_is_not_computed_together",),
    ),
    Mutant(
        "hooks are no operations",
        "mechanisms/gradients/program.py",
        "    if any(getattr(layer, hooks) for layer in copied.modules() for hooks in _HOOKS):\n        return None\n",
        "",
        ("tests/test_independence.py::test_a_hook_on_a_layer_is_no_operation_of_the_list",),
    ),
    Mutant(
        "the size of a batch is computed with",
        "mechanisms/gradients/program.py",
        "        if node.target in _ARITHMETIC:",
        "        if False:",
        ("tests/test_independence.py::test_a_layer_that_computes_with_the_size_of_a_batch_is_refused_by_its_path",),
    ),
    Mutant(
        "a model with a state is let pass",
        "mechanisms/gradients/module_state.py",
        "            if place not in before or place not in after or not _same(before[place], after[place]):",
        "            if False:",
        ("tests/test_independence.py",),
    ),
    Mutant(
        "a state that shows on real records is let pass",
        "mechanisms/gradients/module_state.py",
        "            if len(one) != len(other) or not all(map(_identical, one, other)):",
        "            if False:",
        ("tests/test_independence.py",),
    ),
    Mutant(
        "fast gradients run the model and not the program",
        "mechanisms/gradients/routes.py",
        "Route(Tapped(program, loss, self._layout, self.arranged)",
        "Route(Tapped(self._module, loss, self._layout, self.arranged)",
        ("tests/test_independence.py::test_the_program_runs_and_not_the_model",),
    ),
    Mutant(
        "what may mix takes the fast route",
        "mechanisms/gradients/routes.py",
        "        return None if self._outputs[key] is None else program",
        "        return program",
        ("tests/test_independence.py::test_a_record_that_is_replaced_changes_no_other_though_the_trial_sees_nothing",),
    ),
    Mutant(
        "a trial has no larger batches",
        "mechanisms/gradients/record_trial.py",
        "SIZES = (3, 8, 64)",
        "SIZES = (3,)",
        ("tests/test_independence.py::test_mixing_in_larger_batches_only_is_seen",),
    ),
    Mutant(
        "a trial has no entries that are missing",
        "mechanisms/gradients/record_trial.py",
        "gaps = one * (torch.arange(one.numel(), device=one.device) % 2).view(one.shape)",
        "gaps = one",
        ("tests/test_independence.py::test_missing_entries_filled_in_by_the_batch_are_seen",),
    ),
    Mutant(
        "fast gradients of large records are not compared",
        "mechanisms/gradients/routes.py",
        "rounding = (torch.zeros_like(floors[0]), *floors[1:])",
        "rounding = (torch.zeros_like(floors[0]),)",
        ("tests/test_record_trial.py::test_a_difference_of_the_fast_route_at_large_records_costs_that_route",),
    ),
    Mutant(
        "a run does not try its model before it starts",
        "sim/job.py",
        "    job.gradients.refuse_mixing(*_two_records(job))\n",
        "",
        ("tests/test_run.py::test_a_fault_is_one_line_and_leaves_nothing",),
    ),
    Mutant(
        "padding is somebody's record",
        "mechanisms/sampling.py",
        ".index_fill_(0, padding, 0)",
        "",
        ("tests/test_sampling.py::test_padding_is_nobodys_record",),
    ),
    Mutant(
        "a tiny norm counts as none",
        "mechanisms/gradients/record_gradients.py",
        "torch.where(norms == 0, 0.0, norms.clamp(min=_SMALLEST_NORM))",
        "torch.where(norms < _SMALLEST_NORM, 0.0, norms)",
        ("tests/test_gradients.py::test_a_tiny_norm_is_rounded_up_and_a_huge_one_counts_as_non_finite",),
    ),
    Mutant(
        "a long norm is one sum",
        "mechanisms/gradients/forms.py",
        "_STRETCH = 1024",
        "_STRETCH = 2**40",
        ("tests/test_record_trial.py::test_long_norms_are_not_too_small",),
    ),
    Mutant(
        "a moving clip bound may vanish",
        "mechanisms/quantile.py",
        "LEAST = 1e-3",
        "LEAST = 0.0",
        ("tests/test_quantile.py::test_the_bound_does_not_fall_to_where_norms_have_no_digits",),
    ),
    Mutant(
        "the floor of a moving clip bound moves with it",
        DPSGD,
        'quantile.adapt(bound, cohort.plan("clip_norm"), cohort.plan("clip_quantile"), share)',
        'quantile.adapt(bound, bound, cohort.plan("clip_quantile"), share)',
        ("tests/test_quantile.py::test_in_training_the_bound_stays_above_a_share_of_the_configured_one",),
    ),
    Mutant(
        "sums are rounded record by record",
        RELEASES,
        "WIDE = torch.float64",
        "WIDE = torch.float32",
        (RELEASES_TEST + "a_record_among_many_moves_a_sum_by_no_more_than_itself",),
    ),
    Mutant(
        "thresholds of another law",
        GAUSSIAN,
        "context.divide(Decimal(-i * i), Decimal(2))",
        "context.divide(Decimal(-i * i), Decimal('1.999'))",
        (
            GAUSSIAN_TEST + "every_prefix_gives_the_k_of_its_lowest_and_of_its_highest_number",
            GAUSSIAN_TEST + "far_values_of_k_are_reached",
        ),
    ),
    Mutant(
        "a threshold's cell is decided without further digits",
        GAUSSIAN,
        "    table[cells] = UNDECIDED\n",
        "",
        (GAUSSIAN_TEST + "every_prefix_gives_the_k_of_its_lowest_and_of_its_highest_number",),
    ),
    Mutant(
        "the normal tail ends",
        GAUSSIAN,
        "    while v.value in (cells := _threshold_cells(v.bits)):\n        v.extend()\n",
        "    cells = _threshold_cells(v.bits)\n",
        (
            GAUSSIAN_TEST + "far_values_of_k_are_reached",
            GAUSSIAN_TEST + "far_tails_have_the_law",
        ),
    ),
    Mutant(
        "floats accept by another exponent",
        GAUSSIAN,
        "(k + 0.5 * fraction)",
        "(k + 0.499 * fraction)",
        (
            GAUSSIAN_TEST + "coins_are_accepted_below_the_exponential",
            GAUSSIAN_TEST + "floats_and_exact_arithmetic_agree_close_to_the_bound",
        ),
    ),
    Mutant(
        "exact arithmetic accepts by another exponent",
        GAUSSIAN,
        "((k << (x.bits + 1)) + value)",
        "((k << x.bits) + value)",
        (GAUSSIAN_TEST + "coins_are_accepted_below_the_exponential",),
    ),
    Mutant(
        "the exact exponential is rounded inward",
        GAUSSIAN,
        "x.value + 1), denominator",
        "x.value), denominator",
        (GAUSSIAN_TEST + "digits_of_x_that_floats_do_not_see_can_turn_a_decision",),
    ),
    Mutant(
        "the caller's decimal context rounds",
        GAUSSIAN,
        "x.value + 1), denominator).copy_negate()",
        "x.value + 1), denominator).__neg__()",
        (GAUSSIAN_TEST + "the_callers_decimal_context_does_not_matter",),
    ),
    Mutant(
        "floats decide within their error",
        GAUSSIAN,
        "MARGIN = 2.0**-8",
        "MARGIN = 0.0",
        (GAUSSIAN_TEST + "digits_of_x_that_floats_do_not_see_can_turn_a_decision",),
    ),
    Mutant(
        "floats reject within a cell of the coin",
        GAUSSIAN,
        "((above > -margin) & ~accepted)",
        "((above > 1 - margin) & ~accepted)",
        (GAUSSIAN_TEST + "coins_are_accepted_below_the_exponential",),
    ),
    Mutant(
        "release noise has one sign",
        GAUSSIAN,
        "np.where(sign, -magnitudes, magnitudes)",
        "magnitudes",
        (GAUSSIAN_TEST + "draws_are_the_nearest_integers_with_their_sign",),
    ),
    Mutant(
        "exact release noise has one sign",
        GAUSSIAN,
        "return -_rounded(k, x) if sign else _rounded(k, x)",
        "return _rounded(k, x)",
        (GAUSSIAN_TEST + "draws_are_the_nearest_integers_with_their_sign",),
    ),
    Mutant(
        "the sign is a digit of x",
        GAUSSIAN,
        "word & 1\n",
        "(word >> 1) & 1\n",
        (GAUSSIAN_TEST + "draws_are_the_nearest_integers_with_their_sign",),
    ),
    Mutant(
        "release noise is cut instead of rounded",
        GAUSSIAN,
        "((x + 1) >> 1)",
        "(x >> 1)",
        (GAUSSIAN_TEST + "draws_are_the_nearest_integers_with_their_sign",),
    ),
    Mutant(
        "release noise of half the size",
        GAUSSIAN,
        "(k << SCALE_BITS) + ((x + 1) >> 1)",
        "(k << (SCALE_BITS - 1)) + ((x + 1) >> 2)",
        (GAUSSIAN_TEST + "a_million_draws_have_the_law",),
    ),
    Mutant(
        "integers without rejection",
        ENTROPY,
        "words[words <= np.uint64(last)]",
        "words",
        (ENTROPY_TEST + "integers_are_equally_likely",),
    ),
    Mutant(
        "chosen words may agree",
        ENTROPY,
        "(np.diff(words[order]) > 0).all()",
        "True",
        (ENTROPY_TEST + "words_that_agree_choose_nothing",),
    ),
)


def stale(root: Path = ROOT) -> list[str]:
    """What is wrong with the table: edits whose old text is not in its file exactly once, and names used twice."""
    faults = [f"{m.name}: no file {m.file}" for m in MUTANTS if not (root / m.file).is_file()]
    for mutant in MUTANTS:
        count = (root / mutant.file).read_text().count(mutant.old) if (root / mutant.file).is_file() else 1
        if count != 1:
            faults.append(f"{mutant.name}: its text stands {count} times in {mutant.file}")
        missing = {t.partition("::")[0] for t in mutant.tests if not (root / t.partition("::")[0]).is_file()}
        faults += [f"{mutant.name}: no file {path}" for path in sorted(missing)]
    names = [mutant.name for mutant in MUTANTS]
    return faults + [f"{name}: two mutants have this name" for name in sorted({n for n in names if names.count(n) > 1})]


def pytest(tree: Path, tests: tuple[str, ...]) -> tuple[int, str]:
    """Exit code and output of these tests in a tree; no byte code is kept: an edit may leave the time as it was."""
    words = [sys.executable, "-m", "pytest", "-x", "-q", "--tb=no", "-n", "0", "-p", "no:cacheprovider", *tests]
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, cwd=tree, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.returncode, done.stdout


def is_killed(mutant: Mutant, tree: Path) -> tuple[bool, str]:
    """Whether a test fails for the mutant, and which one, or what happened instead. The tree is left as it was."""
    path = tree / mutant.file
    whole = path.read_text()
    path.write_text(whole.replace(mutant.old, mutant.new))
    try:
        code, said = pytest(tree, mutant.tests)
    finally:
        path.write_text(whole)
    failed = next((line.removeprefix("FAILED ") for line in said.splitlines() if line.startswith("FAILED ")), "")
    return code == FAILED and bool(failed), failed.partition(" - ")[0] or f"pytest ended with code {code}"


def kills(chosen: Sequence[Mutant], tree: Path) -> Iterator[bool]:
    """Try the mutants, as many at a time as there are cores, each in a tree of its own; print a line for each."""
    trees: Queue[Path] = Queue()
    cores = os.cpu_count() or 1
    for number in range(cores):
        trees.put(Path(shutil.copytree(tree, tree.with_name(f"tree-{number}"))))

    def attempt(mutant: Mutant) -> tuple[bool, str]:
        own, began = trees.get(), time.monotonic()
        killed, by = is_killed(mutant, own)
        trees.put(own)
        return killed, f"{'killed' if killed else 'SURVIVED'}: {mutant.name} ({time.monotonic() - began:.1f} s, {by})"

    with ThreadPoolExecutor(cores) as pool:
        for killed, line in pool.map(attempt, chosen):
            print(line, flush=True)
            yield killed


def main() -> int:
    """Run all mutants, or some; returns 1 if one survives."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", metavar="NAME", default="", help="the mutants whose name holds this text")
    only = parser.parse_args().only
    chosen = [mutant for mutant in MUTANTS if only in mutant.name]
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(shutil.copytree(ROOT, Path(folder) / "tree", ignore=IGNORED))
        if faults := stale(tree) or ([] if chosen else [f"no mutant's name holds {only!r}"]):
            print(*faults, sep="\n")
            return 1
        code, said = pytest(tree, tuple(dict.fromkeys(test for mutant in chosen for test in mutant.tests)))
        if code:
            print(f"the tests do not pass without a mutant:\n{said}")
            return 1
        killed = sum(kills(chosen, tree))
    print(f"{killed} passed, {len(chosen) - killed} failed")
    return 0 if killed == len(chosen) else 1


if __name__ == "__main__":
    raise SystemExit(main())
