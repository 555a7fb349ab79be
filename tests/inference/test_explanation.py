import numpy as np
import pytest
from matplotlib.colors import to_hex
from PIL import Image

from tapnet.inference import explanation as figures
from tapnet.inference import fit_task
from tapnet.inference.explanation import class_color, draw_picture, explain_features, hardest_classes
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
    bars = {name[:6]: color for name, color in bar_colors(figure).items()}
    assert len(in_plane) == 3
    assert in_plane.items() <= bars.items()
    for axis in figure.get_axes()[2:-1]:
        name = axis.get_title().partition("\n")[0]
        expected = next(k for k, full in enumerate(NAMES) if full[:6] == name[:6])
        assert to_hex(axis.spines["left"].get_edgecolor()) == class_color(expected).lower()


def test_class_has_the_same_color_in_every_figure_of_its_task(draw):
    first, second = bar_colors(draw(0)), bar_colors(draw(7))
    assert len(first.keys() & second.keys()) > 2
    assert all(first[name] == second[name] for name in first.keys() & second.keys())


def test_figure_leaves_classes_out_only_beyond_three_and_says_so(features, monkeypatch):
    monkeypatch.setattr(figures, "save", lambda figure, _: figure)
    titles = []
    for way in (3, 5):
        labels = np.repeat(np.arange(way), 2)
        axis = explanation_of(features[0], features[: 2 * way], labels, NAMES[:way]).figure("why.png").get_axes()[-1]
        assert axis.get_aspect() == 1  # distances are to scale
        titles.append(axis.get_title())
    assert titles == ["how the task decides", "how the task decides (the other 2 classes left out)"]


def test_colors_of_many_classes_differ():
    assert len({class_color(k) for k in range(100)}) == 100


def test_long_names_are_shortened_and_headings_do_not_overlap(draw):
    figure = draw(16)
    figure.canvas.draw()
    titles = [axis.title for axis in figure.get_axes()]
    boxes = [title.get_window_extent() for title in titles if title.get_text()]
    assert all(max(map(len, title.get_text().splitlines()), default=0) < 64 for title in titles)
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])


def test_explanation_says_why_the_nearest_example_is_of_another_class_if_it_is():
    features = np.array([[1, 0.0], [1, 0.1], [0.2, 1], [1, 0.5]], np.float32)
    of_task = features, np.array([0, 0, 1, 1]), ["robin", "wren"]
    explanation = explanation_of(np.array([1, 0.35], np.float32), *of_task)
    assert (explanation.label, explanation.nearest[0].label) == ("robin", "wren")
    assert explanation.reason.startswith("The most similar example is of class 'wren', but")
    assert explanation_of(features[0], *of_task).reason == ""


def squared_distances(points, centers):
    return np.square(points[..., None, :] - centers).sum(axis=-1)


@pytest.mark.parametrize("classes", [[0, 1], [4, 0, 2]])
def test_differences_of_squared_distances_are_those_of_logits(classes):
    generator = np.random.default_rng(0)
    logits, query = generator.normal(size=(30, 5)), generator.normal(size=5)
    picture = draw_picture(logits, np.arange(30) % 5, classes, query)
    seen = -squared_distances(picture.query, picture.centers)
    truth = query[list(picture.classes)]
    factor = (seen[0] - seen[1]) / (truth[0] - truth[1])
    assert factor > 0
    np.testing.assert_allclose(seen - seen[0], factor * (truth - truth[0]))
    examples = -squared_distances(picture.points, picture.centers)
    np.testing.assert_array_equal(examples.argmax(axis=1), logits[picture.examples][:, classes].argmax(axis=1))


def test_examples_are_those_of_the_classes():
    labels = np.array([0, 1, 2, 3, 3, 1])
    picture = draw_picture(np.eye(4)[labels], labels, [3, 1, 0], None)
    assert picture.examples.tolist() == [0, 1, 3, 4, 5]
    assert picture.query is None


def test_hardest_classes_share_probability():
    labels = np.arange(12) % 4
    logits = 10 * np.eye(4)[labels]
    logits[labels == 3, 1] = 9
    logits[labels == 1, 3] = 9
    logits[labels == 0, 3] = 5
    assert hardest_classes(logits, labels) == [0, 1, 3]
    assert hardest_classes(logits[:, :2], labels % 2) == [0, 1]
