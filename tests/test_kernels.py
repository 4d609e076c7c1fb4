"""Which kernels a GPU takes. The flags can be set, and are read here, where there is none."""

import os

import pytest
import torch

from mechanisms.gradients.record_gradients import RecordGradients
from mechanisms.kernels import fix_kernels, with_all_digits
from sim.config.configuration import load
from sim.job.device import in_one_order
from tests import small
from tests.devices import META, Noted

pytestmark = pytest.mark.usefixtures("kernels")
MATMUL, CUDNN = torch.backends.cuda.matmul, torch.backends.cudnn


def test_a_gpu_takes_kernels_that_give_the_same_bits_each_time():
    CUDNN.benchmark = MATMUL.allow_tf32 = True
    os.environ["CUBLAS_EMULATE_DOUBLE_PRECISION"] = "1"
    fix_kernels()
    assert torch.are_deterministic_algorithms_enabled() and CUDNN.deterministic
    assert not (CUDNN.benchmark or CUDNN.allow_tf32 or MATMUL.allow_tf32)
    assert not MATMUL.allow_bf16_reduced_precision_reduction
    assert not MATMUL.allow_fp16_reduced_precision_reduction
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert os.environ["CUBLAS_EMULATE_SINGLE_PRECISION"] == "0"
    assert os.environ["CUBLAS_EMULATE_DOUBLE_PRECISION"] == "0"
    assert not torch.utils.deterministic.fill_uninitialized_memory


def test_a_program_that_has_used_a_gpu_otherwise_is_told_what_to_set(monkeypatch):
    """As PyTorch looks at the variable once, it is too late to set it."""
    late = "it uses CuBLAS: you must set an environment variable before: CUBLAS_WORKSPACE_CONFIG"

    def product(fault: str):
        def fails(*_: object) -> None:
            raise RuntimeError(fault)

        return fails

    ones = torch.ones
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch, "ones", lambda *size, device: ones(*size))
    fix_kernels()
    monkeypatch.setattr(torch, "mm", product(late))
    with pytest.raises(ValueError, match="set CUBLAS_WORKSPACE_CONFIG=:4096:8 before it starts"):
        fix_kernels()
    monkeypatch.setattr(torch, "mm", product("an illegal memory access"))
    with pytest.raises(RuntimeError, match="illegal"):
        fix_kernels()


@pytest.mark.parametrize("tf32", [False, True])
def test_a_run_on_a_gpu_has_the_kernels_of_its_settings(monkeypatch, tf32):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    in_one_order(load(None, {"device": "cuda", "tf32": tf32}))
    assert torch.are_deterministic_algorithms_enabled()
    assert [CUDNN.allow_tf32, MATMUL.allow_tf32] == [tf32, tf32]


def test_a_run_on_a_cpu_changes_no_kernels():
    """They would fill memory and take other routes on a CPU, too."""
    in_one_order(load(None, {"device": "cpu"}))
    assert not torch.are_deterministic_algorithms_enabled()
    with pytest.raises(ValueError, match="device = cpu does not use, but --device cuda does"):
        load(None, {"device": "cpu", "tf32": True})


def test_a_sum_of_clipped_gradients_has_all_digits():
    """Its products alone: those of the model take what is allowed. Kills a record that adds more
    than the clip bound."""
    module, summing, seen = small.model(), [], {False: [], True: []}
    gradients = RecordGradients(module)
    params, x, y = small.start(module)[None], small.X[None, :4], small.Y[None, :4]
    gradients.is_tapped(x, y)

    def factors(norms: torch.Tensor) -> torch.Tensor:
        summing.append(True)
        return torch.ones_like(norms)

    def note(func: object) -> None:
        if func in (torch.matmul, torch.bmm):
            seen[bool(summing)].append(MATMUL.allow_tf32)

    fix_kernels(tf32=True)
    with Noted(note):
        gradients.scaled_sum(*(t.to(META) for t in (params, x, y)), factors)
    assert set(seen[False]) == {True} and set(seen[True]) == {False}
    assert MATMUL.allow_tf32


def test_what_was_allowed_is_allowed_again_after_an_error():
    MATMUL.allow_tf32 = CUDNN.allow_tf32 = True
    with pytest.raises(KeyError), with_all_digits():
        assert not MATMUL.allow_tf32 and not CUDNN.allow_tf32
        raise KeyError
    assert MATMUL.allow_tf32 and CUDNN.allow_tf32
