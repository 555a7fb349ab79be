"""What every method promises by the contract, read from what it declares."""

import math
from concurrent.futures import ThreadPoolExecutor
from inspect import signature

import pytest
import torch
from torch import nn

import tapnet
from tapnet.backbones import Conv4
from tapnet.data.batches import EpisodeImages
from tapnet.data.episodes import EpisodeSpec
from tapnet.errors import NonFiniteError
from tapnet.evaluation.evaluator import Evaluator
from tapnet.methods import METHODS
from tapnet.registry import build

WAY = 8


def needed_options(kind):
    """Options without a default: all of them are a number of classes."""
    return {each.name: WAY for each in list(signature(kind).parameters.values())[1:] if each.default is each.empty}


CASES = {name: (name, needed_options(kind)) for name, kind in METHODS.items()} | {
    "matching with full context": ("matching", {"full_context": True}),
    "tadam-alpha, squared": ("tadam-alpha", {"squared": True}),
    "maml of first order": ("maml", {"way": WAY, "first_order": True}),
    "maml with batch statistics": ("maml", {"way": WAY, "batch_statistics": True}),
    "classifier": ("classifier", {"num_classes": 20}),
    "tadam-tc with auxiliary classes": ("tadam-tc", {"num_classes": 20}),
}
SHOTS = torch.arange(WAY).repeat_interleave(torch.tensor([3, 1, 2, 1, 1, 2, 1, 1]))  # differ by class
LABELS = torch.arange(WAY).repeat(2)

every_method = pytest.mark.parametrize("case", CASES)


def fresh(case, seed=0):
    """The method as initialized, over a narrow Conv4 for 8×8 images."""
    torch.manual_seed(seed)
    name, options = CASES[case]
    return build(name, METHODS[name], Conv4((1, 8, 8), widths=(16, 16, 16, 16)), options)


def make(case, seed=0):
    """The method in eval mode, its statistics and parameters not those of birth."""
    method = fresh(case, seed)
    with torch.no_grad():
        for parameter in method.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    for _ in range(3):
        if method.trainable:
            method.train().loss(episode(seed=9))
    return method.eval()


def images(count, seed=1):
    return torch.rand(count, 1, 8, 8, generator=torch.Generator().manual_seed(seed))


def features(method, count, seed=1):
    with torch.no_grad():
        return method.embed(images(count, seed))


def episode(shot=2, query=2, seed=3):
    return EpisodeImages(images(WAY * (shot + query), seed), WAY, shot, query, torch.arange(WAY))


def detached(method, support, labels, query):
    return method.logits(support, labels, query, WAY).detach()


def assert_close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


def differ(actual, expected):
    return (actual - expected).abs().max() > 1e-4


@every_method
def test_logits_have_one_row_per_query_and_one_column_per_class(case):
    assert make(case)(images(len(SHOTS)), SHOTS, images(5, 2)).shape == (5, WAY)


@every_method
def test_features_have_the_declared_shape(case):
    method = make(case)
    assert features(method, 3).shape[1:] == method.feature_shape


@every_method
def test_threads_may_adapt_to_several_tasks_at_once(case):
    method, query = make(case), images(5, 2)
    tasks = [images(len(SHOTS), seed) for seed in range(4)]
    expected = [method(support, SHOTS, query).detach() for support in tasks]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda support: method(support, SHOTS, query).detach(), tasks * 5))
    assert all(torch.equal(logits, expected[number % 4]) for number, logits in enumerate(found))


@every_method
def test_order_of_the_queries_permutes_the_rows(case):
    method, order = make(case), torch.randperm(7)
    support, query = features(method, len(SHOTS)), features(method, 7, 2)
    assert_close(detached(method, support, SHOTS, query[order]), detached(method, support, SHOTS, query)[order])


@every_method
def test_a_query_sees_the_other_queries_only_where_declared(case):
    method = make(case)
    support, query, others = features(method, len(LABELS)), features(method, 6, 2), features(method, 6, 4)
    together = detached(method, support, LABELS, query)
    among_others = detached(method, support, LABELS, torch.cat([query[:1], others[1:]]))
    if method.transductive:
        assert differ(among_others[:1], together[:1])
    else:
        assert_close(among_others[:1], together[:1])
        assert_close(detached(method, support, LABELS, query[:1]), together[:1])


@every_method
def test_order_of_the_support_set_matters_only_where_declared(case):
    method, order = make(case), torch.arange(len(SHOTS)).flip(0)
    support, query = features(method, len(SHOTS)), features(method, 5, 2)
    reordered = detached(method, support[order], SHOTS[order], query)
    if method.support_order_matters:
        assert differ(reordered, detached(method, support, SHOTS, query))
    else:
        assert_close(reordered, detached(method, support, SHOTS, query))


