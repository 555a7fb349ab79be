"""What defines conditionally shifted neurons: shifts made of feedback, kept by image, taken by key."""

import pytest
import torch
from torch.nn import functional as F

from tapnet.backbones import BACKBONES
from tapnet.methods.shifted_neurons import ShiftedNeurons, direct_feedback

LABELS = torch.tensor([0, 1, 2, 0, 1, 0])


def make(backbone="conv4", **options):
    torch.manual_seed(0)
    return ShiftedNeurons(BACKBONES[backbone]((1, 16, 16), widths=(4, 4, 6, 8)), way=3, **options).eval()


def images(count, seed=1):
    return torch.rand(count, 1, 16, 16, generator=torch.Generator().manual_seed(seed))


def zero(memory):
    with torch.no_grad():
        for parameter in memory[-1].parameters():
            parameter.zero_()


@pytest.mark.parametrize("backbone", ["conv4", "resnet12-small"])
def test_with_zero_shifts_it_is_its_plain_network(backbone):
    method = make(backbone)
    for memory in (*method.memories, method.output_memory):
        zero(memory)
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


def test_a_query_like_one_image_takes_the_shifts_of_that_image():
    """With a scale so large that attention is one-hot, neurons are σ(a) + σ(β) of that image's values."""
    method = make(scale=1e6)
    head = method.adapt(images(6), LABELS, 3)
    attention = head.attention(images(6)[2:3])
    torch.testing.assert_close(attention, torch.eye(6)[2:3])
    shifts = {block: F.relu(values[2:3]) for block, values in head.shifts.items()}
    expected = method.run(images(6)[2:3], shifts) + head.output_shifts[2]
    torch.testing.assert_close(head.logits(images(6)[2:3]), expected)


@pytest.mark.parametrize("change", [[5, 1, 2, 3, 4, 0], [0, 1, 2, 3, 4, 5] * 2])
def test_order_and_repetition_of_the_support_set_change_nothing(change):
    method, support, queries = make(), images(6), images(5, 2)
    changed = method(support[change], LABELS[change], queries)
    torch.testing.assert_close(changed, method(support, LABELS, queries))


def test_training_reaches_both_passes_the_memories_and_the_keys():
    method = make().train()
    F.cross_entropy(method(images(6), LABELS, images(3, 2)), torch.arange(3)).backward()
    trained = {name for name, parameter in method.named_parameters() if parameter.grad.abs().max() > 0}
    for part in ("backbone.blocks.0.0", "memories.0.0", "memories.1.4", "output_memory.0", "key_network.blocks.0.0"):
        assert f"{part}.weight" in trained


@pytest.mark.parametrize("backbone", ["conv4", "resnet12-small"])
def test_running_statistics_behind_a_shift_are_those_of_the_shifted_pass(backbone):
    method = make(backbone).train()
    head = method.adapt(images(6), LABELS, 3)
    plain = {name: buffer.clone() for name, buffer in method.backbone.named_buffers()}
    shifted = {name: buffer.clone() for name, buffer in method.named_buffers() if name.startswith("shifted_")}
    head.logits(images(3, 2))
    for name, buffer in method.backbone.named_buffers():
        assert torch.equal(buffer, plain[name]) is name.startswith("blocks.3.")
    assert shifted
    for name, buffer in shifted.items():
        assert name.startswith("shifted_blocks_3_")
        assert not torch.equal(method.get_buffer(name), buffer)


def test_without_a_key_network_the_backbone_gives_the_keys():
    method = make(key_network=False)
    torch.testing.assert_close(method.keys(images(2)), F.normalize(method.backbone(images(2)), dim=-1))
    assert not any(name.startswith("key_network") for name in method.state_dict())
