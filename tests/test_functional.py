import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from tapnet.functional import (
    blended_references,
    class_prototypes,
    linear_head,
    modified_references,
    null_space,
    projected_distances,
    projection_errors,
    select_references,
)


def episode(way, dim, query=6, batch=(), dtype=torch.float32, seed=0, offset=0.0):
    """Random queries, references and errors of an episode."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*batch, *shape, generator=generator, dtype=torch.float64)

    queries, references, prototypes = draw(query, dim) + offset, draw(way, dim), draw(way, dim) + offset
    return (
        queries.to(dtype),
        references.to(dtype),
        projection_errors(references, prototypes).to(dtype),
    )


def distances_by_svd(queries, references, errors):
    """The authors' way: the right singular vectors beyond the first `way`, in float64."""
    queries, references, errors = queries.double(), references.double(), errors.double()
    basis = torch.linalg.svd(errors, full_matrices=True).Vh[..., errors.shape[-2] :, :].mT
    differences = (queries @ basis).unsqueeze(-2) - (references @ basis).unsqueeze(-3)
    return differences.square().sum(dim=-1)


SIZES = [(2, 4), (2, 512), (5, 10), (5, 512), (20, 256), (33, 67), (64, 128), (64, 2304)]


@pytest.mark.parametrize(("way", "dim"), SIZES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_projected_distances_agree_with_a_float64_svd(way, dim, dtype, tolerance):
    queries, references, errors = episode(way, dim, batch=(2,), dtype=dtype)
    expected = distances_by_svd(queries, references, errors)
    torch.testing.assert_close(
        projected_distances(queries, references, errors).double(), expected, rtol=tolerance, atol=0
    )


@given(way=st.integers(2, 64), more=st.integers(1, 64), offset=st.sampled_from([0.0, 10.0]), seed=st.integers(0, 99))
def test_projected_distances_are_close_when_way_nears_dim(way, more, offset, seed):
    """Near way = dim little is left of a vector: the error is small beside what it was before the projection."""
    queries, references, errors = episode(way, way + more, seed=seed, offset=offset)
    expected = distances_by_svd(queries, references, errors)
    whole = torch.cdist(queries.double(), references.double()).square()
    error = (projected_distances(queries, references, errors).double() - expected).abs()
    assert (error <= 1e-5 * whole).all()


@given(way=st.integers(2, 20), more=st.integers(1, 30), seed=st.integers(0, 999))
def test_projected_distances_are_never_negative(way, more, seed):
    queries, references, errors = episode(way, way + more, seed=seed)
    queries = torch.cat([queries, references])  # distance zero to one of them
    assert (projected_distances(queries, references, errors) >= 0).all()


@pytest.mark.parametrize("dim", [1, 3, 11])
def test_projected_distances_use_the_first_columns_of_the_null_space(dim):
    queries, references, errors = episode(5, 16, batch=(3,), dtype=torch.float64)
    basis = null_space(errors, dim)
    expected = ((queries @ basis).unsqueeze(-2) - (references @ basis).unsqueeze(-3)).square().sum(dim=-1)
    torch.testing.assert_close(projected_distances(queries, references, errors, dim), expected)


@pytest.mark.parametrize("dim", [None, 4])
def test_linear_head_has_the_softmax_of_the_distances(dim):
    queries, references, errors = episode(5, 24, batch=(3,), dtype=torch.float64)
    weight, bias = linear_head(references, errors, dim)
    by_layer = (queries @ weight.mT + bias.unsqueeze(-2)).softmax(dim=-1)
    by_distance = (-projected_distances(queries, references, errors, dim)).softmax(dim=-1)
    torch.testing.assert_close(by_layer, by_distance)


def test_gradients_hold_the_projection_constant_unless_asked_which_changes_no_value():
    queries, references, errors = episode(3, 8, query=4, dtype=torch.float64)
    queries.requires_grad_()
    references.requires_grad_()
    for dim in (None, 2):
        distances = lambda x, phi, dim=dim: projected_distances(x, phi, errors, dim)  # noqa: E731
        assert torch.autograd.gradcheck(distances, (queries, references))
    constant = projected_distances(queries, references, errors.requires_grad_())
    constant.sum().backward()
    assert errors.grad is None
    through = lambda e: projected_distances(queries.detach(), references.detach(), e, differentiable=True)  # noqa: E731
    assert torch.autograd.gradcheck(through, (errors,))
    torch.testing.assert_close(through(errors), constant)


@given(way=st.integers(2, 12), more=st.integers(1, 20), seed=st.integers(0, 99))
def test_null_space_is_orthonormal_and_hides_every_error(way, more, seed):
    errors = episode(way, way + more, dtype=torch.float64, seed=seed)[2]
    basis = null_space(errors)
    assert basis.shape == (way + more, more)
    torch.testing.assert_close(basis.mT @ basis, torch.eye(more, dtype=torch.float64))
    assert (errors @ basis).abs().max() < 1e-10


@pytest.mark.parametrize("rank", [0, 1, 3])
def test_null_space_keeps_its_shape_when_errors_depend_on_each_other(rank):
    few = torch.randn(rank, 12, dtype=torch.float64)
    errors = torch.randn(5, rank, dtype=torch.float64) @ few
    basis = null_space(errors)
    assert basis.shape == (12, 7)
    torch.testing.assert_close(basis.mT @ basis, torch.eye(7, dtype=torch.float64))
    assert (errors @ basis).abs().max() < 1e-10


def test_modified_references_are_those_worked_out_by_hand_and_point_as_the_authors_do():
    references = torch.tensor([[1.0, 0.0], [0.0, 2.0], [4.0, 0.0]])
    expected = torch.tensor([[-1.0, -1.0], [-2.5, 2.0], [3.5, -1.0]])
    torch.testing.assert_close(modified_references(references), expected)
    authors = 3 * references - references.sum(dim=0)  # the same direction at another length
    torch.testing.assert_close(F.normalize(authors, dim=-1), F.normalize(expected, dim=-1))


def test_errors_of_original_references_have_the_null_space_of_a_float64_svd():
    generator = torch.Generator().manual_seed(3)
    queries, references, prototypes = (torch.randn(5, 24, generator=generator, dtype=torch.float64) for _ in range(3))
    lengths = (vectors.square().sum(dim=1, keepdim=True).sqrt() for vectors in (references, prototypes))
    differences = references / next(lengths) - prototypes / next(lengths)
    errors = projection_errors(references, prototypes, modified=False)
    torch.testing.assert_close(
        projected_distances(queries, references, errors), distances_by_svd(queries, references, differences)
    )


def test_prototypes_take_any_number_of_shots():
    features = torch.tensor([[1.0, 1.0], [10.0, 0.0], [3.0, 5.0]])
    averages = class_prototypes(features, torch.tensor([0, 1, 0]), way=2)
    torch.testing.assert_close(averages, torch.tensor([[2.0, 3.0], [10.0, 0.0]]))


def test_select_closest_and_farthest_are_greedy_in_the_order_of_the_classes():
    references = torch.tensor([[0.0], [10.0]])
    for prototypes in (torch.tensor([[4.0], [1.0]]), torch.tensor([[1.0], [4.0]])):
        assert select_references(prototypes, references).tolist() == [0, 1]  # not the same pairs
    prototypes, references = torch.tensor([[0.0], [1.0]]), torch.tensor([[0.0], [5.0], [9.0]])
    assert select_references(prototypes, references, "farthest").tolist() == [2, 1]


def test_select_optimal_has_the_least_total_distance():
    prototypes, references = torch.randn(4, 6), torch.randn(6, 6)
    distances = torch.cdist(prototypes, references).square()
    best = min(itertools.permutations(range(6), 4), key=lambda p: sum(distances[k, i] for k, i in enumerate(p)))
    assert select_references(prototypes, references, "optimal").tolist() == list(best)


@given(order=st.permutations(range(5)), seed=st.integers(0, 99))
def test_select_optimal_follows_the_order_of_the_classes(order, seed):
    generator = torch.Generator().manual_seed(seed)
    prototypes, references = torch.randn(5, 8, generator=generator), torch.randn(9, 8, generator=generator)
    chosen = select_references(prototypes, references, "optimal")
    assert select_references(prototypes[list(order)], references, "optimal").tolist() == chosen[list(order)].tolist()


@pytest.mark.parametrize("strategy", ["closest", "optimal", "random", "farthest"])
def test_select_gives_no_reference_twice_and_the_same_again(strategy):
    prototypes, references = torch.randn(4, 6, 8), torch.randn(6, 8)
    first, again = (
        select_references(prototypes, references, strategy, torch.Generator().manual_seed(7)) for _ in range(2)
    )
    assert first.sort(dim=-1).values.tolist() == [list(range(6))] * 4
    assert torch.equal(first, again)


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
def test_equations_are_computed_in_float32_of_half_precision_and_under_autocast(half):
    tensors = [tensor.to(half) for tensor in episode(5, 32)]
    floats = [tensor.float() for tensor in tensors]
    expected = projected_distances(*floats)
    assert projected_distances(*tensors).dtype == torch.float32
    torch.testing.assert_close(projected_distances(*tensors), expected)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(projected_distances(*floats), expected, rtol=0, atol=0)
        assert class_prototypes(floats[0], torch.arange(6) % 3, 3).dtype == torch.float32


NAN, FEATURES, LABELS = torch.full((3, 8), torch.nan), torch.randn(6, 8), torch.tensor([0, 1, 2, 0, 1, 0])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: modified_references(torch.randn(1, 8)), "at least 2 classes, got 1"),
        (lambda: null_space(torch.randn(8, 8)), "8 classes leave no null space in 8 dimensions"),
        (lambda: null_space(torch.randn(3, 8), dim=6), "1 to 5 dimensions, got 6"),
        (lambda: projected_distances(torch.randn(2, 9), torch.randn(3, 8), torch.randn(3, 8)), "dim 8"),
        (lambda: select_references(torch.randn(5, 8), torch.randn(4, 8)), "5 references, there are 4"),
        (lambda: select_references(torch.randn(2, 8), torch.randn(4, 8), "best"), "closest, optimal, random, farthest"),
        (lambda: select_references(torch.randn(2, 8), torch.randn(4, 8), "random"), "needs a `generator`"),
        (lambda: select_references(NAN, torch.randn(4, 8)), "contain NaN"),
        (lambda: class_prototypes(torch.randn(3, 8), torch.tensor([0, 0, 2]), 3), r"got \[2, 0, 1\]"),
        (lambda: class_prototypes(torch.randn(3, 8), torch.tensor([0, 1, 3]), 3), "labels? .*0 to 2|0 to 2"),
        (
            lambda: class_prototypes(torch.randn(3, 8), torch.tensor([0, 1]), 2),
            "one label from 0 to way - 1 per feature",
        ),
        (lambda: projection_errors(torch.randn(3, 8), torch.randn(4, 8)), "one reference per prototype"),
        (lambda: class_prototypes(FEATURES, [0, 1, 2, 0, 1, 0], 3), "tensor of int64, got list"),
        (lambda: class_prototypes(FEATURES, LABELS.numpy(), 3), "tensor of int64, got ndarray"),
        (lambda: class_prototypes(FEATURES, LABELS.float(), 3), "tensor of int64, got float32"),
        (lambda: class_prototypes(FEATURES[:0], LABELS[:0], 3), "labels 0 to way - 1, got none"),
        (lambda: class_prototypes(FEATURES.numpy(), LABELS, 3), "`class_prototypes` takes .* floats .*, got ndarray"),
        (lambda: null_space(torch.randn(8)), r"of shape \(..., n, dim\), got float32 of shape \(8,\)"),
        (lambda: null_space(errors=torch.ones(3, 8, dtype=torch.int64)), r"got int64 of shape \(3, 8\)"),
        (lambda: projection_errors(FEATURES, FEATURES.double()), "one dtype, got float32 and float64: convert"),
        (lambda: select_references(FEATURES[:2].double(), FEATURES), "got float64 and float32"),
    ],
)
def test_mistakes_get_a_sentence_with_the_numbers_and_names(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_blended_references_that_count_for_very_many_images_are_the_references():
    references, prototypes = torch.randn(3, 8), torch.randn(3, 8)
    blended = blended_references(references, prototypes, torch.full((3, 1), 5.0), 1e300)
    torch.testing.assert_close(blended, references)
