"""Named random streams: a draw depends on (key, purpose, round, client), never on who computes it.

A stream is numpy's Philox counter generator whose 128-bit key is the BLAKE2b digest of its name.
Streams of different names are independent; the same name gives the same draws on any worker, in any
group and in any order.

A release has no key: all its draws come from the operating system's entropy, and nobody can repeat
them.
"""

import hashlib
import secrets
from collections.abc import Sequence
from typing import Any, Literal, Protocol

import numpy as np
import torch

from mechanisms.ahead import Ahead
from mechanisms.device_normals import DeviceNormals
from mechanisms.entropy import SystemEntropy
from mechanisms.normals import normals
from mechanisms.placing import place
from mechanisms.rounded_gaussian import Words, rounded_gaussian

SERVER = -1
"""The client number of draws that belong to no client: picks of clients, partitions, weights."""


def seed_key(seed: int) -> bytes:
    """The key of a seeded simulation: whoever knows the seed can subtract the noise."""
    return f"seed:{seed}".encode()


def fresh_key() -> bytes:
    """256 bits of the operating system's entropy, stored nowhere: for draws of a release that need
    no secrecy."""
    return secrets.token_bytes(32)


def _digest(key: bytes, purpose: str, round_: int, client: int, bits: int) -> bytes:
    name = f"{purpose}|{round_}|{client}".encode()
    return hashlib.blake2b(name, key=hashlib.sha256(key).digest(), digest_size=bits // 8).digest()


class _Key(np.random.bit_generator.ISeedSequence):
    """Passes Philox its key as it is; ``Philox(key=...)`` does the same in three times the time."""

    def __init__(self, digest: bytes):
        # the lower half first
        self._words = np.frombuffer(digest, dtype=">u8")[::-1].astype(np.uint64)

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> np.ndarray:
        return self._words


def generator(
    key: bytes, purpose: str, round_: int = 0, client: int = SERVER
) -> np.random.Generator:
    """The stream of this name, at its start."""
    key_words = _Key(_digest(key, purpose, round_, client, 128))
    # Any ISeedSequence will do.
    return np.random.Generator(np.random.Philox(key_words))  # type: ignore[arg-type]


Source = np.random.Generator | SystemEntropy
"""A source of random coins."""


def words_of(source: Source) -> Words:
    """Uniform 64-bit words of a source."""
    return source.words if isinstance(source, SystemEntropy) else source.bit_generator.random_raw


class Draws(Protocol):
    """The random draws of a cohort in one local round."""

    def of(self, purpose: str) -> Sequence[Source]:
        """The K sources of coins for a purpose."""

    def normal(self, purpose: str, size: int) -> torch.Tensor:
        """Standard normal draws, float32 ``[K, size]``; for simulations alone."""

    def rounded(self, purpose: str, size: int) -> torch.Tensor:
        """Exact draws of round(2^28 Z), Z standard normal, int64 ``[K, size]``."""

    def begin(self, kind: Literal["normal", "rounded"], purpose: str, size: int) -> None:
        """Start draws that are asked for next, on another core if there are many; a GPU makes its
        own when they are asked for."""


class Purpose(Sequence[np.random.Generator]):
    """The generators of one purpose, ``[K]``, each made on first use: most batches need no draw."""

    def __init__(self, key: bytes, purpose: str, round_: int, clients: Sequence[int]):
        self._key, self._purpose, self._round, self._clients = key, purpose, round_, clients
        self._made: dict[int, np.random.Generator] = {}

    def __len__(self) -> int:
        return len(self._clients)

    def __getitem__(self, k: int) -> np.random.Generator:  # type: ignore[override]
        if k not in self._made:
            self._made[k] = generator(self._key, self._purpose, self._round, self._clients[k])
        return self._made[k]


class Streams:
    """The streams of a cohort for one local round, one per purpose and client, in step order.

    Args:
        key: the run's key (``seed_key``).
        round_: the round's number.
        clients: the cohort's client numbers, length K.
        device: where tensors are wanted. On CUDA, normal draws come from the device's own Philox
            generators, whose keys are 64 bits of the same digest; their values differ from the
            CPU's.
    """

    def __init__(self, key: bytes, round_: int, clients: Sequence[int], device: torch.device):
        self._key, self._round, self._device = key, round_, device
        self._clients = [int(c) for c in clients]
        self._host: dict[str, Purpose] = {}
        self._on_device: dict[str, DeviceNormals] = {}
        self._ahead = Ahead(len(self._clients))

    def of(self, purpose: str) -> Sequence[np.random.Generator]:
        """The K generators of a purpose; each continues after its last draw."""
        if purpose not in self._host:
            self._host[purpose] = Purpose(self._key, purpose, self._round, self._clients)
        return self._host[purpose]

    def normal(self, purpose: str, size: int) -> torch.Tensor:
        """Standard normal draws, float32 ``[K, size]``, row k from client k's stream."""
        if self._device.type == "cuda":
            return self._normals(purpose).draw(size)
        return place(self._ahead.take(self._host_normals, purpose, size), self._device)

    def rounded(self, purpose: str, size: int) -> torch.Tensor:
        """Exact draws of round(2^28 Z), int64 ``[K, size]``, row k from client k's stream."""
        return place(self._ahead.take(self._host_rounded, purpose, size), self._device)

    def begin(self, kind: Literal["normal", "rounded"], purpose: str, size: int) -> None:
        """Start draws that are asked for next, on another core if there are many."""
        if kind == "rounded":
            self._ahead.begin(self._host_rounded, purpose, size)
        elif self._device.type != "cuda":
            self._ahead.begin(self._host_normals, purpose, size)

    def _host_normals(self, purpose: str, size: int) -> torch.Tensor:
        sources = [words_of(stream) for stream in self.of(purpose)]
        return torch.from_numpy(normals(sources, size))

    def _host_rounded(self, purpose: str, size: int) -> torch.Tensor:
        rows = [rounded_gaussian(words_of(stream), size) for stream in self.of(purpose)]
        return torch.from_numpy(np.stack(rows))

    def _normals(self, purpose: str) -> DeviceNormals:
        if purpose not in self._on_device:
            names = [_digest(self._key, purpose, self._round, c, 64) for c in self._clients]
            # manual_seed reads a signed 64-bit integer
            seeds = [int.from_bytes(name) - 2**63 for name in names]
            self._on_device[purpose] = DeviceNormals(seeds, self._device)
        return self._on_device[purpose]


class SystemStreams:
    """The draws of a release for K clients, from the operating system's entropy."""

    def __init__(self, clients: int, device: torch.device):
        self._clients, self._device, self._entropy = clients, device, SystemEntropy()
        self._ahead = Ahead(clients)

    def of(self, purpose: str) -> Sequence[Source]:
        """The same source for all clients: it never repeats a draw."""
        return [self._entropy] * self._clients

    def normal(self, purpose: str, size: int) -> torch.Tensor:
        """Refused: the digits of float noise would reveal what it should hide.

        Raises:
            TypeError: always.
        """
        raise TypeError(
            f"float noise for '{purpose}' was asked for in a release, where noise is on a grid"
        )

    def rounded(self, purpose: str, size: int) -> torch.Tensor:
        """Exact draws of round(2^28 Z), Z standard normal, int64 ``[K, size]``."""
        return place(self._ahead.take(self._drawn, purpose, size), self._device)

    def begin(self, kind: Literal["normal", "rounded"], purpose: str, size: int) -> None:
        """Start exact draws that are asked for next, on another core if there are many."""
        self._ahead.begin(self._drawn, purpose, size)

    def _drawn(self, purpose: str, size: int) -> torch.Tensor:
        draws = rounded_gaussian(self._entropy.words, self._clients * size)
        return torch.from_numpy(draws).view(self._clients, size)


def draws_of(seed: int | None, round_: int, clients: Sequence[int], device: torch.device) -> Draws:
    """The draws of some clients in a round: a simulation's from its seed; without one, for a
    release, from the operating system's entropy."""
    if seed is None:
        return SystemStreams(len(clients), device)
    return Streams(seed_key(seed), round_, clients, device)
