import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch.nn import functional as F

from tapnet.backbones import PrecomputedFeatures
from tapnet.methods import METHODS


def draw(way=5, shot=6, dim=24):
    labels = torch.arange(way).repeat_interleave(shot)
    return torch.randn(way, dim)[labels] + 0.3 * torch.randn(way * shot, dim), labels


def adapted(features, labels):
    method = METHODS["logistic"](PrecomputedFeatures(features.shape[1]))
    return method.adapt(features, labels, int(labels.max()) + 1)


@pytest.mark.parametrize(("shot", "dim"), [(6, 24), (3, 64)], ids=["more examples", "more dimensions"])
def test_logistic_regression_agrees_with_that_of_scikit_learn_on_the_features_themselves(shot, dim):
    features, labels = draw(5, shot, dim)
    scaled = 10 * F.normalize(features.double(), dim=1).numpy()
    expected = LogisticRegression(tol=1e-8, max_iter=1000).fit(scaled, labels).predict_proba(scaled)
    actual = adapted(features, labels).logits(features).softmax(-1).double()
    torch.testing.assert_close(actual, torch.from_numpy(expected), atol=1e-4, rtol=0)


@pytest.mark.parametrize("way", [2, 5])
def test_weights_are_where_the_gradient_of_loss_and_penalty_is_zero(way):
    """W = Σ (one-hot - p) x, with two classes as with more, also if examples are repeated."""
    features, labels = (part.repeat_interleave(2, dim=0) for part in draw(way, 3, 40))
    head, scaled = adapted(features.double(), labels), 10 * F.normalize(features.double(), dim=1)
    residuals = F.one_hot(labels, way) - head.logits(features.double()).softmax(-1)
    torch.testing.assert_close(head.weight / 10, residuals.T @ scaled, atol=1e-3, rtol=1e-3)


def test_classes_of_few_examples_are_recognized_beside_classes_of_many():
    """Eight classes of 1, 1, 2, 3, 5, 10, 30 and 40 examples; unweighted, 27% of the queries of the rarer four are."""
    counts, way, dim = torch.tensor([1, 1, 2, 3, 5, 10, 30, 40]), 8, 64
    centers, labels, answers = torch.randn(way, dim), torch.arange(way).repeat_interleave(counts), torch.arange(way)
    queries = centers.repeat_interleave(25, dim=0) + 1.5 * torch.randn(25 * way, dim)
    logits = adapted(centers[labels] + 1.5 * torch.randn(len(labels), dim), labels).logits(queries)
    right = (logits.argmax(dim=1) == answers.repeat_interleave(25)).double().view(way, 25).mean(dim=1)
    assert right[:4].mean() > 0.6
    assert right.mean() > 0.75


def test_logistic_regression_does_not_depend_on_the_length_of_features():
    features, labels = draw()
    expected = adapted(features, labels).logits(features)
    torch.testing.assert_close(adapted(7 * features, labels).logits(0.1 * features), expected)
