import math
import re
import sys
import types
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from tapnet.backbones import Conv4
from tapnet.methods.matching import MatchingNetwork

LABELS = torch.tensor([0, 1, 2, 0, 1, 0])


def make(**options):
    torch.manual_seed(0)
    return MatchingNetwork(Conv4((1, 8, 8), widths=(16, 16, 16, 16)), **options).eval()


def draw():
    return torch.randn(6, 16), torch.randn(5, 16)


def test_matching_attention_sums_to_one():
    support, query = draw()
    attention = make().adapt(support, LABELS, 3).log_attention(query).exp()
    torch.testing.assert_close(attention.sum(dim=-1), torch.ones(5))


def test_matching_logits_are_log_probabilities():
    support, query = draw()
    torch.testing.assert_close(make().logits(support, LABELS, query, 3).exp().sum(dim=-1), torch.ones(5))


def test_matching_sums_the_attention_by_class():
    support, query = draw()
    head = make(scale=3.0).adapt(support, LABELS, 3)
    attention = (3 * F.cosine_similarity(query[:, None], support[None], dim=-1)).softmax(dim=-1)
    expected = torch.stack([attention[:, k == LABELS].sum(dim=-1) for k in range(3)], dim=-1)
    torch.testing.assert_close(head.logits(query).exp(), expected)


def test_matching_gives_the_probabilities_worked_out_by_hand():
    support = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    probabilities = make(scale=1.0).logits(support, torch.tensor([0, 1]), torch.tensor([[5.0, 0.0]]), 2).exp()
    torch.testing.assert_close(probabilities, torch.tensor([[math.e, 1.0]]) / (math.e + 1))


def test_matching_at_one_shot_gives_scaled_cosines_up_to_a_constant():
    support, query = draw()
    logits = make(scale=7.0).logits(support, torch.arange(6), query, 6)
    cosines = 7 * F.cosine_similarity(query[:, None], support[None], dim=-1)
    differences = logits - cosines
    torch.testing.assert_close(differences, differences[:, :1].expand(-1, 6))


def test_matching_ignores_the_length_of_a_feature_vector():
    support, query = draw()
    method, lengths = make(), torch.tensor([[0.1], [3.0], [1.0], [20.0], [7.0], [0.5]])
    expected = method.logits(support, LABELS, query, 3)
    torch.testing.assert_close(method.logits(lengths * support, LABELS, 9 * query, 3), expected)


def test_matching_ignores_a_support_set_given_twice():
    support, query = draw()
    method = make()
    twice = method.logits(support.repeat(2, 1), LABELS.repeat(2), query, 3)
    torch.testing.assert_close(twice, method.logits(support, LABELS, query, 3))


def test_matching_has_finite_logits_and_gradients_at_a_large_scale():
    support, query = draw()
    query.requires_grad_()
    logits = make(scale=1e4).logits(support, LABELS, query, 3)
    logits.sum().backward()
    assert logits.isfinite().all()
    assert query.grad.isfinite().all()


def test_full_context_with_zero_weights_is_the_plain_network():
    support, query = draw()
    method = make(full_context=True)
    with torch.no_grad():
        for module in (method.writer, method.reader):
            for parameter in module.parameters():
                parameter.zero_()
    torch.testing.assert_close(method.logits(support, LABELS, query, 3), make().logits(support, LABELS, query, 3))


def test_full_context_reader_ignores_the_order_of_the_support_set():
    support, query = draw()
    reader = make(full_context=True).reader
    torch.testing.assert_close(reader(query, support.flip(0)), reader(query, support))


def test_full_context_writer_sees_both_neighbors():
    """A support feature changes with the items before it and after it."""
    support, _ = draw()
    writer, changed = make(full_context=True).writer, support.clone()
    changed[3] += 1
    differs = (writer(changed) - writer(support)).abs().amax(dim=-1) > 0
    assert differs.all()


def test_full_context_declares_that_order_matters():
    assert make(full_context=True).support_order_matters
    assert not make().support_order_matters
    assert make().follows_class_order


@pytest.mark.parametrize(("options", "words"), [({"scale": 0}, "above 0, got 0"), ({"steps": 0}, "at least 1, got 0")])
def test_matching_refuses_options_out_of_range(options, words):
    with pytest.raises(ValueError, match=words):
        make(**options)


def test_the_matching_network_of_the_guide_is_this_one_in_under_40_lines():
    """CONTRIBUTING shows the whole file of a method by it."""
    guide = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    [code] = re.findall(r"```python\n(# src/tapnet/methods/matching.*?)```", guide, re.DOTALL)
    assert len(code.splitlines()) < 40
    module = types.ModuleType("guide")
    sys.modules["guide"] = module  # where a dataclass looks its annotations up
    exec(code, vars(module))
    backbone = Conv4((1, 8, 8), widths=(16, 16, 16, 16)).eval()
    support, query, labels = torch.randn(6, 16), torch.randn(4, 16), torch.arange(3).repeat_interleave(2)
    expected = MatchingNetwork(backbone).logits(support, labels, query, 3)
    torch.testing.assert_close(module.MatchingNetwork(backbone).logits(support, labels, query, 3), expected)
