import numpy as np
import pytest
import torch

from tapnet.backbones import Conv4
from tapnet.data.episodes import EpisodeSpec
from tapnet.evaluation.evaluator import Evaluator
from tapnet.functional import null_space
from tapnet.methods import PrototypicalNetwork, TapNet, TapNetVariant
from tapnet.paper.dimension_curve import dimension_accuracies, dimension_curve, random_rotation


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dim", [1, 4, 11])
def test_the_curve_agrees_with_an_evaluation_at_one_dimension(blobs, dim, bias):
    small_tapnet = TapNetVariant(
        Conv4((1, 8, 8), widths=(16, 16, 16, 16)), num_references=8, reference_bias=bias
    ).eval()
    if bias:
        torch.nn.init.normal_(small_tapnet.reference_bias, std=0.1)
    curve = dimension_curve(Evaluator(small_tapnet, blobs), EpisodeSpec(5, 2, 3, 40, 1))
    single = small_tapnet.with_options(projection_dim=dim)
    accuracy = Evaluator(single, blobs).accuracies(EpisodeSpec(5, 2, 3, 40, 1)).mean()
    assert curve[dim - 1] == pytest.approx(accuracy, abs=2 / (40 * 15))


@pytest.mark.parametrize("dim", [16, 70, 130])
def test_the_curve_agrees_with_distances_through_the_projection_in_float64(blobs, dim):
    """Below, above and between multiples of the 64 blocks in which the curve is summed."""
    torch.manual_seed(0)
    method = TapNet(Conv4((1, 8, 8), widths=(4, 4, 4, dim)), num_references=8).double().eval()
    evaluator = Evaluator(method, blobs)
    batch = blobs.episodes(5, 2, 3, seed=1).batch(0, 40)
    evaluator._features = torch.randn(len(blobs), dim, generator=torch.Generator().manual_seed(0)).double()
    with torch.inference_mode():
        head = method.adapt_to(evaluator.prototypes(batch.support))
        references, basis = head.references, null_space(head.ordered_errors)
        inside, queries = references @ basis, evaluator.gathered(batch.query) @ basis
        nearest = (queries.unsqueeze(2) - inside.unsqueeze(1)).square().cumsum(dim=-1).argmin(dim=2)
        expected = (nearest == torch.arange(5).repeat_interleave(3)[:, None]).double().mean(dim=(0, 1))
    method.float()
    evaluator._features = evaluator._features.float()
    curve = dimension_curve(evaluator, EpisodeSpec(5, 2, 3, 40, 1))
    assert np.abs(curve - expected.numpy()).max() <= 2 / (40 * 15)


def test_the_curve_has_a_point_for_every_dimension(blobs, small_tapnet):
    curve = dimension_curve(Evaluator(small_tapnet, blobs), EpisodeSpec(5, 2, 3, 3))
    assert curve.shape == (16 - 5,)
    assert np.isfinite(curve).all()


def test_a_method_without_a_projection_is_refused(blobs):
    method = PrototypicalNetwork(Conv4((1, 8, 8), widths=(16, 16, 16, 16))).eval()
    with pytest.raises(ValueError, match="Only TapNet"):
        dimension_curve(Evaluator(method, blobs), EpisodeSpec(5, 2, 3, 3))


def test_the_curve_is_the_mean_of_its_episodes(blobs, small_tapnet):
    evaluator = Evaluator(small_tapnet, blobs)
    accuracies = dimension_accuracies(evaluator, EpisodeSpec(5, 2, 3, 70, 1))
    assert accuracies.shape == (70, 11)
    np.testing.assert_array_equal(accuracies.mean(axis=0), dimension_curve(evaluator, EpisodeSpec(5, 2, 3, 70, 1)))
    np.testing.assert_allclose(accuracies[:, -1], evaluator.accuracies(EpisodeSpec(5, 2, 3, 70, 1)))


def test_a_rotation_changes_no_accuracy_at_full_dimension_but_below(blobs, small_tapnet):
    evaluator = Evaluator(small_tapnet, blobs)
    plain = dimension_accuracies(evaluator, EpisodeSpec(5, 2, 3, 10))
    rotated = dimension_accuracies(
        evaluator, EpisodeSpec(5, 2, 3, 10), rotation=random_rotation(11, torch.Generator().manual_seed(1))
    )
    np.testing.assert_array_equal(rotated[:, -1], plain[:, -1])
    assert (rotated[:, 0] != plain[:, 0]).any()


def test_a_random_rotation_keeps_lengths_and_follows_its_generator():
    first, second = (random_rotation(11, torch.Generator().manual_seed(1)) for _ in range(2))
    torch.testing.assert_close(first @ first.mT, torch.eye(11))
    assert torch.equal(first, second)


def test_with_the_directions_of_the_references_first_way_minus_one_dimensions_lose_nothing(blobs, small_tapnet):
    curve = dimension_accuracies(Evaluator(small_tapnet, blobs), EpisodeSpec(5, 2, 3, 40), basis="references")
    np.testing.assert_array_equal(curve[:, 5 - 2], curve[:, -1])


@pytest.mark.parametrize("dim", [1, 3, 6])
def test_the_curve_of_the_references_agrees_with_an_evaluation_at_one_dimension(blobs, small_tapnet, dim):
    curve = dimension_curve(Evaluator(small_tapnet, blobs), EpisodeSpec(5, 2, 3, 40), basis="references")
    single = small_tapnet.with_options(projection_dim=dim, basis="references")
    accuracy = Evaluator(single, blobs).accuracies(EpisodeSpec(5, 2, 3, 40)).mean()
    assert curve[dim - 1] == pytest.approx(accuracy, abs=2 / (40 * 15))
