"""The picture of an answer: whatever the logits, the nearest class in it is the most probable one."""

import numpy as np
import pytest

from tapnet.inference.picture import draw_picture, hardest_classes


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
