import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tapnet.backbones import Conv4, PrecomputedFeatures
from tapnet.functional import class_prototypes, modified_references, null_space, projected_distances
from tapnet.methods import TapNet

LABELS = torch.tensor([0, 1, 2, 0, 1, 0])  # three, two and one shot


def make(num_references=8, **options):
    torch.manual_seed(0)
    return TapNet(Conv4((1, 8, 8), widths=(16, 16, 16, 16)), num_references, **options)


@given(
    order=st.permutations(range(5)),
    dim=st.sampled_from([None, 1, 3]),
    basis=st.sampled_from(["householder", "references"]),
    seed=st.integers(0, 50),
)
def test_tapnet_follows_the_order_of_the_classes_under_optimal_selection(order, dim, basis, seed):
    method = make(selection="optimal", projection_dim=dim, basis=basis).eval()
    generator = torch.Generator().manual_seed(seed)
    support, queries = torch.randn(10, 16, generator=generator), torch.randn(6, 16, generator=generator)
    labels = torch.arange(5).repeat(2)
    renamed = torch.tensor(order).argsort()[labels]  # class order[k] is now called k
    expected = method.logits(support, labels, queries, 5)[:, list(order)]
    torch.testing.assert_close(method.logits(support, renamed, queries, 5), expected, rtol=1e-3, atol=1e-3)


def test_tapnet_in_training_keeps_reference_k_for_class_k():
    method = make().train()
    support, queries, labels = torch.randn(8, 16), torch.randn(6, 16), torch.arange(8)
    head = method.adapt(support, labels, 8)
    assert torch.equal(head.references, method.references)
    expected = -projected_distances(queries, method.references, head.errors)
    torch.testing.assert_close(head.logits(queries), expected)


def test_tapnet_projects_each_prototype_onto_its_modified_reference():
    """Inside the projection a prototype and its modified reference have the same direction."""
    support = torch.randn(6, 16)
    head = make().eval().adapt(support, LABELS, 3)
    basis = null_space(head.errors)
    prototypes, modified = class_prototypes(support, LABELS, 3) @ basis, modified_references(head.references) @ basis
    torch.testing.assert_close(torch.cosine_similarity(prototypes, modified, dim=-1), torch.ones(3))


@given(way=st.integers(2, 8), seed=st.integers(0, 50))
def test_reference_basis_loses_nothing_at_way_minus_one_dimensions(way, seed):
    """Predictions and differences of logits at D = way - 1 equal those at full dimension."""
    full, short = make().eval(), make(projection_dim=way - 1, basis="references").eval()
    generator = torch.Generator().manual_seed(seed)
    support, queries = torch.randn(2 * way, 16, generator=generator), torch.randn(20, 16, generator=generator)
    labels = torch.arange(way).repeat(2)
    expected, actual = (method.logits(support, labels, queries, way) for method in (full, short))
    torch.testing.assert_close(actual - actual[:, :1], expected - expected[:, :1], rtol=1e-3, atol=1e-3)
    assert torch.equal(actual.argmax(-1), expected.argmax(-1))


def test_tapnet_trains_references_and_backbone_but_not_through_the_projection():
    method = make().train()
    support, queries = torch.randn(8, 16, requires_grad=True), torch.randn(8, 16, requires_grad=True)
    method.logits(support, torch.arange(8), queries, 8).sum().backward()
    assert support.grad is None
    assert queries.grad is not None
    assert method.references.grad is not None


@pytest.mark.parametrize("basis", ["householder", "references"])
@pytest.mark.parametrize("dim", [None, 2, 5, 8])
def test_linear_head_has_the_softmax_of_the_logits(dim, basis):
    method = make(projection_dim=dim, basis=basis).eval()
    support, query, labels = torch.randn(2, 10, 16), torch.randn(2, 7, 16), torch.arange(5).repeat(2).expand(2, -1)
    head = method.adapt(support, labels, 5)
    found, expected = head.linear().logits(query).softmax(-1), head.logits(query).softmax(-1)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_reference_that_counts_for_no_image_leaves_the_prototypes_inside_the_projection():
    support, queries = torch.randn(6, 16), torch.randn(9, 16)
    head = make().eval().adapt(support, LABELS, 3)
    expected = -projected_distances(queries, class_prototypes(support, LABELS, 3), head.errors)
    torch.testing.assert_close(make(reference_shots=0).eval().logits(support, LABELS, queries, 3), expected)


def test_reference_counts_for_less_where_a_class_has_more_images():
    """Three, two and one image beside a reference that counts for one: a quarter, a third and a half of it is left."""
    support = torch.randn(6, 16)
    paper, blended = (make(reference_shots=each).eval().adapt(support, LABELS, 3) for each in (None, 1))
    prototypes, shares = class_prototypes(support, LABELS, 3), torch.tensor([[1 / 4], [1 / 3], [1 / 2]])
    torch.testing.assert_close(blended.references, shares * paper.references + (1 - shares) * prototypes)
    assert torch.equal(blended.errors, paper.errors)


def test_temperature_divides_the_logits_also_of_the_linear_layer():
    support, labels, query = torch.randn(6, 16), torch.tensor([0, 0, 1, 1, 2, 2]), torch.randn(4, 16)
    torch.manual_seed(0)
    plain = TapNet(PrecomputedFeatures(16), num_references=3).eval()
    warm = TapNet(PrecomputedFeatures(16), num_references=3, temperature=4.0).eval()
    warm.load_state_dict(plain.state_dict())
    expected = plain.logits(support, labels, query, 3) / 4
    torch.testing.assert_close(warm.logits(support, labels, query, 3), expected)
    linear = warm.adapt(support, labels, 3).linear().logits(query)
    torch.testing.assert_close(linear.softmax(dim=-1), expected.softmax(dim=-1))
