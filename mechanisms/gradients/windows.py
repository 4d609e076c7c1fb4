"""What a convolution's per-record gradients are products of: the output's gradient, and the input
shifted by each offset of the kernel.

A shifted input is a view of the same memory where the rows of its matrix lie evenly there. What has
to be copied for that depends on the layer (measured in docs/decisions/0032-kernels-by-chip.md):

- nothing, with stride 1 and many channels: a matrix has the pixels of whole padded rows, and the
  output's gradient gets zeros where a row's last pixels begin no window;
- windows along all dimensions but the first, of which s rows stand side by side with stride s: a
  shift goes along the first dimension;
- windows along all dimensions, or patches, where s rows do not fit, and on a GPU.
"""

from math import prod

from torch import Tensor, nn
from torch.nn import functional as F

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d

# Channels of a group from which on a matrix of one offset is wide enough for product kernels.
_WIDE = 16
# Rows of a window with at least so many entries are copied fast enough as they are
# (docs/decisions/0010-speed.md).
_RUN = 64


def factors(layer: Convolution, x: Tensor, left: Tensor) -> tuple[Tensor, Tensor]:
    """The two sides of the products `left^T right [n, G, *A, out / G, F]`, of `x [n, in, *size]`
    and `left [n, G, T, out / G]`: `[n, G, T', out / G]` and `[n, G, *A, T', F]`.

    All of A times F are the kernel's entries, by position, then channel.
    """
    padded, rows = pad(layer, x), _rows(layer, x)
    if not rows:
        return _shifted(layer, padded, left)
    copied = _windows(layer, padded, rows).contiguous()
    n, groups, _, width = copied.shape
    pixels = left.shape[2]
    step = (layer.dilation[0] if rows == 1 else 1) * width * pixels // _sizes(layer, padded)[0]
    shifts = (n, groups, layer.kernel_size[0] // rows, pixels, width)
    strides = (copied.stride(0), copied.stride(1), step, width, 1)
    return left, copied.as_strided(shifts, strides)


def width(layer: Convolution, x: Tensor) -> int:
    """F of `factors`."""
    return (_rows(layer, x) * prod(layer.kernel_size[1:]) or 1) * x.shape[1] // layer.groups


def patches(layer: Convolution, x: Tensor) -> Tensor:
    """`[n, G, T, F]`: the input's patch under each of the T output pixels of `x [n, in, *size]`."""
    return _windows(layer, pad(layer, x), layer.kernel_size[0])


def arranged(layer: Convolution, total: Tensor) -> Tensor:
    """`[K, out, in / G, *kernel]` from sums of products `[K, G, A, out / G, F]`."""
    rows = total.transpose(2, 3).flatten(3).flatten(1, 2)
    return rows.unflatten(2, (*layer.kernel_size, -1)).movedim(-1, 2)


def pad(layer: Convolution, x: Tensor) -> Tensor:
    """`x [n, in, *size]` with the layer's padding."""
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    amounts = layer._reversed_padding_repeated_twice
    return F.pad(x, amounts, mode) if any(amounts) else x


def _sizes(layer: Convolution, padded: Tensor) -> list[int]:
    """The output's sizes."""
    given = zip(padded.shape[2:], layer.kernel_size, layer.stride, layer.dilation, strict=True)
    return [(size - dilation * (k - 1) - 1) // s + 1 for size, k, s, dilation in given]


def _rows(layer: Convolution, x: Tensor) -> int:
    """How many rows of the first dimension a window has; 0 if nothing is copied."""
    if x.device.type != "cpu":
        return layer.kernel_size[0]
    shifts = set(layer.stride) == {1} and x.shape[1] >= _WIDE * layer.groups
    return 0 if shifts else _rows_aside(layer)


def _rows_aside(layer: Convolution) -> int:
    """The fewest rows of a window with which shifts by so many rows give all of the kernel."""
    kernel, stride, dilation = layer.kernel_size[0], layer.stride[0], layer.dilation[0]
    even = stride == 1 or (dilation == 1 and kernel % stride == 0)
    return stride if even else kernel


def _shifted(layer: Convolution, padded: Tensor, left: Tensor) -> tuple[Tensor, Tensor]:
    sizes, groups = _sizes(layer, padded), layer.groups
    rows = padded.movedim(1, -1).contiguous()
    n, *whole, channels = rows.shape
    pitches = rows.stride()[1:-1]
    pixels = 1 + sum((size - 1) * p for size, p in zip(sizes, pitches, strict=True)) // channels
    steps = [d * pitch for d, pitch in zip(layer.dilation, pitches, strict=True)]
    right = rows.as_strided(
        (n, groups, *layer.kernel_size, pixels, channels // groups),
        (rows.stride(0), channels // groups, *steps, channels, 1),
    )
    amounts = [0, 0]
    for size, own in zip(reversed(whole[1:]), reversed(sizes[1:]), strict=True):
        amounts += [0, size - own]
    return F.pad(left.unflatten(2, sizes), amounts).flatten(2, -2)[:, :, :pixels], right


def _windows(layer: Convolution, padded: Tensor, rows: int) -> Tensor:
    """`[n, G, Q, F]`: windows of so many `rows` of the first dimension at all its Q = R times
    outputs' positions, their entries ordered by position in the kernel, then channel.

    Channels come last because a copy from the channels-last layout then runs over contiguous
    memory. If such runs are short, windows are laid out one dimension after the other, which gives
    the next copy longer runs.
    """
    dims = padded.dim() - 2
    kernel = (rows, *layer.kernel_size[1:])
    views = padded.unflatten(1, (layer.groups, -1)).movedim(2, -1)
    for d in reversed(range(dims)):
        span = layer.dilation[d] * (kernel[d] - 1) + 1
        windows = views.unfold(2 + d, span, layer.stride[d])[..., :: layer.dilation[d]]
        views = windows.movedim(-1, 2 + dims)
        if d > 0 and views.shape[2 + dims :].numel() < _RUN:
            views = views.movedim(2 + d, 2).contiguous().movedim(2, 2 + d)
    return views.flatten(2 + dims).flatten(2, 1 + dims)
