import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch.nn import functional as F

from tapnet.functional import projected_distances, projection_errors, select_references
from tapnet.heads import HEADS, HeadOptions, adapt


@pytest.fixture
def labelled():
    """30 features of 24 dimensions in 5 classes, and 8 references."""
    labels = torch.arange(5).repeat_interleave(6)
    return torch.randn(5, 24)[labels] + 0.3 * torch.randn(30, 24), labels, torch.randn(8, 24)


@pytest.mark.parametrize("dim", [None, 11])
def test_tapnet_head_gives_the_softmax_of_the_projected_distances(labelled, dim):
    features, labels, references = labelled
    head = adapt("tapnet", features, labels, 5, HeadOptions(references, projection_dim=dim))
    prototypes = torch.stack([features[labels == k].mean(0) for k in range(5)])
    chosen = select_references(prototypes, references, "optimal")
    errors = projection_errors(references[chosen], prototypes)[chosen.argsort()]
    expected = (-projected_distances(features, references[chosen], errors, dim)).softmax(-1)
    np.testing.assert_allclose(torch.tensor(head.scores(features.numpy())).softmax(-1), expected, atol=1e-5)


@pytest.mark.parametrize("dim", [None, 11])
def test_tapnet_head_keeps_what_its_distances_follow_from(labelled, dim):
    features, labels, references = labelled
    head = adapt("tapnet", features, labels, 5, HeadOptions(references, projection_dim=dim))
    inside, centres = head.projected(features.numpy()), head.projected(head.references)
    distances = ((inside[:, None] - centres) ** 2).sum(-1)
    scores = head.scores(features.numpy())
    np.testing.assert_allclose(scores - scores[:, :1], distances[:, :1] - distances, atol=1e-4)


def test_centroid_head_is_the_nearest_direction(labelled):
    features, labels, _ = labelled
    scores = adapt("centroid", features, labels, 5, HeadOptions()).scores(3 * features.numpy())
    directions = torch.stack([F.normalize(features[labels == k], dim=1).mean(0) for k in range(5)])
    np.testing.assert_allclose(scores, F.cosine_similarity(features[:, None], directions[None], dim=-1), atol=1e-6)


def test_logistic_head_agrees_with_scikit_learn(labelled):
    features, labels, _ = labelled
    scores = adapt("logistic", features, labels, 5, HeadOptions()).scores(features.numpy())
    lengthened = 10 * F.normalize(features.double(), dim=1).numpy()
    expected = LogisticRegression(tol=1e-8, max_iter=1000).fit(lengthened, labels).predict_proba(lengthened)
    np.testing.assert_allclose(torch.tensor(scores).softmax(-1), expected, atol=1e-4)


@pytest.mark.parametrize("head", HEADS)
def test_head_scores_a_feature_alike_in_any_company(labelled, head):
    features, labels, references = labelled
    adapted = adapt(head, features, labels, 5, HeadOptions(references))
    together = adapted.scores(features.numpy())
    alone = np.concatenate([adapted.scores(features[i : i + 1].numpy()) for i in range(len(features))])
    np.testing.assert_allclose(alone, together, rtol=1e-12, atol=1e-12)
