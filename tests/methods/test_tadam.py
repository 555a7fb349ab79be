import math

import pytest
import torch

from tapnet.backbones import Conv4, ResNet12, ResNet12Small
from tapnet.data.batches import EpisodeImages
from tapnet.methods import PrototypicalNetwork, TadamAlpha, TadamTC
from tapnet.methods.base import with_tensors
from tapnet.methods.tadam import conditioned_layers

LABELS = torch.tensor([0, 1, 2, 0, 1, 0])
BACKBONES = {
    "conv4": lambda: Conv4((1, 8, 8), widths=(16, 16, 16, 16)),
    "resnet12-small": lambda: ResNet12Small((1, 8, 8), widths=(4, 6, 8, 16)),
    "resnet12": lambda: ResNet12((1, 8, 8), widths=(4, 6, 8, 16)),
}
every_backbone = pytest.mark.parametrize("backbone", BACKBONES)


def make(kind, backbone="conv4", **options):
    torch.manual_seed(0)
    return kind(BACKBONES[backbone](), **options).eval()


def conditioned(backbone="conv4", **options):
    """TADAM-TC with post-multipliers that are not 0."""
    method = make(TadamTC, backbone, **options)
    with torch.no_grad():
        method.task_embedding.multipliers.copy_(0.5 + torch.rand_like(method.task_embedding.multipliers))
    return method


def images(count, seed=1):
    return torch.rand(count, 1, 8, 8, generator=torch.Generator().manual_seed(seed))


def episode(way=4, shot=2, query=3):
    return EpisodeImages(images(way * (shot + query)), way, shot, query, torch.tensor([5, 0, 9, 2]))


# TADAM-α


def test_alpha_gives_scaled_distances_that_are_not_squared():
    support, query = torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 5.0]]), torch.tensor([[1.0, 1.0]])
    logits = make(TadamAlpha, scale=2.0).logits(support, torch.tensor([0, 0, 1]), query, 2)
    torch.testing.assert_close(logits, -2 * torch.tensor([[1.0, math.sqrt(17)]]))


def test_alpha_squared_with_scale_one_is_prototypical():
    support, query = torch.randn(6, 16), torch.randn(5, 16)
    ours = make(TadamAlpha, scale=1.0, squared=True).logits(support, LABELS, query, 3)
    torch.testing.assert_close(ours, make(PrototypicalNetwork).logits(support, LABELS, query, 3))


def gradient(scale):
    """The gradient of the loss at a query of class 0, divided by the scale, and that of its distances."""
    prototypes = torch.tensor([[0.0, 0.0], [3.0, 1.0], [-1.0, 4.0]]).double()
    query = torch.tensor([[2.0, 1.5]]).double().requires_grad_()
    method = make(TadamAlpha, scale=scale).double()
    loss = torch.nn.functional.cross_entropy(method.adapt_to(prototypes).logits(query), torch.tensor([0]))
    (found,) = torch.autograd.grad(loss, query)
    directions = query.detach() - prototypes
    return found[0] / scale, directions / directions.norm(dim=-1, keepdim=True)


def test_gradient_for_a_small_alpha_weighs_all_classes_alike():
    """The paper's lemma: (N - 1)/N ∇d_k - 1/N Σ ∇d_j for α → 0."""
    found, each = gradient(1e-6)
    torch.testing.assert_close(found, 2 / 3 * each[0] - (each[1] + each[2]) / 3, rtol=1e-4, atol=1e-5)


def test_gradient_for_a_large_alpha_is_that_of_the_nearest_wrong_class():
    """The paper's lemma: ∇d_k - ∇d_nearest for α → ∞."""
    found, each = gradient(1e3)
    torch.testing.assert_close(found, each[0] - each[1], rtol=1e-4, atol=1e-5)


def test_gradient_at_distance_zero_is_finite():
    query = torch.zeros(1, 16, requires_grad=True)
    make(TadamAlpha).logits(torch.zeros(3, 16), torch.arange(3), query, 3).sum().backward()
    assert query.grad.isfinite().all()


@pytest.mark.parametrize("learned", [True, False])
def test_alpha_is_learned_only_when_asked(learned):
    method = make(TadamAlpha, learned_scale=learned).train()
    method.loss(episode()).loss.backward()
    assert (method.scale.log.grad is not None) == learned
    assert method.diagnostics()["metric_scale"] == pytest.approx(1)


# TADAM-TC


@every_backbone
def test_tc_with_post_multipliers_at_zero_equals_alpha_bit_for_bit(backbone):
    given = images(6), LABELS, images(5, 2)
    assert torch.equal(make(TadamTC, backbone)(*given), make(TadamAlpha, backbone)(*given))


@every_backbone
def test_tc_features_depend_on_the_task(backbone):
    method, query = conditioned(backbone), images(4, 2)
    first = method.adapt(images(6), LABELS, 3).project(query)
    second = method.adapt(images(6, 7), LABELS, 3).project(query)
    assert (first - second).abs().max() > 1e-4


@every_backbone
def test_conditioning_scales_and_shifts_after_batch_normalization(backbone):
    """The same by hooks: (1 + γ) h + β on what each batch normalization gives."""
    method, given = conditioned(backbone), images(4, 2)
    task, embedding = torch.randn(16), method.task_embedding
    found = with_tensors(method.backbone, embedding(method.backbone, task))(given)
    parts = zip(conditioned_layers(method.backbone).values(), embedding.gammas, embedding.betas, strict=True)
    for index, (layer, gammas, betas) in enumerate(parts):
        gamma, beta = embedding.multipliers[0, index] * gammas(task), embedding.multipliers[1, index] * betas(task)
        layer.register_forward_hook(
            lambda _, __, out, gamma=gamma, beta=beta: (1 + gamma)[:, None, None] * out + beta[:, None, None]
        )
    torch.testing.assert_close(found, method.backbone(given), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("backbone", "layers"), [("conv4", 4), ("resnet12", 12), ("resnet12-small", 12)])
def test_conditioning_leaves_shortcuts_alone(backbone, layers):
    assert len(conditioned_layers(BACKBONES[backbone]())) == layers


def test_auxiliary_head_learns_the_identity_of_the_training_classes():
    method = make(TadamTC, num_classes=10, auxiliary_weight=1.0).train()
    plain = make(TadamTC).train()
    found = method.loss(episode()).loss - plain.loss(episode()).loss
    features = make(TadamTC).train().backbone(episode().images)
    identities = torch.tensor([5, 5, 0, 0, 9, 9, 2, 2, *[5] * 3, *[0] * 3, *[9] * 3, *[2] * 3])
    expected = torch.nn.functional.cross_entropy(method.auxiliary(features), identities)
    torch.testing.assert_close(found, expected)


def test_penalty_of_the_post_multipliers_is_that_of_l2_regularizer():
    """TensorFlow's `l2_regularizer(0.01)`, which the authors use, is 0.01 times half the sum of squares."""
    embedding = make(TadamTC).task_embedding
    torch.nn.init.constant_(embedding.multipliers, 2.0)
    assert embedding.penalty().item() == pytest.approx(0.01 * embedding.multipliers.numel() * 4 / 2)
