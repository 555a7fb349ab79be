import numpy as np
import pytest
import torch
from torch import nn

from tapnet.backbones import PrecomputedFeatures, make_backbone
from tapnet.data.batches import episode_images
from tapnet.data.episodes import EpisodeSpec
from tapnet.evaluation.evaluator import Evaluator
from tapnet.methods import PrototypicalNetwork, TapNet, TapNetVariant
from tapnet.paper.ablations import ABLATIONS, find_ablation
from tapnet.paper.ablations.measured import (
    BatchStatistics,
    FourRotations,
    RotatedViews,
    as_variant,
    random_selection_accuracies,
)
from tapnet.paper.ablations.rows import paired
from tapnet.paper.ablations.trained import measure_runs, recipes_of_compositions
from tapnet.paper.dimension_curve import dimension_accuracies, random_rotation
from tapnet.recipe import load_recipe

TASK = EpisodeSpec(way=5, shot=2, query=3, episodes=12, seed=1)
MEASURED = {name: ablation for name, ablation in ABLATIONS.items() if ablation.measure}
TRAINED = {name: ablation for name, ablation in ABLATIONS.items() if ablation.recipes}


@pytest.fixture
def evaluator(small_tapnet, blobs):
    return Evaluator(small_tapnet, blobs)


def measured(name, evaluator, task=TASK):
    return {row.variant: row for row in MEASURED[name].measure(evaluator, task)}


@pytest.mark.parametrize("name", MEASURED)
def test_every_measured_ablation_has_rows_with_accuracy_and_interval(name, evaluator):
    rows = measured(name, evaluator).values()
    assert len(rows) >= 2
    assert all(0 <= row.accuracy <= 1 and row.ci95 >= 0 for row in rows)


@pytest.mark.parametrize("name", ["selection", "projection-references", "classification-references"])
def test_the_first_variant_is_the_default_and_the_others_are_paired_with_it(name, evaluator):
    first, *others = measured(name, evaluator).values()
    assert first.accuracy == evaluator.accuracies(EpisodeSpec(5, 2, 3, 12, 1)).mean()
    assert first.difference is None
    for row in others:
        assert row.difference == pytest.approx(row.accuracy - first.accuracy)


def test_an_ablation_leaves_the_method_as_it_was(evaluator):
    before = dict(vars(evaluator.method))
    for name in MEASURED:
        measured(name, evaluator)
    assert vars(evaluator.method) == before
    assert all(
        layer.running_mean is not None for layer in evaluator.method.modules() if isinstance(layer, nn.BatchNorm2d)
    )


def test_paired_differences_are_those_worked_out_by_hand():
    rows = paired({"a": np.array([0.5, 0.7]), "b": np.array([0.6, 1.0])})
    assert (rows[1].accuracy, rows[1].difference) == (pytest.approx(0.8), pytest.approx(0.2))
    assert rows[1].difference_ci95 == pytest.approx(1.96 * 0.1)


def test_random_selection_follows_from_seed_and_episode_alone(evaluator):
    longer = random_selection_accuracies(evaluator, EpisodeSpec(5, 2, 3, episodes=40, seed=1))
    np.testing.assert_array_equal(random_selection_accuracies(evaluator, TASK), longer[:12])
    assert (longer != random_selection_accuracies(evaluator, EpisodeSpec(5, 2, 3, episodes=40, seed=2))).any()


def test_the_band_over_rotations_has_no_width_at_full_dimension(evaluator):
    *others, full = measured("dimension", evaluator).values()
    assert full.variant == "D = 11"
    assert full.lowest == full.highest == full.accuracy
    assert any(row.lowest < row.highest for row in others)


def test_a_band_of_fewer_episodes_is_corrected_by_all(evaluator, monkeypatch):
    monkeypatch.setattr("tapnet.paper.ablations.measured.ROTATED_EPISODES", 5)
    monkeypatch.setattr("tapnet.paper.ablations.measured.ROTATIONS", 1)
    rows = list(measured("dimension", evaluator).values())
    accuracies = dimension_accuracies(evaluator, TASK)
    rotation = random_rotation(len(rows), torch.Generator().manual_seed(TASK.seed))
    curve = dimension_accuracies(evaluator, TASK, rotation)[:5].mean(axis=0)
    expected = curve + accuracies.mean(axis=0) - accuracies[:5].mean(axis=0)
    np.testing.assert_allclose([row.lowest for row in rows], expected)


def test_ways_go_as_far_as_the_references(evaluator):
    assert list(measured("ways", evaluator)) == ["2-way", "3-way", "5-way"]  # 8 references


def test_batch_statistics_are_transductive_and_those_of_the_episode(evaluator, small_tapnet, blobs):
    method = BatchStatistics(small_tapnet).eval()
    assert method.transductive
    assert "batch (transductive)" in measured("batch-statistics", evaluator)
    normalized = []
    layer = next(layer for layer in method.modules() if isinstance(layer, nn.BatchNorm2d))
    layer.register_forward_hook(lambda _layer, _inputs, output: normalized.append(output))
    Evaluator(method, blobs).accuracies(EpisodeSpec(5, 2, 3, 2))
    assert normalized[0].mean(dim=(0, 2, 3)).abs().max() < 1e-5


