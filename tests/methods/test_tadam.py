"""What defines TADAM: a scaled metric, and a backbone that is conditioned on the task."""

import math

import pytest
import torch
from torch.nn import functional as F

from tapnet.backbones import Conv4, ResNet12, ResNet12Small
from tapnet.data.batches import EpisodeImages
from tapnet.methods import TadamAlpha, TadamTC
from tapnet.methods.base import with_tensors
from tapnet.methods.tadam import conditioned_layers

LABELS = torch.tensor([0, 1, 2, 0, 1, 0])
BACKBONES = {
    "conv4": lambda: Conv4((1, 8, 8), widths=(16, 16, 16, 16)),
    "resnet12-small": lambda: ResNet12Small((1, 8, 8), widths=(4, 6, 8, 16)),
    "resnet12": lambda: ResNet12((1, 8, 8), widths=(4, 6, 8, 16)),
}


def make(kind, backbone="conv4", **options):
    torch.manual_seed(0)
    return kind(BACKBONES[backbone](), **options).eval()


def conditioned(backbone):
    """TADAM-TC with post-multipliers that are not 0."""
    method = make(TadamTC, backbone)
    method.task_embedding.multipliers.data.uniform_(0.5, 1.5)
    return method


def images(count, seed=1):
    return torch.rand(count, 1, 8, 8, generator=torch.Generator().manual_seed(seed))


EPISODE = EpisodeImages(images(20), way=4, shot=2, query=3, classes=torch.tensor([5, 0, 9, 2]))


def test_alpha_gives_scaled_distances_that_are_not_squared():
    support, query = torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 5.0]]), torch.tensor([[1.0, 1.0]])
    logits = make(TadamAlpha, scale=2.0).logits(support, torch.tensor([0, 0, 1]), query, 2)
    torch.testing.assert_close(logits, -2 * torch.tensor([[1.0, math.sqrt(17)]]))


@pytest.mark.parametrize("scale", [1e-6, 1e3])
def test_gradient_for_a_small_and_a_large_alpha_is_that_of_the_lemma(scale):
    """Over α: (N - 1)/N ∇d_k - 1/N Σ ∇d_j for α → 0, and ∇d_k - ∇d_nearest for α → ∞."""
    prototypes = torch.tensor([[0.0, 0.0], [3.0, 1.0], [-1.0, 4.0]]).double()
    query = torch.tensor([[2.0, 1.5]]).double().requires_grad_()
    head = make(TadamAlpha, scale=scale).double().adapt_to(prototypes)
    (gradient,) = torch.autograd.grad(F.cross_entropy(head.logits(query), torch.tensor([0])), query)
    own, nearest, other = F.normalize(query.detach() - prototypes, dim=-1)
    expected = 2 / 3 * own - (nearest + other) / 3 if scale < 1 else own - nearest
    torch.testing.assert_close(gradient[0] / scale, expected, rtol=1e-4, atol=1e-5)


def test_gradient_at_distance_zero_is_finite():
    query = torch.zeros(1, 16, requires_grad=True)
    make(TadamAlpha).logits(torch.zeros(3, 16), torch.arange(3), query, 3).sum().backward()
    assert query.grad.isfinite().all()


@pytest.mark.parametrize("learned", [True, False])
def test_alpha_is_learned_only_when_asked(learned):
    method = make(TadamAlpha, learned_scale=learned).train()
    method.loss(EPISODE).loss.backward()
    assert (method.scale.log.grad is not None) == learned
    assert method.diagnostics()["metric_scale"] == pytest.approx(1)


@pytest.mark.parametrize(("backbone", "layers"), [("conv4", 4), ("resnet12", 12), ("resnet12-small", 12)])
def test_tc_depends_on_the_task_unless_post_multipliers_are_zero_and_leaves_shortcuts_alone(backbone, layers):
    given = images(6), LABELS, images(5, 2)
    assert torch.equal(make(TadamTC, backbone)(*given), make(TadamAlpha, backbone)(*given))
    method = conditioned(backbone)
    first, second = (method.adapt(images(6, seed), LABELS, 3).project(images(4, 2)) for seed in (1, 7))
    assert (first - second).abs().max() > 1e-4
    assert len(conditioned_layers(method.backbone)) == layers


@pytest.mark.parametrize("backbone", ["conv4", "resnet12-small"])
def test_conditioning_scales_and_shifts_after_batch_normalization(backbone):
    """The same by hooks: (1 + γ) h + β on what each batch normalization gives."""
    method, given, task = conditioned(backbone), images(4, 2), torch.randn(16)
    embedding = method.task_embedding
    actual = with_tensors(method.backbone, embedding(method.backbone, task))(given)
    parts = zip(conditioned_layers(method.backbone).values(), embedding.gammas, embedding.betas, strict=True)
    for index, (layer, gammas, betas) in enumerate(parts):
        gamma, beta = embedding.multipliers[0, index] * gammas(task), embedding.multipliers[1, index] * betas(task)
        layer.register_forward_hook(
            lambda _, __, out, gamma=gamma, beta=beta: (1 + gamma)[:, None, None] * out + beta[:, None, None]
        )
    torch.testing.assert_close(actual, method.backbone(given), rtol=1e-3, atol=1e-4)


def test_auxiliary_head_learns_the_identity_of_the_training_classes():
    method, plain = make(TadamTC, num_classes=10, auxiliary_weight=1.0).train(), make(TadamTC).train()
    difference = method.loss(EPISODE).loss - plain.loss(EPISODE).loss
    features = make(TadamTC).train().backbone(EPISODE.images)
    identities = torch.tensor([5, 5, 0, 0, 9, 9, 2, 2, *[5] * 3, *[0] * 3, *[9] * 3, *[2] * 3])
    torch.testing.assert_close(difference, F.cross_entropy(method.auxiliary(features), identities))


def test_penalty_of_the_post_multipliers_is_that_of_l2_regularizer():
    """TensorFlow's `l2_regularizer(0.01)`, which the authors use, is 0.01 times half the sum of squares."""
    embedding = make(TadamTC).task_embedding
    torch.nn.init.constant_(embedding.multipliers, 2.0)
    assert embedding.penalty().item() == pytest.approx(0.01 * embedding.multipliers.numel() * 4 / 2)
