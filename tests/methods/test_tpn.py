import pytest
import torch
from torch.nn import functional as F

from tapnet.backbones import Conv4
from tapnet.data.batches import EpisodeImages
from tapnet.methods.tpn import EPSILON, LengthScale, TransductivePropagation, propagate, similarities

LABELS = torch.tensor([0, 1, 2, 0, 1, 0])


def make(**options):
    torch.manual_seed(0)
    return TransductivePropagation(Conv4((1, 8, 8), widths=(16, 16, 16, 16)), **options).eval()


def graph(count=12, neighbors=4):
    return similarities(torch.randn(count, 6).double(), 0.5 + torch.rand(count).double(), neighbors)


def normalized(weights):
    degrees = weights.sum(dim=-1)
    return weights / (degrees[:, None] * degrees).sqrt()


def test_propagation_equals_the_closed_form_on_a_graph_done_by_hand():
    """Two nodes joined by 1 with self-loops: S = ½ everywhere, so (I - S/2)⁻¹ = [[3, 1], [1, 3]] / 2."""
    found = propagate(torch.ones(2, 2), torch.tensor([[1.0], [0.0]]), alpha=0.5)
    torch.testing.assert_close(found, torch.tensor([[1.5], [0.5]]))


def test_propagation_is_the_limit_of_spreading_step_by_step():
    weights, labels, alpha = graph(), torch.eye(12)[:, :3].double(), 0.9
    spread = labels
    for _ in range(500):
        spread = alpha * normalized(weights) @ spread + (1 - alpha) * labels
    torch.testing.assert_close((1 - alpha) * propagate(weights, labels, alpha), spread)


def test_graph_gives_the_weights_worked_out_by_hand():
    features, scales = torch.tensor([[0.0, 0.0], [2.0, 0.0]]), torch.tensor([1.0, 2.0]) - EPSILON
    weight = torch.exp(torch.tensor(-0.25))  # half the mean of 1 and 0
    torch.testing.assert_close(similarities(features, scales, 2), torch.tensor([[1.0, weight], [weight, 1.0]]))


def test_graph_keeps_an_edge_that_one_of_its_ends_chose():
    features, scales = torch.tensor([[0.0], [1.0], [1.5]]), torch.ones(3)
    kept = similarities(features, scales, neighbors=2) > 0
    assert kept.tolist() == [[True, True, False], [True, True, True], [False, True, True]]


def test_graph_ignores_a_scale_common_to_features_and_length_scales():
    features, scales = torch.randn(8, 6).double(), 1 + torch.rand(8).double()
    torch.testing.assert_close(
        similarities(3 * features, 3 * scales, 4), similarities(features, scales, 4), rtol=1e-4, atol=1e-4
    )


def test_loss_counts_support_set_and_queries():
    method = make().train()
    episode = EpisodeImages(torch.rand(12, 1, 8, 8), 3, 1, 3, torch.arange(3))
    found = method.loss(episode)
    support, query = method.embed(episode.images).split(episode.sizes)
    logits = method.adapt(support, episode.support_labels, episode.way).all_logits(query)
    answers = torch.cat([torch.arange(3), torch.arange(3).repeat_interleave(3)])
    torch.testing.assert_close(found.loss, F.cross_entropy(logits, answers))
    torch.testing.assert_close(found.logits, logits[3:])


def test_length_scale_has_the_weights_of_the_paper():
    """37,440 convolution weights and 49 linear ones in the supplement's Table 5, for 64 maps of 6×6."""
    parameters = list(LengthScale((64, 6, 6)).layers.named_parameters())
    assert sum(p.numel() for _, p in parameters if p.dim() == 4) == 37_440
    assert sum(p.numel() for name, p in parameters if name.split(".")[0] in ("9", "11")) == 49


@pytest.mark.parametrize("size", [8, 17, 28, 84])
def test_propagation_works_for_maps_of_any_size(size):
    method = TransductivePropagation(Conv4((1, size, size), widths=(16, 16, 16, 16))).eval()
    images = torch.rand(4, 1, size, size)
    assert method(images[:2], torch.arange(2), images[2:]).isfinite().all()
