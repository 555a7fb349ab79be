import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tapnet.backbones import Conv4, PrecomputedFeatures
from tapnet.errors import UserError
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
    expected = method.logits(support, labels, queries, int(labels.max()) + 1)[:, list(order)]
    torch.testing.assert_close(
        method.logits(support, renamed, queries, int(labels.max()) + 1), expected, rtol=1e-3, atol=1e-3
    )


def test_tapnet_in_training_keeps_reference_k_for_class_k():
    method = make().train()
    support, queries, labels = torch.randn(8, 16), torch.randn(6, 16), torch.arange(8)
    head = method.adapt(support, labels, int(labels.max()) + 1)
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
    expected, found = (
        full.logits(support, labels, queries, int(labels.max()) + 1),
        short.logits(support, labels, queries, int(labels.max()) + 1),
    )
    torch.testing.assert_close(found - found[:, :1], expected - expected[:, :1], rtol=1e-3, atol=1e-3)
    assert torch.equal(found.argmax(-1), expected.argmax(-1))


def test_householder_basis_loses_something_at_way_minus_one_dimensions():
    full, short = make().eval(), make(projection_dim=4).eval()
    support, queries, labels = torch.randn(5, 16), torch.randn(20, 16), torch.arange(5)
    expected, found = (
        full.logits(support, labels, queries, int(labels.max()) + 1),
        short.logits(support, labels, queries, int(labels.max()) + 1),
    )
    assert ((found - found[:, :1]) - (expected - expected[:, :1])).abs().max() > 0.1


def test_tapnet_trains_references_and_backbone_but_not_through_the_projection():
    method = make().train()
    support, queries = torch.randn(8, 16, requires_grad=True), torch.randn(8, 16, requires_grad=True)
    method.logits(support, torch.arange(8), queries, 8).sum().backward()
    assert support.grad is None
    assert queries.grad is not None
    assert method.references.grad is not None


def test_tapnet_trains_through_the_projection_when_asked():
    method = make(differentiable=True).train()
    support = torch.randn(8, 16, requires_grad=True)
    method.logits(support, torch.arange(8), torch.randn(8, 16), 8).sum().backward()
    assert support.grad is not None


def test_tapnet_takes_the_references_that_it_is_told():
    method, prototypes = make().eval(), torch.randn(3, 16)
    head = method.adapt_to(prototypes, chosen=torch.tensor([6, 0, 3]))
    assert torch.equal(head.references, method.references[[6, 0, 3]])


@pytest.mark.parametrize("basis", ["householder", "references"])
@pytest.mark.parametrize("dim", [None, 2, 5, 8])
def test_linear_head_has_the_softmax_of_the_logits(dim, basis):
    method = make(projection_dim=dim, basis=basis).eval()
    support, query, labels = torch.randn(2, 10, 16), torch.randn(2, 7, 16), torch.arange(5).repeat(2).expand(2, -1)
    head = method.adapt(support, labels, int(labels.max()) + 1)
    found, expected = head.linear().logits(query).softmax(-1), head.logits(query).softmax(-1)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_reference_that_counts_for_very_many_images_is_the_papers():
    support, queries = torch.randn(6, 16), torch.randn(9, 16)
    paper, blended = make().eval(), make(reference_shots=1e6).eval()
    found, expected = (each.logits(support, LABELS, queries, 3) for each in (blended, paper))
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


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


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_references": 16}, "from 2 to 15, fewer than its backbone has features, got 16"),
        ({"num_references": 1}, "got 1"),
        ({"selection": "nearest"}, "closest, optimal"),
        ({"projection_dim": 9}, "from 1 to dim - num_references = 8, got 9"),
        ({"projection_dim": 3, "differentiable": True}, "leave out `projection_dim`"),
        ({"reference_shots": -1}, "0 or more"),
        ({"basis": "svd"}, "householder, references, got 'svd'"),
    ],
)
def test_tapnet_refuses_what_cannot_work(options, words):
    with pytest.raises(ValueError, match=words):
        make(**options)


def test_tapnet_refuses_training_episodes_of_another_way():
    with pytest.raises(ValueError, match="need 8 classes, one per reference, got 3"):
        make().train().logits(torch.randn(6, 16), LABELS, torch.randn(5, 16), 3)


def test_tapnet_refuses_more_classes_than_references():
    with pytest.raises(ValueError, match="9 classes need 9 references, there are 8"):
        make().eval().logits(torch.randn(9, 16), torch.arange(9), torch.randn(1, 16), 9)


def test_temperature_divides_the_logits_also_of_the_linear_layer():
    support, labels, query = torch.randn(6, 16), torch.tensor([0, 0, 1, 1, 2, 2]), torch.randn(4, 16)
    torch.manual_seed(0)
    plain = TapNet(PrecomputedFeatures(16), num_references=3).eval()
    warm = TapNet(PrecomputedFeatures(16), num_references=3, temperature=4.0).eval()
    warm.load_state_dict(plain.state_dict())
    expected = plain.logits(support, labels, query, int(labels.max()) + 1) / 4
    torch.testing.assert_close(warm.logits(support, labels, query, int(labels.max()) + 1), expected)
    linear = warm.adapt(support, labels, int(labels.max()) + 1).linear().logits(query)
    torch.testing.assert_close(linear.softmax(dim=-1), expected.softmax(dim=-1))


def test_references_start_with_the_norm_asked_for():
    torch.manual_seed(0)
    plain = TapNet(PrecomputedFeatures(16), num_references=3)
    torch.manual_seed(0)
    long = TapNet(PrecomputedFeatures(16), num_references=3, initial_norm=50.0)
    torch.testing.assert_close(long.references, 50 * plain.references)


@pytest.mark.parametrize("option", ["temperature", "initial_norm"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("inf"), float("nan")])
def test_tapnet_refuses_scales_that_are_not_positive(option, value):
    with pytest.raises(UserError, match=f"`{option}` needs to be a finite number above 0, got {value}"):
        TapNet(PrecomputedFeatures(16), num_references=3, **{option: value})
