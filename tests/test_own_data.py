"""Data sets of the user's own beside arrays: whose records they are, tables, functions, folders,
and LEAF's files; and errors that name row and column."""

import json
import os
import re
import shutil
import struct
import sys
import warnings
import zlib
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import sim
from mechanisms.randomness import generator
from sim.config.configuration import load as configured
from sim.config.settings import Data
from sim.data import files, holdout
from sim.data.arrays import fixed_split
from sim.data.dataset import load
from sim.phases.build import build, split
from sim.run import command
from sim.showing.run import read_run
from sim.sources import columns, hub

TABLE = """\
hospital,age,kind,label
10,20,b,well
9,40,a,ill
10,60,a,well
9,80,c,ill
9,100,b,well
9,0,b,ill
"""
KNOWN = 'age = [0, 80]\nkind = ["c", "b", "a"]\nlabel = ["well", "ill", "dead"]\n'


NO_DATASETS = "the extra [datasets] is not installed"


def table(folder: Path, text: str = TABLE, name: str = "t.csv") -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def read(path: str, **settings: object):
    return load(path, settings=Data(dataset=path, **settings))


def whole(path: str, **settings: object):
    """All records in the order of the table: those held out are put back."""
    with warnings.catch_warnings(action="ignore"):
        found = read(path, **settings)
    total = len(found.x) + len(found.x_test)
    train, test = fixed_split(total, len(found.x_test))
    x, y = (np.empty((total, *one.shape[1:]), one.dtype) for one in (found.x, found.y))
    x[train], x[test], y[train], y[test] = found.x, found.x_test, found.y, found.y_test
    return x, y, found


# --- clients -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "names", [[10, 9, 10, 9, 9, 10], ["b", "a", "b", "a", "a", "b"], [7, -1, 7, -1, -1, 7]]
)
def test_each_client_of_a_data_set_has_its_own_records(tmp_path, names):
    """Numbered in the order of their names, numbers by size. Kills owners by first appearance."""
    x, y = np.arange(12.0).reshape(6, 2), np.arange(6) % 2
    np.savez(tmp_path / "d.npz", x=x, y=y, x_test=x, y_test=y, client=names)
    config = configured(None, {"dataset": str(tmp_path / "d.npz"), "partition": "given"})
    job = build(config)
    assert job.config.data.clients == job.partition.clients == 2
    assert [job.partition.of(k).tolist() for k in (0, 1)] == [[1, 3, 4], [0, 2, 5]]
    assert len(job.plans.which) == 2


def test_a_held_out_test_part_leaves_each_client_a_record(tmp_path):
    names = np.array([0] * 3 + list(range(1, 41)))
    x, y = np.arange(43.0)[:, None], np.arange(43) % 2
    np.savez(tmp_path / "d.npz", x=x, y=y, client=names)
    found = read(str(tmp_path / "d.npz"))
    assert sorted(set(found.owner.tolist())) == list(range(41)) and len(found.x_test) == 2
    assert np.array_equal(found.owner, names[found.x[:, 0].astype(int)])
    assert sorted([*found.x[:, 0], *found.x_test[:, 0]]) == x[:, 0].tolist()
    np.savez(tmp_path / "d.npz", x=x[2:], y=y[2:], client=names[2:])
    with pytest.raises(ValueError, match="each client holds 1 record and keeps it"):
        read(str(tmp_path / "d.npz"))


def test_owners_stay_with_their_records_when_others_are_set_aside(tmp_path):
    names = np.repeat([0, 1], (30, 3))
    x, y = np.arange(33.0)[:, None], np.arange(33) % 2
    np.savez(tmp_path / "d.npz", x=x, y=y, x_test=x, y_test=y, client=names)
    data = read(str(tmp_path / "d.npz"))
    rest, held = holdout.set_aside(data, 5, generator(b"2", "public"))
    assert np.array_equal(rest.owner, names[rest.x[:, 0].astype(int)]) and len(held[0]) == 5
    with pytest.raises(ValueError, match=r"public_records leaves client \d no record: lower --pub"):
        holdout.set_aside(data, 32, generator(b"1", "public"))


