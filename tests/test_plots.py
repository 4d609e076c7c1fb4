"""What a picture shows is what its labels say: read from the axes, series by series, of unequal
figures."""

import dataclasses
import io
import itertools
import math
import re
from html import unescape

import numpy as np
import pytest
from matplotlib import colors, rc_context
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from server.records import RoundRecord
from sim.drawing.plot import Plot
from sim.showing import plots
from tests import unequal

NUMBERS = [1, 2, 3]


def series(axes: Axes) -> dict[str, tuple[list, list]]:
    """The lines of a picture by their label, as places and values."""
    return {
        str(one.get_label()): (list(one.get_xdata()), list(one.get_ydata())) for one in axes.lines
    }


def legend(axes: Axes) -> dict[str, tuple[str, str]]:
    """The texts of the legend with the colour and the dashes that stand beside them."""
    own = axes.get_legend()
    looks = []
    for handle in own.legend_handles:
        color = handle.get_edgecolor() if isinstance(handle, Patch) else handle.get_color()
        looks.append((colors.to_hex(color), str(handle.get_linestyle())))
    return {text.get_text(): look for text, look in zip(own.get_texts(), looks, strict=True)}


@pytest.mark.parametrize(
    "draw",
    [lambda: plots.partition(unequal.COUNTS), lambda: plots.epsilon_by_round(unequal.ROUNDS, 9.5)],
    ids=["beside its scale", "beside its legend"],
)
def test_drawn_once_a_picture_is_what_matplotlib_saves(draw):
    saved = io.BytesIO()
    with rc_context(plots.STYLE):
        draw().savefig(saved, format="svg", metadata={"Date": None})
    drawn = re.sub(b'<g class="values".*</g>\n(?=</svg>)', b"", plots.svg(draw()), flags=re.DOTALL)
    assert drawn == saved.getvalue()


def test_accuracy_and_loss_by_round():
    left, right = (p.axes[0] for p in plots.accuracy_and_loss(unequal.ROUNDS, "validation"))
    assert (left.get_ylabel(), right.get_ylabel()) == (
        "validation accuracy",
        "validation loss [nats]",
    )
    assert [
        (list(a.lines[0].get_xdata()), list(a.lines[0].get_ydata()), len(a.lines))
        for a in (left, right)
    ] == [(NUMBERS, [0.31, 0.57, 0.43], 1), (NUMBERS, [1.91, 1.13, 1.42], 1)]
    assert left.get_ylim() == (0, 1) and right.get_ylim()[0] == 0 < 1.91 < right.get_ylim()[1]
    assert all(a.get_xlabel() == "round" and a.get_xlim() == (0, 3.5) for a in (left, right))
    later = [dataclasses.replace(one, round=20 + one.round) for one in unequal.ROUNDS]
    assert plots.accuracy_and_loss(later, "test")[0].axes[0].get_xlim() == (0, 23.5)


def test_epsilon_by_round():
    (axes,) = plots.epsilon_by_round(unequal.ROUNDS, 9.5).axes
    found = series(axes)
    assert {name: ys for name, (_, ys) in found.items()} == {
        "certified, largest": [2.75, 4.5, 7.25],
        "certified, median": [1.25, 2.25, 3.125],
        "published, largest": [3.875, 6.625, 8.375],
        "target 9.5": [9.5, 9.5],
    }
    assert [xs for xs, _ in found.values()][:3] == [NUMBERS] * 3
    assert set(legend(axes)) == set(found) and len(set(legend(axes).values())) == 4
    assert axes.get_ylim()[0] == 0 and (axes.get_ylabel(), axes.get_xlabel()) == (
        "epsilon spent",
        "round",
    )
    assert "target 9.5" not in series(plots.epsilon_by_round(unequal.ROUNDS, None).axes[0])


def test_there_is_no_half_round_client_or_class_on_an_axis():
    figures = (
        *plots.accuracy_and_loss(unequal.ROUNDS, "test"),
        plots.epsilon_by_round(unequal.ROUNDS, 9.5),
        *plots.mechanism_metrics(unequal.ROUNDS).values(),
        plots.epsilon_per_client(unequal.CERTIFIED, unequal.PUBLISHED, 9.5),
        plots.partition(unequal.COUNTS),
    )
    counted = [axes.xaxis for figure in figures for axes in figure.axes[:2]]
    for axis in (*counted, figures[-1].axes[1].yaxis):
        for end in (1.2, 2.5, 3.5, 40.0, 1e4):
            places = axis.get_major_locator().tick_values(0, end)
            assert len(places) > 1 and (places == places.round()).all()


