"""Methods that compare maps: Relation Networks and Transductive Propagation Networks."""

import pytest
import torch
from torch.nn import functional as F

from tapnet.backbones import Conv4
from tapnet.data.batches import EpisodeImages
from tapnet.methods import RelationNetwork, TransductivePropagation
from tapnet.methods.relation import RelationModule
from tapnet.methods.tpn import EPSILON, LengthScale, propagate, similarities


def make(kind=RelationNetwork, size=8):
    torch.manual_seed(0)
    return kind(Conv4((1, size, size), widths=(16, 16, 16, 16))).eval()


def draw(size=1):
    return torch.rand(6, 16, size, size), torch.rand(5, 16, size, size)


@pytest.mark.parametrize("kind", [RelationNetwork, TransductivePropagation])
@pytest.mark.parametrize("size", [17, 84])
def test_maps_may_have_any_size(kind, size):
    images = torch.rand(4, 1, size, size)
    assert make(kind, size)(images[:2], torch.arange(2), images[2:]).isfinite().all()


def test_relation_module_equals_convolution_of_the_joined_channels():
    """Class and query are convolved apart and added; the paper joins them by channel first."""
    module, (support, query) = RelationModule((16, 3, 3)).eval(), draw(3)
    pairs = torch.cat([support.expand(5, 6, 16, 3, 3), query[:, None].expand(5, 6, 16, 3, 3)], dim=2)
    expected = module.rest(module.first(pairs.flatten(0, 1))).view(5, 6)
    torch.testing.assert_close(module(support, query), expected)


def test_relation_of_equal_shots_is_that_of_one_shot_with_maps_as_many_times():
    (support, query), method = draw(), make()
    thrice = method.logits(support[:3].repeat(3, 1, 1, 1), torch.arange(3).repeat(3), query, 3)
    torch.testing.assert_close(thrice, method.logits(3 * support[:3], torch.arange(3), query, 3))


def test_relation_of_a_pair_is_independent_of_the_other_classes():
    (support, query), method = draw(), make()
    alone = method.logits(support[:2], torch.arange(2), query, 2)
    torch.testing.assert_close(method.logits(support, torch.arange(6), query, 6)[:, :2], alone)


def test_relation_loss_is_the_squared_error_of_the_scores():
    loss, logits = make().train().loss(EpisodeImages(torch.rand(8, 1, 8, 8), 2, 1, 3, torch.arange(2)))
    target = torch.eye(2).repeat_interleave(3, dim=0)
    torch.testing.assert_close(loss, (logits.sigmoid() - target).square().mean())


@pytest.mark.parametrize(("size", "padding", "weights"), [(5, 1, 529), (19, 0, 4625)])
def test_relation_module_has_the_weights_of_the_paper_and_of_the_authors_code(size, padding, weights):
    """110,592 of convolutions; linear ones of 64→8→1 on Omniglot, 576→8→1 on miniImageNet (maps of 5×5 and 19×19)."""
    module = RelationModule((64, size, size), padding)
    assert sum(p.numel() for p in module.parameters() if p.dim() == 4) == 110_592
    assert sum(p.numel() for layer in (8, 10) for p in module.rest[layer].parameters()) == weights
    assert module(torch.rand(2, 64, size, size), torch.rand(3, 64, size, size)).shape == (3, 2)


def test_propagation_is_the_limit_of_spreading_step_by_step():
    weights = similarities(torch.randn(12, 6).double(), 0.5 + torch.rand(12).double(), 4)
    labels, alpha, degrees = torch.eye(12)[:, :3].double(), 0.9, weights.sum(dim=-1)
    spread = labels
    for _ in range(500):
        spread = alpha * weights / (degrees[:, None] * degrees).sqrt() @ spread + (1 - alpha) * labels
    torch.testing.assert_close((1 - alpha) * propagate(weights, labels, alpha), spread)


def test_graph_gives_the_weights_worked_out_by_hand_and_keeps_an_edge_that_one_of_its_ends_chose():
    features, scales = torch.tensor([[0.0, 0.0], [2.0, 0.0]]), torch.tensor([1.0, 2.0]) - EPSILON
    weight = torch.exp(torch.tensor(-0.25))  # half the mean of 1 and 0
    torch.testing.assert_close(similarities(features, scales, 2), torch.tensor([[1.0, weight], [weight, 1.0]]))
    kept = similarities(torch.tensor([[0.0], [1.0], [1.5]]), torch.ones(3), neighbors=2) > 0
    assert kept.tolist() == [[True, True, False], [True, True, True], [False, True, True]]


def test_graph_ignores_a_scale_common_to_features_and_length_scales():
    features, scales = torch.randn(8, 6).double(), 1 + torch.rand(8).double()
    tripled = similarities(3 * features, 3 * scales, 4)
    torch.testing.assert_close(tripled, similarities(features, scales, 4), rtol=1e-4, atol=1e-4)


def test_propagation_loss_counts_support_set_and_queries():
    method = make(TransductivePropagation).train()
    episode = EpisodeImages(torch.rand(12, 1, 8, 8), 3, 1, 3, torch.arange(3))
    loss, logits = method.loss(episode)
    support, query = method.embed(episode.images).split(episode.sizes)
    everything = method.all_logits(support, torch.eye(3), query)
    answers = torch.cat([torch.arange(3), torch.arange(3).repeat_interleave(3)])
    torch.testing.assert_close(loss, F.cross_entropy(everything, answers))
    torch.testing.assert_close(logits, everything[3:])


def test_length_scale_has_the_weights_of_the_paper():
    """37,440 convolution weights and 49 linear ones in the supplement's Table 5, for 64 maps of 6×6."""
    parameters = list(LengthScale((64, 6, 6)).layers.named_parameters())
    assert sum(p.numel() for _, p in parameters if p.dim() == 4) == 37_440
    assert sum(p.numel() for name, p in parameters if name.split(".")[0] in ("9", "11")) == 49
