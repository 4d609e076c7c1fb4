"""Crashes, enumerated: what a program does to its files is noted once, and any moment of it can be
laid out again.

`Disk` is a file system in memory that knows what a power loss takes. `Noting` notes each operation
on the files below a folder, as an edit of such a disk, while the program does it for real; its
flushes are noted only, which saves time. `crashes` are the folders that a program leaves that dies
before, between and within these operations.
"""

import builtins
import contextlib
import fcntl
import io
import os
import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self
from unittest import mock

Tree = dict[str, bytes | None]
"""Every file's bytes, and None for every folder, by the path below the root."""
Node = bytes | dict[str, int]
"""A file's bytes, or a folder's entries: from a name to a number of a node."""
ROOT = 0


@dataclass
class Disk:
    """Nodes by number: as programs see them ``now``, and as they were when they were last
    flushed."""

    now: dict[int, Node] = field(default_factory=lambda: {ROOT: {}})
    safe: dict[int, Node] = field(default_factory=lambda: {ROOT: {}})

    @classmethod
    def of(cls, tree: Tree) -> Self:
        """A disk that holds this tree, all of it flushed."""
        disk, at = cls(), {"": ROOT}
        for number, path in enumerate(sorted(tree), start=1):
            content, (parent, _, name) = tree[path], path.rpartition("/")
            at[path] = number
            disk.make(number, at[parent], name, {} if content is None else content)
        return cls(disk.now, dict(disk.now))

    def copy(self) -> Self:  # nodes are replaced and never changed
        return type(self)(dict(self.now), dict(self.safe))

    def make(self, node: int, folder: int, name: str, content: Node) -> None:
        self.now[node] = content
        self.now[folder] = self.now[folder] | {name: node}

    def write(self, node: int, offset: int, data: bytes) -> None:
        old = self.now[node]
        self.now[node] = old[:offset].ljust(offset, b"\0") + data + old[offset + len(data) :]

    def cut(self, node: int, length: int) -> None:
        self.now[node] = self.now[node][:length]

    def sync(self, node: int) -> None:
        self.safe[node] = self.now[node]

    def remove(self, folder: int, name: str) -> None:
        self.now[folder] = {
            other: node for other, node in self.now[folder].items() if other != name
        }

    def link(self, folder: int, name: str, to_folder: int, to_name: str) -> None:
        self.now[to_folder] = self.now[to_folder] | {to_name: self.now[folder][name]}

    def move(self, folder: int, name: str, to_folder: int, to_name: str) -> None:
        node = self.now[folder][name]
        self.remove(folder, name)
        self.now[to_folder] = self.now[to_folder] | {to_name: node}

    def mark(self, *_: Any) -> None:
        """Something happened that is on no disk."""

    def do(self, *operations: "Operation") -> None:
        for name, arguments in operations:
            getattr(self, name)(*arguments)

    def survivors(self, rng: random.Random) -> Tree:
        """A tree that a power loss can leave: of what is not flushed, any names, and of appended
        bytes any first ones, with or without zeros for the others."""
        found: Tree = {}

        def visit(path: str, folder: int) -> None:
            now, safe = self.now[folder], self.safe.get(folder, {})
            for name in sorted(now.keys() | safe.keys()):
                node = rng.choice([now.get(name), safe.get(name)])
                if node is None:
                    continue
                below = f"{path}/{name}".lstrip("/")
                if isinstance(self.now[node], dict):
                    found[below] = None
                    visit(below, node)
                else:
                    found[below] = _torn(self.safe.get(node, b""), self.now[node], rng)

        visit("", ROOT)
        return found

    def tree(self, names_survive: bool = True, bytes_survive: bool = True) -> Tree:
        """What is there; of names, of bytes in files, or of both what is not flushed can be
        lost."""
        found: Tree = {}

        def visit(path: str, folder: int) -> None:
            entries = (self.now if names_survive else self.safe).get(folder, {})
            for name, node in entries.items():
                below, is_folder = f"{path}/{name}".lstrip("/"), isinstance(self.now[node], dict)
                found[below] = (
                    None if is_folder else (self.now if bytes_survive else self.safe).get(node, b"")
                )
                if is_folder:
                    visit(below, node)

        visit("", ROOT)
        return found


def _torn(safe: bytes, now: bytes, rng: random.Random) -> bytes:
    """What is left of bytes that were being written."""
    if not now.startswith(safe):
        return rng.choice([safe, now])
    reached = rng.choice([len(safe), rng.randint(len(safe), len(now)), len(now)])
    again = rng.randint(reached, len(now))
    zeros = now[:reached].ljust(again, b"\0")
    return rng.choice([now[:reached], now[:reached].ljust(len(now), b"\0"), zeros + now[again:]])


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