def test_clients_that_nobody_asks_for_or_that_are_not_there_are_told(tmp_path):
    x, y = np.arange(12.0).reshape(6, 2), np.arange(6) % 2
    own, other = str(tmp_path / "own.npz"), str(tmp_path / "other.npz")
    np.savez(own, x=x, y=y, client=np.arange(6) % 3)
    np.savez(other, x=x, y=y)
    with pytest.warns(UserWarning, match="ignores: --partition given keeps them together"):
        split(configured(None, {"dataset": own, "clients": 2, "partition": "iid"}))
    with pytest.raises(ValueError, match=r"partition is given, but .*other.npz does not say whose"):
        split(configured(None, {"dataset": other, "partition": "given"}))
    with pytest.raises(ValueError, match=r"clients is 7, but .*own.npz has 3: leave --clients out"):
        build(configured(None, {"dataset": own, "partition": "given", "clients": 7}))
    with warnings.catch_warnings(action="error"):
        split(configured(None, {"dataset": own}, central=True))


@pytest.mark.parametrize("client", [np.zeros(5, int), np.zeros(6), np.zeros((6, 1), int)])
def test_faulty_clients_are_refused(tmp_path, client):
    np.savez(tmp_path / "d.npz", x=np.ones((6, 2)), y=np.arange(6) % 2, client=client)
    with pytest.raises(ValueError, match=r"client has dtype .* an integer or a text for each"):
        load(str(tmp_path / "d.npz"))


def test_a_run_of_given_clients_is_resumed_and_read_with_their_number(tmp_path, no_report):
    path = table(tmp_path, TABLE * 1)
    flags = f"--dataset={path} --client-column=hospital --out={tmp_path} --name=r --quiet".split()
    command([*flags, "--rounds=2", "--engine=inline"])
    run = read_run(tmp_path / "r")
    assert (run.config.data.clients, run.config.data.partition) == (2, "given")
    assert run.sizes.sum() == 5 and len(run.summary.epsilon_certified) == 2
    command([f"--resume={tmp_path / 'r'}", "--quiet"])


def test_a_trace_is_of_the_clients_that_the_data_give(tmp_path, no_report):
    """Kills one that is compared with the usual number of clients."""
    flags = f"--dataset={table(tmp_path)} --client-column=hospital --out={tmp_path} --quiet".split()
    command([*flags, "--rounds=2", "--engine=inline", "--dropout-trace=1@1", "--name=r"])
    with pytest.raises(ValueError, match=r"dropout_trace.* 2"):
        command([*flags, "--rounds=2", "--engine=inline", "--dropout-trace=2@1", "--name=s"])
    assert not (tmp_path / "s").exists()


def test_a_program_gives_clients_by_name(tmp_path, no_report):
    """As `sim.train` does; arrays of other names are left out, and their values reveal nothing."""
    x, y = np.arange(12.0).reshape(6, 2), np.arange(6) % 2
    arrays = {"x": x, "y": y, "client": list("bababa"), "notes": np.array(["secret"] * 6)}
    result = sim.train(dataset=arrays, partition="given", rounds=1, out=tmp_path)
    assert result.config.value("clients") == 2 and result.finished
    kept = result.config.value("dataset")
    with np.load(kept) as file:
        assert sorted(file.files) == ["client", "x", "y"]
    assert len(read(kept).owner) == 5
    with pytest.raises(ValueError, match="dataset: array 'y' is missing, found x, client"):
        sim.train(dataset={"x": x, "client": y}, partition="given", out=tmp_path)


# --- labels --------------------------------------------------------------------------------------


