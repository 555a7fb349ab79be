import numpy as np
import pytest
import torch
from torch import nn

from tapnet.backbones import Conv4, PrecomputedFeatures, make_backbone
from tapnet.data.batches import episode_images
from tapnet.data.episodes import EpisodeSpec
from tapnet.evaluation.evaluator import Evaluator
from tapnet.functional import null_space
from tapnet.methods import PrototypicalNetwork, TapNet, TapNetVariant
from tapnet.paper.ablations import ABLATIONS, measure_runs, paired, recipes_of_compositions
from tapnet.paper.variants import (
    BatchStatistics,
    FourRotations,
    RotatedViews,
    as_variant,
    dimension_accuracies,
    random_rotation,
    random_selection_accuracies,
)
from tapnet.recipe import load_recipe

TASK = EpisodeSpec(way=5, shot=2, query=3, episodes=12, seed=1)
MEASURED = {name: ablation for name, ablation in ABLATIONS.items() if ablation.measure}
TRAINED = {name: ablation for name, ablation in ABLATIONS.items() if ablation.recipes}


@pytest.fixture
def evaluator(small_tapnet, blobs):
    return Evaluator(small_tapnet, blobs)


def measured(name, evaluator):
    return {row.variant: row for row in MEASURED[name].measure(evaluator, TASK)}


@pytest.mark.parametrize("name", MEASURED)
def test_measured_ablation_has_rows_and_leaves_the_method_as_it_was(name, evaluator):
    before = dict(vars(evaluator.method))
    rows = measured(name, evaluator).values()
    assert len(rows) >= 2
    assert all(0 <= row.accuracy <= 1 and row.ci95 >= 0 for row in rows)
    assert vars(evaluator.method) == before
    layers = [layer for layer in evaluator.method.modules() if isinstance(layer, nn.BatchNorm2d)]
    assert all(layer.running_mean is not None for layer in layers)


@pytest.mark.parametrize("name", ["selection", "projection-references", "classification-references"])
def test_first_variant_is_the_default_and_the_others_are_paired_with_it(name, evaluator):
    first, *others = measured(name, evaluator).values()
    assert first.accuracy == evaluator.accuracies(TASK).mean()
    assert first.difference is None
    for row in others:
        assert row.difference == pytest.approx(row.accuracy - first.accuracy)


def test_paired_differences_are_those_worked_out_by_hand():
    rows = paired({"a": np.array([0.5, 0.7]), "b": np.array([0.6, 1.0])})
    assert (rows[1].accuracy, rows[1].difference) == (pytest.approx(0.8), pytest.approx(0.2))
    assert rows[1].difference_ci95 == pytest.approx(1.96 * 0.1)


def test_random_selection_follows_from_seed_and_episode_alone(evaluator):
    longer = random_selection_accuracies(evaluator, EpisodeSpec(5, 2, 3, episodes=40, seed=1))
    np.testing.assert_array_equal(random_selection_accuracies(evaluator, TASK), longer[:12])
    assert (longer != random_selection_accuracies(evaluator, EpisodeSpec(5, 2, 3, episodes=40, seed=2))).any()


def test_variant_of_a_network_keeps_all_of_its_options():
    method = TapNet(PrecomputedFeatures(16), 4, selection="optimal", reference_shots=2.0, temperature=4.0).eval()
    support, labels, queries = torch.randn(6, 16), torch.arange(3).repeat(2), torch.randn(5, 16)
    expected = method.logits(support, labels, queries, 3)
    torch.testing.assert_close(as_variant(method).logits(support, labels, queries, 3), expected)


@pytest.mark.parametrize(
    ("dim", "bias", "basis"),
    [(1, False, "householder"), (4, True, "householder"), (11, True, "householder")]
    + [(dim, False, "references") for dim in (1, 3, 6)],
)
def test_dimension_accuracies_agree_with_an_evaluation_at_one_dimension(blobs, dim, bias, basis):
    method = TapNetVariant(Conv4((1, 8, 8), widths=(16, 16, 16, 16)), num_references=8, reference_bias=bias).eval()
    if bias:
        torch.nn.init.normal_(method.reference_bias, std=0.1)
    task = EpisodeSpec(5, 2, 3, 40, 1)
    accuracies = dimension_accuracies(Evaluator(method, blobs), task, basis=basis)
    single = Evaluator(method.with_options(projection_dim=dim, basis=basis), blobs)
    assert accuracies.shape == (40, 16 - 5)
    assert accuracies[:, dim - 1].mean() == pytest.approx(single.accuracies(task).mean(), abs=2 / (40 * 15))