def class_order_changes(method):
    """The largest change of logits, beyond a permutation, over some orders of the classes, listed class by class."""
    support, query = features(method, WAY).unsqueeze(1), features(method, 5, 2)
    expected, labels, changes = detached(method, support[:, 0], torch.arange(WAY), query), torch.arange(WAY), []
    for seed in range(20):
        order = torch.randperm(WAY, generator=torch.Generator().manual_seed(seed))
        changes.append((detached(method, support[order, 0], labels, query) - expected[:, order]).abs().max().item())
    return max(changes)


@every_method
def test_order_of_the_classes_permutes_the_columns_only_where_declared(case):
    method = make(case)
    if method.follows_class_order:
        assert class_order_changes(method) < 1e-3
    else:
        assert class_order_changes(method) > 1e-3


@every_method
def test_order_free_options_make_a_method_follow_the_order_of_the_classes(case):
    method = make(case)
    if method.order_free_options:
        assert class_order_changes(method.with_options(**method.order_free_options)) < 1e-3


@every_method
def test_a_support_image_given_to_one_class_changes_its_logits(case):
    """Shots may differ by class: one more counts for its own class."""
    method = make(case)
    support, query = features(method, WAY + 1), features(method, 5, 2)
    labels = torch.tensor([*range(WAY), 2])
    fewer = detached(method, support[:WAY], labels[:WAY], query)
    assert differ(detached(method, support, labels, query)[:, 2], fewer[:, 2])


@every_method
def test_a_batch_of_episodes_has_the_logits_of_each(case):
    method = make(case)
    if not method.batched:
        return
    support, query = features(method, 3 * len(SHOTS)), features(method, 15, 2)
    support, query = support.unflatten(0, (3, -1)), query.unflatten(0, (3, -1))
    together = detached(method, support, SHOTS.expand(3, -1), query)
    for index in range(3):
        assert_close(together[index], detached(method, support[index], SHOTS, query[index]))


@every_method
def test_adapting_in_eval_mode_leaves_every_weight_and_buffer(case):
    method = make(case)
    before = {name: tensor.clone() for name, tensor in method.state_dict().items()}
    method(images(len(SHOTS)), SHOTS, images(5, 2))
    assert all(torch.equal(tensor, before[name]) for name, tensor in method.state_dict().items())
    assert before.keys() == method.state_dict().keys()


@every_method
def test_a_head_does_not_change_with_the_next_episode(case):
    """No state of an episode is kept in the method."""
    method = make(case)
    query = features(method, 4, 2)
    head = method.adapt(features(method, len(SHOTS)), SHOTS, WAY)
    before = head.logits(query).detach()
    method.adapt(features(method, len(LABELS), 5), LABELS, WAY).logits(features(method, 3, 6))
    assert torch.equal(head.logits(query).detach(), before)


@every_method
def test_a_linear_head_has_the_softmax_of_the_logits(case):
    method = make(case)
    head, query = method.adapt(features(method, len(SHOTS)), SHOTS, WAY), features(method, 5, 2)
    if (linear := head.linear()) is not None:
        torch.testing.assert_close(
            linear.logits(query).softmax(-1), head.logits(query).softmax(-1), rtol=1e-3, atol=1e-5
        )


@every_method
def test_gradients_reach_every_parameter_of_a_trainable_method(case):
    method = make(case).train()
    if not method.trainable:
        return
    method.loss(episode()).loss.backward()
    for name, parameter in method.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all(), name
    assert sum(p.grad.abs().sum() for p in method.backbone.parameters()) > 0


@every_method
def test_training_on_one_episode_lowers_its_loss(case):
    method = fresh(case).train()
    if not method.trainable:
        return
    optimizer = torch.optim.Adam(method.parameters(), lr=3e-3)
    losses = []
    for _ in range(20):
        loss = method.loss(episode()).loss
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses[-1] < losses[0]


@every_method
def test_loss_gives_the_logits_of_the_queries(case):
    method = make(case)
    if not method.trainable:
        return
    found, given = method.train().loss(episode()), episode()
    assert found.logits.shape == (WAY * given.query, WAY)
    assert found.loss.shape == ()
    assert math.isfinite(found.loss.item())


@every_method
def test_logits_in_bf16_are_close_to_those_in_float32(case):
    """Under autocast, as in training with bf16, only the networks are computed in half precision."""
    method = make(case)
    given = images(len(SHOTS)), SHOTS, images(5, 2)
    exact = method(*given).detach().float()
    with torch.autocast("cpu", torch.bfloat16):
        rough = method(*given).detach().float()
    assert (rough - exact).abs().max() < 0.1 * (exact.amax() - exact.amin()) + 0.05