def test_labels_that_skip_a_class_are_told_in_one_line(tmp_path):
    x, y = np.ones((6, 2)), np.array([0, 3, 0, 3, 0, 3])
    np.savez(tmp_path / "d.npz", x=x, y=y, x_test=x, y_test=y)
    said = "no training record has the label 1, 2, and the model has an output for each of 0 .. 3"
    with pytest.warns(UserWarning, match=said):
        assert load(str(tmp_path / "d.npz")).classes == 4
    np.savez(tmp_path / "d.npz", x=x, y=y // 3, x_test=x, y_test=y // 3)
    with warnings.catch_warnings(action="error"):
        assert load(str(tmp_path / "d.npz")).classes == 2


def test_classes_that_are_stated_are_not_counted(tmp_path):
    x, y = np.ones((6, 2)), np.arange(6) % 2
    np.savez(tmp_path / "d.npz", x=x, y=y, x_test=x, y_test=y, classes=5)
    with pytest.warns(UserWarning, match="the label 2, 3, 4"):
        assert load(str(tmp_path / "d.npz")).classes == 5
    for classes, said in ((1, "at least 2"), (2.0, "one integer"), ([3], "one integer")):
        np.savez(tmp_path / "d.npz", x=x, y=y, classes=classes)
        with pytest.raises(ValueError, match=f"classes = .*{said}"):
            load(str(tmp_path / "d.npz"))
    np.savez(tmp_path / "d.npz", x=x, y=y + 1, classes=2)
    with pytest.raises(ValueError, match="y holds the label 2, and classes = 2 are stated"):
        load(str(tmp_path / "d.npz"))


# --- tables --------------------------------------------------------------------------------------

ONE_HOT = [[20, 0, 1, 0], [40, 1, 0, 0], [60, 1, 0, 0], [80, 0, 0, 1], [100, 0, 1, 0], [0, 0, 1, 0]]
CODES = [[20, 1], [40, 0], [60, 0], [80, 2], [100, 1], [0, 1]]


def test_a_table_s_numbers_stay_and_its_texts_become_categories(tmp_path):
    path = table(tmp_path)
    x, y, found = whole(path, client_column=None, label_column="label")
    assert x[:, 1:].tolist() == ONE_HOT and x[:, 0].tolist() == [10, 9, 10, 9, 9, 9]
    assert y.tolist() == [1, 0, 1, 0, 1, 0] and found.owner is None and found.classes == 2
    x, _, _ = whole(path, categories="codes")
    assert x[:, 1:].tolist() == CODES
    x, _, found = whole(path, client_column="hospital")
    assert found.x.shape[1] == 4 and sorted(found.owner.tolist()) == [0, 0, 0, 0, 1]


def test_known_columns_are_scaled_by_their_bounds_and_in_their_own_order(tmp_path):
    (tmp_path / "known.toml").write_text(KNOWN)
    known = {"columns": str(tmp_path / "known.toml"), "client_column": "hospital"}
    found = read(table(tmp_path), **known)
    assert found.classes == 3
    (tmp_path / "known.toml").write_text("hospital = [9, 11]\n" + KNOWN)
    x, y, _ = whole(table(tmp_path), columns=known["columns"])
    assert x.round(6).tolist() == [
        [0, -0.5, 0, 1, 0],
        [-1, 0, 0, 0, 1],
        [0, 0.5, 0, 0, 1],
        [-1, 1, 1, 0, 0],
        [-1, 1, 0, 1, 0],
        [-1, -1, 0, 1, 0],
    ]
    assert y.tolist() == [0, 1, 0, 1, 0, 1]


def test_an_unused_column_is_no_feature_and_may_hold_anything(tmp_path):
    """Kills an identifier that is a feature, and a client column whose blanks are a client."""
    head, *rows = TABLE.splitlines()
    texts = [
        f"{row},{note}" for row, note in zip(rows, ["", "?", "3", "a", "b", "NaN"], strict=True)
    ]
    path = table(tmp_path, "\n".join([f"{head},note", *texts]))
    stated = tmp_path / "known.toml"
    stated.write_text('note = "unused"\nhospital = "unused"\n' + KNOWN)
    x, _, found = whole(path, columns=str(stated))
    assert x.shape[1] == 4 and found.owner is None
    _, _, found = whole(path, columns=str(stated), client_column="hospital")
    assert sorted(found.owner.tolist()) == [0, 0, 0, 0, 1]
    with pytest.raises(ValueError, match="row 2, column 'note': '' is a missing value"):
        read(path, columns=str(stated), client_column="note")
    stated.write_text('note = "unused"\nlabel = "unused"')
    with pytest.raises(ValueError, match="label = unused must be two bounds"):
        read(path, columns=str(stated))


def test_rows_of_another_table_are_encoded_as_in_training(tmp_path):
    """Kills categories that are numbered by what the other table has, and columns in its order."""
    path, (head, *rows) = Path(table(tmp_path)), TABLE.splitlines()
    data = Data(dataset=str(path), client_column="hospital")
    other = Path(table(tmp_path, "kind,age\nc,7\nb,8\n", "new.csv"))
    assert columns.encoded(other, path, data).tolist() == [[7, 0, 0, 1], [8, 0, 1, 0]]
    assert np.array_equal(columns.encoded(path, path, data), columns.arrays(path, data)["x"])
    (tmp_path / "known.toml").write_text(KNOWN + 'note = "unused"')
    path = Path(table(tmp_path, "\n".join([f"note,{head}", *(f",{row}" for row in rows)])))
    data = data.model_copy(update={"columns": str(tmp_path / "known.toml")})
    assert columns.encoded(other, path, data).tolist() == [[-0.825, 1, 0, 0], [-0.8, 0, 1, 0]]
    data = data.model_copy(update={"columns": None})
    for text, said in (
        ("kind,ages\na,7\n", "new.csv lacks the column 'age'"),
        ("kind,age\nd,7\n", "row 2: 'd' is none of its known categories"),
        ("kind,age\na,old\n", "column 'age' holds texts for numbers"),
    ):
        table(tmp_path, text, "new.csv")
        with pytest.raises(ValueError, match=said):
            columns.encoded(other, Path(table(tmp_path)), data)


def test_a_finished_run_says_what_new_rows_are(tmp_path):
    settings = {"dataset": table(tmp_path, TABLE + TABLE[TABLE.index("10,20") :]), "rounds": 1}
    run = sim.train(**settings, client_column="hospital", out=str(tmp_path), engine="inline")
    x = run.encode(table(tmp_path, "kind,age\nc,7\nb,8\n", "new.csv"))
    assert run.model()(x).shape == (2, 2)
    run = sim.train(clients=20, rounds=1, out=str(tmp_path))
    with pytest.raises(ValueError, match="dataset = digits is no table"):
        run.encode("new.csv")


BAD_TABLES = [
    (TABLE.replace("60,a", "60,"), {}, "row 4, column 'kind': '' is a missing value"),
    (TABLE.replace("60,a", "NaN,a"), {}, "row 4, column 'age': 'NaN' is a missing value"),
    (TABLE.replace("9,80,c", "9,?,c"), {}, r"row 5, column 'age': '\?' is a missing value"),
    (TABLE.replace("60,a", "sixty,a"), {}, "column 'age', row 4: 'sixty' is no number, and other"),
    (TABLE.replace("60,a", "inf,a"), {}, "column 'age', row 4: inf is not finite"),
    (TABLE.replace("60,a", "60,a,a"), {}, "row 4: 5 values for 4 columns"),
    (TABLE.replace("kind,", "age,"), {}, "need a name each: rename 'age'"),
    (TABLE, {"label_column": "labl"}, "'labl' is no column of .*; did you mean label.*give --labe"),
    (TABLE, {"client_column": "ward"}, "client_column = 'ward' is no column"),
    ("label\n1\n0\n", {}, "has no column beside label"),
    (TABLE.replace(",", ";"), {}, "no column beside .*;label.*: .* separate columns by commas$"),
    ("a,label\n", {}, "has no rows of values"),
    ("", {}, "is no table, as its first row is empty"),
    ("\na,label\n1,0\n", {}, "is no table, as its first row is empty"),
    ('a,label\n"1,0\n', {}, "is no CSV file"),
    ("id,label\n" + "".join(f"n{i},{i % 2}\n" for i in range(1001)), {}, "1001 different texts"),
    ("a,label\n1,0.5\n2,1\n", {}, "labels are integers 0 .. C-1"),
    (TABLE, {"columns": 'age = [0, 80]\nlabel = ["ill", "well"]'}, "lacks the column 'hospital'"),
    (
        TABLE,
        {"columns": 'age = [0, 80]\nkind = ["a", "b", "c"]\nhospital = [9, 11]'},
        "lacks the column 'label'",
    ),
    (TABLE, {"columns": KNOWN + "hospital = [9, 11]\nward = [1, 2]"}, "ward is no column of the t"),
    (TABLE, {"columns": KNOWN + "hospital = [9, 9]"}, "must be two bounds, the smaller first"),
    (TABLE, {"columns": KNOWN + 'hospital = ["9", "9"]'}, "or different categories"),
    (TABLE, {"columns": KNOWN + 'hospital = ["9", "8"]'}, "row 2: '10' is none of its known categ"),
    (TABLE, {"columns": KNOWN.replace('["c", "b", "a"]', "[0, 1]") + "hospital = [0, 1]"}, "texts"),
    (TABLE, {"columns": "age = "}, "cannot be read"),
    (TABLE, {"columns": "age = " + "[" * 3000 + "]" * 3000}, r"known.toml cannot be read \(max"),
    (TABLE, {"columns": f"age = [0, 1{'0' * 400}]"}, "known.toml: age = .* neither beyond 1e.300"),
    (TABLE, {"columns": "label = [-1e308, 1e308]"}, "known.toml: label = .* neither beyond 1e.300"),
    (TABLE, {"columns": "age = [0, nan]"}, "known.toml: age = .* must be two bounds"),
    (TABLE, {"columns": ""}, "known.toml lacks the column 'age'"),
    (TABLE, {"columns": "# nothing is stated yet"}, "known.toml lacks the column 'age'"),
    ("a,label\n1,1e300\n2,0\n", {}, "labels are integers 0 .. C-1"),
]


@pytest.mark.parametrize(("text", "given", "said"), BAD_TABLES, ids=[b[2][:40] for b in BAD_TABLES])
def test_a_faulty_table_is_named_by_row_and_column(tmp_path, text, given, said):
    """Kills a missing value that becomes a category, and rows that are counted from 0."""
    if "columns" in given:
        (tmp_path / "known.toml").write_text(given["columns"])
        given = {"columns": str(tmp_path / "known.toml")}
    with pytest.raises(ValueError, match=said) as caught:
        read(table(tmp_path, text), **given)
    assert "\n" not in str(caught.value)


def test_a_table_may_have_tabs_quotes_and_a_byte_order_mark(tmp_path):
    text = '\ufeffkind\tlabel\n"a\tb"\t0\nb\t1\n"a\tb"\t0\nb\t1\nb\t1\n\n'
    x, y, _ = whole(table(tmp_path, text, "t.TSV"))
    assert x.tolist() == [[1, 0], [0, 1], [1, 0], [0, 1], [0, 1]] and y.tolist() == [0, 1, 0, 1, 1]


def test_a_parquet_table_is_the_same_as_in_text(tmp_path):
    """Also if its texts are codes of a dictionary, as pandas writes categories."""
    pyarrow = pytest.importorskip("pyarrow", reason="the extra [tables] is not installed")
    from pyarrow import csv, parquet

    content = csv.read_csv(table(tmp_path))
    parquet.write_table(content, tmp_path / "t.parquet")
    settings = {"client_column": "hospital"}
    ours, theirs = (read(str(tmp_path / name), **settings) for name in ("t.csv", "t.parquet"))
    for name in ("x", "y", "x_test", "y_test", "owner"):
        assert np.array_equal(getattr(ours, name), getattr(theirs, name)), name
    coded = content.set_column(2, "kind", content["kind"].dictionary_encode())
    parquet.write_table(coded, tmp_path / "t.parquet")
    assert np.array_equal(read(str(tmp_path / "t.parquet"), **settings).x, ours.x)
    missing = content.set_column(1, "age", pyarrow.array([1, 2, None, 4, 5, 6]))
    parquet.write_table(missing, tmp_path / "t.parquet")
    with pytest.raises(ValueError, match="row 4, column 'age': None is a missing value"):
        read(str(tmp_path / "t.parquet"), **settings)
    words = pyarrow.array(["a", "b", "c", " NaN ", "d", "e"])
    parquet.write_table(content.set_column(1, "age", words), tmp_path / "t.parquet")
    with pytest.raises(ValueError, match="row 5, column 'age': ' NaN ' is a missing value"):
        read(str(tmp_path / "t.parquet"), **settings)
    days = pyarrow.array([datetime(2026, 1, day) for day in range(1, 7)])
    parquet.write_table(content.append_column("day", days), tmp_path / "t.parquet")
    (tmp_path / "known.toml").write_text('day = "unused"\nhospital = [9, 11]\n' + KNOWN)
    found = read(str(tmp_path / "t.parquet"), columns=str(tmp_path / "known.toml"))
    assert found.x.shape[1] == 5


def test_without_pyarrow_a_parquet_table_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ValueError, match=r"pip install pyarrow, or write"):
        read(table(tmp_path, name="t.parquet"))


