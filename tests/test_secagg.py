"""What decision 70 says of Flower's SecAgg+, by Flower's own code: if this fails with another
version of Flower, the decision is to be looked at again."""

import pytest
from flwr.supercore.task_identity import TaskIdentity

from benchmarks import secagg


@pytest.mark.filterwarnings("ignore:invalid value encountered in cast:RuntimeWarning")
def test_whole_numbers_pass_and_the_masks_do_not_hide_them(monkeypatch):
    """The sum is exact, but for nodes that are lost before they have shared their keys; numbers of
    32 bits do not pass; and a search over seeds of 32 bits finds what a node sent."""
    for name in ("task_id", "run_id", "node_id"):
        monkeypatch.setattr(TaskIdentity, f"_{name}", 1)
    found = secagg.measured(12)
    assert found["sum_is_exact_if_lost_in"] == {
        "nobody": True,
        "setup": "no sum",
        "share_keys": "no sum",
        "collect_masked_vectors": True,
        "unmask": True,
    }
    assert found["faults_at_the_others"]["setup"] == ["KeyError"]
    assert found["changed_of_32_bits"] > 0.4
    assert found["seeds_tried"] == 2**12 and found["vector_found"]