def test_a_target_looks_the_same_in_both_pictures():
    by_round = plots.epsilon_by_round(unequal.ROUNDS, 9.5).axes[0]
    by_client = plots.epsilon_per_client(unequal.CERTIFIED, unequal.PUBLISHED, 9.5).axes[0]
    looks = legend(by_round)["target 9.5"], legend(by_client)["target 9.5"]
    assert looks[0] == looks[1] and looks[0][0] == plots.RED


def test_what_is_no_number_is_not_drawn():
    """A round that was not evaluated, or a figure without a guarantee, leaves a gap and shifts
    nothing."""
    open_ = RoundRecord(2, None, math.nan, math.inf, None, math.inf, 0, 1, 1.0, 1.0)
    records = (unequal.ROUNDS[0], open_, unequal.ROUNDS[2])
    drawn = [*plots.accuracy_and_loss(records, "test"), plots.epsilon_by_round(records, None)]
    lines = [line for figure in drawn for line in figure.axes[0].lines]
    ends = [(0.31, 0.43), (1.91, 1.42), (2.75, 7.25), (1.25, 3.125), (3.875, 8.375)]
    for line, (first, last) in zip(lines, ends, strict=True):
        assert (line.get_ydata()[0], line.get_ydata()[2]) == (first, last) and math.isnan(
            line.get_ydata()[1]
        )


def test_figures_of_the_mechanism_each_under_its_name_and_in_its_rounds():
    left, right = (p.axes[0] for p in plots.mechanism_metrics(unequal.ROUNDS).values())
    assert left.get_ylabel() == "acceptance rate" and right.get_ylabel() == "noise"
    assert (list(left.lines[0].get_xdata()), list(left.lines[0].get_ydata())) == (
        NUMBERS,
        [0.75, 0.25, 0.625],
    )
    assert (list(right.lines[0].get_xdata()), list(right.lines[0].get_ydata())) == (
        [1, 2],
        [1.5, 4.5],
    )
    some = [dataclasses.replace(one, metrics={"a": float(one.round)}) for one in unequal.ROUNDS]
    some[1] = dataclasses.replace(some[1], metrics={"b": 7.0})
    drawn = [figure.axes[0].lines[0] for figure in plots.mechanism_metrics(some).values()]
    assert [list(line.get_xdata()) for line in drawn] == [[1, 3], [2]]
    assert [list(line.get_ydata()) for line in drawn] == [[1.0, 3.0], [7.0]]
    three = [RoundRecord(1, 0, 0, 0, 0, 0, 0, 0, 0, 0, {"a": 1.0, "b": 2.0, "c_d": 3.0})]
    metrics = plots.mechanism_metrics(three)
    assert {name: p.axes[0].get_ylabel() for name, p in metrics.items()} == {
        "a": "a",
        "b": "b",
        "c_d": "c d",
    }


@pytest.mark.parametrize("infinite", [False, True])
def test_epsilon_of_each_client_in_the_order_of_the_certified_one(infinite):
    """Each client's two figures stand above each other. Kills a claim that is sorted by itself, or
    not at all."""
    published = (math.inf, *unequal.PUBLISHED[1:]) if infinite else unequal.PUBLISHED
    (axes,) = plots.epsilon_per_client(unequal.CERTIFIED, published, 9.5).axes
    filled, certified, claimed = axes.patches
    assert (certified.get_label(), claimed.get_label()) == ("certified", "published")
    assert (
        filled.get_data().values.tolist()
        == certified.get_data().values.tolist()
        == sorted(unequal.CERTIFIED)
    )
    others = [8.375, 2.125, 0.875, math.nan if infinite else 6.125, 5.25]
    np.testing.assert_array_equal(claimed.get_data().values, others)
    assert all(
        patch.get_data().edges.tolist() == [0.5, 1.5, 2.5, 3.5, 4.5, 5.5] for patch in axes.patches
    )
    assert axes.get_xlim() == (0.5, 5.5) and axes.get_ylim()[0] == 0
    assert series(axes)["target 9.5"][1] == [9.5, 9.5]
    shown = legend(axes)
    assert list(shown) == ["certified", "published", "target 9.5"]
    assert shown["certified"][0] == plots.BLUE and shown["published"][0] == plots.ORANGE
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("clients, by epsilon", "epsilon spent")


