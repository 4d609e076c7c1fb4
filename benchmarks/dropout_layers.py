"""What dropout layers would gain under DPSGD: digits, one client, a network of one hidden layer.

    python -m benchmarks.dropout_layers

One record's gradient is that of its own mask. Prints test accuracy by epsilon, learning rate and
dropout, the mean of eight seeds. Decision 74 has the figures.
"""

import math
from statistics import mean

import torch
from sklearn.datasets import load_digits
from torch import Tensor

from mechanisms.accounting.accountant import epsilon
from mechanisms.accounting.events import SampledGaussian

RATE, STEPS, HIDDEN, DELTA, SEEDS, TRAINING = 0.1, 200, 128, 1e-5, 8, 1_437
DROPOUTS, LEARNING_RATES = (0.0, 0.1, 0.25, 0.5), (0.25, 0.5, 1.0, 2.0, 3.0)


def noise_for(target: float) -> float:
    """The noise multiplier with which all steps cost ``target``."""
    low, high = 0.3, 60.0
    for _ in range(40):
        middle = math.sqrt(low * high)
        enough = epsilon({SampledGaussian(RATE, middle): STEPS}, DELTA).epsilon <= target
        low, high = (low, middle) if enough else (middle, high)
    return high


def accuracy(
    x: Tensor, y: Tensor, seed: int, dropout: float, noise: float, learning_rate: float
) -> float:
    """Test accuracy after all steps, with a clip norm of 1."""
    rng = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(y), generator=rng)
    train, test = order[:TRAINING], order[TRAINING:]
    first = torch.randn(x.shape[1], HIDDEN, generator=rng) / math.sqrt(x.shape[1])
    last = torch.randn(HIDDEN, 10, generator=rng) / math.sqrt(HIDDEN)
    weights = [first, torch.zeros(HIDDEN), last, torch.zeros(10)]
    for _ in range(STEPS):
        batch = train[torch.rand(TRAINING, generator=rng) < RATE]
        hidden = torch.tanh(x[batch] @ weights[0] + weights[1])
        mask = (torch.rand(hidden.shape, generator=rng) >= dropout).float() / (1 - dropout)
        seen = hidden * mask
        error = torch.softmax(seen @ weights[2] + weights[3], 1)
        error[torch.arange(len(batch)), y[batch]] -= 1
        back = (error @ weights[2].T) * mask * (1 - hidden**2)
        parts = ((x[batch], back), (seen, error))
        squares = sum((e**2).sum(1) * ((a**2).sum(1) + 1) for a, e in parts)
        factors = (1 / (torch.as_tensor(squares).sqrt() + 1e-12)).clamp(max=1)[:, None]
        sums = [total for a, e in parts for total in (a.T @ (e * factors), (e * factors).sum(0))]
        for weight, total in zip(weights, sums, strict=True):
            noisy = total + noise * torch.randn(total.shape, generator=rng)
            weight -= learning_rate / (RATE * TRAINING) * noisy
    output = torch.tanh(x[test] @ weights[0] + weights[1]) @ weights[2] + weights[3]
    return (output.argmax(1) == y[test]).float().mean().item()


def main() -> None:
    """The command."""
    torch.set_num_threads(1)
    records, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(records / 16, dtype=torch.float32), torch.tensor(labels)
    for target in (1.0, 3.0, 8.0):
        noise = noise_for(target)
        for rate in LEARNING_RATES:
            found = (
                mean(accuracy(x, y, seed, dropout, noise, rate) for seed in range(SEEDS))
                for dropout in DROPOUTS
            )
            shown = ", ".join(f"{one:.4f}" for one in found)
            print(f"epsilon {target:g}, learning rate {rate:g}: {shown}", flush=True)


if __name__ == "__main__":
    main()
