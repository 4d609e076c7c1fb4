"""Where the records of a batch are in the result of an operation that acts on each record alone.

A value of a program is a constant (a number, a parameter, anything made from these), the size of
the batch, or `Records`: a tensor that holds one record at each index of its dimension `at`. A rule
looks at one call with all its arguments and says where the records are in the result, or raises
`Unknown`. It must raise for every call in which an entry of the result may depend on two records.
It decides by numbers of dimensions, by sizes other than the batch's, and by the dimensions that the
call names; never by the values in a tensor.

Here are the rules that many operations share. Others are in `shape_rules` and `operation_rules`;
`acts_alone` says which operation has which rule.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

Args = Sequence[Any]
Named = dict[str, Any]


class Unknown(Exception):
    """A call that is not known to act on each record alone."""


@dataclass(frozen=True)
class Records:
    """A tensor with one record at each index of dimension `at`; its values are made up."""

    tensor: Tensor
    at: int = 0


@dataclass(frozen=True)
class BatchSize:
    """The number of records of a batch, as a program reads it from a shape."""

    value: int


Rule = Callable[[Any, Args, Named], Any]
"""From a call's result, arguments and keyword arguments to the records' dimension `at` in every
tensor of the result.

If the parts of a result differ, there is one `at` for each; None stands for a constant. At least
one argument is `Records`. Only the rules of `view`, `expand` and `repeat` are given a `BatchSize`.
"""


def only_records(args: Args) -> tuple[Tensor, int]:
    """Tensor and `at` of the first argument, which must be the only one that holds records."""
    if (
        not args
        or not isinstance(args[0], Records)
        or any(isinstance(a, Records) for a in args[1:])
    ):
        raise Unknown("records stand elsewhere than in the first argument")
    return args[0].tensor, args[0].at


def require(condition: bool) -> None:
    """Raises Unknown unless the condition holds."""
    if not condition:
        raise Unknown("the call may reach from record to record")


def dimension(dim: Any, dims: int) -> int:
    """A dimension as a number from 0; `dim` may be negative."""
    require(type(dim) is int and -dims <= dim < dims)
    return dim % dims


def several(values: Any) -> list[Any]:
    """A list or tuple as a list; anything else as a list of one."""
    return list(values) if isinstance(values, list | tuple) else [values]


def flat(values: Any) -> list[Any]:
    """`several`, with the lists and tuples in it opened."""
    return [one for value in several(values) for one in several(value)]


def elementwise(result: Any, args: Args, named: Named) -> int:
    """Acts entry by entry; records, which are not broadcast over each other, have the same `at`."""
    values = [*args, *named.values()]
    records = [value for value in values if isinstance(value, Records)]
    dims, at = records[0].tensor.dim(), records[0].at
    require(all((one.tensor.dim(), one.at) == (dims, at) for one in records))
    for value in values:
        if isinstance(value, Tensor):  # a constant meets all records with the same numbers
            place = value.dim() - (dims - at)
            require(value.dim() <= dims and (place < 0 or value.shape[place] == 1))
        else:
            require(not isinstance(value, list | tuple | dict))
    require(isinstance(result, Tensor) and result.dim() == dims)
    return at


def like_first(result: Any, args: Args, named: Named) -> int | None:
    """Gives the first argument in another type, on another device or as a copy."""
    return args[0].at if isinstance(args[0], Records) else None


def along(position: int, default: Any = None) -> Rule:
    """Works along dimensions, given as argument `position` or by name, other than the records'."""

    def rule(result: Any, args: Args, named: Named) -> int:
        x, at = only_records(args)
        given = [named[name] for name in ("dim", "dims", "axis") if name in named]
        given = given or list(args[position : position + 1]) or [default]
        dims = {dimension(dim, x.dim()) for dim in several(given[0])}
        require(bool(dims) and at not in dims)
        require(not any(isinstance(v, Records) for v in named.values()))
        parts = result if isinstance(result, tuple | list) else (result,)
        lost = x.dim() - parts[0].dim()
        require(lost in (0, len(dims)))
        return at - (sum(dim < at for dim in dims) if lost else 0)

    return rule


def whole(least: int, most: int | None = None) -> Rule:
    """Takes whole records, in dimension 0 of `least` to `most` dimensions, and constants."""

    def rule(result: Any, args: Args, named: Named) -> int:
        x, at = only_records(args)
        require(at == 0 and least <= x.dim() <= (most or x.dim()))
        require(not any(isinstance(value, Records) for value in named.values()))
        return 0

    return rule


def inner(count: Callable[[Args, Named], int]) -> Rule:
    """Works within the last `count` dimensions, which do not include the records'."""

    def rule(result: Any, args: Args, named: Named) -> int:
        x, at = only_records(args)
        require(not any(isinstance(value, Records) for value in named.values()))
        require(at < x.dim() - count(args, named))
        return at

    return rule