def test_of_many_clients_both_figures_of_a_step_are_of_one_client():
    rng = np.random.default_rng(0)
    certified = rng.random(3 * plots.MAX_STEPS)
    (axes,) = plots.epsilon_per_client(certified.tolist(), (certified + 10).tolist(), None).axes
    _, own, claimed = axes.patches
    np.testing.assert_allclose(claimed.get_data().values, own.get_data().values + 10)


def test_of_many_clients_each_step_is_as_high_as_its_largest_epsilon():
    """2,500 clients whose epsilons are 1, 2, ...: a step ends at its last client."""
    spent = [float(n) for n in range(1, 2_501)]
    for steps in plots.epsilon_per_client(spent, spent, None).axes[0].patches:
        heights, edges, _ = steps.get_data()
        assert len(heights) == plots.MAX_STEPS and (heights == edges[1:] - 0.5).all()


def test_lines_by_name_with_axes_and_ticks():
    lines = {"first": [(0.5, 3.0), (2.0, 1.0)], "second": [(1.0, 7.0)]}
    (axes,) = plots.curves(lines, "spent", "gained", ("a", "b", "c")).axes
    assert series(axes) == {"first": ([0.5, 2.0], [3.0, 1.0]), "second": ([1.0], [7.0])}
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("spent", "gained")
    assert [(t.get_text(), t.get_position()[0]) for t in axes.get_xticklabels()] == [
        ("a", 0),
        ("b", 1),
        ("c", 2),
    ]
    assert list(legend(axes)) == ["first", "second"]
    many = {f"line {n}": [(0.0, n), (1.0, n)] for n in range(30)}
    (axes,) = plots.curves(many, "", "").axes
    assert len({(line.get_color(), line.get_linestyle()) for line in axes.lines}) == 30
    assert plots.curves({}, "", "").axes[0].get_legend() is None


def test_boxes_stand_side_by_side_around_their_column():
    """Of 1 to 5 the middle half is 2 to 4, the median 3; whiskers reach the least and the largest
    value. A single value is a line."""
    lines = {"first": [(0, float(y)) for y in (5, 1, 4, 2, 3)], "second": [(0, 7.0), (1, 8.0)]}
    (axes,) = plots.boxes(lines, "spent", "gained", ("a", "b")).axes
    found = [box.get_path().get_extents() for box in axes.patches]
    assert [(box.y0, box.y1) for box in found] == [(2, 4), (7, 7), (8, 8)]
    assert [(box.x0 + box.x1) / 2 for box in found] == pytest.approx([-0.2, 0.2, 1.2])
    drawn = {tuple(float(y) for y in line.get_ydata()) for line in axes.lines}
    assert {(3, 3), (4, 5), (2, 1)} <= drawn
    assert list(legend(axes)) == ["first", "second"]
    assert len({patch.get_facecolor() for patch in axes.patches}) == 2
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("spent", "gained")
    assert [t.get_text() for t in axes.get_xticklabels()] == ["a", "b"]
    assert plots.boxes({}, "", "", ()).axes[0].get_legend() is None


def test_a_line_of_few_points_has_markers():
    """Else a single point, as of one round or of one cell, could not be seen."""
    for points, marked in ((1, True), (20, True), (21, False)):
        lines = {"a": [(float(n), 1.0) for n in range(points)]}
        (line,) = plots.curves(lines, "", "").axes[0].lines
        assert (line.get_marker() == "o") is marked
    for rounds, marked in ((1, True), (40, True), (41, False)):
        several = [dataclasses.replace(unequal.ROUNDS[0], round=n) for n in range(rounds)]
        for figure in plots.accuracy_and_loss(several, "test"):
            assert (figure.axes[0].lines[0].get_marker() == "o") is marked


def test_who_holds_which_records():
    above, below, bar = plots.partition(unequal.COUNTS).axes
    (steps,) = above.patches
    assert steps.get_data().values.tolist() == [19, 41, 7, 30, 56]
    assert steps.get_data().edges.tolist() == [-0.5, 0.5, 1.5, 2.5, 3.5, 4.5]
    (image,) = below.images
    assert image.get_array().tolist() == unequal.COUNTS.T.tolist()
    assert tuple(image.get_extent()) == (-0.5, 4.5, 2.5, -0.5) and image.get_clim() == (0, 31)
    full = plots.partition(unequal.COUNTS + 5).axes[1].images[0]
    assert full.get_clim() == (0, 36)  # a colour means the same number in every run
    labels = above.get_ylabel(), below.get_xlabel(), below.get_ylabel(), bar.get_ylabel()
    assert labels == ("records", "client", "class", "records")


