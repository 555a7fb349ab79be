import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import tapnet
from tapnet.backbones import Conv4, make_backbone
from tapnet.errors import UserError
from tapnet.testing import check_backbone

NETWORKS = [
    ("conv4", (3, 17, 30), {}),
    ("conv4", (3, 84, 84), {"average_top": True}),
    ("conv4", (1, 28, 28), {"pooled_blocks": 0}),
    ("conv4", (1, 28, 28), {"pooled_blocks": 2, "padded": False}),
    ("resnet12", (3, 17, 30), {"widths": [2, 2, 2, 4]}),
    ("resnet12", (1, 28, 28), {"widths": [2, 2, 2, 4], "four_rotations": True}),
    ("resnet12-small", (4, 5, 5), {"widths": [2, 2, 2, 4], "branches": 2}),
    ("resnet12-small", (1, 28, 40), {"widths": [2, 2, 2, 4], "flatten": True, "normalize": True}),
]


@pytest.mark.parametrize(("name", "shape", "options"), NETWORKS)
def test_backbones_keep_the_contract(name, shape, options):
    check_backbone(make_backbone(name, shape, **options))


class Plain(nn.Module):
    """As a module of any library: it knows nothing of ours."""

    def __init__(self, outputs):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 6, 3, stride=2), nn.BatchNorm2d(6), nn.ReLU(), *outputs)

    def forward(self, images):
        return self.layers(images)


@pytest.mark.parametrize("outputs", [(), (nn.AdaptiveAvgPool2d(1), nn.Flatten())], ids=["maps", "vectors"])
def test_any_module_becomes_a_backbone(outputs):
    module = Plain(outputs)
    backbone = tapnet.wrap_backbone(module, (3, 20, 24))
    assert backbone.dim == 6
    assert module.training
    check_backbone(backbone)
    images = torch.rand(8, 3, 20, 24)
    assert tapnet.TapNet(backbone, num_references=4).eval()(images[:4], torch.arange(4), images[4:]).shape == (4, 4)


@pytest.mark.parametrize("output", [nn.Flatten(2), nn.LSTM(9, 3)], ids=["tokens", "tuple"])
def test_a_module_without_vectors_or_maps_is_no_backbone(output):
    first = (nn.Flatten(2), output) if isinstance(output, nn.LSTM) else (output,)
    with pytest.raises(UserError, match=r"returns vectors \(n, dim\) or maps"):
        tapnet.wrap_backbone(Plain(first), (3, 8, 8))


class Drifting(Conv4):
    """Counts its batches in eval mode."""

    def maps(self, images):
        self.blocks[0][1].num_batches_tracked += 1
        return super().maps(images)


class Misjudged(Conv4):
    """Has another length than it says."""

    def pool(self, maps):
        return super().pool(maps)[:, 1:]


@pytest.mark.parametrize("kind", [Drifting, Misjudged])
def test_a_backbone_that_breaks_its_promises_is_caught(kind):
    with pytest.raises(AssertionError):
        check_backbone(kind((1, 8, 8)))


@pytest.mark.parametrize(
    ("size", "options", "side"),
    [
        (84, {}, 6),
        (28, {}, 2),
        (1, {}, 1),
        (28, {"pooled_blocks": 2, "padded": False}, 5),
        (84, {"pooled_blocks": 2, "padded": False}, 19),
    ],
)
def test_pooling_keeps_the_last_partial_window_unless_as_in_relation_networks(size, options, side):
    network = make_backbone("conv4", (1, size, size), widths=[2, 2, 2, 2], **options).eval()
    assert network.map_shape == network.maps(torch.rand(1, 1, size, size)).shape[1:] == (2, side, side)


@pytest.mark.parametrize(("name", "options"), [("conv4", {}), ("resnet12", {"flatten": True}), ("resnet12-small", {})])
def test_normalized_features_are_centered_and_of_one_length(name, options):
    network = make_backbone(name, (1, 28, 28), widths=[2, 2, 2, 4], normalize=True, **options)
    plain = make_backbone(name, (1, 28, 28), widths=[2, 2, 2, 4], **options)
    plain.load_state_dict(network.state_dict(), strict=False)
    images = torch.rand(6, 1, 28, 28)
    centered = plain(images) - plain(images).mean(dim=0)
    torch.testing.assert_close(
        network(images), F.normalize(centered, dim=1) * math.sqrt(network.dim), rtol=1e-3, atol=1e-3
    )


def test_rotated_resnet_has_the_features_of_all_four_rotations_which_stand_as_the_image_does():
    """The same weights as in a network that sees an image once."""
    options, images = {"widths": [2, 2, 2, 4], "flatten": True}, torch.rand(2, 1, 28, 28)
    once = make_backbone("resnet12-small", (1, 28, 28), **options).eval()
    rotated = make_backbone("resnet12-small", (1, 28, 28), **options, four_rotations=True).eval()
    rotated.load_state_dict(once.state_dict())
    assert rotated.dim == rotated(images).shape[1] == 4 * once.dim
    torch.testing.assert_close(rotated.maps(images)[:, :4], once.maps(images))
    upright, aside = (rotated.maps(given).chunk(4, dim=1) for given in (images, images.rot90(1, (2, 3))))
    for rotation in range(4):
        torch.testing.assert_close(aside[rotation], upright[(rotation + 1) % 4].rot90(1, (2, 3)))


