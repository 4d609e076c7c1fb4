"""On a GPU: steps of all mechanisms, clients and whole runs do what they do on the CPU. See
`tests/test_cuda.py`."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from mechanisms.arithmetic import FLOATS, GRID
from mechanisms.gradients.record_gradients import RecordGradients
from mechanisms.randomness import Streams, generator, seed_key
from mechanisms.sampling import CohortData
from mechanisms.sharing import ClassSums, SharingPlan, SingleRecords, Sum
from tests.devices import CPU, META, Asynchronous, needed, on, on_devices

KEY = seed_key(3)
MECHANISMS = ["dpsgd", "dpsur", "dpis", "dphero", "screening", "dpagd", "none"]


@pytest.mark.parametrize(
    ("device", "name"), on_devices(MECHANISMS, "dpsgd", "dpis"), indirect=["device"]
)
def test_a_local_round_on_exact_sums_is_the_cpus_up_to_rounding(device, name, exact_products):
    """Equal draws, so that only the rounding of gradients differs. Little noise: it has the signs
    of eigenvectors."""
    small, mechanism, registry, settings, fields, allotment = needed(
        "tests.small",
        "mechanisms.mechanism",
        "mechanisms.registry",
        "mechanisms.settings",
        "sim.config.fields",
        "mechanisms.accounting.allotment",
    )
    privacy = settings.Privacy(mechanism=name, epsilon=None, noise_multiplier=1e-3, sample_rate=0.7)
    own = fields.TABLES[name]() if name in fields.TABLES else None
    sizes = np.array([len(records) for records in small.OWNED])
    plans = [registry.plan_table(privacy, own, 3, 1, sizes).of(client) for client in range(4)]
    adaptive = [plan for plan in plans if isinstance(plan, allotment.AdaptivePlan)]

    def end(where: torch.device):
        x, y = on(where, small.X, small.Y)
        cohort = dataclasses.replace(
            small.cohort(plans),
            gradients=RecordGradients(small.model().to(where)),
            data=CohortData(x, y, small.OWNED),
            streams=Streams(KEY, 1, range(4), where),
            accounts=[
                allotment.Account(plan.allotment.order, plan.allotment.rdp) for plan in adaptive
            ],
            holdout=(x, y),
            arithmetic=FLOATS if name == "none" else GRID,
        )
        row = registry.MECHANISMS[name]
        state = mechanism.local_round(row, cohort, small.start(small.model()).to(where))
        return (
            state,
            [list(charges.values()) for charges in row.realized(cohort, state)],
            row.metrics(cohort, state),
        )

    (here, paid, figures), (there, expected, reported) = end(device), end(CPU)
    assert {
        t.device.type for t in (here.params, here.taken, *here.optimizer, *here.memory.values())
    } == {device.type}
    torch.testing.assert_close(here.params.cpu(), there.params, rtol=1e-3, atol=1e-3)
    assert (
        torch.equal(here.taken.cpu(), there.taken)
        and paid == expected
        and figures.keys() == reported.keys()
    )


@pytest.mark.parametrize("layers", ["mlp", "convolutions"])
def test_a_local_round_of_dpsgd_waits_for_no_device(device, exact_products, layers):
    """PyTorch itself raises an error where the host would wait for a GPU. Without one, the round is
    taken on a device without values (`test_placing.py`)."""
    placing, mechanism, registry = needed(
        "tests.test_placing", "mechanisms.mechanism", "mechanisms.registry"
    )
    gpu = device.type == "cuda"
    make, x = {
        "mlp": (placing.small.model, placing.small.X),
        "convolutions": (placing.convolutions, placing.IMAGES),
    }[layers]
    for debug in ("default", "error") if gpu else ("default",):  # a first one sets libraries up
        cohort, start = placing.world(make(), x, device if gpu else META)
        with Asynchronous():
            if gpu:
                torch.cuda.synchronize()
                torch.cuda.set_sync_debug_mode(debug)
            try:
                end = mechanism.local_round(registry.MECHANISMS["dpsgd"], cohort, start)
            finally:
                if gpu:
                    torch.cuda.set_sync_debug_mode("default")
    assert end.params.device.type == (device.type if gpu else "meta")


def test_what_is_shared_on_exact_sums_is_the_cpus(device):
    """Class sums and statistics to rounding; single records bit by bit: their features are the
    records."""
    rng = generator(KEY, "records")
    x, y = (
        torch.from_numpy(rng.normal(size=(2, 12, 5)).astype(np.float32)),
        torch.from_numpy(rng.integers(0, 3, (2, 12))),
    )
    plan = SharingPlan(2.0, 1.0)
    singly = dataclasses.replace(plan, singly=True)
    for release in (
        ClassSums(plan, torch.clone, 3, 5),
        Sum(plan, torch.clone, 5),
        SingleRecords(singly, torch.clone, 3),
    ):
        here, there = (
            release(list(x.to(where)), list(y.to(where)), Streams(KEY, 1, range(2), where), GRID)
            for where in (device, CPU)
        )
        assert leaves(here)
        for one, other in zip(leaves(here), leaves(there), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def leaves(released: object) -> list[np.ndarray]:
    """All arrays of what a release gives, in order."""
    if isinstance(released, torch.Tensor):
        return [released.cpu().numpy()]
    if isinstance(released, np.ndarray):
        return [released]
    parts = vars(released).values() if hasattr(released, "__dict__") else released
    parts = parts.values() if isinstance(parts, dict) else parts
    return [leaf for part in parts for leaf in leaves(part)] if np.iterable(parts) else []


def test_clients_keep_their_state_from_round_to_round(device, tmp_path):
    (carry, cohort) = needed("client.client_state", "mechanisms.cohort")
    rows = torch.arange(6.0, device=device).view(2, 3)
    state = cohort.LocalState(rows, (10 * rows,), rows[:, 0], {"clip_norm": rows[:, 0] / 2})
    kept = carry.ClientState(tmp_path, ("clip_norm",))
    with kept.round(1):
        kept.keep(np.array([4, 7]), lambda resume: state)
    again = carry.ClientState(tmp_path, ("clip_norm",))
    fresh = dataclasses.replace(state, optimizer=(torch.zeros_like(rows),)).remember(
        clip_norm=-torch.ones_like(rows[:, 0])
    )
    with again.round(2):
        found = again.keep(np.array([9, 7]), lambda resume: resume(fresh))
    assert {found.optimizer[0].device.type, found.memory["clip_norm"].device.type} == {device.type}
    assert found.optimizer[0].tolist() == [[0.0] * 3, [30.0, 40.0, 50.0]]
    assert found.memory["clip_norm"].tolist() == [-1.0, 1.5]


@pytest.mark.parametrize("seed", [3, None], ids=["simulation", "release"])
def test_a_group_charges_the_same_and_its_upload_is_whole_numbers(device, tmp_path, seed):
    """A release draws anew each time that it is asked, and its upload is found again; a simulation
    repeats itself."""
    small, uploads, ledger = needed("tests.small", "client.uploads", "mechanisms.accounting.ledger")

    def node(folder: Path, where: torch.device):
        made = small.node(folder, seed=seed)
        x, y = on(where, small.X, small.Y)
        made._data = dataclasses.replace(made._data, x=x, y=y)
        made._training = dataclasses.replace(
            made._training, gradients=RecordGradients(small.model().to(where))
        )
        return made

    asked = small.request(1, [0, 1, 2, 3])
    again = asked if seed is not None else dataclasses.replace(asked, release="round-1-again")
    first, second = (node(tmp_path / "here", device).train(one) for one in (asked, again))
    node(tmp_path / "cpu", CPU).train(asked)
    charges = [ledger.read(tmp_path / name / "ledger") for name in ("here", "cpu")]
    times = 1 if seed is not None else 2
    assert {c: {e: n // times for e, n in own.items()} for c, own in charges[0].items()} == charges[
        1
    ]
    assert first.total.dtype == np.int64 and np.array_equal(first.total, second.total) is (
        seed is not None
    )
    found = uploads.Uploads(tmp_path / "here" / "uploads").finished(1, asked.params)
    assert [one.total.tolist() for one in found] == (
        [] if seed is not None else [second.total.tolist()]
    )


# --- whole runs
# --------------------------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A function from a device and flags to the directory of a whole run in this process, without a
    report."""
    cli, start = needed("sim.commands.flags", "sim.engines.start")
    monkeypatch.setattr("sim.engines.session.write_report", lambda folder: folder)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(120, 2, 8, 8)).astype(np.float32), np.arange(120) % 3
    np.savez(tmp_path / "records.npz", x=x, y=y, x_test=x[:30], y_test=y[:30])
    common = (
        f"--dataset {tmp_path / 'records.npz'} --clients 6 --partition iid --rounds 2 --steps 2 "
        "--engine inline --quiet"
    )

    def one(device: torch.device, flags: str, name: str) -> Path:
        words = (
            f"{common} --device {device.type} --groups 2 --sample-rate 0.5 --out {tmp_path} "
            f"--name {name} {flags}"
        )
        return start.train(cli.parse(words.split(), "run", ""))

    return one


