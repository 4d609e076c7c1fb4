"""Where the records are after an operation that rearranges, selects or joins dimensions.

Such an operation computes nothing. Its rule (`gradients.placements.Rule`) follows the records'
dimension through the call, and raises `Unknown` unless that dimension keeps every record whole.
"""

from typing import Any

from torch import Tensor

from mechanisms.gradients.placements import (
    Args,
    BatchSize,
    Named,
    Records,
    Rule,
    Unknown,
    dimension,
    flat,
    only_records,
    require,
)


def squeeze(result: Any, args: Args, named: Named) -> int:
    x, at = only_records(args)
    dim = dimension(named["dim"] if named else args[1] if len(args) > 1 else None, x.dim())
    require(dim != at)
    return at - (dim < at and x.shape[dim] == 1)


def unsqueeze(result: Any, args: Args, named: Named) -> int:
    x, at = only_records(args)
    return at + (dimension(named["dim"] if named else args[1], x.dim() + 1) <= at)


def flatten(result: Any, args: Args, named: Named) -> int:
    x, at = only_records(args)
    options = dict(zip(("start_dim", "end_dim"), args[1:], strict=False)) | named
    start, end = (
        dimension(options.get(n, d), x.dim()) for n, d in (("start_dim", 0), ("end_dim", -1))
    )
    require(not start <= at <= end or start == end)
    return at - (end - start if end < at else 0)


def unflatten(result: Any, args: Args, named: Named) -> int:
    x, at = only_records(args)
    dim = dimension(named.get("dim", args[1] if len(args) > 1 else None), x.dim())
    require(dim != at)
    return at + (result.dim() - x.dim() if dim < at else 0)


def permute(result: Any, args: Args, named: Named) -> int:
    x, at = only_records(args)
    require(not set(named) - {"dims"})
    return [dimension(dim, x.dim()) for dim in flat(named.get("dims", args[1:]))].index(at)


def transpose(result: Any, args: Args, named: Named) -> int:
    x, at = only_records(args)
    require(len(args) == 3 and not named)
    one, other = (dimension(dim, x.dim()) for dim in args[1:])
    return {one: other, other: one}.get(at, at)


def view(result: Any, args: Args, named: Named) -> int:
    """Records in dimension 0 stay there: the first size is the batch's, or -1 if the others make up
    one record."""
    at = only_records(args)[1]
    first, *rest = flat([*args[1:], *named.values()])
    require(at == 0 and not set(named) - {"shape", "size"})
    require(all(type(size) is int for size in rest))
    require(isinstance(first, BatchSize) or (type(first) is int and first == -1))
    return 0


def spread(neutral: int) -> Rule:
    """`expand` (`neutral` is -1) and `repeat` (1) of a constant or of each record's own entries."""

    def rule(result: Any, args: Args, named: Named) -> int:
        sizes = flat(args[1:])
        require(not named)
        require(all(type(size) is int or isinstance(size, BatchSize) for size in sizes))
        counted = [place for place, size in enumerate(sizes) if isinstance(size, BatchSize)]
        if isinstance(args[0], Records):
            at = args[0].at + len(sizes) - args[0].tensor.dim()
            require(
                counted == [at] if neutral < 0 and counted else not counted and sizes[at] == neutral
            )
            return at
        own = args[0].dim() - len(sizes) + counted[0]
        require(len(counted) == 1 and isinstance(args[0], Tensor))
        require(own < 0 or args[0].shape[own] == 1)
        return counted[0]

    return rule


def getitem(result: Any, args: Args, named: Named) -> int:
    """Takes numbers, slices and None; the records' dimension must be taken whole."""
    x, at = only_records(args)
    index = list(args[1]) if isinstance(args[1], tuple) else [args[1]]
    for one in index:
        ends = [one.start, one.stop, one.step] if isinstance(one, slice) else [one]
        require(all(end is None or end is Ellipsis or type(end) is int for end in ends))
    taken = sum(one is not None and one is not Ellipsis for one in index)
    if Ellipsis not in index:
        index.append(Ellipsis)
    place = index.index(Ellipsis)
    index[place : place + 1] = [slice(None)] * (x.dim() - taken)
    require(Ellipsis not in index)
    seen = new = 0
    for one in index:
        if one is not None and seen == at:
            require(one == slice(None))
            return new
        new += not isinstance(one, int)
        seen += one is not None
    raise Unknown("an index leaves out the records")


def join(stacked: bool) -> Rule:
    """`cat` and `stack` along another dimension than that of the records."""

    def rule(result: Any, args: Args, named: Named) -> int:
        require(isinstance(args[0], list | tuple) and not set(named) - {"dim", "axis"})
        require(all(isinstance(one, Records) for one in args[0]))
        dims, at = args[0][0].tensor.dim(), args[0][0].at
        require(all((one.tensor.dim(), one.at) == (dims, at) for one in args[0]))
        dim = dimension(next(iter(named.values()), args[1] if len(args) > 1 else 0), dims + stacked)
        require(stacked or dim != at)
        return at + (stacked and dim <= at)

    return rule