# --- functions -----------------------------------------------------------------------------------

MINE = """
import numpy as np
import torch
X, Y = np.eye(6), [0, 1, 0, 1, 0, 1]
def pair(): return torch.eye(6, requires_grad=True), torch.tensor(Y)
def four(): return X, Y, X, Y
def masked(): return np.ma.array(X, mask=X > 0.5), Y
def named(): return {"x": X, "y": Y, "client": list("abcabc")}
def three(): return X, Y, X
def text(): return {"x": X, "y": [[1], [1, 2]]}
def needy(path): return X, Y
def ends(): raise SystemExit("no")
VALUE = 3
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    (tmp_path / "mine_of_my_own.py").write_text(MINE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "mine_of_my_own"


def test_a_function_gives_arrays_by_place_or_by_name(mine):
    assert len(load(f"{mine}:pair").x) == 5
    assert np.array_equal(load(f"{mine}:four").x_test, np.eye(6, dtype=np.float32))
    assert set(load(f"{mine}:named").owner.tolist()) == {0, 1, 2}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("three", r"is a tuple of 3: give \(x, y\)"),
        ("text", "y is no array of numbers"),
        ("masked", "x has 6 masked entries"),
        ("needy", "fails .TypeError: .*must be a function without arguments"),
        ("ends", "fails .SystemExit: no"),
        ("absent", "has no 'absent': name a function without arguments that returns"),
        ("VALUE", "is a int: name a function"),
    ],
)
def test_a_function_that_gives_none_says_what_was_expected(mine, name, said):
    with pytest.raises(ValueError, match=f"^dataset = '{mine}:{name}'.*{said}"):
        load(f"{mine}:{name}")
    files.check(f"{mine}:{name}", None)  # nothing is imported before the run begins


# --- Hugging Face's ------------------------------------------------------------------------------


@pytest.fixture
def flowers(tmp_path):
    """A small data set on disk."""
    datasets = pytest.importorskip("datasets", reason=NO_DATASETS)
    columns = {
        "petal": [0.1 * n for n in range(12)],
        "sepal": list(range(12)),
        "label": [n % 3 for n in range(12)],
        "grower": [f"g{n % 4}" for n in range(12)],
    }
    parts = {"train": datasets.Dataset.from_dict(columns)}
    nobodys = {name: v[:4] for name, v in columns.items() if name != "grower"}
    parts["test"] = datasets.Dataset.from_dict(nobodys)
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "flowers")
    return tmp_path / "flowers", parts["train"]


def test_a_data_set_of_hugging_face_s_has_columns(flowers):
    folder, _ = flowers
    found = read(f"hf:{folder}", client_column="grower")
    assert found.x.shape == (12, 2) and found.x_test.shape == (4, 2)
    np.testing.assert_allclose(found.x[:, 0], 0.1 * np.arange(12), rtol=1e-6)
    assert found.y.tolist() == [0, 1, 2] * 4 and found.owner.tolist() == [0, 1, 2, 3] * 3
    with pytest.raises(ValueError, match="neither an image nor numbers"):
        read(f"hf:{folder}")
    with pytest.raises(ValueError, match="'gardener' is no column of the data set"):
        read(f"hf:{folder}", client_column="gardener")
    with pytest.raises(ValueError, match="'class' is no column of the data set"):
        read(f"hf:{folder}", label_column="class")
    with pytest.raises(ValueError, match=r"'hf:.*nowhere' cannot be loaded"):
        read(f"hf:{folder.parent / 'nowhere'}")


def test_images_of_hugging_face_s_are_pixels():
    datasets = pytest.importorskip("datasets", reason=NO_DATASETS)
    pictures = [Image.new("RGB", (4, 3), (n, 2 * n, 3 * n)) for n in range(6)]
    columns = {"image": pictures, "label": [0, 1] * 3}
    kinds = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    x = hub.arrays(datasets.Dataset.from_dict(columns, features=kinds))["x"]
    assert x.shape == (6, 3, 3, 4) and x.dtype == np.uint8
    assert x[:, :, 0, 0].tolist() == [[n, 2 * n, 3 * n] for n in range(6)]


def test_a_partitioner_of_flwr_datasets_says_who_holds_which_record(flowers):
    partitioners = pytest.importorskip("flwr_datasets.partitioner", reason=NO_DATASETS)
    _, train = flowers
    partitioner = partitioners.PathologicalPartitioner(
        num_partitions=3, partition_by="label", num_classes_per_partition=1
    )
    found = hub.arrays(train.remove_columns("grower"), partitioner=partitioner)
    pairs = set(zip(found["y"].tolist(), found["client"].tolist(), strict=True))
    assert len(pairs) == len({client for _, client in pairs}) == 3 and found["x"].shape == (12, 2)


def test_without_datasets_its_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ValueError, match=r"pip install datasets"):
        read("hf:owner/name")


# --- folders -------------------------------------------------------------------------------------


def picture(path: Path, value: int, size: tuple[int, int] = (4, 3), mode: str = "L") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, (value,) * 3 if mode == "RGB" else value).save(path)


def test_a_folder_of_images_has_a_folder_for_each_class(tmp_path):
    for number in range(6):
        picture(tmp_path / ("cat", "dog")[number % 2] / f"{number}.png", 40 * number)
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "cat" / ".DS_Store").write_text("")
    x, y, found = whole(str(tmp_path))
    assert x.shape == (6, 1, 3, 4) and found.classes == 2 and found.owner is None
    assert y.tolist() == [0, 0, 0, 1, 1, 1]
    np.testing.assert_allclose(255 * x[:, 0, 0, 0], [0, 80, 160, 40, 120, 200], rtol=1e-6)


def test_images_of_one_bit_have_one_channel(tmp_path):
    for name in ("cat", "dog"):
        picture(tmp_path / name / "1.png", 1, mode="1")
    x = whole(str(tmp_path))[0]
    assert x.shape == (2, 1, 3, 4) and (x == 1).all()


def test_clients_and_parts_are_folders_above_the_classes(tmp_path):
    for client, label, value in (("w", "dog", 9), ("v", "cat", 8), ("v", "dog", 7)):
        picture(tmp_path / "train" / client / label / "1.png", value, mode="RGB")
    picture(tmp_path / "test" / "u" / "dog" / "1.png", 6, mode="RGB")
    found = read(str(tmp_path))
    assert found.x.shape == (3, 3, 3, 4) and found.y.tolist() == [0, 1, 1]
    assert found.owner.tolist() == [0, 0, 1] and found.y_test.tolist() == [1]


def test_pixels_of_more_than_8_bits_are_refused(tmp_path):
    """All above 255 became 255."""
    from PIL import Image

    (tmp_path / "cat").mkdir()
    Image.fromarray(np.array([[1000, 40000]], dtype=np.uint16)).save(tmp_path / "cat" / "0.png")
    with pytest.raises(ValueError, match=r"0\.png is no image .its pixels have more than 8 bits"):
        read(str(tmp_path))


def test_a_pipe_among_images_is_refused(tmp_path):
    """Nobody would write to it."""
    (tmp_path / "cat").mkdir()
    os.mkfifo(tmp_path / "cat" / "0.png")
    with pytest.raises(ValueError, match=r"0\.png is no file: correct or remove it"):
        read(str(tmp_path))


def test_a_faulty_folder_of_images_is_named(tmp_path):
    picture(tmp_path / "cat" / "1.png", 1)
    picture(tmp_path / "dog" / "1.png", 1, size=(5, 3))
    with pytest.raises(ValueError, match=re.escape("dog/1.png has 5x3 pixels, ") + ".*4x3"):
        load(str(tmp_path))
    (tmp_path / "dog" / "1.png").write_text("no image")
    with pytest.raises(ValueError, match=r"dog/1.png is no image"):
        load(str(tmp_path))
    (tmp_path / "dog" / "1.png").unlink()
    picture(tmp_path / "dog" / "more" / "1.png", 1)
    with pytest.raises(ValueError, match="a folder of images is CLASS/IMAGE or CLIENT/CLASS/IMAGE"):
        load(str(tmp_path))
    with pytest.raises(ValueError, match="a folder of images is CLASS/IMAGE"):
        (tmp_path / "empty").mkdir()
        load(str(tmp_path / "empty"))


def bomb(pixels: int) -> bytes:
    """A PNG file that says it has so many pixels a side, and holds none."""
    header = struct.pack(">IIBBBBB", pixels, pixels, 8, 0, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(b"")), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


ODD_IMAGES = {
    "refused as a bomb": bomb(20_000),
    "warned of as a bomb": bomb(10_000),
    "of no pixels": bomb(0),
    "of another format": b"P6 4 3 999999999999999\n" + bytes(36),
    "of no numbers": b"P3 4 3 255\n1 2 x",
    "with a short header": bomb(4).replace(b"\0\0\0\r", b"\0\0\0\3"),
    "cut off": bomb(4)[:20],
    "of nothing": b"",
}


@pytest.mark.parametrize("name", ODD_IMAGES)
def test_an_odd_image_is_named(tmp_path, name):
    """Kills decoders' own errors, which name no file, and a warning in place of an error."""
    for label in ("cat", "dog"):
        picture(tmp_path / label / "1.png", 1)
    (tmp_path / "dog" / "2.png").write_bytes(ODD_IMAGES[name])
    with pytest.raises(ValueError, match=r"dog/2.png is no image \(.*\): correct or remove it"):
        load(str(tmp_path))
    if "bomb" in name:
        with pytest.raises(ValueError, match="could be decompression bomb"):
            load(str(tmp_path))


