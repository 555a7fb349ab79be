"""What defines SNAIL: a causal sequence of labeled images with one query at its end."""

import pytest
import torch
from torch.nn import functional as F

from tapnet.backbones import Conv4
from tapnet.data.batches import EpisodeImages
from tapnet.methods.snail import SNAIL, CausalAttention, DenseBlock

LABELS = torch.tensor([0, 1, 2, 0, 1, 0])


def make(way=3, shot=2):
    torch.manual_seed(0)
    return SNAIL(Conv4((1, 8, 8), widths=(16, 16, 16, 16)), way=way, shot=shot).eval()


def as_one_sequence(method, support, labels, query):
    """The logits of one query by running the whole sequence through every layer, as published."""
    items = method.embedding(torch.cat([support, query[None]]))
    marks = torch.cat([F.one_hot(labels, method.way).float(), torch.zeros(1, method.way)])
    sequence = torch.cat([items, marks], dim=-1)
    for layer in method.causal_layers:
        sequence = layer(sequence)
    return method.classifier(sequence)[-1]


def test_every_query_is_scored_as_the_last_item_of_a_sequence_of_its_own():
    method, support, queries = make(), torch.randn(6, 16), torch.randn(4, 16)
    expected = torch.stack([as_one_sequence(method, support, LABELS, query) for query in queries])
    torch.testing.assert_close(method.logits(support, LABELS, queries, 3), expected)


@pytest.mark.parametrize("layer", [DenseBlock(5, 4, 1), DenseBlock(5, 4, 2), CausalAttention(5, 4, 3)])
def test_an_item_does_not_see_later_ones(layer):
    items = torch.randn(8, 5)
    changed = torch.cat([items[:4], torch.randn(4, 5)])
    torch.testing.assert_close(layer(changed)[:4], layer(items)[:4])
    assert not torch.allclose(layer(changed)[4:], layer(items)[4:])


@pytest.mark.parametrize("layer", [DenseBlock(5, 4, 2), DenseBlock(5, 4, 16), CausalAttention(5, 4, 3)])
def test_an_appended_item_is_the_last_of_the_sequence(layer):
    context, last = torch.randn(7, 5), torch.randn(1, 5)
    torch.testing.assert_close(layer.append(context, last), layer(torch.cat([context, last]))[-1:])


def test_attention_sums_to_one_and_reaches_back_only():
    layer, items = CausalAttention(5, 4, 3), torch.randn(7, 5)
    weights = layer.weights(items)
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(7))
    assert torch.equal(weights, weights.tril())
    to_context, to_itself = layer.appended_weights(items, torch.randn(2, 5))
    torch.testing.assert_close(to_context.sum(dim=-1) + to_itself.squeeze(-1), torch.ones(2))


@pytest.mark.parametrize(("way", "shot"), [(5, 1), (3, 2), (20, 1)])
def test_temporal_convolutions_reach_every_item(way, shot):
    """The gradient of the last output with respect to every item is there without any attention."""
    blocks = [layer for layer in make(way, shot).causal_layers if isinstance(layer, DenseBlock)]
    half = blocks[: len(blocks) // 2]
    sequence = torch.randn(way * shot + 1, half[0].current.in_features, requires_grad=True)
    outputs = sequence
    for layer in half:
        outputs = layer(outputs)
    (gradient,) = torch.autograd.grad(outputs[-1].sum(), sequence)
    assert (gradient.abs().sum(dim=-1) > 0).all()


def test_training_draws_the_order_of_the_support_set():
    method, support, queries, labels = make().train(), torch.randn(3, 16), torch.randn(4, 16), torch.arange(3)
    drawn = {
        tuple(method.adapt(support, labels, int(labels.max()) + 1).contexts[0][:, 64:].argmax(dim=-1).tolist())
        for _ in range(30)
    }
    assert len(drawn) > 1
    torch.manual_seed(5)
    first = method.logits(support, labels, queries, int(labels.max()) + 1)
    torch.manual_seed(5)
    torch.testing.assert_close(method.logits(support, labels, queries, int(labels.max()) + 1), first)


def test_relabelings_average_the_loss_over_numberings_of_the_classes():
    """Images pass the backbone once, and column k of the logits stays class k of the episode."""
    torch.manual_seed(0)
    method = SNAIL(Conv4((1, 8, 8), widths=(16, 16, 16, 16)), way=3, shot=1, relabelings=4).eval()
    episode = EpisodeImages(torch.rand(9, 1, 8, 8), 3, 1, 2, torch.arange(3))
    torch.manual_seed(1)
    found = method.loss(episode)
    support, query = method.embed(episode.images).split(episode.sizes)
    torch.manual_seed(1)
    by_hand = [method.logits(support, number, query, 3)[:, number] for number in (torch.randperm(3) for _ in range(4))]
    losses = [F.cross_entropy(logits, episode.query_labels) for logits in by_hand]
    torch.testing.assert_close(found.loss, torch.stack(losses).mean())
    torch.testing.assert_close(found.logits, by_hand[0])


def test_drawn_shots_train_one_network_for_every_number_of_shots():
    method = SNAIL(Conv4((1, 8, 8), widths=(16, 16, 16, 16)), way=3, shot=4, drawn_shots=True).train()
    lengths = set()
    method.layers[0].register_forward_pre_hook(lambda _, inputs: lengths.add(inputs[0].shape[-2]))
    for seed in range(30):
        torch.manual_seed(seed)
        method.loss(EpisodeImages(torch.rand(18, 1, 8, 8), 3, 4, 2, torch.arange(3)))
    assert lengths == {3, 6, 9, 12}


def test_an_untrained_item_attends_most_to_those_like_itself():
    """Keys begin equal to queries: of items of one length, the last attends most to the first, its copy, and itself."""
    items = F.normalize(torch.randn(7, 5, generator=torch.Generator().manual_seed(0)), dim=-1)
    items = torch.cat([items, items[:1]])
    layer = CausalAttention(5, 8, 3)
    torch.nn.init.zeros_(layer.query.bias)
    torch.nn.init.zeros_(layer.key.bias)
    weights = layer.weights(items)[-1]
    assert set(weights.topk(2).indices.tolist()) == {0, 7}


def test_normalized_features_may_have_any_size():
    torch.manual_seed(0)
    method = SNAIL(Conv4((1, 8, 8), widths=(16, 16, 16, 16)), way=3, shot=2, normalized=True).train()
    support, query, logits = torch.randn(6, 16), torch.randn(4, 16), []
    for size in (1.0, 100.0):
        torch.manual_seed(0)  # of the order of the support set
        logits.append(method.logits(size * support, LABELS, size * query, 3))
    torch.testing.assert_close(logits[1], logits[0], atol=1e-4, rtol=1e-3)
