"""Methods that read the support set as a sequence: Matching Networks with full context, and SNAIL."""

import re
import sys
import types
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from tapnet.backbones import Conv4
from tapnet.data.batches import EpisodeImages
from tapnet.methods import MatchingNetwork
from tapnet.methods.snail import SNAIL, CausalAttention, DenseBlock

LABELS = torch.tensor([0, 1, 2, 0, 1, 0])
LAYERS = [DenseBlock(5, 4, 1), DenseBlock(5, 4, 2), DenseBlock(5, 4, 16), CausalAttention(5, 4, 3)]


def matching(kind=MatchingNetwork, **options):
    torch.manual_seed(0)
    return kind(Conv4((1, 8, 8), widths=(16, 16, 16, 16)), **options).eval()


def draw():
    return torch.randn(6, 16), torch.randn(5, 16)


def test_matching_sums_the_attention_by_class():
    support, query = draw()
    attention = (3 * F.cosine_similarity(query[:, None], support[None], dim=-1)).softmax(dim=-1)
    expected = torch.stack([attention[:, k == LABELS].sum(dim=-1) for k in range(3)], dim=-1)
    torch.testing.assert_close(matching(scale=3.0).logits(support, LABELS, query, 3).exp(), expected)


def test_matching_has_finite_logits_and_gradients_at_a_large_scale():
    support, query = draw()
    logits = matching(scale=1e4).logits(support, LABELS, query.requires_grad_(), 3)
    logits.sum().backward()
    assert logits.isfinite().all()
    assert query.grad.isfinite().all()


def test_full_context_with_zero_weights_is_the_plain_network():
    (support, query), method = draw(), matching(full_context=True)
    with torch.no_grad():
        for parameter in (*method.writer.parameters(), *method.reader.parameters()):
            parameter.zero_()
    torch.testing.assert_close(method.logits(support, LABELS, query, 3), matching().logits(support, LABELS, query, 3))


def test_full_context_writer_sees_both_neighbors():
    """A support feature changes with the items before it and after it."""
    support, _ = draw()
    method, changed = matching(full_context=True), support.clone()
    changed[3] += 1
    assert ((method.written(changed) - method.written(support)).abs().amax(dim=-1) > 0).all()


def test_the_matching_network_of_the_guide_is_this_one_in_under_40_lines():
    """CONTRIBUTING shows the whole file of a method by it."""
    guide = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    [code] = re.findall(r"```python\n(# src/tapnet/methods/matching.*?)```", guide, re.DOTALL)
    assert len(code.splitlines()) < 40
    module = types.ModuleType("guide")
    sys.modules["guide"] = module  # where a dataclass looks its annotations up
    exec(code, vars(module))
    support, query = draw()
    expected = matching().logits(support, LABELS, query, 3)
    torch.testing.assert_close(matching(module.MatchingNetwork).logits(support, LABELS, query, 3), expected)


def make(way=3, shot=2, **options):
    return matching(SNAIL, way=way, shot=shot, **options)


def test_every_query_is_scored_as_the_last_item_of_a_sequence_of_its_own():
    """As published: the whole sequence of support set and one query through every layer."""
    method, support, queries = make(), torch.randn(6, 16), torch.randn(4, 16)
    marks, expected = torch.cat([F.one_hot(LABELS, 3).float(), torch.zeros(1, 3)]), []
    for query in queries:
        sequence = torch.cat([method.embedding(torch.cat([support, query[None]])), marks], dim=-1)
        for layer in method.layers:
            sequence = layer(sequence)
        expected.append(method.classifier(sequence)[-1])
    torch.testing.assert_close(method.logits(support, LABELS, queries, 3), torch.stack(expected))


@pytest.mark.parametrize("layer", LAYERS)
def test_an_item_does_not_see_later_ones_and_may_be_appended_alone(layer):
    items = torch.randn(8, 5)
    changed = torch.cat([items[:4], torch.randn(4, 5)])
    torch.testing.assert_close(layer(changed)[:4], layer(items)[:4])
    torch.testing.assert_close(layer(items[7:], items[:7]), layer(items)[7:])


def test_attention_sums_to_one():
    layer, items = CausalAttention(5, 4, 3), torch.randn(7, 5)
    torch.testing.assert_close(layer.weights(items).sum(dim=-1), torch.ones(7))
    torch.testing.assert_close(layer.weights(torch.randn(2, 5), items).sum(dim=-1), torch.ones(2))


@pytest.mark.parametrize(("way", "shot"), [(3, 2), (20, 1)])
def test_temporal_convolutions_reach_every_item(way, shot):
    """The gradient of the last output with respect to every item is there without any attention."""
    blocks = [layer for layer in make(way, shot).layers if isinstance(layer, DenseBlock)]
    half = blocks[: len(blocks) // 2]
    sequence = torch.randn(way * shot + 1, half[0].current.in_features, requires_grad=True)
    outputs = sequence
    for layer in half:
        outputs = layer(outputs)
    (gradient,) = torch.autograd.grad(outputs[-1].sum(), sequence)
    assert (gradient.abs().sum(dim=-1) > 0).all()


def test_training_draws_the_order_of_the_support_set():
    method, support, labels = make().train(), torch.randn(3, 16), torch.arange(3)
    drawn = {tuple(method.contexts(method.embedded(support), labels, 3)[0][:, 64:].argmax(-1)) for _ in range(30)}
    assert len(drawn) > 1


def test_relabelings_average_the_loss_over_numberings_of_the_classes():
    """Images pass the backbone once, and column k of the logits stays class k of the episode."""
    method = make(shot=1, relabelings=4)
    episode = EpisodeImages(torch.rand(9, 1, 8, 8), 3, 1, 2, torch.arange(3))
    torch.manual_seed(1)
    loss, logits = method.loss(episode)
    support, query = method.embed(episode.images).split(episode.sizes)
    torch.manual_seed(1)
    by_hand = [method.logits(support, number, query, 3)[:, number] for number in (torch.randperm(3) for _ in range(4))]
    losses = [F.cross_entropy(scores, episode.query_labels) for scores in by_hand]
    torch.testing.assert_close(loss, torch.stack(losses).mean())
    torch.testing.assert_close(logits, by_hand[0])


def test_drawn_shots_train_one_network_for_every_number_of_shots():
    method, lengths = make(shot=3, drawn_shots=True).train(), set()
    method.layers[0].register_forward_pre_hook(lambda _, inputs: lengths.add(inputs[0].shape[-2]))
    for _ in range(15):
        method.loss(EpisodeImages(torch.rand(12, 1, 8, 8), 3, 3, 1, torch.arange(3)))
    assert lengths == {3, 6, 9}


def test_an_untrained_item_attends_most_to_those_like_itself():
    """Keys begin equal to queries: of items of one length, the last attends most to the first, its copy, and itself."""
    items, layer = F.normalize(torch.randn(7, 5), dim=-1), CausalAttention(5, 8, 3)
    torch.nn.init.zeros_(layer.query.bias)
    torch.nn.init.zeros_(layer.key.bias)
    weights = layer.weights(torch.cat([items, items[:1]]))[-1]
    assert set(weights.topk(2).indices.tolist()) == {0, 7}


def test_normalized_features_may_have_any_size():
    method, support, query, logits = make(normalized=True).train(), torch.randn(6, 16), torch.randn(4, 16), []
    for size in (1.0, 100.0):
        torch.manual_seed(0)  # of the order of the support set
        logits.append(method.logits(size * support, LABELS, size * query, 3))
    torch.testing.assert_close(logits[1], logits[0], atol=1e-4, rtol=1e-3)
