"""What Flower's SecAgg+ does with whole numbers, and how well its masks hide them.

    python benchmarks/secagg.py --bits 24

Flower's own mod and workflow, in one process. Does the sum of what goes in come out, with all nodes
and if one drops out in each stage? And how long does a server that is helped by all nodes but two
search for the one mask that it lacks? It tries ``2^--bits`` of the ``2^32`` seeds, the right one
among them.
"""

import argparse
import copy
import json
import time
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.client.mod.secure_aggregation.secaggplus_mod import SecAggPlusState, secaggplus_mod
from flwr.common import (
    Code,
    FitIns,
    FitRes,
    Parameters,
    Status,
    bytes_to_ndarray,
    ndarrays_to_parameters,
    parameters_to_ndarrays,
)
from flwr.common.secure_aggregation.crypto.symmetric_encryption import generate_shared_key
from flwr.common.secure_aggregation.quantization import quantize
from flwr.common.secure_aggregation.secaggplus_constants import (
    RECORD_KEY_CONFIGS,
    RECORD_KEY_STATE,
    Key,
    Stage,
)
from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen
from flwr.compat.common import recorddict_compat as compat
from flwr.server.compat.legacy_context import LegacyContext
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD
from flwr.supercore.primitives.asymmetric import bytes_to_private_key, bytes_to_public_key
from flwr.supercore.task_identity import TaskIdentity

OUT = Path(__file__).parent / "results" / "secagg.json"
NODES, ENTRIES, MODULUS = 5, 1_000, 2**32
STAGES = (Stage.SETUP, Stage.SHARE_KEYS, Stage.COLLECT_MASKED_VECTORS, Stage.UNMASK)
AT_A_TIME = 2**18


class Nodes:
    """Flower's grid with nodes in this process, and what the server sees of them.

    Args:
        vectors: int64 ``[NODES, ENTRIES]``, what the nodes hold.
        weight: of each.
        lost: the stage from which the first node is gone.
    """

    def __init__(self, vectors: np.ndarray, weight: int, lost: str | None = None):
        self._vectors, self._weight, self._lost = vectors, weight, lost
        self.contexts = {n: Context(1, n, {}, RecordDict(), {}) for n in range(1, len(vectors) + 1)}
        self.masked: dict[int, list[np.ndarray]] = {}
        self.faults: list[str] = []
        self._gone: set[int] = set()

    def send_and_receive(self, messages: Iterable[Message], timeout: float | None) -> list[Message]:
        return [self._reply(copy.deepcopy(message)) for message in messages]

    def _reply(self, message: Message) -> Message:
        node, configs = message.metadata.dst_node_id, message.content.config_records
        if configs[RECORD_KEY_CONFIGS][Key.STAGE] == self._lost and node == 1:
            self._gone.add(node)
        if node in self._gone:
            return Message(Error(1, "gone"), reply_to=message)
        try:
            reply = secaggplus_mod(message, self.contexts[node], self._trained)
        except Exception as fault:  # as a SuperNode, which replies with an error
            self.faults.append(f"{type(fault).__name__}: {fault}")
            return Message(Error(1, "failed"), reply_to=message)
        vectors = reply.content.config_records[RECORD_KEY_CONFIGS].get(Key.MASKED_PARAMETERS)
        if vectors:
            self.masked[node] = [bytes_to_ndarray(one) for one in vectors]
        return reply

    def _trained(self, message: Message, context: Context) -> Message:
        own = ndarrays_to_parameters([self._vectors[context.node_id - 1]])
        answer = FitRes(Status(Code.OK, ""), own, self._weight, {})
        return Message(compat.fitres_to_recorddict(answer, True), reply_to=message)


def summed(nodes: Nodes, bits: int, weight: int) -> np.ndarray | None:
    """What the workflow makes of whole numbers of so many bits: their sum, or None."""
    found: list[np.ndarray] = []
    proxies = [SimpleNamespace(node_id=n) for n in nodes.contexts]

    def aggregate(number: int, results: list[Any], failures: list[Any]) -> tuple[None, dict]:
        (mean,) = parameters_to_ndarrays(results[0][1].parameters)
        found.append(np.rint(mean * len(results)).astype(np.int64))
        return None, {}

    strategy = SimpleNamespace(
        configure_fit=lambda *_: [(one, FitIns(Parameters([], ""), {})) for one in proxies],
        aggregate_fit=aggregate,
    )
    context: Any = LegacyContext(Context(1, 0, {}, RecordDict(), {}), strategy=strategy)  # type: ignore[arg-type]
    context.state.config_records[MAIN_CONFIGS_RECORD] = ConfigRecord({"current_round": 1})
    context.state.array_records[MAIN_PARAMS_RECORD] = ArrayRecord()
    workflow = SecAggPlusWorkflow(
        1.0,
        0.6,
        max_weight=weight,
        clipping_range=float(2 ** (bits - 1)),
        quantization_range=2**bits,
        modulus_range=MODULUS,
    )
    workflow(nodes, context)  # type: ignore[arg-type]
    return found[0] if found else None


