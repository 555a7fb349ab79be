import torch
from torch.nn import functional as F

from tapnet.backbones import PrecomputedFeatures
from tapnet.data.batches import EpisodeImages
from tapnet.functional import projected_distances
from tapnet.methods import PrototypicalNetwork
from tapnet.methods.tapnet import ProjectionHead

LABELS = torch.tensor([0, 1, 2, 0, 1, 0])


def logits(support, query, labels=LABELS):
    way = int(labels.max()) + 1
    return PrototypicalNetwork(PrecomputedFeatures(support.shape[-1])).logits(support, labels, query, way)


def draw():
    return torch.randn(6, 16).double(), torch.randn(5, 16).double()


def test_prototypical_gives_the_distances_worked_out_by_hand():
    support, query = torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 5.0]]), torch.tensor([[1.0, 1.0]])
    torch.testing.assert_close(logits(support, query, torch.tensor([0, 0, 1])), torch.tensor([[-1.0, -17.0]]))


def test_prototypical_equals_tapnet_when_the_projection_hides_nothing_and_references_are_the_prototypes():
    """Errors along axes on which no feature has a coordinate: the projection is the identity on what there is."""
    support, query = (torch.nn.functional.pad(each, (3, 0)) for each in draw())
    prototypes = torch.stack([support[k == LABELS].mean(dim=0) for k in range(3)])
    errors = torch.eye(3, 19).double()
    tapnet = ProjectionHead(prototypes, errors, torch.arange(3)).logits(query)
    torch.testing.assert_close(logits(support, query), tapnet)
    torch.testing.assert_close(tapnet, -projected_distances(query, prototypes, errors))


def test_prototypical_ignores_a_translation_of_the_features():
    support, query = draw()
    torch.testing.assert_close(logits(support + 3, query + 3), logits(support, query))


def test_prototypical_logits_are_divided_by_the_temperature_also_as_a_linear_layer():
    support, query = draw()
    warm = PrototypicalNetwork(PrecomputedFeatures(16), temperature=4.0)
    torch.testing.assert_close(warm.logits(support, LABELS, query, 3), logits(support, query) / 4)
    linear = warm.adapt(support, LABELS, 3).linear().logits(query)
    torch.testing.assert_close(linear.softmax(dim=-1), (logits(support, query) / 4).softmax(dim=-1))


def test_loss_is_the_mean_over_the_divisions_of_the_episode():
    method, features = PrototypicalNetwork(PrecomputedFeatures(16)), torch.randn(18, 16)
    episode = EpisodeImages(features, way=3, shot=2, query=4, classes=torch.arange(3))
    episode = episode.with_divisions(3, torch.Generator().manual_seed(0))
    logits = [method.logits(s, episode.support_labels, q, episode.way) for s, q in episode.divided(features)]
    losses = [F.cross_entropy(scores, episode.query_labels) for scores in logits]
    torch.testing.assert_close(method.loss(episode).loss, torch.stack(losses).mean())


def test_loss_takes_the_targets_of_the_episode_in_place_of_labels():
    method, features = PrototypicalNetwork(PrecomputedFeatures(16)), torch.randn(18, 16)
    episode = EpisodeImages(features, way=3, shot=2, query=4, classes=torch.arange(3))
    one_hot = F.one_hot(episode.query_labels, 3).float()
    torch.testing.assert_close(method.loss(episode._replace(targets=one_hot[None])).loss, method.loss(episode).loss)
    uniform = torch.full((1, 12, 3), 1 / 3)
    logits = method.logits(features[:6], episode.support_labels, features[6:], episode.way)
    expected = -logits.log_softmax(dim=-1).mean()
    torch.testing.assert_close(method.loss(episode._replace(targets=uniform)).loss, expected)
