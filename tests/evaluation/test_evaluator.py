import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from tapnet.backbones import Conv4
from tapnet.data import ImageSet
from tapnet.data.episodes import EpisodeSpec
from tapnet.errors import NonFiniteError
from tapnet.evaluation.evaluator import REPLICATE_EPISODES, REPLICATES, Evaluator, class_ci95
from tapnet.methods import LinearHead, PrototypicalNetwork


@pytest.mark.parametrize("scale", [torch.nan, 1e25])
def test_a_network_whose_features_overflow_is_refused(blobs, small_tapnet, scale):
    network = copy.deepcopy(small_tapnet)
    with torch.no_grad():
        for parameter in list(network.backbone.parameters())[-2:]:  # scale and shift of the last normalization
            parameter.fill_(scale)
    with pytest.raises(NonFiniteError, match=r"the network has diverged"):
        Evaluator(network, blobs).accuracies(EpisodeSpec(5, 2, 3, 4))


@pytest.mark.parametrize("value", [torch.nan, -torch.inf])
def test_logits_that_are_not_finite_are_refused(blobs, small_tapnet, value):
    small_tapnet.adapt_to = lambda _: LinearHead(torch.full((4, 5, 16), value), torch.zeros(4, 5))
    with pytest.raises(NonFiniteError, match=r"TapNet returned logits of NaN or infinity"):
        Evaluator(small_tapnet, blobs).accuracies(EpisodeSpec(5, 2, 3, 4))


def test_the_interval_over_classes_is_wider_when_classes_differ(blobs, small_tapnet):
    result = Evaluator(small_tapnet, blobs).evaluate(EpisodeSpec(3, 1, 5, 300))
    assert result.ci95_bootstrap > result.ci95


@pytest.mark.parametrize(("units", "quantile"), [(5, 2.776), (10_000, 1.96)])
def test_the_interval_over_few_classes_is_wider_than_the_normal_one(units, quantile):
    assert class_ci95(0.012, 0.002, units, 0.0) == (pytest.approx(quantile * 0.1, rel=1e-3), None)


def test_an_interval_over_classes_that_is_lost_in_that_over_episodes_is_bounded():
    """The variance of 100 normal values is below 1.285 times its estimate in 95 of 100 cases."""
    half_width, at_most = class_ci95(0.010, 0.011, 10_000, 0.01)
    assert half_width is None
    assert at_most == pytest.approx((1.96**2 * (0.010 * 1.2849 - 0.011) + 0.01**2) ** 0.5, rel=1e-3)


def test_the_rotations_of_a_character_are_one_unit_of_the_interval(blobs, small_tapnet):
    rotated, seen = replace(blobs, rotations=4), []
    evaluator = Evaluator(small_tapnet, rotated)
    plain = evaluator._replicate
    evaluator._replicate = lambda rows, *others: seen.append(rotated.labels[rows]) or plain(rows, *others)
    evaluator.evaluate(EpisodeSpec(5, 1, 3, 4))
    for labels in seen[:5]:
        characters = np.unique(np.unique(labels) % 10, return_counts=True)[1]
        assert (characters == 4).all()


@pytest.mark.slow
def test_the_interval_over_classes_covers_what_other_classes_give():
    """Each population of classes is sampled again and again; 95% of the intervals should hold its true accuracy."""
    generator = np.random.default_rng(0)
    method = PrototypicalNetwork(Conv4((1, 4, 4), widths=(16, 16, 16, 16))).eval()
    covered, narrow = [], []
    sets = [population(generator, classes=24) for _ in range(40)]
    results = [Evaluator(method, images).evaluate(EpisodeSpec(5, 1, 5, 600)) for images in sets]
    truth = np.mean([result.accuracy for result in results])
    for result in results:
        covered.append(abs(result.accuracy - truth) <= result.ci95_bootstrap)
        narrow.append(abs(result.accuracy - truth) <= result.ci95)
    assert np.mean(covered) >= 0.85
    assert np.mean(narrow) < np.mean(covered)