def test_dimension_accuracies_agree_with_distances_through_the_projection_in_float64(blobs):
    torch.manual_seed(0)
    method = TapNet(Conv4((1, 8, 8), widths=(4, 4, 4, 70)), num_references=8).double().eval()
    evaluator = Evaluator(method, blobs)
    batch = blobs.episodes(5, 2, 3, seed=1).batch(0, 40)
    evaluator._features = torch.randn(len(blobs), 70, generator=torch.Generator().manual_seed(0)).double()
    with torch.inference_mode():
        head = method.adapt_to(evaluator.prototypes(batch.support))
        references, basis = head.references, null_space(head.ordered_errors)
        inside, queries = references @ basis, evaluator.gathered(batch.query) @ basis
        nearest = (queries.unsqueeze(2) - inside.unsqueeze(1)).square().cumsum(dim=-1).argmin(dim=2)
        expected = (nearest == torch.arange(5).repeat_interleave(3)[:, None]).double().mean(dim=(0, 1))
    method.float()
    evaluator._features = evaluator._features.float()
    curve = dimension_accuracies(evaluator, EpisodeSpec(5, 2, 3, 40, 1)).mean(axis=0)
    assert np.abs(curve - expected.numpy()).max() <= 2 / (40 * 15)


def test_rotation_of_the_null_space_changes_no_accuracy_at_full_dimension_but_below(evaluator):
    rotation, again = (random_rotation(11, torch.Generator().manual_seed(1)) for _ in range(2))
    torch.testing.assert_close(rotation @ rotation.mT, torch.eye(11))
    assert torch.equal(rotation, again)
    plain, rotated = (dimension_accuracies(evaluator, TASK, by) for by in (None, rotation))
    np.testing.assert_array_equal(rotated[:, -1], plain[:, -1])
    assert (rotated[:, 0] != plain[:, 0]).any()


def test_directions_of_the_references_lose_nothing_in_way_minus_one_dimensions(evaluator):
    accuracies = dimension_accuracies(evaluator, EpisodeSpec(5, 2, 3, 40), basis="references")
    np.testing.assert_array_equal(accuracies[:, 5 - 2], accuracies[:, -1])


def test_band_over_rotations_has_no_width_at_full_dimension(evaluator):
    *others, full = measured("dimension", evaluator).values()
    assert full.variant == "D = 11"
    assert full.lowest == full.highest == full.accuracy
    assert any(row.lowest < row.highest for row in others)


def test_band_of_fewer_episodes_is_corrected_by_all(evaluator, monkeypatch):
    monkeypatch.setattr("tapnet.paper.ablations.ROTATED_EPISODES", 5)
    monkeypatch.setattr("tapnet.paper.ablations.ROTATIONS", 1)
    rows = list(measured("dimension", evaluator).values())
    rotation = random_rotation(len(rows), torch.Generator().manual_seed(TASK.seed))
    accuracies, rotated = (dimension_accuracies(evaluator, TASK, by) for by in (None, rotation))
    expected = rotated[:5].mean(axis=0) + accuracies.mean(axis=0) - accuracies[:5].mean(axis=0)
    np.testing.assert_allclose([row.lowest for row in rows], expected)


def test_ways_go_as_far_as_the_references(evaluator):
    assert list(measured("ways", evaluator)) == ["2-way", "3-way", "5-way"]  # 8 references


def test_batch_statistics_are_transductive_and_those_of_the_episode(small_tapnet, blobs):
    method = BatchStatistics(small_tapnet).eval()
    assert method.transductive
    normalized = []
    layer = next(layer for layer in method.modules() if isinstance(layer, nn.BatchNorm2d))
    layer.register_forward_hook(lambda _layer, _inputs, output: normalized.append(output))
    Evaluator(method, blobs).accuracies(EpisodeSpec(5, 2, 3, 2))
    assert normalized[0].mean(dim=(0, 2, 3)).abs().max() < 1e-5


