"""Where the records of a batch stand in the result of an operation that acts on each record alone.

A value of a program is a constant (a number, a parameter, anything made from these), the size of
the batch, or `Records`: a tensor that holds one record at each index of its dimension `at`. A rule
looks at one call with all its arguments and says where the records are in the result, or raises
`Unknown`. It must raise for every call in which an entry of the result may depend on two records.
It decides by numbers of dimensions, by sizes beside the batch, and by the dimensions that the call
names; never by the numbers in a tensor. `gradients.acts_alone` has the operations that the rules
are for.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

Args = Sequence[Any]
Named = dict[str, Any]


class Unknown(Exception):
    """A call of which it is not known that it acts on each record alone."""


@dataclass(frozen=True)
class Records:
    """A tensor with one record at each index of dimension `at`; its numbers are made up."""

    tensor: Tensor
    at: int = 0


@dataclass(frozen=True)
class BatchSize:
    """The number of records of a batch, as a program reads it from a shape."""

    value: int


Rule = Callable[[Any, Args, Named], Any]
"""From a call's result, arguments and keyword arguments to the records' dimension `at` in every
tensor of the result.

Where the parts of a result differ, there is one `at` for each; None is for a constant. At least one
argument is `Records`. Only the rules of `view`, `expand` and `repeat` are given a `BatchSize`.
"""


def _first(args: Args) -> tuple[Tensor, int]:
    """Tensor and `at` of the first argument, which must be the only one that holds records."""
    if (
        not args
        or not isinstance(args[0], Records)
        or any(isinstance(a, Records) for a in args[1:])
    ):
        raise Unknown("records stand elsewhere than in the first argument")
    return args[0].tensor, args[0].at


def _allow(condition: bool) -> None:
    if not condition:
        raise Unknown("the call may reach from record to record")


def _index(dim: Any, dims: int) -> int:
    """A dimension as a number from 0; `dim` may be negative."""
    _allow(type(dim) is int and -dims <= dim < dims)
    return dim % dims


def _several(values: Any) -> list[Any]:
    return list(values) if isinstance(values, list | tuple) else [values]


def elementwise(result: Any, args: Args, named: Named) -> int:
    """Entry by entry. Records are not broadcast over each other: they have as many dimensions, the
    same `at`."""
    values = [*args, *named.values()]
    records = [value for value in values if isinstance(value, Records)]
    dims, at = records[0].tensor.dim(), records[0].at
    _allow(all((one.tensor.dim(), one.at) == (dims, at) for one in records))
    for value in values:
        if isinstance(value, Tensor):  # a constant meets all records with the same numbers
            place = value.dim() - (dims - at)
            _allow(value.dim() <= dims and (place < 0 or value.shape[place] == 1))
        else:
            _allow(not isinstance(value, list | tuple | dict))
    _allow(isinstance(result, Tensor) and result.dim() == dims)
    return at


def like_first(result: Any, args: Args, named: Named) -> int | None:
    """Another type, device or copy of the first argument, whatever the others are."""
    return args[0].at if isinstance(args[0], Records) else None


def along(position: int, default: Any = None) -> Rule:
    """Works along the dimensions given as argument `position` or by name, which must not be that of
    the records."""

    def rule(result: Any, args: Args, named: Named) -> int:
        x, at = _first(args)
        given = [named[name] for name in ("dim", "dims", "axis") if name in named]
        given = given or list(args[position : position + 1]) or [default]
        dims = {_index(dim, x.dim()) for dim in _several(given[0])}
        _allow(
            bool(dims)
            and at not in dims
            and not any(isinstance(v, Records) for v in named.values())
        )
        parts = result if isinstance(result, tuple | list) else (result,)
        lost = x.dim() - parts[0].dim()
        _allow(lost in (0, len(dims)))
        return at - (sum(dim < at for dim in dims) if lost else 0)

    return rule


def whole(least: int, most: int | None = None) -> Rule:
    """Takes records in dimension 0 of `least` to `most` dimensions, each as a whole, with constants
    beside them."""

    def rule(result: Any, args: Args, named: Named) -> int:
        x, at = _first(args)
        _allow(at == 0 and least <= x.dim() <= (most or x.dim()))
        _allow(not any(isinstance(value, Records) for value in named.values()))
        return 0

    return rule


def inner(count: Callable[[Args, Named], int]) -> Rule:
    """Works within the last `count` dimensions, which leave out that of the records; the others
    stay."""

    def rule(result: Any, args: Args, named: Named) -> int:
        x, at = _first(args)
        _allow(not any(isinstance(value, Records) for value in named.values()))
        _allow(at < x.dim() - count(args, named))
        return at

    return rule


def squeeze(result: Any, args: Args, named: Named) -> int:
    x, at = _first(args)
    dim = _index(named["dim"] if named else args[1] if len(args) > 1 else None, x.dim())
    _allow(dim != at)
    return at - (dim < at and x.shape[dim] == 1)


def unsqueeze(result: Any, args: Args, named: Named) -> int:
    x, at = _first(args)
    return at + (_index(named["dim"] if named else args[1], x.dim() + 1) <= at)


def flatten(result: Any, args: Args, named: Named) -> int:
    x, at = _first(args)
    options = dict(zip(("start_dim", "end_dim"), args[1:], strict=False)) | named
    start, end = (
        _index(options.get(n, d), x.dim()) for n, d in (("start_dim", 0), ("end_dim", -1))
    )
    _allow(not start <= at <= end or start == end)
    return at - (end - start if end < at else 0)


def unflatten(result: Any, args: Args, named: Named) -> int:
    x, at = _first(args)
    dim = _index(named.get("dim", args[1] if len(args) > 1 else None), x.dim())
    _allow(dim != at)
    return at + (result.dim() - x.dim() if dim < at else 0)


def permute(result: Any, args: Args, named: Named) -> int:
    x, at = _first(args)
    _allow(not set(named) - {"dims"})
    return [_index(dim, x.dim()) for dim in _flat(named.get("dims", args[1:]))].index(at)


def transpose(result: Any, args: Args, named: Named) -> int:
    x, at = _first(args)
    _allow(len(args) == 3 and not named)
    one, other = (_index(dim, x.dim()) for dim in args[1:])
    return {one: other, other: one}.get(at, at)


def _flat(values: Any) -> list[Any]:
    return [one for value in _several(values) for one in _several(value)]


def view(result: Any, args: Args, named: Named) -> int:
    """Records in dimension 0 stay there: the first size is the batch's, or -1 where the others make
    up one record."""
    at = _first(args)[1]
    first, *rest = _flat([*args[1:], *named.values()])
    _allow(
        at == 0 and not set(named) - {"shape", "size"} and all(type(size) is int for size in rest)
    )
    _allow(isinstance(first, BatchSize) or (type(first) is int and first == -1))
    return 0


def spread(neutral: int) -> Rule:
    """`expand` (`neutral` is -1) and `repeat` (1): a constant for each record, or more of each
    record's own."""

    def rule(result: Any, args: Args, named: Named) -> int:
        sizes = _flat(args[1:])
        _allow(
            not named and all(type(size) is int or isinstance(size, BatchSize) for size in sizes)
        )
        counted = [place for place, size in enumerate(sizes) if isinstance(size, BatchSize)]
        if isinstance(args[0], Records):
            at = args[0].at + len(sizes) - args[0].tensor.dim()
            _allow(
                counted == [at] if neutral < 0 and counted else not counted and sizes[at] == neutral
            )
            return at
        own = args[0].dim() - len(sizes) + counted[0]
        _allow(
            len(counted) == 1
            and isinstance(args[0], Tensor)
            and (own < 0 or args[0].shape[own] == 1)
        )
        return counted[0]

    return rule