def test_the_interval_of_rotated_characters_covers_what_other_characters_give():
    """A character is as hard to tell in all of its rotations, so that four of them say little more than one."""
    generator = np.random.default_rng(0)
    method = PrototypicalNetwork(Conv4((1, 4, 4), widths=(16, 16, 16, 16))).eval()
    sets = [replace(population(generator, classes=24), rotations=4) for _ in range(20)]
    results = [Evaluator(method, images).evaluate(EpisodeSpec(5, 1, 5, 200)) for images in sets]
    accuracies = np.array([result.accuracy for result in results])
    half_widths = np.array([result.ci95_bootstrap for result in results])
    assert (abs(accuracies - accuracies.mean()) <= half_widths).mean() >= 0.9
    assert half_widths.mean() / 1.96 == pytest.approx(accuracies.std(ddof=1), rel=0.25)


def population(generator, classes):
    """Classes that differ in how widely they scatter, drawn anew from one law."""
    centres = generator.integers(60, 196, (classes, 1, 4, 4, 1))
    width = generator.uniform(5, 120, (classes, 1, 1, 1, 1))
    pixels = (centres + width * generator.standard_normal((classes, 20, 4, 4, 1))).clip(0, 255).astype(np.uint8)
    labels = np.repeat(np.arange(classes), 20)
    names = tuple(map(str, range(classes)))
    return ImageSet("law", "test", pixels.reshape(-1, 4, 4, 1), np.arange(20 * classes), labels, names, "0")


@pytest.mark.parametrize(("way", "given"), [(5, False), (3, True)])
def test_the_interval_over_classes_keeps_the_rotations_of_a_class_apart(blobs, small_tapnet, way, given):
    few = ImageSet("few", "test", blobs.pixels, blobs.rows[:60], blobs.row_labels[:60], blobs.names[:5], "0", 4, True)
    result = Evaluator(small_tapnet, few).evaluate(EpisodeSpec(way, 2, 3, 30))
    assert (result.ci95_bootstrap is not None) == given


def test_the_result_says_what_it_was_measured_on_and_is_the_same_again(blobs, small_tapnet):
    result, again = (Evaluator(small_tapnet, blobs).evaluate(EpisodeSpec(4, 1, 3, 5, 2)).as_dict() for _ in range(2))
    assert result == again
    expected = {"way": 4, "shot": 1, "query": 3, "episodes": 5, "seed": 2, "dataset": "blobs", "split": "test"}
    assert expected.items() <= result.items()
    assert result["precision"] == "float32"
    assert result["data_sha256"] == blobs.fingerprint


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"way": 11}, "need 11 classes, the data has 10"),
        ({"shot": 10, "query": 5}, "need 15 images per class, class 0 has 12"),
        ({"episodes": 1}, "2 to 1,000,000,000 episodes, got 1"),
        ({"episodes": 10**12}, "2 to 1,000,000,000 episodes, got 1,000,000,000,000"),
        ({"way": 9, "query": 5}, "9 classes need 9 references, there are 8"),
    ],
)
def test_what_cannot_be_measured_is_refused(blobs, small_tapnet, arguments, words):
    spec = EpisodeSpec(**({"way": 5, "shot": 1, "query": 3, "episodes": 4} | arguments))
    with pytest.raises(ValueError, match=words):
        Evaluator(small_tapnet, blobs).evaluate(spec)


def test_progress_counts_the_episodes_and_then_those_of_the_interval_over_classes(blobs, small_tapnet):
    seen = []
    Evaluator(small_tapnet, blobs).evaluate(EpisodeSpec(4, 1, 3, 20), progress=lambda *counts: seen.append(counts))
    assert (20, 20) in seen
    assert seen[-1] == (REPLICATES * REPLICATE_EPISODES,) * 2
