"""A model as a list of operations, each of which is known to act on every record alone.

Per-record clipping bounds the influence of a record only if its gradient is a function of that
record and of the parameters. Records are therefore computed together only by a `torch.fx` graph all
of whose operations are on the list of `gradients.acts_alone`. It is this graph that runs, never the
model's own Python: it has no state and no branch. A model that cannot be traced, or does something
that is not on the list, is given one record at a time.
"""

import collections
import copy
import operator
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_aggregate

from mechanisms.gradients.acts_alone import SIZED, of_function, of_layer, of_method
from mechanisms.gradients.materialised import Loss
from mechanisms.gradients.placements import BatchSize, Records, Unknown

_SIZES = (3, 5)
_OPERATORS = "add sub mul truediv floordiv mod pow lt le eq ne gt ge"
_ARITHMETIC = {getattr(operator, name) for name in _OPERATORS.split()}
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class _Tracer(fx.Tracer):
    """Traces down to the layers that have a rule."""

    proxy_buffer_attributes = True

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Whether `m` is run as a whole."""
        return of_layer(m) is not None


class _LossOnly(nn.Module):
    """A loss as a module of outputs and targets."""

    def __init__(self, loss: Loss) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, output: Tensor, targets: Tensor) -> Tensor:
        """The losses `[B]`."""
        return self.loss(output, targets)


def traced(module: nn.Module) -> nn.Module | None:
    """A copy of `module` as a graph with the same names of layers and parameters, or None.

    A module that is itself a known layer is its own program.
    """
    copied = copy.deepcopy(module)
    if any(getattr(layer, hooks) for layer in copied.modules() for hooks in _HOOKS):
        return None
    if of_layer(copied) is not None:
        return copied
    try:
        program = _graph(_Tracer(), copied)
    except Exception:  # the user's code can raise anything
        return None
    return program if _names(program) == _names(module) else None


def traced_loss(loss: Loss) -> nn.Module | None:
    """A loss as a graph of outputs and targets; None if there is no such graph."""
    try:
        return _graph(_Tracer(), _LossOnly(copy.deepcopy(loss)))
    except Exception:  # the user's code can raise anything
        return None


def marked_outputs(program: nn.Module, rows: Tensor) -> list[Records] | None:
    """The outputs of a program for several batch sizes, on records like `rows [1, ...]`; None if
    an operation is not on the list.

    The records' values do not matter, as long as the program accepts them. Raises ValueError for a
    model that computes with the size of a batch.
    """
    try:
        return [_run(program, [_repeated(rows, size)]) for size in _SIZES]
    except _CountsRecords as error:
        raise ValueError(str(error)) from None
    except Exception:  # Unknown, or whatever an operation raises on made-up records
        return None


def loss_acts_alone(loss: nn.Module, outputs: list[Records], rows: Tensor) -> bool:
    """Whether all operations of a loss, on `marked_outputs` and such targets, are on the list."""
    try:
        sized = zip(outputs, _SIZES, strict=True)
        found = [_run(loss, [output, _repeated(rows, n)]) for output, n in sized]
    except Exception:  # Unknown, or whatever an operation raises on made-up records
        return False
    return all(losses.tensor.dim() == 1 for losses in found)


def reads_weights(program: nn.Module) -> bool:
    """Whether a trainable parameter is used other than by its layer."""
    if not isinstance(program, fx.GraphModule):
        return False
    reading = [node for node in program.graph.nodes if node.op == "get_attr"]
    read = [_attribute(program, str(node.target)) for node in reading]
    return any(isinstance(value, nn.Parameter) and value.requires_grad for value in read)


def place_of_difference(one: nn.Module, other: nn.Module) -> str | None:
    """The path of the first layer at which two programs' operations differ; None if none does."""
    if not isinstance(one, fx.GraphModule) or not isinstance(other, fx.GraphModule):
        return None
    graphs = (one.graph, other.graph)
    lines = [[(_described(node), _path(node)) for node in graph.nodes] for graph in graphs]
    both = zip(*lines, strict=False)  # the shorter one ends in its output, which differs, too
    return next((path for (first, path), (second, _) in both if first != second), None)


class _CountsRecords(Exception):
    """A program computes with the size of a batch."""


def _graph(tracer: fx.Tracer, module: nn.Module) -> fx.GraphModule:
    graph = tracer.trace(module)
    return fx.GraphModule(tracer.root, graph)


def _names(module: nn.Module) -> list[str]:
    return sorted(name for name, parameter in module.named_parameters() if parameter.requires_grad)


def _repeated(rows: Tensor, size: int) -> Records:
    """A batch `[size, ...]` of one record, `rows [1, ...]`."""
    return Records(rows.expand(size, *rows.shape[1:]).clone())


def _run(program: nn.Module, inputs: list[Records]) -> Records:
    """The program's output, with its records in dimension 0. Raises Unknown."""
    size = inputs[0].tensor.shape[inputs[0].at]
    kept = [*(one.tensor for one in inputs), *program.parameters(), *program.buffers()]
    versions = [tensor._version for tensor in kept]
    with torch.no_grad():
        output = _propagated(program, inputs, size)
    if versions != [tensor._version for tensor in kept]:
        raise Unknown("an operation writes into records, parameters or constants")
    if not isinstance(output, Records) or output.at != 0:
        raise Unknown("the output is not one tensor that starts with the records")
    return output