def first_draws(seeds: np.ndarray) -> np.ndarray:
    """The first 32 bits of `numpy.random.RandomState` for each seed (MT19937), uint32."""
    kept, state = [seeds], seeds
    for i in range(1, 398):
        state = np.uint32(1812433253) * (state ^ (state >> np.uint32(30))) + np.uint32(i)
        if i in (1, 397):
            kept.append(state)
    low, middle, far = kept
    y = (low & np.uint32(0x80000000)) | (middle & np.uint32(0x7FFFFFFF))
    y = far ^ (y >> np.uint32(1)) ^ np.where(y & np.uint32(1), np.uint32(0x9908B0DF), np.uint32(0))
    y ^= y >> np.uint32(11)
    y ^= (y << np.uint32(7)) & np.uint32(0x9D2C5680)
    y ^= (y << np.uint32(15)) & np.uint32(0xEFC60000)
    return y ^ (y >> np.uint32(18))


def opened(nodes: Nodes, bits: int, tried: int) -> dict[str, Any]:
    """The first node's vector, by a server that knows the keys of all but the first two nodes."""
    states = {
        n: SecAggPlusState(**context.state.config_records[RECORD_KEY_STATE])
        for n, context in nodes.contexts.items()
    }
    shapes = [one.shape for one in nodes.masked[1]]
    own = states[1]
    rest = [
        a - b
        for a, b in zip(nodes.masked[1], pseudo_rand_gen(own.rd_seed, MODULUS, shapes), strict=True)
    ]
    for other in range(3, len(states) + 1):
        key = agreed(states[other].sk1, own.pk1)
        rest = [a + b for a, b in zip(rest, pseudo_rand_gen(key, MODULUS, shapes), strict=True)]
    # the weight is known, so the first number tells 32 bits of the mask that was taken away
    wanted = np.uint32((2**bits - int(rest[0][0])) % MODULUS)
    right = folded(agreed(states[2].sk1, own.pk1))  # only to search around it
    start = (right >> tried) << tried
    began, hits = time.process_time(), []
    for at in range(start, start + 2**tried, AT_A_TIME):
        seeds = np.arange(at, at + min(AT_A_TIME, 2**tried), dtype=np.uint64).astype(np.uint32)
        hits += seeds[first_draws(seeds) == wanted].tolist()
    seconds = time.process_time() - began
    for seed in hits:
        masks = pseudo_rand_gen(int(seed).to_bytes(4, "little"), MODULUS, shapes)
        plain = (rest[1] + masks[1]) % MODULUS  # the smaller number has taken masks away
        if (plain < 2**bits).all():
            whole = seconds * 2 ** (32 - tried) / 3600
            return {"vector": plain - 2 ** (bits - 1), "seconds": seconds, "hours_in_all": whole}
    raise RuntimeError("no seed gives numbers of so many bits")


def agreed(secret: bytes, public: bytes) -> bytes:
    """The key on which two nodes agree."""
    return generate_shared_key(bytes_to_private_key(secret), bytes_to_public_key(public))


def folded(seed: bytes) -> int:
    """The 32 bits that Flower makes of a seed."""
    found = 0
    for at in range(0, len(seed), 4):
        found ^= int.from_bytes(seed[at : at + 4], "little")
    return found


def measured(tried: int) -> dict[str, Any]:
    """All of it; sums modulo 2^32 of five nodes have room for numbers of 29 bits."""
    rng, bits, weight = np.random.default_rng(0), 29, 1
    half = 2 ** (bits - 1)
    vectors = rng.integers(-half, half, (NODES, ENTRIES))
    whole = Nodes(vectors, weight)
    exact = {"nobody": bool(np.array_equal(summed(whole, bits, weight), vectors.sum(axis=0)))}
    faults = {}
    for stage in STAGES:
        nodes = Nodes(vectors, weight, stage)
        found = summed(nodes, bits, weight)
        expected = vectors[1 if stage in STAGES[:3] else 0 :].sum(axis=0)
        exact[stage] = "no sum" if found is None else bool(np.array_equal(found, expected))
        faults[stage] = sorted({fault.split(":")[0] for fault in nodes.faults})
    wide = rng.integers(0, 2**32, ENTRIES) - 2**31
    (kept,) = quantize([wide.astype(float)], float(2**31), 2**32)
    broken = opened(whole, bits, tried)
    return {
        "flwr": version("flwr"),
        "sum_is_exact_if_lost_in": exact,
        "faults_at_the_others": faults,
        "changed_of_32_bits": float((kept.astype(np.int64) - 2**31 != wide).mean()),
        "seeds_tried": 2**tried,
        "vector_found": bool(np.array_equal(broken.pop("vector"), vectors[0])),
        **broken,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bits", type=int, default=24)
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1  # as Flower starts it
    result = measured(given.bits)
    given.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))
