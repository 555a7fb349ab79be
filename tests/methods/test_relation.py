import pytest
import torch

from tapnet.backbones import Conv4
from tapnet.data.batches import EpisodeImages
from tapnet.methods.relation import RelationModule, RelationNetwork

LABELS = torch.tensor([0, 1, 2, 0, 1, 0])


def make(size=8, **options):
    torch.manual_seed(0)
    return RelationNetwork(Conv4((1, size, size), widths=(16, 16, 16, 16)), **options).eval()


def draw(size=1):
    return torch.rand(6, 16, size, size), torch.rand(5, 16, size, size)


def test_relation_score_of_a_hand_set_module():
    """Weights that add the centre of both maps, then pass it through: the logit is class + query, above 0."""
    module = RelationModule((1, 1, 1)).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
        module.first.weight[0, :, 1, 1] = 1
        for normalization in (module.rest[0], module.rest[4]):
            normalization.weight.fill_(1)
        module.rest[3].weight[0, 0, 1, 1] = 1
        module.rest[8].weight[0, 0] = 1
        module.rest[10].weight[0, 0] = 1
        module.rest[10].bias.fill_(-3)
    classes, query = torch.tensor([1.0, 4.0]).view(2, 1, 1, 1), torch.tensor([2.0, -2.0]).view(2, 1, 1, 1)
    expected = torch.tensor([[3.0, 6.0], [0.0, 2.0]]) - 3
    torch.testing.assert_close(module(classes, query), expected, rtol=1e-4, atol=1e-4)


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
    method = make().train()
    episode = EpisodeImages(torch.rand(8, 1, 8, 8), 2, 1, 3, torch.arange(2))
    found = method.loss(episode)
    target = torch.eye(2).repeat_interleave(3, dim=0)
    torch.testing.assert_close(found.loss, (found.logits.sigmoid() - target).square().mean())


@pytest.mark.parametrize("size", [8, 17, 28, 84])
def test_relation_works_for_maps_of_any_size(size):
    method, images = make(size), torch.rand(4, 1, size, size)
    assert method(images[:2], torch.arange(2), images[2:]).shape == (2, 2)


def test_relation_has_the_convolution_weights_of_the_paper():
    """110,592 weights in the supplement's Table 5, for 64 channels."""
    module = RelationModule((64, 6, 6))
    assert sum(p.numel() for p in module.parameters() if p.dim() == 4) == 110_592


@pytest.mark.parametrize(("size", "padding", "weights"), [(5, 1, 529), (19, 0, 4625)])
def test_relation_module_has_the_linear_layers_of_the_authors_code(size, padding, weights):
    """64→8→1 on Omniglot and 576→8→1 on miniImageNet, from maps of 5×5 and 19×19."""
    module = RelationModule((64, size, size), padding)
    assert sum(p.numel() for layer in (8, 10) for p in module.rest[layer].parameters()) == weights
    assert module(torch.rand(2, 64, size, size), torch.rand(3, 64, size, size)).shape == (3, 2)


def test_relation_refuses_maps_that_are_too_small_for_its_padding():
    with pytest.raises(ValueError, match="Maps of 2×2 are too small for a relation module with padding 0"):
        RelationModule((64, 2, 2), 0)
