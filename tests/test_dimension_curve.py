import numpy as np
import pytest

from tapnet.backbones import Conv4
from tapnet.dimension_curve import dimension_curve
from tapnet.evaluation import Evaluator
from tapnet.methods import PrototypicalNetwork, TapNet


@pytest.mark.parametrize("dim", [1, 4, 11])
def test_the_curve_agrees_with_an_evaluation_at_one_dimension(blobs, small_tapnet, dim):
    curve = dimension_curve(Evaluator(small_tapnet, blobs), 5, 2, 3, episodes=40, seed=1)
    single = TapNet(small_tapnet.backbone, ways=8, projection_dim=min(dim, 8)).eval()
    single.projection_dim = dim
    single.load_state_dict(small_tapnet.state_dict())
    accuracy = Evaluator(single, blobs).accuracies(5, 2, 3, episodes=40, seed=1).mean()
    assert curve[dim - 1] == pytest.approx(accuracy, abs=2 / (40 * 15))


def test_the_curve_has_a_point_for_every_dimension(blobs, small_tapnet):
    curve = dimension_curve(Evaluator(small_tapnet, blobs), 5, 2, 3, episodes=3)
    assert curve.shape == (16 - 5,)
    assert np.isfinite(curve).all()


def test_a_method_without_a_projection_is_refused(blobs):
    method = PrototypicalNetwork(Conv4((1, 8, 8), widths=(16, 16, 16, 16))).eval()
    with pytest.raises(ValueError, match="Only TapNet"):
        dimension_curve(Evaluator(method, blobs), 5, 2, 3, episodes=3)
