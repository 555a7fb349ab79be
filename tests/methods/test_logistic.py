import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch.nn import functional as F

from tapnet.backbones import PrecomputedFeatures
from tapnet.methods import METHODS


@pytest.fixture
def labeled():
    """30 features of 24 dimensions in 5 classes."""
    labels = torch.arange(5).repeat_interleave(6)
    return torch.randn(5, 24)[labels] + 0.3 * torch.randn(30, 24), labels


def check_agreement(features, labels):
    logits = (
        METHODS["logistic"](PrecomputedFeatures(features.shape[1]))
        .adapt(features, labels, int(labels.max()) + 1)
        .logits(features)
    )
    scaled = 10 * F.normalize(features.double(), dim=1).numpy()
    expected = LogisticRegression(tol=1e-8, max_iter=1000).fit(scaled, labels).predict_proba(scaled)
    torch.testing.assert_close(logits.softmax(-1).double(), torch.from_numpy(expected), atol=1e-4, rtol=0)


def test_logistic_regression_agrees_with_scikit_learn(labeled):
    check_agreement(*labeled)


def test_logistic_regression_of_fewer_examples_than_dimensions_agrees_with_scikit_learn():
    labels = torch.arange(5).repeat_interleave(3)
    check_agreement(torch.randn(5, 64)[labels] + 0.3 * torch.randn(15, 64), labels)


def test_logistic_regression_of_repeated_examples_agrees_with_scikit_learn():
    labels = torch.arange(5).repeat_interleave(4)
    check_agreement(torch.randn(10, 64).repeat_interleave(2, dim=0), labels)


def test_logistic_regression_does_not_depend_on_the_length_of_features(labeled):
    features, labels = labeled
    method = METHODS["logistic"](PrecomputedFeatures(24))
    expected = method.adapt(features, labels, int(labels.max()) + 1).logits(features)
    torch.testing.assert_close(
        method.adapt(7 * features, labels, int(labels.max()) + 1).logits(0.1 * features), expected
    )
