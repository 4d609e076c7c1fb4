"""The tables of mutants: ``*.toml`` beside this file, one entry an edit, grouped by the edited
file."""

import ast
import functools
import hashlib
import io
import re
import tokenize
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Mutant:
    """An edit: ``old``, which stands exactly once in ``file``, becomes ``new``; one of ``tests``
    must then fail.

    ``tests`` are names as pytest takes them, from the folder ``tests`` on.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def digest(self, root: Path = ROOT) -> str:
        """Of the edit, its file's code and that of its tests: what a result holds for."""
        places = [(self.file, ""), *sorted(_place(test) for test in self.tests)]
        parts = [
            self.old,
            self.new,
            *(_code((root / file).read_text(), name) for file, name in places),
        ]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _place(test: str) -> tuple[str, str]:
    """The file of a test and the function or class in it, if it names one."""
    file, _, name = test.partition("[")[0].partition("::")
    return f"tests/{file}", name.partition("::")[0]


def _code(text: str, test: str) -> str:
    """A file's code; of one of which a test is named, without its other tests."""
    lines, tests = _lines_and_tests(text)
    others = [span for name, span in tests.items() if test and name != test]
    kept = set(range(len(lines))).difference(*others)
    return "\n".join(lines[at] for at in sorted(kept) if lines[at])


@functools.cache
def _lines_and_tests(text: str) -> tuple[list[str], dict[str, range]]:
    """A file's lines without comments and docstrings, and where its tests are."""
    lines = text.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            line, column = token.start
            lines[line - 1] = lines[line - 1][:column]
    tree, tests = ast.parse(text), {}
    for node in ast.walk(tree):
        value = node.value if isinstance(node, ast.Expr) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            for at in _span(value):
                lines[at] = ""
    for node in tree.body:
        is_named = isinstance(node, ast.FunctionDef | ast.ClassDef)
        if is_named and node.name.lower().startswith("test"):
            tests[node.name] = _span(*node.decorator_list, node)
    return [line.rstrip() for line in lines], tests


def _span(*nodes: ast.expr | ast.stmt) -> range:
    return range(nodes[0].lineno - 1, nodes[-1].end_lineno or 0)


def load(folder: Path = HERE) -> list[Mutant]:
    """All mutants, table by table."""
    tables = [tomllib.loads(path.read_text()) for path in sorted(folder.glob("*.toml"))]
    return [
        Mutant(name, file, edit["old"], edit["new"], tuple(edit["tests"]))
        for table in tables
        for file, edits in table.items()
        for name, edit in edits.items()
    ]


def _exists(test: str, root: Path) -> bool:
    """Whether each class and function that a test's name has is defined in its file, if there is
    one."""
    file, *names = test.partition("[")[0].split("::")
    path = root / "tests" / file
    text = path.read_text() if path.is_file() else ""
    return not text or all(re.search(rf"^\s*(def|class) {n}\b", text, re.M) for n in names)


def faults(mutants: Sequence[Mutant], root: Path = ROOT) -> list[str]:
    """Why edits cannot be made or judged: a missing file or test, a text that is not there exactly
    once, two of one name or alike."""
    found = []
    for m in mutants:
        found += [f"{m.name}: no test {test}" for test in m.tests if not _exists(test, root)]
        files = [m.file, *(f"tests/{test.partition('::')[0]}" for test in m.tests)]
        missing = [file for file in files if not (root / file).is_file()]
        found += [f"{m.name}: no file {file}" for file in missing]
        if m.file not in missing and (count := (root / m.file).read_text().count(m.old)) != 1:
            found.append(f"{m.name}: its text stands {count} times in {m.file}")
        if m.old == m.new or not m.tests:
            found.append(f"{m.name}: the edit changes nothing, or no test answers for it")
    edits: dict[tuple[str, str], str] = {}
    for m in mutants if not found else ():
        edit = m.file, (root / m.file).read_text().replace(m.old, m.new)
        if (first := edits.setdefault(edit, m.name)) != m.name:
            found.append(f"{m.name}: the same edit as {first}")
    names = [m.name for m in mutants]
    return found + [
        f"{name}: two mutants have this name"
        for name in sorted({n for n in names if names.count(n) > 1})
    ]
