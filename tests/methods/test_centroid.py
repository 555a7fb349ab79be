import torch
from torch.nn import functional as F

from tapnet.backbones import PrecomputedFeatures
from tapnet.methods import CosineCentroid


def test_centroid_scores_by_the_cosine_with_the_mean_direction_of_each_class():
    labels = torch.arange(5).repeat_interleave(6)
    features = torch.randn(5, 24)[labels] + 0.3 * torch.randn(30, 24)
    logits = CosineCentroid(PrecomputedFeatures(24)).adapt(features, labels, 5).logits(3 * features)
    directions = torch.stack([F.normalize(features[labels == k], dim=1).mean(0) for k in range(5)])
    torch.testing.assert_close(logits, F.cosine_similarity(features[:, None], directions[None], dim=-1))
