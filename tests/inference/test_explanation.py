from dataclasses import replace

import numpy as np
import pytest
from matplotlib.colors import to_hex
from PIL import Image

from tapnet.inference import explanation_figure as figures
from tapnet.inference.examples import Examples
from tapnet.inference.explanation import Explanation
from tapnet.inference.explanation_figure import class_color
from tapnet.inference.networks import vector_model
from tapnet.inference.planes import task_planes
from tapnet.inference.task import fit_task

NAMES = [*"abcdefgh", "a very long name of a class that does not fit into any heading"]


def explanation_of(query, features, labels, names=NAMES):
    """The explanation of one feature vector by a task of centroids."""
    examples = Examples(features, labels, tuple(map(str, range(len(labels)))), (b"",) * len(labels))
    task = fit_task(names, examples, vector_model(features.shape[1]))
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    centers = task.head.weight.double().numpy()
    probabilities = task.probabilities(query[None])[0]
    return Explanation(
        task, Image.new("RGB", (9, 9)), probabilities, query / np.linalg.norm(query), unit.astype(float), centers
    )


@pytest.fixture
def features():
    return np.random.default_rng(0).normal(size=(18, 20)).astype(np.float32)


@pytest.fixture
def draw(monkeypatch, features):
    """The figure of an explanation of the example with this number, by a task of nine classes of two."""
    monkeypatch.setattr(figures, "save", lambda figure, _: figure)
    return lambda index: explanation_of(features[index], features, np.repeat(np.arange(9), 2)).figure("why.png")


def bar_colors(figure):
    bars = figure.get_axes()[1]
    labels = [label.get_text() for label in bars.get_yticklabels()]
    return {name: to_hex(bar.get_facecolor()) for name, bar in zip(labels, bars.patches, strict=True)}


def test_class_has_one_color_throughout_a_figure(draw):
    figure = draw(0)
    handles, names = figure.get_axes()[-1].get_legend_handles_labels()
    in_plane = {name[:6]: to_hex(handle.get_facecolor()[0]) for name, handle in zip(names, handles, strict=True)}
    assert in_plane.pop("your i") == to_hex("black")
    assert {name[:6]: color for name, color in bar_colors(figure).items()} == in_plane
    for axis in figure.get_axes()[2:-1]:
        name = axis.get_title().partition("\n")[0]
        expected = next(k for k, full in enumerate(NAMES) if full[:6] == name[:6])
        assert to_hex(axis.spines["left"].get_edgecolor()) == class_color(expected).lower()


def test_class_has_the_same_color_in_every_figure_of_its_task(draw):
    first, second = bar_colors(draw(0)), bar_colors(draw(7))
    assert len(first.keys() & second.keys()) > 2
    assert all(first[name] == second[name] for name in first.keys() & second.keys())


@pytest.mark.parametrize(("way", "title"), [(3, "where the task decides, to scale"), (4, "distances are approximate")])
def test_the_plane_is_to_scale_where_it_is_exact(way, title, features, monkeypatch):
    monkeypatch.setattr(figures, "save", lambda figure, _: figure)
    labels, model = np.repeat(np.arange(way), 2), vector_model(features.shape[1])
    found = explanation_of(features[0], features[: 2 * way], labels, NAMES[:way])
    planes = task_planes(found.task, model)
    place = planes.locate(features[:1])[1][0]
    axis = replace(found, planes=planes, place=place).figure("why.png").get_axes()[-1]
    assert title in axis.get_title()
    assert (axis.get_aspect() == 1) is planes.exact is (way == 3)


def test_colors_of_many_classes_differ():
    assert len({class_color(k) for k in range(100)}) == 100


def test_long_names_are_shortened_and_headings_do_not_overlap(draw):
    figure = draw(16)
    figure.canvas.draw()
    titles = [axis.title for axis in figure.get_axes()]
    boxes = [title.get_window_extent() for title in titles if title.get_text()]
    assert all(max(map(len, title.get_text().splitlines()), default=0) < 64 for title in titles)
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])


def test_explanation_says_why_the_nearest_example_is_of_another_class():
    features = np.array([[1, 0.0], [1, 0.1], [0.2, 1], [1, 0.5]], np.float32)
    found = explanation_of(np.array([1, 0.35], np.float32), features, np.array([0, 0, 1, 1]), ["robin", "wren"])
    assert (found.label, found.nearest[0].label) == ("robin", "wren")
    assert found.reason.startswith("The most similar example is of class 'wren', but")


def test_explanation_has_nothing_to_add_if_the_nearest_example_is_of_the_answer():
    features = np.array([[1, 0.0], [1, 0.1], [0, 1], [0.1, 1]], np.float32)
    assert explanation_of(features[0], features, np.array([0, 0, 1, 1]), ["robin", "wren"]).reason == ""
