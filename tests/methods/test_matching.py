"""What defines Matching Networks: the attention over the support set, with and without full context."""

import math
import re
import sys
import types
from pathlib import Path

import torch
from torch.nn import functional as F

from tapnet.backbones import Conv4
from tapnet.methods import MatchingNetwork

LABELS = torch.tensor([0, 1, 2, 0, 1, 0])


def make(kind=MatchingNetwork, **options):
    torch.manual_seed(0)
    return kind(Conv4((1, 8, 8), widths=(16, 16, 16, 16)), **options).eval()


def draw():
    return torch.randn(6, 16), torch.randn(5, 16)


def test_matching_sums_the_attention_by_class():
    support, query = draw()
    attention = (3 * F.cosine_similarity(query[:, None], support[None], dim=-1)).softmax(dim=-1)
    expected = torch.stack([attention[:, k == LABELS].sum(dim=-1) for k in range(3)], dim=-1)
    torch.testing.assert_close(make(scale=3.0).logits(support, LABELS, query, 3).exp(), expected)


def test_matching_gives_the_probabilities_worked_out_by_hand():
    support = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    probabilities = make(scale=1.0).logits(support, torch.tensor([0, 1]), torch.tensor([[5.0, 0.0]]), 2).exp()
    torch.testing.assert_close(probabilities, torch.tensor([[math.e, 1.0]]) / (math.e + 1))


def test_matching_has_finite_logits_and_gradients_at_a_large_scale():
    support, query = draw()
    logits = make(scale=1e4).logits(support, LABELS, query.requires_grad_(), 3)
    logits.sum().backward()
    assert logits.isfinite().all()
    assert query.grad.isfinite().all()


def test_full_context_with_zero_weights_is_the_plain_network():
    (support, query), method = draw(), make(full_context=True)
    with torch.no_grad():
        for parameter in (*method.writer.parameters(), *method.reader.parameters()):
            parameter.zero_()
    torch.testing.assert_close(method.logits(support, LABELS, query, 3), make().logits(support, LABELS, query, 3))


def test_full_context_writer_sees_both_neighbors():
    """A support feature changes with the items before it and after it."""
    support, _ = draw()
    method, changed = make(full_context=True), support.clone()
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
    expected = make().logits(support, LABELS, query, 3)
    torch.testing.assert_close(make(module.MatchingNetwork).logits(support, LABELS, query, 3), expected)
