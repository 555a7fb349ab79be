"""What defines Reptile: the weights move toward those that gradient descent finds for a task."""

import copy

import torch
from torch import nn
from torch.nn import functional as F

from tapnet.backbones import Conv4
from tapnet.data.batches import EpisodeImages
from tapnet.methods.reptile import Reptile

WAY = 3
LABELS = torch.tensor([0, 1, 2, 0, 0, 1, 1, 2, 2])  # support images, then queries


def make(**options):
    torch.manual_seed(0)
    return Reptile(Conv4((1, 8, 8), widths=(8, 8, 8, 8)), way=WAY, batch=9, **options).train()


def episode():
    images = torch.rand(9, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    return EpisodeImages(images, WAY, 1, 2, torch.arange(WAY))


def plain_network(method):
    return nn.Sequential(copy.deepcopy(method.backbone), copy.deepcopy(method.classifier))


def test_one_step_has_the_gradient_of_joint_training():
    """φ - φ̃ after one step of rate α is α times the gradient of the loss of all images."""
    method = make(steps=1, rate=0.5)
    plain = plain_network(method)
    method.loss(episode()).loss.backward()
    F.cross_entropy(plain(episode().images), LABELS).backward()
    gradients = [parameter.grad for parameter in method.parameters()]
    for found, expected in zip(gradients, plain.parameters(), strict=True):
        torch.testing.assert_close(found, 0.5 * expected.grad, rtol=1e-4, atol=1e-6)


def test_an_outer_rate_of_one_gives_the_weights_of_the_task():
    """With one task, SGD of rate 1 ends where gradient descent on the task ends."""
    method = make(steps=3, rate=0.1)
    plain = plain_network(method)
    inner = torch.optim.SGD(plain.parameters(), lr=0.1)
    for _ in range(3):
        inner.zero_grad()
        F.cross_entropy(plain(episode().images), LABELS).backward()
        inner.step()
    method.loss(episode()).loss.backward()
    torch.optim.SGD(method.parameters(), lr=1.0).step()
    for found, expected in zip(method.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_the_loss_is_that_of_the_queries_after_adaptation():
    found = make(steps=2).loss(episode())
    torch.testing.assert_close(found.loss, F.cross_entropy(found.logits, episode().query_labels))
    assert found.logits.shape == (6, WAY)