def test_bands_of_many_clients_are_means_of_neighbours_by_main_class_and_size():
    """450 clients, of whom each holds one class alone: bands are ascending in class, and in size
    within a class."""
    rng = np.random.default_rng(0)
    main, size = rng.integers(0, 3, 450), rng.integers(1, 1_000, 450)
    counts = np.zeros((450, 3), dtype=np.int64)
    counts[np.arange(450), main] = size
    bands, label = plots._bands(counts)
    order = np.lexsort((size, main))
    parts = np.array_split(order, plots.MAX_COLUMNS)
    np.testing.assert_allclose(bands, [counts[part].mean(axis=0) for part in parts])
    assert label == "clients, sorted by their main class (means of 200 bands)"
    edges = plots.partition(counts).axes[0].patches[0].get_data().edges
    assert (edges[0], edges[-1], len(edges)) == (-0.5, 449.5, 201)


def test_a_sheet_has_each_record_under_its_label():
    rng = np.random.default_rng(0)
    records, labels = rng.random((12, 1, 4, 5)), rng.permutation(12)
    axes = plots.sheet(records, labels).axes
    assert len(axes) == 2 * plots.SHEET
    for place, one in enumerate(axes[:12]):
        shown, own = one.images[0].get_array(), records[place, 0]
        np.testing.assert_allclose(shown, (own - own.min()) / (own.max() - own.min()))
        assert one.get_title() == str(labels[place])
    assert not any(one.images or one.get_title() for one in axes[12:])


@pytest.mark.parametrize(
    ("record", "picture"),
    [
        ([[[0.0, 2.0], [4.0, 1.0]]], [[0.0, 0.5], [1.0, 0.25]]),
        ([[[0.0, 4.0]], [[2.0, 0.0]], [[1.0, 3.0]]], [[[0.0, 0.5, 0.25], [1.0, 0.0, 0.75]]]),
        ([1.0, 3.0, 2.0], [[0.0, 1.0, 0.5]]),
        ([[7.0, 7.0]], [[0.0, 0.0]]),
        ([[[0.0, 1.0]], [[0.5, 0.0]]], [[0.0, 1.0], [0.5, 0.0]]),
    ],
    ids=["grey", "colour", "features", "constant", "two channels"],
)
def test_a_record_as_pixels(record, picture):
    np.testing.assert_allclose(plots._pixels(np.array(record)), picture)


def told(picture: bytes) -> list[tuple[float, float, str]]:
    """The strips of a drawn picture: from and to where, and what they tell."""
    form = r'<rect x="(\S+)" y="\S+" width="(\S+)" height="\S+"><title>(.*?)</title>'
    found = re.findall(form, picture.decode(), re.DOTALL)
    return [(float(x), float(x) + float(width), unescape(text)) for x, width, text in found]


def test_each_round_tells_its_values_where_they_are_drawn():
    """Epsilons rounded up. Kills strips that are shifted, and a value of another line or round."""
    later = [dataclasses.replace(one, round=2 * one.round) for one in unequal.ROUNDS]
    later[2] = dataclasses.replace(later[2], epsilon_certified_max=7.25001, loss=None)
    picture = plots.svg(plots.epsilon_by_round(later, 9.5))
    strips = told(picture)
    assert [text.split("\n") for _, _, text in strips] == [
        [
            f"round {n}",
            f"certified, largest {a}",
            f"certified, median {b}",
            f"published, largest {c}",
        ]
        for n, a, b, c in (
            (2, "2.75", "1.25", "3.875"),
            (4, "4.5", "2.25", "6.625"),
            (6, "7.251", "3.125", "8.375"),
        )
    ]
    points = re.findall(
        r'<use xlink:href="#\w+" x="([\d.]+)" y="[\d.]+" style="[^"]*#2b6cb0', str(picture)
    )
    drawn = sorted({float(x) for x in points})[-3:]
    for (left, right, _), x in zip(strips, drawn, strict=True):
        assert left < x < right
    for figure, texts in zip(
        plots.accuracy_and_loss(later, "test"),
        (["0.3100", "0.5700", "0.4300"], ["1.9100", "1.1300", "unknown"]),
        strict=True,
    ):
        name = "accuracy" if texts[0] == "0.3100" else "loss"
        assert [text for *_, text in told(plots.svg(figure))] == [
            f"round {2 * n}\n{name} {text}" for n, text in enumerate(texts, 1)
        ]


