"""Plain classification of the training classes as a baseline and as a start for other methods."""

import pytest
import torch
from torch.nn import functional as F

from tapnet.backbones import Conv4, ResNet12Small
from tapnet.data.batches import EpisodeImages
from tapnet.methods import ClassifierBaseline

CLASSES = torch.tensor([4, 0, 2])  # of five training classes


def method(**options):
    torch.manual_seed(0)
    return ClassifierBaseline(Conv4((1, 20, 20), widths=(8, 8, 8, 8)), num_classes=5, **options).eval()


def episode(size=20):
    images = torch.rand(9, 1, size, size, generator=torch.Generator().manual_seed(1))
    return EpisodeImages(images, way=3, shot=1, query=2, classes=CLASSES)


def test_classifier_loss_is_the_cross_entropy_over_all_training_classes():
    classifier, given = method(), episode()
    labels = torch.tensor([4, 0, 2, 4, 4, 0, 0, 2, 2])
    scores = classifier.classifier(classifier.backbone.maps(given.images).mean(dim=(-2, -1)))
    torch.testing.assert_close(classifier.loss(given).loss, F.cross_entropy(scores, labels))


def test_classifier_logits_in_training_are_those_of_the_classes_of_the_episode():
    classifier, given = method(), episode()
    scores = classifier.classifier(classifier.backbone.maps(given.query_images).mean(dim=(-2, -1)))
    torch.testing.assert_close(classifier.loss(given).logits, scores[:, CLASSES])


def test_classifier_learns_from_windows_smaller_than_the_images():
    classifier = method()
    classifier.loss(episode(size=11)).loss.backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in classifier.parameters())


def pooled(classifier, images):
    return classifier.backbone.maps(images).mean(dim=(-2, -1))


@pytest.mark.parametrize("normalize_shots", [False, True])
def test_classifier_scores_by_the_cosine_with_the_mean_of_pooled_features(normalize_shots):
    """As the authors' code: the examples of a class are averaged first, and normalized after."""
    classifier = method(normalize_shots=normalize_shots)
    support, labels, query = torch.rand(6, 1, 20, 20), torch.tensor([0, 1, 2, 0, 1, 2]), torch.rand(4, 1, 20, 20)
    features = pooled(classifier, support)
    features = F.normalize(features, dim=-1) if normalize_shots else features
    centroids = torch.stack([features[labels == label].mean(dim=0) for label in range(3)])
    expected = F.cosine_similarity(pooled(classifier, query)[:, None], centroids, dim=-1)
    torch.testing.assert_close(classifier(support, labels, query), expected)


def test_classifier_takes_the_vectors_of_a_backbone_that_averages_its_maps():
    assert method().feature_maps
    assert not ClassifierBaseline(ResNet12Small((1, 16, 16))).feature_maps
