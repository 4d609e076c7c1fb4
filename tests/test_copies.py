"""What a process holds on the computing device: one copy of the records, however many groups."""

import copy
import dataclasses

import numpy as np
import torch

from sim.job import copies
from sim.job.copies import copy_on
from sim.phases.phase import group_data
from tests.devices import CPU, META
from tests.test_job import built


def test_an_array_has_one_copy_on_a_device_while_it_is_held():
    """Kills a copy for each of those who ask."""
    array = np.arange(6.0)
    first = copy_on(META, array)
    assert copy_on(META, array) is first and first.shape == (6,)
    assert copy_on(META, np.arange(6.0)) is not first


def test_a_copy_keeps_its_array_and_is_gone_with_the_last_who_holds_it():
    """Kills a copy that another array is taken for, as it got the number of the first."""
    held = [copy_on(META, np.zeros((n, 3))) for n in range(2)]
    assert len(held[0]) == 0 and len(held[1]) == 1
    before = len(copies._COPIES)
    held.pop()
    assert len(copies._COPIES) == before - 1
    held.pop()
    assert len(copies._COPIES) == before - 2


def test_on_the_cpu_the_memory_is_the_arrays():
    array = np.zeros(3)
    copy_on(CPU, array)[1] = 5.0
    assert array[1] == 5.0


def test_all_groups_of_a_process_have_the_same_records(tmp_path, monkeypatch):
    """A hundred groups of CIFAR-10's features would otherwise be 310 GB."""
    job = built(tmp_path, groups=3, public_records=15)
    job = dataclasses.replace(job, shared=(np.ones((2, 4), np.float32), np.array([2, 0])))
    monkeypatch.setattr("sim.job.job.device_of", lambda config: META)
    groups = [group_data(job, number) for number in range(3)]
    for held in (
        lambda data: data.x,
        lambda data: data.y,
        lambda data: data.holdout[0],
        lambda data: data.shared[1],
    ):
        assert len({id(held(data)) for data in groups}) == 1
        assert isinstance(held(groups[0]), torch.Tensor) and held(groups[0]).device == META
    assert job.tests[0] is job.tests[0] and job.tests[1].device == META


def test_workers_are_not_sent_what_is_made_of_the_rest(tmp_path):
    """The records of the evaluation are in the data set already, and gradients are the model's."""
    job = built(tmp_path)
    assert job.tests and job.gradients and "tests" in vars(job)
    sent = vars(copy.copy(job))
    assert "tests" not in sent and sent.keys() == vars(job).keys() - {"tests", "gradients"}