def test_what_a_strip_tells_is_text_whatever_it_holds():
    """A metric of one's own has any name."""
    figure = Plot(200.0)
    figure.told.append((figure.subplots(), 0.0, 1.0, "<b>&</b>"))
    assert b"<title>&lt;b&gt;&amp;&lt;/b&gt;</title>" in plots.svg(figure)


def test_of_many_rounds_the_last_of_each_strip_tells_its_values():
    several = [dataclasses.replace(unequal.ROUNDS[0], round=n, loss=n / 8) for n in range(1, 1_001)]
    strips = told(plots.svg(plots.accuracy_and_loss(several, "test")[1]))
    assert len(strips) == plots.MAX_TOLD
    assert strips[-1][2] == "round 1000\nloss 125.0000"
    for (_, right, _), (left, _, _) in itertools.pairwise(strips):
        assert left == pytest.approx(right, abs=0.02)


def test_each_client_tells_its_own_values():
    certified = (*unequal.CERTIFIED[:4], 2.50001)
    strips = told(plots.svg(plots.epsilon_per_client(certified, unequal.PUBLISHED, None)))
    assert [text for *_, text in strips] == [
        "client 1: certified 1.5, published 8.375",
        "client 4: certified 2.501, published 2.125",
        "client 3: certified 3.125, published 0.875",
        "client 0: certified 4.375, published 6.125",
        "client 2: certified 7.25, published 5.25",
    ]
    assert len({round(right - left, 1) for left, right, _ in strips}) == 1
    spent = [float(n) for n in range(1, 2_501)]
    told_ = [text for *_, text in told(plots.svg(plots.epsilon_per_client(spent, spent, None)))]
    assert told_[-1] == "2 clients; client 2499, the largest: certified 2500, published 2500"


def test_text_in_a_picture_is_text_and_never_small():
    """At a picture's own width, which a phone has. Kills letters drawn as outlines, too."""
    figures = [
        *plots.accuracy_and_loss(unequal.ROUNDS, "test"),
        plots.epsilon_by_round(unequal.ROUNDS, 9.5),
        *plots.mechanism_metrics(unequal.ROUNDS).values(),
        plots.epsilon_per_client(unequal.CERTIFIED, unequal.PUBLISHED, 9.5),
        plots.partition(unequal.COUNTS),
        plots.sheet(np.zeros((3, 1, 4, 4)), np.arange(3)),
        plots.curves({"a": [(1.0, 2.0)]}, "round", "epsilon"),
        plots.boxes({"a": [(0, 2.0)]}, "epsilon", "accuracy", ["1"]),
    ]
    for figure in figures:
        picture = plots.svg(figure).decode()
        sizes = re.findall(r"<text[^>]*font(?:-size)?: ([\d.]+)px", picture)
        assert len(sizes) == picture.count("<text") > 0 and min(map(float, sizes)) >= 12
        assert float(re.search(r'viewBox="0 0 ([\d.]+)', picture)[1]) <= 390 - 2 * (16 + 17)


def test_accuracies_by_class_and_by_client():
    """Kills bars in another order, and a histogram that tells another bin's clients."""
    figure = plots.by_class([0.25, None, 0.75])
    assert [bar.get_height() for bar in figure.axes[0].patches] == pytest.approx(
        [0.25, math.nan, 0.75], nan_ok=True
    )
    assert [text for *_, text in figure.told] == [
        "class 0: 0.2500",
        "class 1: unknown",
        "class 2: 0.7500",
    ]
    assert [round((a + b) / 2) for _, a, b, _ in figure.told] == [0, 1, 2]
    figure = plots.by_client([0.12, 0.13, 0.99])
    counts = {
        text: round(bar.get_height())
        for bar, (*_, text) in zip(figure.axes[0].patches, figure.told, strict=True)
    }
    assert counts.pop("from 0.10 to 0.15: clients 2") == 2
    assert counts.pop("from 0.95 to 1.00: clients 1") == 1
    assert len(counts) == 18 and set(counts.values()) == {0}