def _propagated(program: nn.Module, inputs: list[Records], size: int) -> Any:
    if not isinstance(program, fx.GraphModule):
        return _called(program, of_layer(program), inputs, {}, size)
    given, values = iter(inputs), dict[fx.Node, Any]()
    for node in program.graph.nodes:
        if node.op == "placeholder":
            values[node] = next(given)
            continue
        args, named = (
            map_aggregate(part, lambda a: values[a] if isinstance(a, fx.Node) else a)
            for part in (node.args, node.kwargs)
        )
        if node.op == "output":
            return args[0]
        if node.op == "get_attr":
            values[node] = _attribute(program, str(node.target))
        else:
            values[node] = _step(program, node, list(args), dict(named), size)
    raise Unknown("the graph has no output")


def _step(
    program: nn.Module, node: fx.Node, args: list[Any], named: dict[str, Any], size: int
) -> Any:
    if node.op == "call_module":
        layer = program.get_submodule(str(node.target))
        return _called(layer, of_layer(layer), args, named, size)
    if node.target is getattr or (node.op == "call_method" and node.target in ("size", "dim")):
        return _read(str(node.target) if node.op == "call_method" else args[1], args)
    if node.target is operator.getitem and isinstance(args[0], tuple | list):
        return args[0][args[1]]
    rule = of_method(str(node.target)) if node.op == "call_method" else of_function(node.target)
    counts = any(isinstance(one, BatchSize) for one in _leaves([args, named]))
    if counts and rule not in SIZED:
        if node.target in _ARITHMETIC:
            raise _CountsRecords(
                f"layer '{_path(node)}' computes with the number of records of a batch, so a "
                "record's influence cannot be bounded: use the size of a batch to reshape only"
            )
        raise Unknown("the size of the batch is given to an operation")
    if node.op == "call_method":

        def method(one: Any, *rest: Any, **options: Any) -> Any:
            return getattr(one, str(node.target))(*rest, **options)

        return _called(method, rule, args, named, size)
    return _called(node.target, rule, args, named, size)


def _called(function: Any, rule: Any, args: list[Any], named: dict[str, Any], size: int) -> Any:
    """The result of a call, with its records marked as the rule says."""
    whole = ("dim", "dims", "axis")
    named = {name: v for name, v in named.items() if v is not None or name in whole}
    if rule is None or {"out", "generator"} & set(named):
        raise Unknown("the operation is not on the list")
    result = function(*map_aggregate(tuple(args), _plain), **map_aggregate(named, _plain))
    if not any(isinstance(one, Records | BatchSize) for one in _leaves([args, named])):
        return result
    at = rule(result, args, named)
    if at is None:
        return result
    if isinstance(at, tuple):
        return tuple(_marked(part, place, size) for part, place in zip(result, at, strict=True))
    return _marked(result, at, size)


def _marked(result: Any, at: int, size: int) -> Any:
    if isinstance(result, tuple | list):
        fields = getattr(type(result), "__match_args__", ())  # of what max and sort return
        parts = [_marked(part, at, size) for part in result]
        if not fields:
            return tuple(parts)
        return collections.namedtuple("Parts", fields)(*parts)  # type: ignore[misc]
    if not isinstance(result, Tensor) or not 0 <= at < result.dim() or result.shape[at] != size:
        raise Unknown("the records are not where they should be")
    return Records(result, at)


def _read(name: str, args: list[Any]) -> Any:
    """An attribute of a tensor: sizes (the batch's marked), type, device or a transposed view."""
    one = args[0]
    if isinstance(one, tuple) and name in getattr(one, "_fields", ()):
        return getattr(one, name)
    known = ("shape", "size", "ndim", "dim", "dtype", "device", "T", "mT")
    if isinstance(one, Tensor) and name in known:
        found = getattr(one, name)
        return found(*args[1:]) if name in ("size", "dim") else found
    if not isinstance(one, Records):
        raise Unknown("an attribute of a constant")
    if name in ("shape", "size"):
        shape = tuple(BatchSize(n) if i == one.at else n for i, n in enumerate(one.tensor.shape))
        return shape if name == "shape" or len(args) == 1 else shape[args[1]]
    if name in ("ndim", "dim"):
        return one.tensor.dim()
    if name in ("dtype", "device"):
        return getattr(one.tensor, name)
    if name in ("T", "mT") and one.tensor.dim() == 2:
        return Records(one.tensor.T, 1 - one.at)
    raise Unknown("an attribute that is not on the list")


def _plain(value: Any) -> Any:
    if isinstance(value, Records):
        return value.tensor
    return value.value if isinstance(value, BatchSize) else value


def _leaves(values: Any) -> list[Any]:
    found: list[Any] = []
    map_aggregate(values, found.append)
    return found


def _attribute(program: nn.Module, path: str) -> Any:
    owner, _, name = path.rpartition(".")
    return getattr(program.get_submodule(owner), name)


def _path(node: fx.Node) -> str:
    """The path of the layer whose forward makes the call."""
    stack = list(node.meta.get("nn_module_stack", {}).values())
    return stack[-1][0] if stack else ""


def _described(node: fx.Node) -> tuple[Any, ...]:
    """What a node does; dropout with p = 0 does the same in both modes."""
    named = dict(node.kwargs)
    if node.target is nn.functional.dropout and named.get("p") == 0:
        named.pop("training", None)
    return node.op, node.target, str(node.args), str(named)