@pytest.mark.parametrize(
    ("name", "weights", "dim"),
    [("conv4", 112_320, 2304), ("resnet12", 9_366_912, 512), ("resnet12-small", 2_228_096, 256)],
)
def test_parameter_counts_are_those_of_table_5_and_start_as_the_authors_have_them(name, weights, dim):
    """LeCun normal, and batch normalization with the constants of Chainer."""
    network = make_backbone(name, (3, 84, 84))
    filters = [layer.weight for layer in network.modules() if isinstance(layer, nn.Conv2d)]
    assert sum(weight.numel() for weight in filters) == weights
    assert network.dim == dim
    for weight in (weight for weight in filters if weight.numel() > 10_000):
        assert weight.std().item() == pytest.approx(1 / math.sqrt(weight[0].numel()), rel=0.05)
    normalizations = [layer for layer in network.modules() if isinstance(layer, nn.BatchNorm2d)]
    assert {(layer.eps, layer.momentum) for layer in normalizations} == {(2e-5, 0.1)}


@pytest.mark.parametrize("name", ["conv4", "resnet12", "resnet12-small"])
def test_features_are_relu_before_pooling_as_in_the_paper(name):
    """ReLU after max pooling gives what ReLU before it gives: here by an independent order of the layers."""
    network = make_backbone(name, (1, 9, 9), widths=[4, 4, 4, 4]).eval()
    images = torch.rand(3, 1, 9, 9)
    maps = images
    for block in network.blocks:
        layers = block.layers if hasattr(block, "layers") else block[:2]
        before = layers(maps) + (block.shortcut(maps) if hasattr(block, "shortcut") else 0)
        maps = nn.functional.max_pool2d(before.relu(), 2, ceil_mode=True)
    torch.testing.assert_close(network.maps(images), maps)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: make_backbone("conv5", (1, 28, 28)), "conv4, resnet12, resnet12-small, .*got 'conv5'"),
        (lambda: make_backbone("conv4", (28, 28)), r"\(channels, height, width\)"),
        (lambda: make_backbone("conv4", (1, 0, 28)), "at least 1"),
        (lambda: make_backbone("conv4", (84, 84, 3)), r"got \(84, 84, 3\): did you mean \(3, 84, 84\)\?"),
        (lambda: tapnet.wrap_backbone(nn.Identity(), (84, 84, 3)), r"did you mean \(3, 84, 84\)\?"),
        (lambda: make_backbone("resnet12", (1, 28, 40), four_rotations=True), "needs square images, got 28×40"),
        (lambda: make_backbone("conv4", (1, 28, 28), widths=[8, 8, 8, -1]), "values from 1 on, one per block"),
        (lambda: make_backbone("conv4", (1, 28, 28), depth=5), "has no option depth; it has widths, dropout"),
        (lambda: make_backbone("conv4", (1, 28, 28), widths=64), r"`widths` needs 4 values .* got 64"),
        (lambda: make_backbone("conv4", (1, 28, 28), widths=[64, 64]), "needs 4 values"),
        (lambda: make_backbone("resnet12", (1, 28, 28), dropout=[0.1]), "one value or 4"),
        (
            lambda: make_backbone("resnet12", (1, 28, 28), widths=[6, 6, 6, 8], branches=4),
            r"`branches` needs to divide all `widths`, \[6, 6, 6, 8\], got 4",
        ),
        (lambda: make_backbone("resnet12", (1, 28, 28), branches="4"), "`branches` is a whole number, got '4'"),
        (lambda: make_backbone("resnet12", (1, 28, 28), four_rotations=3), "`four_rotations` is true or false, got 3"),
        (lambda: make_backbone("resnet12", (1, 28, 28), flatten="no"), "`flatten` is true or false, got 'no'"),
        (lambda: make_backbone("conv4", (1, 8, 8), average_top=True), "too small for the average pooling"),
        (lambda: make_backbone("conv4", (1, 28, 28), padded=False), "too small for 4 blocks without padding"),
    ],
)
def test_mistakes_get_a_sentence(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_branches_share_nothing_but_the_image():
    network = make_backbone("resnet12-small", (1, 28, 28), widths=[4, 4, 4, 8], branches=2).eval()
    image = torch.rand(1, 1, 28, 28)
    first, second = network.maps(image).chunk(2, dim=1)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter[: len(parameter) // 2] = 0  # the filters and statistics of the first branch
    changed_first, same_second = network.maps(image).chunk(2, dim=1)
    assert first.any()
    assert not changed_first.any()
    torch.testing.assert_close(same_second, second)
