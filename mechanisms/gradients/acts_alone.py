"""The operations that act on each record alone: functions, methods and layers, each with its rule.

Whatever is not here may mix records, draw at random or have a state. `gradients.program` looks up
the operations of a model.
"""

import operator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mechanisms.gradients import operation_rules as operations
from mechanisms.gradients import placements as place
from mechanisms.gradients import shape_rules as shapes
from mechanisms.gradients.placements import Rule

_ELEMENTWISE = """
    add sub mul div truediv floordiv floor_divide true_divide mod remainder fmod pow neg abs
    sign square sqrt rsqrt reciprocal exp expm1 exp2 log log1p log2 log10 sin cos tan asin acos
    atan atan2 sinh cosh tanh asinh acosh atanh erf erfc sigmoid logit logsigmoid floor ceil
    round trunc frac clamp clamp_min clamp_max clip minimum maximum fmin fmax where masked_fill
    lerp addcmul addcdiv hypot logaddexp xlogy nan_to_num isnan isinf isfinite eq ne lt le gt ge
    logical_and logical_or logical_not logical_xor and_ or_ xor invert pos relu relu6 leaky_relu
    elu selu celu gelu silu mish softplus softsign tanhshrink hardtanh hardsigmoid hardswish
    hardshrink softshrink threshold zeros_like ones_like full_like expand_as relu_ tanh_
    sigmoid_ add_ sub_ mul_ div_ clamp_ exp_ sqrt_ neg_ abs_ mse_loss l1_loss smooth_l1_loss
    huber_loss binary_cross_entropy binary_cross_entropy_with_logits kl_div
"""
_TABLE: dict[str, Rule] = {
    "to type_as contiguous clone detach float double long bool": place.like_first,
    "sum mean amax amin prod std var logsumexp argmax argmin": place.along(1),
    "max min median any all count_nonzero": place.along(1),
    "cumsum cumprod softmax log_softmax softmin": place.along(1),
    "select narrow index_select": place.along(1),
    "norm vector_norm roll": place.along(2),
    "sort argsort glu": place.along(1, -1),
    "topk": place.along(2, -1),
    "normalize": place.along(2, 1),
    "chunk split": place.along(2, 0),
    "unbind": place.along(1, 0),
    "transpose swapaxes swapdims": shapes.transpose,
    "permute": shapes.permute,
    "squeeze": shapes.squeeze,
    "unsqueeze": shapes.unsqueeze,
    "flatten": shapes.flatten,
    "unflatten": shapes.unflatten,
    "view reshape": shapes.view,
    "expand": shapes.spread(-1),
    "repeat": shapes.spread(1),
    "getitem": shapes.getitem,
    "cat concat": shapes.join(False),
    "stack": shapes.join(True),
    "gather": operations.gather,
    "matmul bmm": operations.matmul,
    "einsum": operations.einsum,
    "scaled_dot_product_attention": operations.attention,
    "linear": place.inner(lambda args, named: 1),
    "layer_norm": place.inner(
        lambda args, named: len(
            named["normalized_shape"] if "normalized_shape" in named else args[1]
        )
    ),
    "pad": place.inner(lambda args, named: len(named["pad"] if "pad" in named else args[1]) // 2),
    "group_norm prelu": place.whole(2),
    "interpolate": place.whole(3),
    "conv1d conv_transpose1d": place.whole(3, 3),
    "max_pool1d avg_pool1d": place.whole(3, 3),
    "adaptive_avg_pool1d adaptive_max_pool1d": place.whole(3, 3),
    "conv2d conv_transpose2d": place.whole(4, 4),
    "max_pool2d avg_pool2d": place.whole(4, 4),
    "adaptive_avg_pool2d adaptive_max_pool2d": place.whole(4, 4),
    "conv3d conv_transpose3d": place.whole(5, 5),
    "max_pool3d avg_pool3d": place.whole(5, 5),
    "adaptive_avg_pool3d adaptive_max_pool3d": place.whole(5, 5),
    "dropout": operations.dropout,
    "embedding": operations.embedding,
    "cross_entropy nll_loss": operations.cross_entropy,
    "zeros ones full arange eye linspace tensor": operations.constant,
    _ELEMENTWISE: place.elementwise,
}
_RULES = {name: rule for names, rule in _TABLE.items() for name in names.split()}
SIZED = {_RULES["view"], _RULES["expand"], _RULES["repeat"]}
"""The rules that may be given the size of the batch."""

_SPACES = (operator, torch, F, torch.linalg)
_FUNCTIONS: dict[Any, Rule] = {
    getattr(space, name): rule
    for name, rule in _RULES.items()
    for space in _SPACES
    if hasattr(space, name)
}

_PLAIN = """
    Identity ReLU ReLU6 LeakyReLU ELU SELU CELU GELU SiLU Mish Tanh Sigmoid LogSigmoid Softplus
    Softsign Tanhshrink Hardtanh Hardsigmoid Hardswish
"""
_IMAGES = "Conv ConvTranspose MaxPool AvgPool AdaptiveAvgPool AdaptiveMaxPool InstanceNorm"
_LAYERS: dict[type[nn.Module], Rule] = {
    getattr(nn, name): place.elementwise for name in _PLAIN.split()
} | {
    getattr(nn, f"{name}{n}d"): place.whole(n + 2, n + 2)
    for name in _IMAGES.split()
    for n in (1, 2, 3)
}


def of_function(function: Any) -> Rule | None:
    """The rule of a function, by identity."""
    return _FUNCTIONS.get(function)


def of_method(name: str) -> Rule | None:
    """The rule of a tensor's method."""
    return _RULES.get(name) if hasattr(Tensor, name) else None


def of_layer(layer: nn.Module) -> Rule | None:
    """The rule of a layer of exactly a known type, with the forward of that type."""
    kind = type(layer)
    if "forward" in vars(layer):
        return None
    if kind in _LAYERS:
        return None if getattr(layer, "track_running_stats", False) else _LAYERS[kind]
    if kind is nn.Linear:
        return _RULES["linear"]
    if kind is nn.GroupNorm:
        return place.whole(2)
    if isinstance(layer, nn.LayerNorm) and kind is nn.LayerNorm:
        return place.inner(lambda args, named: len(layer.normalized_shape))
    if isinstance(layer, nn.Embedding) and kind is nn.Embedding:
        rewritten = layer.max_norm is not None or layer.scale_grad_by_freq or layer.sparse
        return None if rewritten else place.inner(lambda args, named: 0)
    if isinstance(layer, nn.RNNBase) and kind in (nn.LSTM, nn.GRU, nn.RNN) and not layer.dropout:
        return operations.recurrent(0 if layer.batch_first else 1)
    return None
