"""What defines conditionally shifted neurons: shifts made of feedback, kept by image, taken by key."""

import pytest
import torch
from torch.nn import functional as F

from tapnet.backbones import BACKBONES
from tapnet.methods.shifted_neurons import ShiftedNeurons, direct_feedback

LABELS = torch.tensor([0, 1, 2, 0, 1, 0])
both_networks = pytest.mark.parametrize("backbone", ["conv4", "resnet12-small"])


def make(backbone="conv4", **options):
    torch.manual_seed(0)
    return ShiftedNeurons(BACKBONES[backbone]((1, 16, 16), widths=(4, 4, 6, 8)), way=3, **options).eval()


def images(count, seed=1):
    return torch.rand(count, 1, 16, 16, generator=torch.Generator().manual_seed(seed))


@both_networks
def test_with_zero_shifts_it_is_its_plain_network(backbone):
    method = make(backbone)
    for memory in (*method.memories, method.output_memory):
        memory[-1].requires_grad_(False).weight.zero_()
        memory[-1].bias.zero_()
    expected = method.classifier(method.backbone(images(5, 2)))
    torch.testing.assert_close(method(images(6), LABELS, images(5, 2)), expected)


def test_feedback_is_the_gradient_of_the_loss_with_respect_to_the_logits():
    logits = torch.randn(6, 3, requires_grad=True)
    (expected,) = torch.autograd.grad(F.cross_entropy(logits, LABELS, reduction="sum"), logits)
    torch.testing.assert_close(direct_feedback(logits, LABELS), expected)


def test_values_are_those_of_the_memory_for_the_feedback_of_each_neuron():
    method, activations = make(), torch.relu(torch.randn(2, 4, 3, 3))
    feedback, memory = torch.randn(2, 3), method.memories[0]
    derivative = (activations > 0).float()
    by_neuron = memory(derivative[..., None] * feedback.view(2, 1, 1, 1, 3)).squeeze(-1)
    torch.testing.assert_close(method.values(memory, activations, feedback), by_neuron)


def test_a_query_like_one_image_takes_the_shifts_of_that_image_and_repetition_changes_nothing():
    """With a scale so large that attention is one-hot, neurons are σ(a) + σ(β) of that image's values."""
    method, query = make(scale=1e6), images(6)[2:3]
    values, output_values = method.memorize(images(6), LABELS, 3)
    shifts = {block: F.relu(value[2:3]) for block, value in values.items()}
    expected = method.run(query, shifts) + output_values[2]
    torch.testing.assert_close(method.adapt(images(6), LABELS, 3).logits(query), expected)
    support, queries = images(6), images(5, 2)
    twice = make()(support.repeat(2, 1, 1, 1), LABELS.repeat(2), queries)
    torch.testing.assert_close(twice, make()(support, LABELS, queries))


def test_training_reaches_both_passes_the_memories_and_the_keys():
    method = make().train()
    F.cross_entropy(method(images(6), LABELS, images(3, 2)), torch.arange(3)).backward()
    trained = {name for name, parameter in method.named_parameters() if parameter.grad.abs().max() > 0}
    for part in ("backbone.blocks.0.0", "memories.0.0", "memories.1.4", "output_memory.0", "key_network.blocks.0.0"):
        assert f"{part}.weight" in trained


@both_networks
def test_running_statistics_behind_a_shift_are_those_of_the_shifted_pass(backbone):
    method = make(backbone).train()
    head = method.adapt(images(6), LABELS, 3)
    before = {name: buffer.clone() for name, buffer in method.named_buffers()}
    head.logits(images(3, 2))
    changed = {name for name, buffer in method.named_buffers() if not torch.equal(buffer, before[name])}
    behind = {name for name in before if name.startswith(("backbone.blocks.3.", "shifted_blocks_3_"))}
    assert {name for name in before if name.startswith("shifted_")} <= behind
    assert changed == {name for name in before if not name.startswith("backbone.blocks.3.")}


def test_without_a_key_network_the_backbone_gives_the_keys():
    method = make(key_network=False)
    torch.testing.assert_close(method.keys(images(2)), F.normalize(method.backbone(images(2)), dim=-1))
    assert not any(name.startswith("key_network") for name in method.state_dict())