def getitem(result: Any, args: Args, named: Named) -> int:
    """Numbers, slices and None; the records' dimension is taken whole."""
    x, at = _first(args)
    index = list(args[1]) if isinstance(args[1], tuple) else [args[1]]
    for one in index:
        ends = [one.start, one.stop, one.step] if isinstance(one, slice) else [one]
        _allow(all(end is None or end is Ellipsis or type(end) is int for end in ends))
    taken = sum(one is not None and one is not Ellipsis for one in index)
    if Ellipsis not in index:
        index.append(Ellipsis)
    place = index.index(Ellipsis)
    index[place : place + 1] = [slice(None)] * (x.dim() - taken)
    _allow(Ellipsis not in index)
    seen = new = 0
    for one in index:
        if one is not None and seen == at:
            _allow(one == slice(None))
            return new
        new += not isinstance(one, int)
        seen += one is not None
    raise Unknown("an index leaves out the records")


def join(stacked: bool) -> Rule:
    """`cat` and `stack` along another dimension than that of the records."""

    def rule(result: Any, args: Args, named: Named) -> int:
        _allow(isinstance(args[0], list | tuple) and not set(named) - {"dim", "axis"})
        _allow(all(isinstance(one, Records) for one in args[0]))
        dims, at = args[0][0].tensor.dim(), args[0][0].at
        _allow(all((one.tensor.dim(), one.at) == (dims, at) for one in args[0]))
        dim = _index(next(iter(named.values()), args[1] if len(args) > 1 else 0), dims + stacked)
        _allow(stacked or dim != at)
        return at + (stacked and dim <= at)

    return rule