def test_four_rotations_are_classified_each_by_itself_and_the_logits_added_up(small_tapnet, blobs):
    method, episode = RotatedViews(small_tapnet).eval(), episode_images(blobs, blobs.episodes(5, 2, 3)[0])
    rotations = [
        (
            episode.support_images.rot90(number, (2, 3)),
            episode.support_labels,
            episode.query_images.rot90(number, (2, 3)),
        )
        for number in range(4)
    ]
    logits = method(episode.support_images, episode.support_labels, episode.query_images)
    torch.testing.assert_close(logits, sum(small_tapnet(*rotated) for rotated in rotations))


def test_the_head_of_four_rotations_has_the_softmax_of_their_logits(small_tapnet, blobs):
    method, episode = RotatedViews(small_tapnet).eval(), episode_images(blobs, blobs.episodes(5, 2, 3)[0])
    support, query = method.embed(episode.support_images), method.embed(episode.query_images)
    head = method.adapt(support, episode.support_labels, episode.way).linear()
    logits = method.logits(support, episode.support_labels, query, episode.way)
    torch.testing.assert_close(head.logits(query).softmax(dim=-1), logits.softmax(dim=-1), atol=1e-4, rtol=1e-3)


def test_views_compare_four_rotations_with_none(evaluator, small_tapnet, blobs):
    rows = measured("views", evaluator)
    for name, method in (("as it is", small_tapnet), ("four rotations", RotatedViews(small_tapnet).eval())):
        assert rows[name].accuracy == Evaluator(method, blobs).accuracies(EpisodeSpec(5, 2, 3, 12, 1)).mean()


def test_views_need_class_prototypes(small_tapnet, blobs):
    with pytest.raises(ValueError, match="needs a method of class prototypes, the checkpoint is a BatchStatistics"):
        measured("views", Evaluator(BatchStatistics(small_tapnet).eval(), blobs))


def test_views_are_not_for_a_network_that_has_them_already(blobs):
    network = TapNet(
        make_backbone("resnet12", blobs.image_shape, widths=[2, 2, 2, 4], four_rotations=True), num_references=6
    ).eval()
    with pytest.raises(ValueError, match="processes every image in four rotations already"):
        measured("views", Evaluator(network, blobs))


def test_oblong_images_are_not_turned():
    with pytest.raises(ValueError, match="Only square images can be rotated, got 16×20"):
        FourRotations(make_backbone("conv4", (1, 16, 20)))


@pytest.mark.parametrize("name", ["selection", "projection-references", "dimension"])
def test_another_method_is_refused(name, small_tapnet, blobs):
    other = Evaluator(PrototypicalNetwork(small_tapnet.backbone).eval(), blobs)
    with pytest.raises(ValueError, match="TapNet"):
        measured(name, other)


@pytest.mark.parametrize("name", TRAINED)
def test_variants_that_would_not_begin_at_random_are_refused(name):
    with pytest.raises(ValueError, match="start from random weights, omniglot-cpu-long is initialized from runs/"):
        TRAINED[name].recipes(load_recipe("omniglot-cpu-long"))


@pytest.mark.parametrize("name", TRAINED)
@pytest.mark.parametrize("recipe", ["quickdraw", "mini-imagenet-5shot", "omniglot-1shot"])
def test_every_trained_ablation_has_recipes_and_the_first_is_the_default(name, recipe):
    given = load_recipe(recipe)
    first, *others = TRAINED[name].recipes(given).values()
    with torch.device("meta"):
        methods = [as_variant(each.build((3, 84, 84))) for each in (given, first)]
    options = TapNetVariant.adapt_options
    assert first.training == given.training
    assert len({tuple(getattr(method, option) for option in options) for method in methods}) == 1
    assert others
    assert all((each.training, each.method) != (first.training, first.method) for each in others)


def test_compositions_of_the_papers_recipe_have_its_ways_and_as_many_images():
    recipes = recipes_of_compositions(load_recipe("mini-imagenet-5shot"))
    assert sorted(recipe.training.way for recipe in recipes.values()) == [5, 10, 15, 20, 25, 30]
    for recipe in recipes.values():
        images = recipe.training.way * (recipe.training.shot + recipe.training.query)
        assert abs(images - 20 * 13) <= recipe.training.way / 2


def test_a_recipe_of_another_method_is_refused():
    recipe = load_recipe("quickdraw", ["method={name: protonet}"])
    with pytest.raises(ValueError, match="of TapNet, the recipe quickdraw trains protonet"):
        TRAINED["gradient"].recipes(recipe)


def test_runs_are_compared_on_the_same_episodes(evaluator):
    rows = measure_runs({"one": evaluator, "two": evaluator}, TASK, training_episodes=9)
    assert (rows[1].difference, rows[1].training_episodes) == (0, 9)


def test_an_unknown_ablation_lists_those_there_are():
    with pytest.raises(ValueError, match=r"selection, projection-references.*got 'nothing'"):
        find_ablation("nothing")


def test_variant_of_a_network_keeps_all_of_its_options():
    method = TapNet(PrecomputedFeatures(16), 4, selection="optimal", reference_shots=2.0, temperature=4.0).eval()
    support, labels, queries = torch.randn(6, 16), torch.arange(3).repeat(2), torch.randn(5, 16)
    expected = method.logits(support, labels, queries, 3)
    torch.testing.assert_close(as_variant(method).logits(support, labels, queries, 3), expected)
