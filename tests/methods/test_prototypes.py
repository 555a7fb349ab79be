"""Methods without parameters of their own, and the classifier that scores as the cosine centroid does."""

import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch.nn import functional as F

from tapnet.backbones import Conv4, PrecomputedFeatures, ResNet12Small
from tapnet.data.batches import EpisodeImages
from tapnet.methods import METHODS, ClassifierBaseline, PrototypicalNetwork
from tapnet.methods.tapnet import ProjectionHead

LABELS = torch.tensor([0, 1, 2, 0, 1, 0])


def prototypical(support, query, labels=LABELS, **options):
    method = PrototypicalNetwork(PrecomputedFeatures(support.shape[-1]), **options)
    return method.logits(support, labels, query, int(labels.max()) + 1)


def draw():
    return torch.randn(6, 16).double(), torch.randn(5, 16).double()


def test_prototypical_gives_the_distances_worked_out_by_hand():
    support, query = torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 5.0]]), torch.tensor([[1.0, 1.0]])
    logits = prototypical(support, query, torch.tensor([0, 0, 1]))
    torch.testing.assert_close(logits, torch.tensor([[-1.0, -17.0]]))
    warm = prototypical(support, query, torch.tensor([0, 0, 1]), temperature=4.0)
    torch.testing.assert_close(warm, torch.tensor([[-1.0, -17.0]]) / 4)


def test_prototypical_equals_tapnet_that_hides_nothing_and_has_prototypes_as_references_wherever_they_lie():
    """Errors along axes on which no feature has a coordinate: the projection is the identity on what there is."""
    support, query = (F.pad(features, (3, 0)) for features in draw())
    prototypes = torch.stack([support[k == LABELS].mean(dim=0) for k in range(3)])
    tapnet = ProjectionHead(prototypes, torch.eye(3, 19).double(), torch.arange(3)).logits(query)
    for translation in (0, 3):
        torch.testing.assert_close(prototypical(support + translation, query + translation), tapnet)


def clusters(way=5, shot=6, dim=24):
    labels = torch.arange(way).repeat_interleave(shot)
    return torch.randn(way, dim)[labels] + 0.3 * torch.randn(way * shot, dim), labels


def adapted(name, features, labels):
    return METHODS[name](PrecomputedFeatures(features.shape[1])).adapt(features, labels, int(labels.max()) + 1)


def test_centroid_scores_by_the_cosine_with_the_mean_direction_of_each_class():
    features, labels = clusters()
    directions = torch.stack([F.normalize(features[labels == k], dim=1).mean(0) for k in range(5)])
    expected = F.cosine_similarity(features[:, None], directions[None], dim=-1)
    torch.testing.assert_close(adapted("centroid", features, labels).logits(3 * features), expected)


@pytest.mark.parametrize(("shot", "dim"), [(6, 24), (3, 64)], ids=["more examples", "more dimensions"])
def test_logistic_regression_agrees_with_that_of_scikit_learn_on_features_of_one_length(shot, dim):
    features, labels = clusters(5, shot, dim)
    scaled = 10 * F.normalize(features.double(), dim=1).numpy()
    expected = LogisticRegression(tol=1e-8, max_iter=1000).fit(scaled, labels).predict_proba(scaled)
    actual = adapted("logistic", features, labels).logits(features).softmax(-1).double()
    torch.testing.assert_close(actual, torch.from_numpy(expected), atol=1e-4, rtol=0)


@pytest.mark.parametrize("way", [2, 5])
def test_weights_are_where_the_gradient_of_loss_and_penalty_is_zero(way):
    """W = Σ (one-hot - p) x, with two classes as with more, also if examples are repeated."""
    features, labels = (part.repeat_interleave(2, dim=0) for part in clusters(way, 3, 40))
    head, scaled = adapted("logistic", features.double(), labels), 10 * F.normalize(features.double(), dim=1)
    residuals = F.one_hot(labels, way) - head.logits(features.double()).softmax(-1)
    torch.testing.assert_close(head.weight / 10, residuals.T @ scaled, atol=1e-3, rtol=1e-3)


def test_classes_of_few_examples_are_recognized_beside_classes_of_many():
    """Eight classes of 1, 1, 2, 3, 5, 10, 30 and 40 examples; unweighted, 27% of the queries of the rarer four are."""
    counts, way, dim = torch.tensor([1, 1, 2, 3, 5, 10, 30, 40]), 8, 64
    centers, labels, answers = torch.randn(way, dim), torch.arange(way).repeat_interleave(counts), torch.arange(way)
    queries = centers.repeat_interleave(25, dim=0) + 1.5 * torch.randn(25 * way, dim)
    logits = adapted("logistic", centers[labels] + 1.5 * torch.randn(len(labels), dim), labels).logits(queries)
    right = (logits.argmax(dim=1) == answers.repeat_interleave(25)).double().view(way, 25).mean(dim=1)
    assert right[:4].mean() > 0.6
    assert right.mean() > 0.75


def test_logistic_regression_takes_one_image_of_many_classes_without_a_warning():
    features, labels = clusters(25, 1)
    assert (adapted("logistic", features, labels).logits(features).argmax(dim=1) == labels).all()


def classifier(**options):
    torch.manual_seed(0)
    return ClassifierBaseline(Conv4((1, 20, 20), widths=(8, 8, 8, 8)), num_classes=5, **options).eval()


def averaged(method, images):
    return method.backbone.maps(images).mean(dim=(-2, -1))


def episode(size):
    return EpisodeImages(torch.rand(9, 1, size, size), way=3, shot=1, query=2, classes=torch.tensor([4, 0, 2]))


def test_classifier_loss_is_the_cross_entropy_over_all_training_classes_also_of_smaller_windows():
    """The logits are those of the queries, for the classes of the episode."""
    for size in (20, 11):
        method, given = classifier(), episode(size)
        scores = method.classifier(averaged(method, given.images))
        loss, logits = method.loss(given)
        torch.testing.assert_close(loss, F.cross_entropy(scores, torch.tensor([4, 0, 2, 4, 4, 0, 0, 2, 2])))
        torch.testing.assert_close(logits, scores[3:, given.classes])
    loss.backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in method.parameters())


def test_classifier_scores_by_the_cosine_with_the_mean_of_averaged_maps():
    """As the authors' code: the examples of a class are averaged first, and normalized after."""
    method = classifier()
    support, query = torch.rand(6, 1, 20, 20), torch.rand(4, 1, 20, 20)
    features = averaged(method, support)
    centroids = torch.stack([features[label == LABELS].mean(dim=0) for label in range(3)])
    expected = F.cosine_similarity(averaged(method, query)[:, None], centroids, dim=-1)
    torch.testing.assert_close(method(support, LABELS, query), expected)


def test_classifier_takes_the_vectors_of_a_backbone_that_averages_its_maps():
    assert classifier().feature_maps
    assert not ClassifierBaseline(ResNet12Small((1, 16, 16))).feature_maps
