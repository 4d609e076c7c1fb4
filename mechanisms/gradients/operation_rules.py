"""Where the records are in the result of particular operations that compute: products, look-ups,
losses, recurrent layers.

Each rule (`gradients.placements.Rule`) knows the arguments of its own operation, and raises
`Unknown` for those with which an entry of the result may depend on two records.
"""

from typing import Any

from mechanisms.gradients.placements import (
    Args,
    Named,
    Records,
    Unknown,
    dimension,
    flat,
    only_records,
    require,
)


def matmul(result: Any, args: Args, named: Named) -> int:
    """A product with a constant matrix or vector, or of each record's own matrices."""
    left, right = args
    require(not named)
    if isinstance(left, Records) and isinstance(right, Records):
        require(left.tensor.dim() == right.tensor.dim())
        require(left.at == right.at < left.tensor.dim() - 2)
    elif isinstance(left, Records):
        require(right.dim() <= 2 and left.at < left.tensor.dim() - 1)
        return left.at
    else:
        require(left.dim() == 2 and right.at < right.tensor.dim() - 2)
    return right.at


def einsum(result: Any, args: Args, named: Named) -> int:
    """The records' letter is in the result, once in every tensor of records, and in no constant."""
    equation, operands = args[0], flat(args[1:])
    require(isinstance(equation, str) and "->" in equation and "." not in equation and not named)
    inputs, output = equation.replace(" ", "").split("->")
    terms = inputs.split(",")
    letters = {
        term[one.at] for term, one in zip(terms, operands, strict=True) if isinstance(one, Records)
    }
    require(len(letters) == 1 and output.count(letter := letters.pop()) == 1)
    for term, one in zip(terms, operands, strict=True):
        require(term.count(letter) == isinstance(one, Records))
    return output.index(letter)


def attention(result: Any, args: Args, named: Named) -> int:
    """Queries, keys and values of each record, without a mask and without dropout."""
    require(len(args) == 3 and not set(named) - {"is_causal", "scale"})
    require(all(isinstance(a, Records) for a in args))
    matmul(result, args[:2], {})
    return matmul(result, args[1:], {})


def gather(result: Any, args: Args, named: Named) -> int:
    """Each record has its own indices, along another dimension than the records'."""
    x, dim, index = args
    require(isinstance(x, Records) and isinstance(index, Records) and not named)
    require((index.at, index.tensor.dim()) == (x.at, x.tensor.dim()))
    require(dimension(dim, x.tensor.dim()) != x.at)
    return x.at


def dropout(result: Any, args: Args, named: Named) -> int:
    """Only with probability 0."""
    require((named["p"] if "p" in named else args[1] if len(args) > 1 else None) == 0)
    return only_records([args[0]])[1]


def embedding(result: Any, args: Args, named: Named) -> int:
    """Without options that rewrite weights, or scale gradients by an index's count in the batch."""
    require(len(args) == 2 and not named.get("scale_grad_by_freq") and not named.get("sparse"))
    require("max_norm" not in named)
    return only_records(args)[1]


def cross_entropy(result: Any, args: Args, named: Named) -> int:
    """Each record's scores against its own target, without reduction."""
    scores, target, *rest = [*args, *(named[name] for name in ("target",) if name in named)]
    require(named.get("reduction") == "none")
    require(not {"size_average", "reduce", "input"} & set(named))
    require(isinstance(scores, Records) and isinstance(target, Records))
    require(scores.at == target.at == 0 and scores.tensor.dim() >= 2)
    require(not any(isinstance(v, Records) for v in [*rest, named.get("weight")]))
    return 0


def constant(result: Any, args: Args, named: Named) -> int:
    """A constant, made from sizes and numbers that are the same for all records."""
    raise Unknown("records are given to a function that makes constants")


def recurrent(place: int) -> Any:
    """A recurrent layer from states 0: its output, in which records stay, and its last states."""

    def rule(result: Any, args: Args, named: Named) -> tuple[int, int]:
        x, at = only_records(args)
        require(len(args) == 1 and not named and x.dim() == 3 and at == place)
        return at, 1

    return rule
