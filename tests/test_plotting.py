import numpy as np
import pytest

from tapnet.evaluation.plotting import new_figure, shade_regions


@pytest.mark.parametrize("centers", [[[0, 0], [4, 0]], [[0, 0], [4, 0], [2, 3]], [[0, 0], [0, 0], [1, 1]]])
def test_shade_regions_fills_a_square_around_what_is_drawn(centers):
    figure, axis = new_figure(4, 3)
    axis.plot([-1, 9], [0, 2])
    low, high = np.array([axis.get_xlim(), axis.get_ylim()]).T
    shade_regions(axis, np.array(centers, float), ["red", "green", "blue"][: len(centers)])
    figure.canvas.draw()
    left, right = axis.get_xlim()
    bottom, top = axis.get_ylim()
    assert right - left == pytest.approx(top - bottom)
    assert left <= low[0] <= high[0] <= right
    assert bottom <= low[1] <= high[1] <= top
    assert len(axis.collections) == len(centers)


def test_shade_regions_separates_two_centers_in_the_middle():
    _, axis = new_figure(4, 3)
    axis.scatter([0, 4], [0, 0])
    shade_regions(axis, np.array([[0.0, 0], [4, 0]]), ["red", "blue"])
    first, second = (region.get_paths()[0].get_extents() for region in axis.collections[1:])
    assert first.x1 == pytest.approx(2, abs=1e-6)
    assert second.x0 == pytest.approx(2, abs=1e-6)