Operation = tuple[str, tuple[Any, ...]]
"""The name of a method of `Disk`, and its arguments."""


DEATHS = {"killed": (True, True), "power": (False, False), "power, names kept": (True, False)}
"""What survives a death: names that are not flushed; bytes that are not."""


@dataclass(frozen=True)
class Crash:
    """A death after ``done`` operations, by one of `DEATHS`, and the disk that it leaves."""

    done: int
    death: str
    disk: Disk

    @property
    def tree(self) -> Tree:
        return self.disk.tree()


def crashes(start: Disk, operations: Sequence[Operation]) -> list[Crash]:
    """Every crash that leaves a tree of its own; of moments that leave the same tree, the last one.

    A write is also cut in its middle. What unfinished ``.part`` files hold makes no difference.
    """
    found: dict[Any, Crash] = {}

    def add(done: int, disk: Disk) -> None:
        for death, survives in DEATHS.items():
            tree = disk.tree(*survives)
            what = frozenset(
                (path, path.endswith(".part") or content) for path, content in tree.items()
            )
            if what not in found or found[what].done < done:
                found[what] = Crash(
                    done, death, disk.copy() if death == "killed" else Disk.of(tree)
                )

    disk = start.copy()
    for done, operation in enumerate(operations):
        add(done, disk)
        match operation:
            case ("write", (node, offset, data)) if len(data) > 1:
                torn = disk.copy()
                torn.write(node, offset, data[: len(data) // 2])
                add(done, torn)
        disk.do(operation)
    add(len(operations), disk)
    return list(found.values())


def killed(start: Disk, operations: Sequence[Operation], done: int) -> Crash:
    """The program's death after ``done`` operations; the machine goes on."""
    disk = start.copy()
    disk.do(*operations[:done])
    return Crash(done, "killed", disk)


def lay_out(root: Path, tree: Tree) -> None:
    """Make the folder be this tree; what is there already stays."""
    root.mkdir(parents=True, exist_ok=True)
    before = tree_of(root)
    for path in sorted(before, reverse=True):
        if path not in tree or (tree[path] is None) != (before[path] is None):
            (root / path).rmdir() if before[path] is None else (root / path).unlink()
    for path in sorted(path for path in tree if before.get(path, "") != tree[path]):
        content = tree[path]
        (root / path).mkdir() if content is None else (root / path).write_bytes(content)


def tree_of(root: Path) -> Tree:
    """What a folder holds."""
    return {
        p.relative_to(root).as_posix(): None if p.is_dir() else p.read_bytes()
        for p in root.rglob("*")
    }


class Killed(BaseException):
    """The process dies here."""


class _Raw(io.FileIO):
    """A file whose writes are noted."""

    def __init__(self, noting: "Noting", *where: Any, **named: Any):
        self._noting = noting
        super().__init__(*where, **named)

    def write(self, data: Any) -> int:
        return self._noting.written(self.fileno(), bytes(data), super().write)


class Noting(contextlib.ExitStack):
    """While entered, notes what is done to the files below ``root``.

    Args:
        root: a folder.
        start: the disk that is laid out there, if not all of it is flushed.
        dies_at: the number of operations after which the program is killed.
        longest: bytes that one call writes at most, as where a disk is nearly full.
    """

    def __init__(
        self,
        root: Path,
        start: Disk | None = None,
        dies_at: float = float("inf"),
        longest: int = 2**30,
    ):
        super().__init__()
        self.root, self.start = root, (start or Disk.of(tree_of(root))).copy()
        self.operations: list[Operation] = []
        self._dies_at, self._longest, self._dead = dies_at, longest, False
        self._disk, self._numbers, self._next = self.start.copy(), {}, max(self.start.now) + 1
        self._know(root, ROOT)

    def __enter__(self) -> Self:
        super().__enter__()
        self._real_open = builtins.open
        names = "mkdir unlink remove rmdir link rename replace open write fsync ftruncate"
        for name in names.split():
            self.enter_context(mock.patch.object(os, name, self._wrapped(name, getattr(os, name))))
        self.enter_context(mock.patch.object(shutil, "_use_fd_functions", False))  # whole paths
        for module in (builtins, io):
            self.enter_context(mock.patch.object(module, "open", self._open_file))
        return self

    def mark(self, *what: Any) -> None:
        """Note something that is on no disk."""
        self._alive()
        self._note("mark", *what)

    def written(self, handle: int, data: bytes, write: Callable[[bytes], int]) -> int:
        """Write for real, and note it."""
        if self._dead:
            return len(data)  # a buffer that dies with its process
        self._alive()
        appends = fcntl.fcntl(handle, fcntl.F_GETFL) & os.O_APPEND
        offset = os.fstat(handle).st_size if appends else os.lseek(handle, 0, os.SEEK_CUR)
        count = write(data[: self._longest])
        self._note("write", self._of_handle(handle), offset, data[:count])
        return count

    def _know(self, path: Path, number: int) -> None:
        """Remember the numbers of a file, or of a folder and all below it, by the real disk's
        own."""
        self._numbers[_identity(os.stat(path))] = number
        node = self._disk.now[number]
        for name, below in node.items() if isinstance(node, Mapping) else ():
            self._know(path / name, below)

    def _alive(self) -> None:
        self._dead = self._dead or len(self.operations) >= self._dies_at
        if self._dead:
            raise Killed

    def _note(self, name: str, *arguments: Any) -> None:
        self.operations.append((name, arguments))
        self._disk.do(self.operations[-1])

    def _made(self, path: Path, content: Node) -> None:
        self._numbers[_identity(os.stat(path))] = self._next
        self._note("make", self._next, *self._place(path), content)
        self._next += 1

    def _mine(self, path: Any) -> bool:
        return isinstance(path, str | os.PathLike) and Path(os.path.abspath(path)).is_relative_to(
            self.root
        )

    def _of_handle(self, handle: int) -> int | None:
        return self._numbers.get(_identity(os.fstat(handle)))

    def _place(self, path: Any) -> tuple[int, str]:
        whole = Path(os.path.abspath(path))
        return self._numbers[_identity(os.stat(whole.parent))], whole.name

    def _wrapped(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        """A function of `os` that is noted where it is about a file of ours."""

        def call(target: Any, *arguments: Any, **named: Any) -> Any:
            ours = (
                self._of_handle(target) is not None
                if isinstance(target, int)
                else self._mine(target)
            )
            if not ours:
                return real(target, *arguments, **named)
            if name == "write":
                return self.written(target, bytes(arguments[0]), lambda data: real(target, data))
            self._alive()
            return getattr(self, f"_{name}")(real, target, *arguments, **named)

        return call

    def _mkdir(self, real: Callable[..., None], path: Any, *arguments: Any) -> None:
        real(path, *arguments)
        self._made(path, {})

    def _unlink(self, real: Callable[..., None], path: Any) -> None:
        status = os.stat(path)
        real(path)
        if status.st_nlink == 1:
            self._numbers.pop(_identity(status))
        self._note("remove", *self._place(path))

    _remove = _unlink

    def _rmdir(self, real: Callable[..., None], path: Any) -> None:
        status = os.stat(path)
        real(path)
        self._numbers.pop(_identity(status))
        self._note("remove", *self._place(path))

    def _link(self, real: Callable[..., None], path: Any, to: Any, **named: Any) -> None:
        real(path, to, **named)
        self._note("link", *self._place(path), *self._place(to))

    def _rename(self, real: Callable[..., None], path: Any, to: Any) -> None:
        gone = _identity(os.stat(to)) if os.path.exists(to) else None
        real(path, to)
        self._numbers.pop(gone, None)
        self._note("move", *self._place(path), *self._place(to))

    _replace = _rename

    def _fsync(self, _: Callable[..., None], handle: int) -> None:
        self._note("sync", self._of_handle(handle))

    def _ftruncate(self, real: Callable[..., None], handle: int, length: int) -> None:
        real(handle, length)
        self._note("cut", self._of_handle(handle), length)

    def _open(
        self, real: Callable[..., int], path: Any, flags: int, *arguments: Any, **named: Any
    ) -> int:
        if not flags & (os.O_WRONLY | os.O_RDWR):
            return real(path, flags, *arguments, **named)
        return self._to_write(
            lambda: real(path, flags, *arguments, **named), path, bool(flags & os.O_TRUNC)
        )

    def _open_file(self, file: Any, mode: str = "r", *arguments: Any, **named: Any) -> Any:
        """Python's own ``open``."""
        if not set(mode) & set("wax+") or not self._mine(file):
            return self._real_open(file, mode, *arguments, **named)
        self._alive()
        raw_mode = mode.replace("b", "").replace("t", "")
        raw = self._to_write(
            lambda: _Raw(self, file, raw_mode, opener=named.get("opener")), file, "w" in mode
        )
        buffer = (io.BufferedRandom if "+" in mode else io.BufferedWriter)(raw)
        return (
            buffer
            if "b" in mode
            else io.TextIOWrapper(buffer, named.get("encoding"), newline=named.get("newline"))
        )

    def _to_write(self, opened: Callable[[], Any], path: Any, empties: bool) -> Any:
        """Open a file, which makes it or may empty it."""
        before = os.stat(path) if os.path.exists(path) else None
        file = opened()
        if before is None and _identity(os.stat(path)) not in self._numbers:
            self._made(path, b"")
        elif before is not None and before.st_size and empties:
            self._note("cut", self._numbers[_identity(before)], 0)
        return file
