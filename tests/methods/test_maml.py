"""What defines MAML: fast weights by gradient descent, and a gradient through them."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tapnet.backbones import Backbone, Conv4
from tapnet.data.batches import EpisodeImages
from tapnet.methods.maml import MAML

LABELS = torch.arange(3).repeat(2)


def make(**options):
    torch.manual_seed(0)
    return MAML(Conv4((1, 8, 8), widths=(4, 4, 4, 4)), way=3, **options)


def images(count, seed=1):
    return torch.rand(count, 1, 8, 8, generator=torch.Generator().manual_seed(seed))


def episode(dtype=torch.float32):
    return EpisodeImages(images(9).to(dtype), way=3, shot=2, query=1, classes=torch.arange(3))


class Identity(Backbone):
    """Features that are the pixels: MAML over it is logistic regression, whose Hessian is known."""

    dim, image_shape, map_shape = 4, (4, 1, 1), (4, 1, 1)

    def maps(self, images):
        return images

    def pool(self, maps):
        return maps.flatten(1)


@pytest.mark.parametrize("steps", [1, 3])
def test_inner_steps_are_those_of_sgd(steps):
    method, rate = make(steps=steps, rate=0.3, batch_statistics=True).train(), 0.3
    by_hand = nn.Sequential(copy.deepcopy(method.backbone), copy.deepcopy(method.classifier))
    for layer in by_hand.modules():
        if isinstance(layer, nn.BatchNorm2d):  # learned, not adapted
            layer.requires_grad_(False)
    optimizer = torch.optim.SGD([weight for weight in by_hand.parameters() if weight.requires_grad], lr=rate)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(by_hand(images(6)), LABELS).backward()
        optimizer.step()
    torch.testing.assert_close(method.logits(images(6), LABELS, images(5, 2), 3), by_hand(images(5, 2)))


@pytest.mark.parametrize("batch_statistics", [True, False])
def test_second_order_gradient_equals_a_finite_difference(batch_statistics):
    method = make(steps=2, rate=0.2, batch_statistics=batch_statistics).double().train()
    method.loss(episode(torch.float64)).loss.backward()
    parameter, step = method.backbone.blocks[0][0].weight, 1e-6
    direction = torch.randn_like(parameter)
    losses = []
    for sign in (1, -1):
        with torch.no_grad():
            parameter += sign * step * direction
        losses.append(method.loss(episode(torch.float64)).loss.detach())
        with torch.no_grad():
            parameter -= sign * step * direction
    expected = (losses[0] - losses[1]) / (2 * step)
    torch.testing.assert_close((parameter.grad * direction).sum(), expected, rtol=1e-5, atol=1e-8)


def outer_gradient(first_order):
    """Gradient of the query loss of one inner step of rate 0.5 with respect to the bias of a linear classifier."""
    torch.manual_seed(0)
    method = MAML(Identity(), way=3, rate=0.5, first_order=first_order).double().train()
    support, query = torch.rand(6, 4, 1, 1).double(), torch.rand(3, 4, 1, 1).double()
    with torch.no_grad():
        method.classifier.weight.zero_()
    loss = F.cross_entropy(method.logits(support, LABELS, query, 3), torch.arange(3))
    (gradient,) = torch.autograd.grad(loss, method.classifier.bias)
    return method, support, query, gradient


def test_first_order_gradient_is_that_at_the_adapted_weights():
    method, support, query, found = outer_gradient(first_order=True)
    weights = method.step(method.initial_weights(), support, LABELS, 3, 0.5)
    adapted = {name: weight.detach().requires_grad_() for name, weight in weights.items()}
    loss = F.cross_entropy(method.run(query, adapted), torch.arange(3))
    (expected,) = torch.autograd.grad(loss, adapted["classifier.bias"])
    torch.testing.assert_close(found, expected)


def test_second_order_gradient_has_the_hessian_in_it():
    """Of logistic regression: (I - αH) times the gradient at the adapted weights, H that of the support loss."""
    method, support, query, found = outer_gradient(first_order=False)
    start = torch.cat([method.classifier.weight.flatten(), method.classifier.bias]).detach()

    def loss(flat, inputs, labels):
        return F.cross_entropy(inputs.flatten(1) @ flat[:12].view(3, 4).T + flat[12:], labels)

    def gradient(flat, *data):
        return torch.autograd.functional.jacobian(lambda weights: loss(weights, *data), flat)

    adapted = start - 0.5 * gradient(start, support, LABELS)
    hessian = torch.autograd.functional.hessian(lambda flat: loss(flat, support, LABELS), start)
    expected = (torch.eye(15).double() - 0.5 * hessian) @ gradient(adapted, query, torch.arange(3))
    torch.testing.assert_close(found, expected[12:])


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("batch_statistics", [True, False])
def test_adapting_leaves_weights_and_buffers_as_they_were(training, batch_statistics):
    method = make(steps=2, batch_statistics=batch_statistics).train(training)
    before = copy.deepcopy(method.state_dict())
    method(images(6), LABELS, images(5, 2))
    assert all(torch.equal(before[name], tensor) for name, tensor in method.state_dict().items())
    assert all(parameter.grad is None for parameter in method.parameters())


def test_statistics_of_the_support_set_equal_those_of_one_batch_with_it():
    """Normalizing the support set by its statistics, as if it were the queries, gives its own logits."""
    method = make(steps=0).eval()
    head = method.adapt(images(6), LABELS, 3)
    torch.testing.assert_close(head.logits(images(6)), method.run(images(6), method.initial_weights()))


def test_steps_and_rate_at_test_are_apart_from_those_of_training():
    method = make(steps=1, rate=0.1, test_steps=3, test_rate=0.2).eval()
    same = make(steps=3, rate=0.2).eval()
    torch.testing.assert_close(method(images(6), LABELS, images(5, 2)), same(images(6), LABELS, images(5, 2)))


def test_maml_adapts_where_gradients_are_switched_off():
    with torch.no_grad():
        logits = make().eval()(images(6), LABELS, images(5, 2))
    assert not logits.requires_grad
    torch.testing.assert_close(logits, make().eval()(images(6), LABELS, images(5, 2)))


def test_a_classifier_of_zeros_prefers_no_class_before_it_adapts():
    before, after = (make(zero_classifier=True, steps=steps).eval() for steps in (0, 1))
    assert not before(images(6), LABELS, images(5, 2)).any()
    assert after(images(6), LABELS, images(5, 2)).any()


def test_images_are_compared_by_their_adapted_features():
    head = make(steps=2, rate=0.3).eval().adapt(images(6), LABELS, 3)
    weights = head.weights["classifier.weight"], head.weights["classifier.bias"]
    torch.testing.assert_close(F.linear(head.project(images(5, 2)), *weights), head.logits(images(5, 2)))