def tensors(folder: Path) -> dict[str, np.ndarray]:
    (safetensors,) = needed("safetensors.numpy")
    return safetensors.load((folder / "model.safetensors").read_bytes())


QUIET = "--noise-multiplier 1e-4 --epsilon none"
RUNS = {
    "no privacy": "--mechanism none --model mlp",
    "convolutions": f"{QUIET} --model cnn-scattering --chunk-clients 2",
    "features and kept state": f"{QUIET} --features scattering --momentum 0.5 --keep-state",
    "shared data and statistics": "--mechanism none --strategy fedfed --standardize private",
}


@pytest.mark.parametrize(
    ("device", "kind"), on_devices(RUNS, "features and kept state"), indirect=["device"]
)
def test_a_whole_run_charges_the_same_and_ends_at_nearly_the_same_model(device, run, kind):
    """Noise so small that its draws, which differ between devices, hardly count."""
    (ledger,) = needed("mechanisms.accounting.ledger")
    here, there = run(device, RUNS[kind], "here"), run(CPU, RUNS[kind], "cpu")
    assert ledger.read(here / "ledger") == ledger.read(there / "ledger")
    assert tensors(here).keys() == tensors(there).keys()
    for name, tensor in tensors(there).items():
        np.testing.assert_allclose(tensors(here)[name], tensor, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(
    "flags",
    [
        "--model mlp",
        "--strategy fedfed --shared-source distilled --share-budget 0.5 --distill-rounds 2",
    ],
)
def test_the_same_run_gives_the_same_bits_on_the_same_device(device, run, flags):
    """With the settings that a run makes for itself; in any number of groups."""
    flags += " --chunk-clients 3"
    here, again = run(device, flags, "here"), run(device, f"{flags} --groups 1", "again")
    assert device.type == "cpu" or torch.are_deterministic_algorithms_enabled()
    assert (here / "model.safetensors").read_bytes() == (again / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("device", "mechanism"), on_devices(MECHANISMS[:-1], "dpsgd"), indirect=["device"]
)
def test_a_release_trains_within_its_budget(device, run, mechanism):
    ledger, accountant = needed("mechanisms.accounting.ledger", "mechanisms.accounting.accountant")
    folder = run(device, f"--release --epsilon 4 --mechanism {mechanism}", mechanism)
    spent = [
        accountant.epsilon(charges, 1e-5).epsilon
        for charges in ledger.read(folder / "ledger").values()
    ]
    assert len(spent) == 6 and 2 < max(spent) <= 4
    assert all(np.isfinite(tensor).all() for tensor in tensors(folder).values())


def test_models_are_scored_by_the_same_records_and_a_run_stays_on_its_kind_of_device(device, run):
    """Scores are the model's on the test part, computed by hand; the directory says on which kind
    of device it is."""
    folder = run(device, "--model linear", "a")
    last = json.loads((folder / "rounds.jsonl").read_text().splitlines()[-1])
    weight, bias = sorted(tensors(folder).values(), key=lambda tensor: -tensor.ndim)
    with np.load(folder.parent / "records.npz") as data:
        found = (data["x_test"].reshape(30, -1) @ weight.T + bias).argmax(axis=1)
        assert last["accuracy"] == pytest.approx((found == data["y_test"]).mean(), abs=0.04)
    said = json.loads((folder / "inputs.json").read_text())["device"]
    assert said.partition(" ")[0] == device.type


class Varying(nn.Sequential):
    """The gradient of its pooling has no kernel on a GPU that gives the same bits each time."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(2, 4, 3), nn.AdaptiveMaxPool2d(2), nn.Flatten(), nn.Linear(16, 3)
        )


def test_a_model_whose_bits_vary_is_refused_before_the_run_begins(device, run, tmp_path):
    """On a CPU it has such kernels, and trains."""
    model = "--model tests.test_cuda_runs:Varying"
    if device.type == "cpu":
        assert tensors(run(device, model, "a"))
        return
    with pytest.raises(ValueError, match="may give other bits each time on a GPU"):
        run(device, model, "a")
    assert not (tmp_path / "a").exists()


def test_chunks_are_as_wide_as_the_device(device):
    """On a CPU the cache sets the width, on a GPU its memory."""
    config, jobs = needed("sim.config.configuration", "sim.phases.build")
    given = {"clients": 640, "device": device.type, "model": "mlp", "sample_rate": 1.0}
    found = jobs.build(config.load(None, given)).config.run.chunk_clients
    assert found == (92 if device.type == "cpu" else 80)
