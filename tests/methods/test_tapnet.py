"""What defines TapNet: a projection that hides the errors of modified references; and its variants."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from tapnet.backbones import Conv4
from tapnet.functional import class_prototypes, modified_references, null_space, projected_distances
from tapnet.methods import TapNet, TapNetVariant

LABELS = torch.tensor([0, 1, 2, 0, 1, 0])  # three, two and one shot
ALL = torch.arange(8)


def make(kind=TapNet, **options):
    torch.manual_seed(0)
    return kind(Conv4((1, 8, 8), widths=(16, 16, 16, 16)), 8, **options).eval()


def variant(**options):
    return make(TapNetVariant, **options)


def draw(count=8, seed=0):
    """Features of support images and of queries."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 16, generator=generator), torch.randn(20, 16, generator=generator)


@given(
    order=st.permutations(range(5)),
    dim=st.sampled_from([None, 1, 3]),
    basis=st.sampled_from(["householder", "references"]),
    seed=st.integers(0, 50),
)
def test_tapnet_follows_the_order_of_the_classes_under_optimal_selection(order, dim, basis, seed):
    method, (support, queries) = make(selection="optimal", projection_dim=dim, basis=basis), draw(10, seed)
    labels = torch.arange(5).repeat(2)
    renamed = torch.tensor(order).argsort()[labels]  # class order[k] is now called k
    expected = method.logits(support, labels, queries, 5)[:, list(order)]
    torch.testing.assert_close(method.logits(support, renamed, queries, 5), expected, rtol=1e-3, atol=1e-3)


def test_tapnet_trains_reference_k_for_class_k_and_features_but_not_through_the_projection():
    method, (support, queries) = make().train(), draw()
    head = method.adapt(support.requires_grad_(), ALL, 8)
    assert torch.equal(head.references, method.references)
    logits = head.logits(queries.requires_grad_())
    torch.testing.assert_close(logits, -projected_distances(queries, method.references, head.errors))
    assert torch.equal(variant().train().logits(support, ALL, queries, 8), logits), "without options it is TapNet"
    logits.sum().backward()
    assert support.grad is None
    assert queries.grad is not None
    assert method.references.grad is not None


@pytest.mark.parametrize("references", ["modified", "original"])
def test_prototypes_point_as_the_references_of_the_projection_inside_it(references):
    support, _ = draw(6)
    head = variant(projection_references=references).adapt(support, LABELS, 3)
    targets = modified_references(head.references) if references == "modified" else head.references
    prototypes, basis = class_prototypes(support, LABELS, 3), null_space(head.errors)
    cosines = torch.cosine_similarity(prototypes @ basis, targets @ basis, dim=-1)
    torch.testing.assert_close(cosines, torch.ones(3))


@given(way=st.integers(2, 8), seed=st.integers(0, 50))
def test_reference_basis_loses_nothing_at_way_minus_one_dimensions(way, seed):
    """Predictions and differences of logits at D = way - 1 equal those at full dimension."""
    full, short = make(), make(projection_dim=way - 1, basis="references")
    (support, queries), labels = draw(2 * way, seed), torch.arange(way).repeat(2)
    expected, actual = (method.logits(support, labels, queries, way) for method in (full, short))
    torch.testing.assert_close(actual - actual[:, :1], expected - expected[:, :1], rtol=1e-3, atol=1e-3)
    assert torch.equal(actual.argmax(-1), expected.argmax(-1))


