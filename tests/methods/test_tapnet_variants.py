import pytest
import torch
from torch.nn import functional as F

from tapnet.backbones import Conv4
from tapnet.errors import UserError
from tapnet.functional import class_prototypes, modified_references, null_space, projected_distances
from tapnet.methods import TapNet, TapNetVariant

LABELS = torch.tensor([0, 1, 2, 0, 1, 0])


def make(kind=TapNetVariant, **options):
    torch.manual_seed(0)
    return kind(Conv4((1, 8, 8), widths=(16, 16, 16, 16)), 8, **options)


def draw():
    return torch.randn(8, 16), torch.arange(8), torch.randn(20, 16)


def test_variant_without_options_is_tapnet():
    support, labels, queries = draw()
    assert torch.equal(
        make().logits(support, labels, queries, 8),
        make(TapNet).logits(support, labels, queries, 8),
    )


@pytest.mark.parametrize("dim", [None, 3])
def test_inner_product_is_the_read_out_of_memory_augmented_networks(dim):
    """Scores Φ M Mᵀ f(x)ᵀ: the references are the memory's values, M Mᵀ f(x)ᵀ its address."""
    support, labels, queries = draw()
    head = make(distance="inner", projection_dim=dim).eval().adapt(support, labels, 8)
    projection = null_space(head.ordered_errors, dim)
    expected = head.references @ projection @ projection.mT @ queries.mT  # (way, query)
    torch.testing.assert_close(head.logits(queries), expected.mT, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dim", [None, 3])
def test_cosine_is_the_read_out_with_both_sides_normalized(dim):
    support, labels, queries = draw()
    head = make(distance="cosine", projection_dim=dim).eval().adapt(support, labels, 8)
    projection = null_space(head.ordered_errors, dim)
    expected = F.cosine_similarity((queries @ projection)[:, None], (head.references @ projection)[None], dim=-1)
    torch.testing.assert_close(head.logits(queries), expected, rtol=1e-4, atol=1e-4)


def test_squared_distance_is_the_inner_product_less_the_lengths():
    """-‖xM - φM‖² = 2 φ M Mᵀ xᵀ - ‖φM‖² - ‖xM‖²."""
    support, labels, queries = draw()
    squared, inner = (make(distance=name).eval().adapt(support, labels, 8) for name in ("squared", "inner"))
    lengths = [inner.project(each).square().sum(dim=-1) for each in (queries, inner.references)]
    expected = 2 * inner.logits(queries) - lengths[0][:, None] - lengths[1]
    torch.testing.assert_close(squared.logits(queries), expected, rtol=1e-4, atol=1e-4)


def test_variant_builds_its_projection_from_original_references_when_asked():
    support = torch.randn(6, 16)
    head = make(projection_references="original").eval().adapt(support, LABELS, 3)
    prototypes, basis = class_prototypes(support, LABELS, 3), null_space(head.errors)
    cosines = torch.cosine_similarity(prototypes @ basis, head.references @ basis, dim=-1)
    torch.testing.assert_close(cosines, torch.ones(3))


def test_variant_classifies_by_modified_references_when_asked():
    support, labels, queries = draw()
    method = make(classification_references="modified").train()
    errors = make().train().adapt(support, labels, 8).errors
    expected = -projected_distances(queries, modified_references(method.references), errors)
    torch.testing.assert_close(method.logits(support, labels, queries, 8), expected)


def test_reference_bias_adds_twice_its_value_to_the_logits():
    method, (support, labels, queries) = make(reference_bias=True).train(), draw()
    expected = make().train().logits(support, labels, queries, 8)
    torch.testing.assert_close(method.logits(support, labels, queries, 8), expected)
    with torch.no_grad():
        method.reference_bias.copy_(torch.arange(8.0))
    torch.testing.assert_close(method.logits(support, labels, queries, 8), expected + 2 * torch.arange(8.0))


@pytest.mark.parametrize("reference_bias", [False, True])
@pytest.mark.parametrize("references", ["original", "modified"])
@pytest.mark.parametrize("dim", [None, 5])
def test_linear_head_has_the_softmax_of_the_logits(dim, references, reference_bias):
    method = make(
        projection_dim=dim,
        projection_references=references,
        classification_references=references,
        reference_bias=reference_bias,
    ).eval()
    if reference_bias:
        method.reference_bias.data.copy_(torch.linspace(-3, 3, 8))
    support, query, labels = torch.randn(2, 10, 16), torch.randn(2, 7, 16), torch.arange(5).repeat(2).expand(2, -1)
    head = method.adapt(support, labels, 5)
    found, expected = head.linear().logits(query).softmax(-1), head.logits(query).softmax(-1)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("distance", ["squared", "euclidean", "inner", "cosine"])
def test_every_score_is_divided_by_the_temperature(distance):
    support, labels, queries = draw()
    expected = make(distance=distance).train().logits(support, labels, queries, 8) / 4
    actual = make(distance=distance, temperature=4.0).train().logits(support, labels, queries, 8)
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("distance", ["squared", "euclidean", "inner", "cosine"])
def test_gradient_passes_the_projection_if_it_is_differentiable(distance):
    """Every score: the gradient of the references differs from that with the projection held constant."""
    gradients = []
    for differentiable in (False, True):
        method = make(distance=distance, differentiable=differentiable)
        support, labels, queries = draw()
        method.logits(support, labels, queries, 8).square().sum().backward()
        gradients.append(method.references.grad)
    assert not torch.allclose(*gradients)


@pytest.mark.parametrize(
    "options", [{"basis": "reference"}, {"selection": "random"}, {"reference_shots": "a"}, {"projection_dim": 2.5}]
)
def test_options_changed_later_are_checked_too(options):
    with pytest.raises(UserError, match=next(iter(options))):
        make().with_options(**options)
