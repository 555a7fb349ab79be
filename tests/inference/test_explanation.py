from dataclasses import replace

import numpy as np
import pytest
from matplotlib.colors import to_hex
from PIL import Image

from tapnet.inference import explanation as figures
from tapnet.inference import fit_task, load_network, read_task, remove
from tapnet.inference.explanation import class_color, explain_features, projected, task_planes
from tapnet.inference.networks import vector_model
from tapnet.inference.predictor import TaskPredictor
from tapnet.inference.task import Examples

NAMES = [*"abcdefgh", "a very long name of a class that does not fit into any heading"]


def predictor_of(features, labels, names=NAMES):
    """A task of centroids of feature vectors, opened."""
    examples = Examples(features, labels, tuple(map(str, range(len(labels)))), (b"",) * len(labels))
    model = vector_model(features.shape[1])
    return TaskPredictor(fit_task(names, examples, model), model)


def explanation_of(query, *of_task):
    """The explanation of one feature vector by a task of centroids."""
    return explain_features(predictor_of(*of_task), query[None], Image.new("RGB", (9, 9)))


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
    predictor = predictor_of(features[: 2 * way], np.repeat(np.arange(way), 2), NAMES[:way])
    planes = task_planes(predictor)
    explanation = explain_features(predictor, features[:1], Image.new("RGB", (9, 9)))
    place = planes.locate(features[:1])[1][0]
    axis = replace(explanation, planes=planes, place=place).figure("why.png").get_axes()[-1]
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


@pytest.fixture(scope="module")
def three_classes(drawing_task):
    task = read_task(drawing_task)
    return remove(task, classes=task.classes[3:])


def squared_distances(points, centers):
    return np.square(points[:, None] - centers[None]).sum(axis=-1)


@pytest.fixture(scope="module")
def planes(three_classes):
    return task_planes(TaskPredictor.open(three_classes))


def test_plane_of_three_classes_keeps_every_difference_of_distances(three_classes, planes):
    flat = squared_distances(planes.examples[1], planes.centers[1])
    inside = projected(planes.head, three_classes.examples.features)
    marks = projected(planes.head, planes.head.centers.numpy(force=True))
    full = squared_distances(inside, marks)
    np.testing.assert_allclose(flat - flat[:, :1], full - full[:, :1], atol=1e-3)


@pytest.mark.parametrize("method", ["centroid", "logistic", "protonet"])
def test_planes_exist_for_every_method_and_for_two_classes(drawing_task, method):
    task, network = read_task(drawing_task), load_network("drawings")
    two = remove(task, classes=task.classes[2:])
    planes = task_planes(TaskPredictor(fit_task(two.classes, two.examples, network, method), network))
    assert planes.examples[1].shape == (6, 2)
    assert np.isfinite(np.concatenate(planes.examples)).all()
    assert planes.exact == (method != "logistic")


def test_plane_is_exact_for_three_classes_and_not_for_four(drawing_task, planes):
    assert planes.exact
    assert not task_planes(TaskPredictor.open(read_task(drawing_task))).exact


@pytest.mark.parametrize("method", ["centroid", "logistic", "protonet"])
def test_class_centers_lie_among_the_examples_of_their_class_in_the_embedding_space(drawing_task, method):
    task, network = read_task(drawing_task), load_network("drawings")
    planes = task_planes(TaskPredictor(fit_task(task.classes, task.examples, network, method), network))
    examples, radius = planes.examples[0], np.linalg.norm(planes.examples[0] - planes.examples[0].mean(0), axis=1).max()
    for label, center in enumerate(planes.centers[0]):
        assert np.linalg.norm(center - examples[task.examples.labels == label].mean(axis=0)) < 0.2 * radius


def test_planes_locate_an_example_where_it_is_drawn(three_classes, planes):
    for located, drawn in zip(planes.locate(three_classes.examples.features[:2]), planes.examples, strict=True):
        np.testing.assert_allclose(located, drawn[:2], atol=1e-6)
