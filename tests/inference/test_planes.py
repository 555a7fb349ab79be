"""The planes of a task: what is seen in them is what the head compares."""

import numpy as np
import pytest

from tapnet.inference import load_network, read_task, remove, task_planes
from tapnet.inference.planes import projected


@pytest.fixture(scope="module")
def three_classes(drawing_task):
    task = read_task(drawing_task)
    return remove(task, classes=task.classes[3:])


def squared_distances(points, centers):
    return np.square(points[:, None] - centers[None]).sum(axis=-1)


@pytest.fixture(scope="module")
def planes(three_classes):
    return task_planes(three_classes, load_network("drawings"))


def test_plane_of_three_classes_keeps_every_difference_of_distances(three_classes, planes):
    flat = squared_distances(planes.examples[1], planes.centers[1])
    inside = projected(planes.head, three_classes.examples.features)
    marks = projected(planes.head, planes.head.centers.numpy(force=True))
    full = squared_distances(inside, marks)
    np.testing.assert_allclose(flat - flat[:, :1], full - full[:, :1], atol=1e-3)


def test_planes_locate_an_example_where_it_is_drawn(three_classes, planes):
    for found, drawn in zip(planes.locate(three_classes.examples.features[:2]), planes.examples, strict=True):
        np.testing.assert_allclose(found, drawn[:2], atol=1e-6)


@pytest.mark.parametrize("method", ["centroid", "logistic", "protonet"])
def test_planes_exist_for_every_method_and_for_two_classes(drawing_task, method):
    from tapnet.inference.task import fit_task

    task, network = read_task(drawing_task), load_network("drawings")
    two = remove(task, classes=task.classes[2:])
    planes = task_planes(fit_task(two.classes, two.examples, network, method), network)
    assert planes.examples[1].shape == (6, 2)
    assert np.isfinite(np.concatenate(planes.examples)).all()
    assert planes.exact == (method != "logistic")


def test_plane_is_exact_for_three_classes_and_not_for_four(drawing_task, planes):
    assert planes.exact
    assert not task_planes(read_task(drawing_task), load_network("drawings")).exact


@pytest.mark.parametrize("method", ["centroid", "logistic", "protonet"])
def test_class_centers_lie_among_the_examples_of_their_class_in_the_embedding_space(drawing_task, method):
    from tapnet.inference.task import fit_task

    task, network = read_task(drawing_task), load_network("drawings")
    task = fit_task(task.classes, task.examples, network, method)
    planes = task_planes(task, network)
    for label, center in enumerate(planes.centers[0]):
        own = planes.examples[0][task.examples.labels == label]
        radius = np.linalg.norm(planes.examples[0] - planes.examples[0].mean(axis=0), axis=1).max()
        assert np.linalg.norm(center - own.mean(axis=0)) < 0.2 * radius
