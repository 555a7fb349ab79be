"""What defines MAML and Reptile: fast weights by gradient descent, and a gradient through or toward them."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tapnet.backbones import Conv4, wrap_backbone
from tapnet.data.batches import EpisodeImages
from tapnet.methods import MAML, Reptile

LABELS = torch.arange(3).repeat(2)


def make(kind=MAML, **options):
    torch.manual_seed(0)
    return kind(Conv4((1, 8, 8), widths=(4, 4, 4, 4)), way=3, **options)


def images(count, seed=1):
    return torch.rand(count, 1, 8, 8, generator=torch.Generator().manual_seed(seed))


def episode(shot=2, query=1):
    return EpisodeImages(images(9), way=3, shot=shot, query=query, classes=torch.arange(3))


def plain_network(method):
    return nn.Sequential(copy.deepcopy(method.backbone), copy.deepcopy(method.classifier))


def descend(network, inputs, labels, rate, steps):
    optimizer = torch.optim.SGD([weight for weight in network.parameters() if weight.requires_grad], lr=rate)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(network(inputs), labels).backward()
        optimizer.step()


def test_inner_steps_are_those_of_sgd():
    method = make(steps=3, rate=0.3, batch_statistics=True).train()
    by_hand = plain_network(method)
    for layer in by_hand.modules():
        if isinstance(layer, nn.BatchNorm2d):  # learned, not adapted
            layer.requires_grad_(False)
    descend(by_hand, images(6), LABELS, 0.3, 3)
    torch.testing.assert_close(method.logits(images(6), LABELS, images(5, 2), 3), by_hand(images(5, 2)))


@pytest.mark.parametrize("batch_statistics", [True, False])
def test_second_order_gradient_equals_a_finite_difference(batch_statistics):
    method = make(steps=2, rate=0.2, batch_statistics=batch_statistics).double().train()
    given = episode()._replace(images=images(9).double())
    method.loss(given).loss.backward()
    parameter, step, losses = method.backbone.blocks[0][0].weight, 1e-6, []
    direction = torch.randn_like(parameter)
    for change in (step, -2 * step):
        with torch.no_grad():
            parameter += change * direction
        losses.append(method.loss(given).loss.detach())
    expected = (losses[0] - losses[1]) / (2 * step)
    torch.testing.assert_close((parameter.grad * direction).sum(), expected, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("first_order", [True, False])
def test_gradient_has_the_hessian_in_it_unless_it_is_of_first_order(first_order):
    """Of logistic regression: (I - αH) times the gradient at the adapted weights, H that of the support loss, or 0."""
    method = MAML(wrap_backbone(nn.Flatten(), (4, 1, 1)), way=3, rate=0.5, first_order=first_order).double().train()
    support, query = torch.rand(6, 4, 1, 1).double(), torch.rand(3, 4, 1, 1).double()
    loss = F.cross_entropy(method.logits(support, LABELS, query, 3), torch.arange(3))
    gradients = torch.autograd.grad(loss, [method.classifier.weight, method.classifier.bias])
    start = torch.cat([method.classifier.weight.flatten(), method.classifier.bias]).detach()

    def support_loss(flat, inputs=support, labels=LABELS):
        return F.cross_entropy(inputs.flatten(1) @ flat[:12].view(3, 4).T + flat[12:], labels)

    def query_loss(flat):
        return support_loss(flat, query, torch.arange(3))

    adapted = start - 0.5 * torch.autograd.functional.jacobian(support_loss, start)
    factor = torch.eye(15).double()
    if not first_order:
        factor -= 0.5 * torch.autograd.functional.hessian(support_loss, start)
    expected = factor @ torch.autograd.functional.jacobian(query_loss, adapted)
    torch.testing.assert_close(torch.cat([gradient.flatten() for gradient in gradients]), expected)


@pytest.mark.parametrize("batch_statistics", [True, False])
def test_adapting_in_training_leaves_weights_and_buffers_as_they_were(batch_statistics):
    method = make(steps=2, batch_statistics=batch_statistics).train()
    before = copy.deepcopy(method.state_dict())
    method(images(6), LABELS, images(5, 2))
    assert all(torch.equal(before[name], tensor) for name, tensor in method.state_dict().items())
    assert all(parameter.grad is None for parameter in method.parameters())


def test_statistics_of_the_support_set_equal_those_of_one_batch_with_it():
    """Normalizing the support set by its statistics, as if it were the queries, gives its own logits."""
    method = make(steps=0).eval()
    head = method.adapt(images(6), LABELS, 3)
    torch.testing.assert_close(head.logits(images(6)), method.run(images(6), dict(method.named_parameters())))


def test_steps_at_test_are_apart_from_those_of_training_and_need_no_gradients_switched_on():
    method, same = make(steps=1, test_steps=3).eval(), make(steps=3).eval()
    with torch.no_grad():
        logits = method(images(6), LABELS, images(5, 2))
    assert not logits.requires_grad
    torch.testing.assert_close(logits, same(images(6), LABELS, images(5, 2)))


def test_a_classifier_of_zeros_prefers_no_class_before_it_adapts():
    for steps in (0, 1):
        assert make(zero_classifier=True, steps=steps).eval()(images(6), LABELS, images(5, 2)).any() == bool(steps)


def test_images_are_compared_by_their_adapted_features():
    """The logits are linear in what the head projects the queries to."""
    head = make(steps=2, rate=0.3).double().eval().adapt(images(6).double(), LABELS, 3)
    features, logits = (function(images(20, 2).double()) for function in (head.project, head.logits))
    features = F.pad(features, (0, 1), value=1.0)
    torch.testing.assert_close(features @ torch.linalg.lstsq(features, logits).solution, logits)


@pytest.mark.parametrize("steps", [1, 3])
def test_reptile_at_an_outer_rate_of_one_ends_at_the_weights_of_the_task(steps):
    """One step of rate α on all images has α times the gradient of joint training; all weights adapt."""
    method = make(Reptile, batch=9, steps=steps).train()
    plain, given = plain_network(method), episode(shot=1, query=2)
    descend(plain, given.images, torch.cat([given.support_labels, given.query_labels]), 0.1, steps)
    loss, logits = method.loss(given)
    torch.testing.assert_close(loss, F.cross_entropy(logits, given.query_labels))
    loss.backward()
    torch.optim.SGD(method.parameters(), lr=1.0).step()
    for parameter, expected in zip(method.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(parameter, expected, rtol=1e-4, atol=1e-5)