def leaf(folder: Path, part: str, users: dict[str, list[int]], width: int = 784) -> None:
    (folder / part).mkdir(parents=True, exist_ok=True)
    data = {u: {"x": [[0.5] * width] * len(ys), "y": ys} for u, ys in users.items()}
    sizes = [len(ys) for ys in users.values()]
    content = {"users": [*users], "num_samples": sizes, "user_data": data}
    (folder / part / f"{'-'.join(users)}.json").write_text(json.dumps(content))


def test_leaf_s_users_are_clients(tmp_path):
    leaf(tmp_path, "train", {"f2": [1, 0, 2]})
    leaf(tmp_path, "train", {"f1": [2], "f3": [0, 1]})
    leaf(tmp_path, "test", {"f1": [2]})
    found = read(str(tmp_path))
    assert found.x.shape == (6, 1, 28, 28) and found.classes == 3 and len(found.x_test) == 1
    assert sorted(zip(found.owner.tolist(), found.y.tolist(), strict=True)) == [
        (0, 2),
        (1, 0),
        (1, 1),
        (1, 2),
        (2, 0),
        (2, 1),
    ]
    (tmp_path / "train" / "bad.json").write_text('{"users": ["u"], "user_data": {}}')
    with pytest.raises(ValueError, match=r"bad.json is not of LEAF's layout \(KeyError: 'u'\)"):
        read(str(tmp_path))
    apart = {"v": {"x": [[1] * 784], "y": [0, 1]}, "w": {"x": [[2] * 784] * 2, "y": [1]}}
    (tmp_path / "train" / "bad.json").write_text(
        json.dumps({"users": [*apart], "user_data": apart})
    )
    with pytest.raises(ValueError, match=r"LEAF's layout \(ValueError: 1 records and 2 labels\)"):
        read(str(tmp_path))
    (tmp_path / "train" / "bad.json").write_text("[" * 5000)
    with pytest.raises(ValueError, match=r"bad.json is not of LEAF's layout \(RecursionError"):
        read(str(tmp_path))
    (tmp_path / "train" / "bad.json").unlink()
    leaf(tmp_path, "train", {"f9": [2]})
    copy = tmp_path / "train" / "copy of f9.json"
    shutil.copy(tmp_path / "train" / "f9.json", copy)
    with pytest.raises(ValueError, match="user f9 is there twice, so each record counts twice"):
        read(str(tmp_path))
    copy.unlink()
    leaf(tmp_path, "train", {"f4": [0.5]})
    with pytest.raises(ValueError, match=r"labels no integers \(0\.5 is none\)"):
        read(str(tmp_path))
    leaf(tmp_path, "train", {"f4": [10**30]})
    with pytest.raises(ValueError, match=r"train: records are .*, or labels no integers \(.*\): g"):
        read(str(tmp_path))


def test_what_is_no_data_set_is_answered_with_all_that_can_be_one(tmp_path):
    for name in ("no/such/folder", "nowhere", "mine:1two", ":f", ""):
        with pytest.raises(ValueError, match=r"is unknown: .*\.csv.* folder, or package.module:"):
            files.check(name, None)
    with pytest.raises(ValueError, match="~nosuch/folder is no path here"):
        files.check("~nosuch/folder", None)
    with pytest.raises(ValueError, match="no such file"):
        files.check(str(tmp_path / "t.csv"), None)
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(ValueError, match=r"folder\.csv: it is no regular file; give the path"):
        files.check(str(tmp_path / "folder.csv"), None)
    files.check(str(tmp_path), None)
    files.check("hf:owner/name", None)