def matmul(result: Any, args: Args, named: Named) -> int:
    """By a constant matrix or vector, or of each record's own matrices."""
    left, right = args
    _allow(not named)
    if isinstance(left, Records) and isinstance(right, Records):
        _allow(
            left.tensor.dim() == right.tensor.dim() and left.at == right.at < left.tensor.dim() - 2
        )
    elif isinstance(left, Records):
        _allow(right.dim() <= 2 and left.at < left.tensor.dim() - 1)
        return left.at
    else:
        _allow(left.dim() == 2 and right.at < right.tensor.dim() - 2)
    return right.at


def einsum(result: Any, args: Args, named: Named) -> int:
    """The records' letter is in the result, once in every tensor of records, and in no constant."""
    equation, operands = args[0], _flat(args[1:])
    _allow(isinstance(equation, str) and "->" in equation and "." not in equation and not named)
    inputs, output = equation.replace(" ", "").split("->")
    terms = inputs.split(",")
    letters = {
        term[one.at] for term, one in zip(terms, operands, strict=True) if isinstance(one, Records)
    }
    _allow(len(letters) == 1 and output.count(letter := letters.pop()) == 1)
    for term, one in zip(terms, operands, strict=True):
        _allow(term.count(letter) == isinstance(one, Records))
    return output.index(letter)


def attention(result: Any, args: Args, named: Named) -> int:
    """Queries, keys and values of each record, without a mask and without dropout."""
    _allow(
        len(args) == 3
        and not set(named) - {"is_causal", "scale"}
        and all(isinstance(a, Records) for a in args)
    )
    matmul(result, args[:2], {})
    return matmul(result, args[1:], {})


def gather(result: Any, args: Args, named: Named) -> int:
    """The indices are each record's own."""
    x, dim, index = args
    _allow(isinstance(x, Records) and isinstance(index, Records) and not named)
    _allow(
        (index.at, index.tensor.dim()) == (x.at, x.tensor.dim())
        and _index(dim, x.tensor.dim()) != x.at
    )
    return x.at


def dropout(result: Any, args: Args, named: Named) -> int:
    """None at all."""
    _allow((named["p"] if "p" in named else args[1] if len(args) > 1 else None) == 0)
    return _first([args[0]])[1]


def embedding(result: Any, args: Args, named: Named) -> int:
    """Neither are the weights rewritten, nor does a gradient depend on how often a batch has an
    index."""
    _allow(len(args) == 2 and not named.get("scale_grad_by_freq") and not named.get("sparse"))
    _allow("max_norm" not in named)
    return _first(args)[1]


def cross_entropy(result: Any, args: Args, named: Named) -> int:
    """Of each record's scores with its own target."""
    scores, target, *rest = [*args, *(named[name] for name in ("target",) if name in named)]
    _allow(
        named.get("reduction") == "none" and not {"size_average", "reduce", "input"} & set(named)
    )
    _allow(
        isinstance(scores, Records) and isinstance(target, Records) and scores.at == target.at == 0
    )
    _allow(
        scores.tensor.dim() >= 2
        and not any(isinstance(v, Records) for v in [*rest, named.get("weight")])
    )
    return 0


def constant(result: Any, args: Args, named: Named) -> int:
    """Made from sizes and numbers that are the same for all records."""
    raise Unknown("records are given to a function that makes constants")


def recurrent(place: int) -> Any:
    """A recurrent layer from states 0: its output, with the records where they were, and its last
    states."""

    def rule(result: Any, args: Args, named: Named) -> tuple[int, int]:
        x, at = _first(args)
        _allow(len(args) == 1 and not named and x.dim() == 3 and at == place)
        return at, 1

    return rule
