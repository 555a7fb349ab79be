from dataclasses import replace

import numpy as np
import pytest

from tapnet.backbones import PrecomputedFeatures
from tapnet.data.preprocessing import Preprocessing
from tapnet.inference.examples import Examples
from tapnet.inference.method_choice import choose_method
from tapnet.inference.networks import load_network, vector_model
from tapnet.inference.task import fit_task
from tapnet.methods import METHODS


def examples_of(dim, shot, way=3):
    generator, labels = np.random.default_rng(0), np.repeat(np.arange(way), shot)
    features = 10 * (np.eye(way, dim)[labels] + 0.1 * generator.standard_normal((len(labels), dim)))
    return Examples(features.astype(np.float32), labels, tuple(map(str, range(len(labels)))), (b"",) * len(labels))


def test_network_with_references_takes_tapnet_with_references_worth_two_images():
    choice = choose_method(load_network("drawings"))
    assert (choice.name, choice.options) == ("tapnet", {"reference_shots": 2})


def test_network_without_references_takes_logistic_regression():
    assert choose_method(replace(vector_model(8), preprocessing=Preprocessing(28, 28, 1))).name == "logistic"


def test_feature_vectors_take_the_cosine_centroid():
    assert choose_method(vector_model(8)).name == "centroid"


def test_other_method_that_a_network_was_trained_for_stays():
    trained = METHODS["tadam-alpha"](PrecomputedFeatures(8)).eval()
    assert choose_method(replace(load_network("drawings"), method=trained)).name == "tadam-alpha"


@pytest.mark.parametrize("name", [None, "auto"])
def test_task_without_a_named_method_is_fitted_by_the_rule(name):
    model = load_network("drawings")
    task = fit_task("abc", examples_of(model.method.backbone.dim, 3), model, name)
    assert (task.method, task.options) == ("tapnet", {"reference_shots": 2})


def test_task_by_the_name_of_tapnet_is_the_papers():
    model = load_network("drawings")
    assert fit_task("abc", examples_of(model.method.backbone.dim, 3), model, "tapnet").options == {}


def test_task_with_options_and_no_name_keeps_the_method_of_the_network():
    model = load_network("drawings")
    task = fit_task("abc", examples_of(model.method.backbone.dim, 9), model, None, {"projection_dim": 20})
    assert (task.method, task.options) == ("tapnet", {"projection_dim": 20})


def test_temperature_follows_the_scale_of_the_logits():
    """A reference that counts for very many images changes nothing, also not the temperature."""
    model = load_network("drawings")
    examples = examples_of(model.method.backbone.dim, 1)
    paper = fit_task("abc", examples, model, "tapnet")
    blended = fit_task("abc", examples, model, "tapnet", {"reference_shots": 1e6})
    assert blended.temperature == pytest.approx(paper.temperature, rel=1e-3)


def test_temperature_of_blended_references_is_higher_where_held_out_examples_are_hard_to_tell():
    model = load_network("drawings")
    easy = examples_of(model.method.backbone.dim, 6)
    mixed = replace(easy, features=easy.features[np.random.default_rng(1).permutation(len(easy))])
    assert fit_task("abc", mixed, model).temperature > 2 * fit_task("abc", easy, model).temperature