@every_method
def test_nan_is_refused_by_evaluation(case, blobs):
    method = make(case)
    with torch.no_grad():
        next(method.backbone.parameters()).fill_(math.nan)
    with pytest.raises((NonFiniteError, ValueError)):
        Evaluator(method, blobs).evaluate(EpisodeSpec(WAY, 1, 2, 2), bootstrap=False)


@every_method
def test_evaluation_gives_the_accuracy_of_the_logits(case, blobs):
    method, spec = make(case), EpisodeSpec(WAY, 2, 3, 4)
    found = Evaluator(method, blobs).accuracies(spec)
    sampler, labels = blobs.sampler(spec), torch.arange(WAY)
    for index in range(4):
        pixels = torch.from_numpy(blobs.gather(sampler[index].indices)).permute(0, 3, 1, 2) / 255
        logits = method(pixels[: 2 * WAY], labels.repeat_interleave(2), pixels[2 * WAY :])
        accuracy = (logits.argmax(-1) == labels.repeat_interleave(3)).double().mean()
        assert found[index] == pytest.approx(accuracy.item())


@every_method
def test_evaluation_reports_what_is_transductive(case, blobs):
    method = make(case)
    result = Evaluator(method, blobs).evaluate(EpisodeSpec(WAY, 1, 2, 2), bootstrap=False)
    assert result.transductive == method.transductive


@every_method
def test_a_class_without_support_images_is_refused(case):
    method = make(case)
    with pytest.raises(ValueError, match="support image"):
        method(images(4), torch.tensor([0, 1, 3, 3]), images(2, 2))


BYTES = torch.full((WAY, 1, 8, 8), 200, dtype=torch.uint8)
ONE_SHOT = torch.arange(WAY)


@every_method
@pytest.mark.parametrize(
    ("support", "labels", "query", "words"),
    [
        (images(WAY), ONE_SHOT.tolist(), images(2), "Labels need to be a tensor of int64, got list"),
        (images(WAY), ONE_SHOT.numpy(), images(2), "got ndarray"),
        (images(WAY), ONE_SHOT.float(), images(2), "got float32"),
        (BYTES, ONE_SHOT, images(2), "floats in .0, 1., got uint8"),
        (images(WAY), ONE_SHOT, BYTES, "got uint8"),
        (images(WAY), ONE_SHOT, torch.rand(2, 1, 8, 9), r"got \(1, 8, 8\) and \(1, 8, 9\)"),
        (images(WAY).numpy(), ONE_SHOT, images(2), "got ndarray"),
        (BYTES.float(), ONE_SHOT, images(2), "values in .0, 1., got up to 200: divide them by 255"),
    ],
)
def test_images_and_labels_of_the_wrong_kind_are_refused(case, support, labels, query, words):
    with pytest.raises(ValueError, match=words):
        make(case)(support, labels, query)


@every_method
def test_embed_and_logits_refuse_the_wrong_kind_too(case):
    method = make(case)
    with pytest.raises(ValueError, match="got uint8"):
        method.embed(BYTES)
    with pytest.raises(ValueError, match="got up to 200"):
        method.embed(BYTES.float())


@every_method
def test_images_normalized_by_mean_and_deviation_pass(case):
    assert make(case).embed((images(2) - 0.45) / 0.22).isfinite().all()


@every_method
def test_unknown_options_of_adaptation_are_refused(case):
    with pytest.raises(ValueError, match=r"options.*got 'color'"):
        make(case).with_options(color="red")


@every_method
def test_a_backbone_that_normalizes_finds_its_mean_in_training_or_is_refused(case):
    name, options = CASES[case]
    backbone = Conv4((1, 8, 8), widths=(16, 16, 16, 16), normalize=True)
    if name in ("classifier", "relation", "tpn", "maml", "reptile", "shifted-neurons", "tadam-tc"):
        with pytest.raises(
            ValueError, match="cannot be trained on normalized features: leave out the backbone's `normalize`"
        ):
            build(name, METHODS[name], backbone, options)
        return
    method = build(name, METHODS[name], backbone, options)
    if method.trainable:
        method.train().loss(episode())
        mean = backbone.blocks(episode().images).flatten(1).mean(dim=0)
        torch.testing.assert_close(backbone.normalization.running_mean, 0.1 * mean)


def test_support_and_query_share_batch_statistics_in_training():
    method, other = make("protonet").train(), make("protonet").train()
    method(images(WAY), ONE_SHOT, images(5, 2))
    other.embed(torch.cat([images(WAY), images(5, 2)]))
    for ours, theirs in zip(method.buffers(), other.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_every_method_is_a_module_over_its_backbone():
    for case in CASES:
        assert isinstance(make(case).backbone, nn.Module)


def test_methods_are_exported_at_the_top():
    assert tapnet.TapNet is METHODS["tapnet"]
    assert tapnet.PrototypicalNetwork is METHODS["protonet"]