def test_four_rotations_are_classified_each_by_itself_and_their_logits_added(small_tapnet, blobs):
    method, episode = RotatedViews(small_tapnet).eval(), episode_images(blobs, blobs.episodes(5, 2, 3)[0])
    support, query = episode.images.split(episode.sizes)
    labels = episode.support_labels
    logits = method(support, labels, query)
    rotated = ((support.rot90(turns, (2, 3)), labels, query.rot90(turns, (2, 3))) for turns in range(4))
    torch.testing.assert_close(logits, sum(small_tapnet(*images) for images in rotated))
    head = method.adapt(method.embed(support), labels, episode.way).linear()
    softmax = head.logits(method.embed(query)).softmax(dim=-1)
    torch.testing.assert_close(softmax, logits.softmax(dim=-1), atol=1e-4, rtol=1e-3)


def test_views_compare_four_rotations_with_none(evaluator, small_tapnet, blobs):
    rows = measured("views", evaluator)
    for name, method in (("as it is", small_tapnet), ("four rotations", RotatedViews(small_tapnet).eval())):
        assert rows[name].accuracy == Evaluator(method, blobs).accuracies(TASK).mean()


def test_networks_without_one_view_of_square_images_are_refused(small_tapnet, blobs):
    backbone = make_backbone("resnet12", blobs.image_shape, widths=[2, 2, 2, 4], four_rotations=True)
    for method, words in (
        (BatchStatistics(small_tapnet), "needs a method of class prototypes, the checkpoint is a BatchStatistics"),
        (TapNet(backbone, num_references=6), "processes every image in four rotations already"),
    ):
        with pytest.raises(ValueError, match=words):
            measured("views", Evaluator(method.eval(), blobs))
    with pytest.raises(ValueError, match="Only square images can be rotated, got 16×20"):
        FourRotations(make_backbone("conv4", (1, 16, 20)))


@pytest.mark.parametrize("name", ["selection", "projection-references", "dimension"])
def test_checkpoint_of_another_method_is_refused(name, small_tapnet, blobs):
    other = Evaluator(PrototypicalNetwork(small_tapnet.backbone).eval(), blobs)
    with pytest.raises(ValueError, match="of TapNet, the checkpoint is a PrototypicalNetwork"):
        measured(name, other)


@pytest.mark.parametrize("name", TRAINED)
@pytest.mark.parametrize("recipe", ["quickdraw", "mini-imagenet-5shot"])
def test_trained_ablation_has_recipes_of_which_the_first_is_the_default(name, recipe):
    given = load_recipe(recipe)
    first, *others = TRAINED[name].recipes(given).values()
    with torch.device("meta"):
        methods = [as_variant(variant.build((3, 84, 84))) for variant in (given, first)]
    options = TapNetVariant.adapt_options
    assert first.training == given.training
    assert len({tuple(getattr(method, option) for option in options) for method in methods}) == 1
    assert others
    assert all((other.training, other.method) != (first.training, first.method) for other in others)


def test_compositions_of_the_papers_recipe_have_its_ways_and_as_many_images():
    recipes = recipes_of_compositions(load_recipe("mini-imagenet-5shot"))
    assert sorted(recipe.training.way for recipe in recipes.values()) == [5, 10, 15, 20, 25, 30]
    for recipe in recipes.values():
        images = recipe.training.way * (recipe.training.shot + recipe.training.query)
        assert abs(images - 20 * 13) <= recipe.training.way / 2


@pytest.mark.parametrize(
    ("recipe", "changes", "words"),
    [
        ("omniglot-cpu-long", [], "start from random weights, and omniglot-cpu-long has training.init_from=runs/"),
        (
            "quickdraw",
            ["training.teachers=[drawings]"],
            "learn from labels alone, and quickdraw has training.teachers=",
        ),
        ("quickdraw", ["method={name: protonet}"], "of TapNet, the recipe quickdraw trains protonet"),
    ],
)
def test_recipes_that_do_not_train_tapnet_afresh_are_refused(recipe, changes, words):
    with pytest.raises(ValueError, match=words):
        recipes_of_compositions(load_recipe(recipe, changes))


def test_runs_are_compared_on_the_same_episodes(evaluator):
    rows = measure_runs({"one": evaluator, "two": evaluator}, TASK, training_episodes=9)
    assert (rows[1].difference, rows[1].training_episodes) == (0, 9)