@pytest.mark.parametrize("distance", ["squared", "euclidean", "inner", "cosine"])
def test_every_score_is_divided_by_the_temperature_and_passes_gradients_if_differentiable(distance):
    """The gradient of the references differs from that with the projection held constant."""
    gradients, (support, queries) = [], draw()
    for differentiable in (False, True):
        method = variant(distance=distance, differentiable=differentiable)
        logits = method.logits(support, ALL, queries, 8)
        logits.square().sum().backward()
        gradients.append(method.references.grad)
    assert not torch.allclose(*gradients)
    colder = variant(distance=distance, temperature=4.0).logits(support, ALL, queries, 8)
    torch.testing.assert_close(colder, logits / 4)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"projection_dim": 8},
        {"projection_dim": 2, "basis": "references"},
        {"projection_dim": 5, "projection_references": "original", "classification_references": "modified"},
        {"reference_bias": True, "temperature": 4.0},
        {"projection_dim": 5, "reference_bias": True},
    ],
)
def test_linear_head_has_the_softmax_of_the_logits(options):
    method = variant(**options)
    if method.reference_bias is not None:
        method.reference_bias.data.copy_(torch.linspace(-3, 3, 8))
    support, query, labels = torch.randn(2, 10, 16), torch.randn(2, 7, 16), torch.arange(5).repeat(2).expand(2, -1)
    head = method.adapt(support, labels, 5)
    linear, expected = head.linear().logits(query).softmax(-1), head.logits(query).softmax(-1)
    torch.testing.assert_close(linear, expected, rtol=1e-4, atol=1e-5)


def test_reference_counts_for_less_where_a_class_has_more_images():
    """Three, two and one image beside a reference that counts for one: a quarter, a third and a half of it is left."""
    support, _ = draw(6)
    paper, blended, none = (make(reference_shots=shots).adapt(support, LABELS, 3) for shots in (None, 1, 0))
    prototypes, shares = class_prototypes(support, LABELS, 3), torch.tensor([[1 / 4], [1 / 3], [1 / 2]])
    torch.testing.assert_close(blended.references, shares * paper.references + (1 - shares) * prototypes)
    torch.testing.assert_close(none.references, prototypes)
    assert torch.equal(blended.errors, paper.errors)


@pytest.mark.parametrize("dim", [None, 3])
def test_inner_product_is_the_read_out_of_memory_augmented_networks(dim):
    """Scores Φ M Mᵀ f(x)ᵀ: the references are the memory's values, M Mᵀ f(x)ᵀ its address; or both sides normalized."""
    support, queries = draw()
    head = variant(distance="inner", projection_dim=dim).adapt(support, ALL, 8)
    projection = null_space(head.ordered_errors, dim)
    expected = head.references @ projection @ projection.mT @ queries.mT  # (way, query)
    torch.testing.assert_close(head.logits(queries), expected.mT, rtol=1e-4, atol=1e-4)
    cosines = F.cosine_similarity((queries @ projection)[:, None], (head.references @ projection)[None], dim=-1)
    actual = variant(distance="cosine", projection_dim=dim).logits(support, ALL, queries, 8)
    torch.testing.assert_close(actual, cosines, rtol=1e-4, atol=1e-4)


def test_squared_distance_is_the_inner_product_less_the_lengths():
    """-‖xM - φM‖² = 2 φ M Mᵀ xᵀ - ‖φM‖² - ‖xM‖²; the printed distance is its root."""
    support, queries = draw()
    squared, euclidean, inner = (
        variant(distance=name).adapt(support, ALL, 8) for name in ("squared", "euclidean", "inner")
    )
    lengths = [inner.project(vectors).square().sum(dim=-1) for vectors in (queries, inner.references)]
    expected = 2 * inner.logits(queries) - lengths[0][:, None] - lengths[1]
    for actual in (squared.logits(queries), -euclidean.logits(queries).square()):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


def test_variant_classifies_by_modified_references_when_asked():
    (support, queries), method = draw(), variant(classification_references="modified").train()
    errors = variant().train().adapt(support, ALL, 8).errors
    expected = -projected_distances(queries, modified_references(method.references), errors)
    torch.testing.assert_close(method.logits(support, ALL, queries, 8), expected)


def test_reference_bias_adds_twice_its_value_to_the_logits():
    method, (support, queries) = variant(reference_bias=True).train(), draw()
    expected = variant().train().logits(support, ALL, queries, 8)
    torch.testing.assert_close(method.logits(support, ALL, queries, 8), expected)
    with torch.no_grad():
        method.reference_bias.copy_(torch.arange(8.0))
    torch.testing.assert_close(method.logits(support, ALL, queries, 8), expected + 2 * torch.arange(8.0))
