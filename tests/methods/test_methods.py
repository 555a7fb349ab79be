"""What every method promises, and what each promises of itself."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tapnet.backbones import Conv4
from tapnet.functional import class_prototypes, modified_references, null_space, projected_distances
from tapnet.methods import METHODS, PrototypicalNetwork, TapNet


def make(name, **options):
    torch.manual_seed(0)
    return METHODS[name](
        Conv4((1, 8, 8), widths=(16, 16, 16, 16)), **({"num_references": 8} if name == "tapnet" else {}), **options
    )


def images(count, seed=1):
    return torch.rand(count, 1, 8, 8, generator=torch.Generator().manual_seed(seed))


SUPPORT_LABELS = torch.tensor([0, 1, 2, 0, 1, 0])  # three, two and one shot


@pytest.mark.parametrize("name", METHODS)
def test_logits_have_one_row_a_query_and_one_column_a_class(name):
    assert make(name).eval()(images(6), SUPPORT_LABELS, images(5, 2)).shape == (5, 3)


@pytest.mark.parametrize("name", METHODS)
def test_a_query_does_not_see_the_other_queries(name):
    method, support, queries = make(name).eval(), images(6), images(7, 2)
    together = method(support, SUPPORT_LABELS, queries)
    order = torch.randperm(7)
    torch.testing.assert_close(method(support, SUPPORT_LABELS, queries[order]), together[order])
    torch.testing.assert_close(method(support, SUPPORT_LABELS, queries[3:4]), together[3:4])


@pytest.mark.parametrize("name", METHODS)
def test_the_order_of_the_support_images_changes_nothing(name):
    method, support, queries = make(name).eval(), images(6), images(4, 2)
    order = torch.tensor([5, 1, 2, 3, 4, 0])
    torch.testing.assert_close(
        method(support[order], SUPPORT_LABELS[order], queries), method(support, SUPPORT_LABELS, queries)
    )


@pytest.mark.parametrize("name", METHODS)
def test_logits_of_a_batch_of_episodes_are_those_of_each(name):
    method = make(name).eval()
    support, queries = torch.randn(4, 6, 16), torch.randn(4, 5, 16)
    together = method.logits(support, SUPPORT_LABELS.expand(4, -1), queries)
    for index in range(4):
        torch.testing.assert_close(together[index], method.logits(support[index], SUPPORT_LABELS, queries[index]))


@pytest.mark.parametrize("name", METHODS)
def test_one_step_lowers_the_loss_of_its_episode(name):
    method = make(name).train()
    labels = torch.arange(8)
    optimizer = torch.optim.SGD(method.parameters(), lr=1e-2)

    def loss():
        return torch.nn.functional.cross_entropy(method(images(8), labels, images(8)), labels)

    before = loss()
    before.backward()
    optimizer.step()
    assert loss() < before


@given(order=st.permutations(range(5)), dim=st.sampled_from([None, 1, 3]), seed=st.integers(0, 50))
def test_tapnet_follows_the_order_of_the_classes_under_optimal_selection(order, dim, seed):
    method = make("tapnet", selection="optimal", projection_dim=dim).eval()
    generator = torch.Generator().manual_seed(seed)
    support, queries = torch.randn(10, 16, generator=generator), torch.randn(6, 16, generator=generator)
    labels = torch.arange(5).repeat(2)
    renamed = torch.tensor(order).argsort()[labels]  # class order[k] is now called k
    expected = method.logits(support, labels, queries)[:, list(order)]
    torch.testing.assert_close(method.logits(support, renamed, queries), expected, rtol=1e-4, atol=1e-4)


def test_tapnet_may_not_follow_the_order_of_the_classes_under_closest_selection():
    method = make("tapnet").eval()
    support, queries, labels = torch.randn(5, 16), torch.randn(6, 16), torch.arange(5)
    differences = []
    for _ in range(20):
        order = torch.randperm(5)
        renamed = method.logits(support[order], labels, queries)
        differences.append((renamed - method.logits(support, labels, queries)[:, order]).abs().max())
    assert max(differences) > 1e-3
    assert not TapNet.follows_class_order


def test_prototypical_follows_the_order_of_the_classes():
    method, support, queries, order = make("protonet").eval(), torch.randn(5, 16), torch.randn(6, 16), torch.randperm(5)
    labels = torch.arange(5)
    expected = method.logits(support, labels, queries)[:, order]
    torch.testing.assert_close(method.logits(support[order], labels, queries), expected)


def test_tapnet_in_training_keeps_reference_k_for_class_k():
    method = make("tapnet").train()
    support, queries, labels = torch.randn(8, 16), torch.randn(6, 16), torch.arange(8)
    references, errors = method.adapt_to(class_prototypes(support, labels, 8))
    assert torch.equal(references, method.references)
    torch.testing.assert_close(
        method.logits(support, labels, queries), -projected_distances(queries, method.references, errors)
    )


def test_tapnet_projects_each_prototype_onto_its_contrast():
    """Inside the projection a class average and its modified reference point the same way."""
    method = make("tapnet").eval()
    support, labels = torch.randn(6, 16), SUPPORT_LABELS
    references, errors = method.adapt_to(class_prototypes(support, labels, 3))
    basis = null_space(errors)
    averages, modified = class_prototypes(support, labels, 3) @ basis, modified_references(references) @ basis
    torch.testing.assert_close(torch.cosine_similarity(averages, modified, dim=-1), torch.ones(3))


def test_tapnet_trains_references_and_backbone_but_not_through_the_projection():
    method = make("tapnet").train()
    support, queries = torch.randn(8, 16, requires_grad=True), torch.randn(8, 16, requires_grad=True)
    method.logits(support, torch.arange(8), queries).sum().backward()
    assert support.grad is None
    assert queries.grad is not None
    assert method.references.grad is not None


def test_tapnet_trains_through_the_projection_when_asked():
    method = make("tapnet", differentiable=True).train()
    support = torch.randn(8, 16, requires_grad=True)
    method.logits(support, torch.arange(8), torch.randn(8, 16)).sum().backward()
    assert support.grad is not None


def test_tapnet_builds_its_projection_from_original_references_when_asked():
    method = make("tapnet", projection_references="original").eval()
    support = torch.randn(6, 16)
    references, errors = method.adapt_to(class_prototypes(support, SUPPORT_LABELS, 3))
    averages, basis = class_prototypes(support, SUPPORT_LABELS, 3), null_space(errors)
    cosines = torch.cosine_similarity(averages @ basis, references @ basis, dim=-1)
    torch.testing.assert_close(cosines, torch.ones(3))


def test_tapnet_classifies_by_modified_references_when_asked():
    method = make("tapnet", classification_references="modified").train()
    support, queries, labels = torch.randn(8, 16), torch.randn(6, 16), torch.arange(8)
    _, errors = make("tapnet").train().adapt_to(class_prototypes(support, labels, 8))
    expected = -projected_distances(queries, modified_references(method.references), errors)
    torch.testing.assert_close(method.logits(support, labels, queries), expected)


def test_tapnet_with_euclidean_distance_has_the_roots_and_predicts_the_same():
    squared, euclidean = make("tapnet"), make("tapnet", distance="euclidean")
    support, queries, labels = torch.randn(8, 16), torch.randn(20, 16), torch.arange(8)
    expected = squared.logits(support, labels, queries)
    found = euclidean.logits(support, labels, queries)
    torch.testing.assert_close(found, -(-expected).sqrt())
    weight, bias = euclidean.head(class_prototypes(support, labels, 8))
    assert torch.equal((queries @ weight.mT + bias).argmax(-1), found.argmax(-1))


def test_tapnet_starts_with_references_of_the_length_asked_for():
    torch.testing.assert_close(make("tapnet", initial_norm=3.0).references, 3 * make("tapnet").references)


def test_tapnet_takes_the_references_that_it_is_told():
    method, prototypes = make("tapnet").eval(), torch.randn(3, 16)
    references, _ = method.adapt_to(prototypes, chosen=torch.tensor([6, 0, 3]))
    assert torch.equal(references, method.references[[6, 0, 3]])


def test_tapnet_trains_a_bias_of_the_references_when_asked_and_has_none_else():
    method, plain = make("tapnet", reference_bias=True).train(), make("tapnet").train()
    support, queries, labels = torch.randn(8, 16), torch.randn(6, 16), torch.arange(8)
    torch.testing.assert_close(method.logits(support, labels, queries), plain.logits(support, labels, queries))
    with torch.no_grad():
        method.reference_bias.copy_(torch.arange(8.0))
    logits = method.logits(support, labels, queries)
    torch.testing.assert_close(logits, plain.logits(support, labels, queries) + 2 * torch.arange(8.0))
    logits[:, 3].sum().backward()
    torch.testing.assert_close(method.reference_bias.grad, 12 * torch.eye(8)[3])
    assert "reference_bias" not in plain.state_dict()


def test_prototypical_gives_the_distances_worked_out_by_hand():
    method = make("protonet")
    support = torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 5.0]])
    logits = method.logits(support, torch.tensor([0, 0, 1]), torch.tensor([[1.0, 1.0]]))
    torch.testing.assert_close(logits, torch.tensor([[-1.0, -17.0]]))


def test_support_and_query_share_batch_statistics_in_training():
    method = make("protonet").train()
    method(images(6), SUPPORT_LABELS, images(5, 2))
    together = method.backbone.blocks[0][1].running_mean.clone()
    other = make("protonet").train()
    other.embed(torch.cat([images(6), images(5, 2)]))
    torch.testing.assert_close(other.backbone.blocks[0][1].running_mean, together)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_references": 16}, "2 <= ways < dim = 16"),
        ({"num_references": 1}, "got num_references=1"),
        ({"num_references": 8, "selection": "nearest"}, "closest, optimal"),
        ({"num_references": 8, "projection_dim": 9}, "from 1 to 8, got 9"),
        ({"num_references": 8, "projection_references": "new"}, "modified, original, got 'new'"),
        ({"num_references": 8, "classification_references": "new"}, "original, modified, got 'new'"),
        ({"num_references": 8, "distance": "cosine"}, "squared, euclidean, got 'cosine'"),
        ({"num_references": 8, "initial_norm": 0}, "a length above 0, got 0"),
    ],
)
def test_tapnet_refuses_what_cannot_work(options, words):
    with pytest.raises(ValueError, match=words):
        TapNet(Conv4((1, 8, 8), widths=(16, 16, 16, 16)), **options)


def test_tapnet_refuses_training_episodes_of_another_way():
    with pytest.raises(ValueError, match="need 8 classes, one a reference, got 3"):
        make("tapnet").train()(images(6), SUPPORT_LABELS, images(5))


def test_tapnet_refuses_more_classes_than_references():
    with pytest.raises(ValueError, match="9 classes need 9 references, there are 8"):
        make("tapnet").eval()(images(9), torch.arange(9), images(1))


def test_methods_are_exported_at_the_top():
    import tapnet

    assert tapnet.TapNet is TapNet
    assert tapnet.PrototypicalNetwork is PrototypicalNetwork


@pytest.mark.parametrize("bias", [None, torch.linspace(-3, 3, 8)])
@pytest.mark.parametrize("references", ["original", "modified"])
@pytest.mark.parametrize("dim", [None, 5])
def test_the_linear_head_has_the_softmax_of_the_logits(small_tapnet, dim, references, bias):
    small_tapnet.projection_dim, small_tapnet.reference_bias = dim, bias
    small_tapnet.projection_references = small_tapnet.classification_references = references
    support, query, labels = torch.randn(2, 10, 16), torch.randn(2, 7, 16), torch.arange(5).repeat(2).expand(2, -1)
    weight, bias = small_tapnet.head(class_prototypes(support, labels, 5))
    scores = torch.baddbmm(bias.unsqueeze(-2), query, weight.mT)
    expected = small_tapnet.logits(support, labels, query)
    torch.testing.assert_close(scores.softmax(-1), expected.softmax(-1), rtol=1e-4, atol=1e-5)


BYTES = torch.full((6, 1, 8, 8), 200, dtype=torch.uint8)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize(
    ("support", "labels", "query", "words"),
    [
        (images(6), SUPPORT_LABELS.tolist(), images(2), "Labels need to be a tensor of int64, got list"),
        (images(6), SUPPORT_LABELS.numpy(), images(2), "got ndarray"),
        (images(6), SUPPORT_LABELS.float(), images(2), "got float32"),
        (BYTES, SUPPORT_LABELS, images(2), "floats in .0, 1., got uint8"),
        (images(6), SUPPORT_LABELS, BYTES, "got uint8"),
        (images(6), SUPPORT_LABELS, torch.rand(2, 1, 8, 9), r"got \(1, 8, 8\) and \(1, 8, 9\)"),
        (images(6).numpy(), SUPPORT_LABELS, images(2), "got ndarray"),
        (BYTES.float(), SUPPORT_LABELS, images(2), "values in .0, 1., got up to 200: divide them by 255"),
    ],
)
def test_images_and_labels_of_the_wrong_kind_are_refused_in_a_sentence(name, support, labels, query, words):
    with pytest.raises(ValueError, match=words):
        make(name).eval()(support, labels, query)


@pytest.mark.parametrize("name", METHODS)
def test_embed_and_logits_refuse_the_wrong_kind_too(name):
    method = make(name).eval()
    with pytest.raises(ValueError, match="got uint8"):
        method.embed(BYTES)
    with pytest.raises(ValueError, match="got up to 200"):
        method.embed(BYTES.float())
    with pytest.raises(ValueError, match="got list"):
        method.logits(torch.randn(6, 16), SUPPORT_LABELS.tolist(), torch.randn(2, 16))


def test_images_normalised_by_mean_and_deviation_pass():
    assert make("tapnet").eval().embed((images(2) - 0.45) / 0.22).isfinite().all()
