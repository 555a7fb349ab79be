"""Checks of what every method and every backbone promises, for those written outside of this package, too.

In the manner of scikit-learn's `check_estimator`::

    from tapnet.testing import check_backbone, check_method

    check_method(SimpleCNAPS, scale=2.0)  # a class (or function) that takes a backbone, and its options
    check_backbone(WideNet((3, 84, 84)))

Both raise AssertionError at the first promise that does not hold. `METHOD_CHECKS` and `BACKBONE_CHECKS` are the single
checks, for one test each.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tapnet.backbones import Backbone, make_backbone
from tapnet.data import ImageSet
from tapnet.data.batches import EpisodeImages, class_labels
from tapnet.data.episodes import EpisodeSpec
from tapnet.errors import UserError
from tapnet.evaluation.evaluator import Evaluator
from tapnet.hardware import to_float_tensor
from tapnet.methods import Method
from tapnet.registry import options_of

WAY, SIDE, DIM = 8, 8, 16
LABELS = torch.arange(WAY).repeat(2)
UNEVEN = torch.arange(WAY).repeat_interleave(torch.tensor([3, 1, 2, 1, 1, 2, 1, 1]))  # shots differ by class


def check_method(kind: Callable[..., Method], **options: Any) -> None:
    """Raise AssertionError unless the method, built by `kind(backbone, **options)`, keeps its promises.

    An option without a default is a number of classes, and 8 unless given.
    """
    methods = {trained: example_method(kind, trained, **options) for trained in (True, False)}
    for check in METHOD_CHECKS:
        check(copy.deepcopy(methods[check is not check_training_lowers_the_loss]))


def example_method(kind: Callable[..., Method], trained: bool = True, **options: Any) -> Method:
    """Return the method in eval mode over a narrow Conv4, by default with parameters and statistics not of birth."""
    needed = {name: WAY for name, option in options_of(kind).items() if option.default is option.empty}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        method = kind(make_backbone("conv4", (1, SIDE, SIDE), widths=(DIM,) * 4), **needed | options)
        with torch.no_grad():
            for parameter in method.parameters() if trained else ():
                parameter.add_(0.1 * torch.randn_like(parameter))
        for _ in range(3 if trained and method.trainable else 0):
            method.train().loss(_episode(seed=9))
    return method.eval()


def check_backbone(backbone: Backbone) -> None:
    """Raise AssertionError unless the backbone keeps its promises."""
    for check in BACKBONE_CHECKS:
        check(copy.deepcopy(backbone).eval())


def check_shapes(method: Method) -> None:
    """Features have the declared shape; logits have one row per query and one column per class."""
    assert _features(method, 3).shape[1:] == method.feature_shape
    assert method(_images(len(UNEVEN)), UNEVEN, _images(5, 2)).shape == (5, WAY)


def check_order_of_queries(method: Method) -> None:
    """Permuting the queries permutes the rows."""
    support, query, order = _features(method, len(UNEVEN)), _features(method, 7, 2), torch.arange(7).flip(0)
    _close(_logits(method, support, UNEVEN, query[order]), _logits(method, support, UNEVEN, query)[order])


def check_queries_apart(method: Method) -> None:
    """A query's logits depend on the other queries if the method declares itself transductive, and only then."""
    support, query, others = (_features(method, count, seed) for count, seed in ((len(LABELS), 1), (6, 2), (6, 4)))
    together = _logits(method, support, LABELS, query)
    among_others = _logits(method, support, LABELS, torch.cat([query[:1], others[1:]]))
    if method.transductive:
        assert _change(among_others[:1], together[:1]) > 1e-4
    else:
        _close(among_others[:1], together[:1])
        _close(_logits(method, support, LABELS, query[:1]), together[:1])


def check_order_of_support(method: Method) -> None:
    """Permuting the support set changes the logits only where that is declared."""
    support, query, order = _features(method, len(UNEVEN)), _features(method, 5, 2), torch.arange(len(UNEVEN)).flip(0)
    reordered = _logits(method, support[order], UNEVEN[order], query)
    change = _change(reordered, _logits(method, support, UNEVEN, query))
    assert change > 1e-4 if method.support_order_matters else change < 1e-3


def check_order_of_classes(method: Method) -> None:
    """Permuting the classes permutes the columns, at least with `order_free_options`, unless declared otherwise."""
    assert (_class_order_changes(method) < 1e-3) == method.follows_class_order
    if method.order_free_options:
        assert _class_order_changes(method.with_options(**method.order_free_options)) < 1e-3


def check_shots_may_differ(method: Method) -> None:
    """One more image of a class changes the logits of that class."""
    support, query = _features(method, WAY + 1), _features(method, 5, 2)
    fewer = _logits(method, support[:WAY], torch.arange(WAY), query)
    more = _logits(method, support, torch.tensor([*range(WAY), 2]), query)
    assert _change(more[:, 2], fewer[:, 2]) > 1e-4


def check_batches(method: Method) -> None:
    """A batch of episodes has the logits of each, unless declared otherwise."""
    if not method.batched:
        return
    support, query = (_features(method, 3 * count, seed).unflatten(0, (3, -1)) for count, seed in ((12, 1), (5, 2)))
    together = _logits(method, support, UNEVEN.expand(3, -1), query)
    for index in range(3):
        _close(together[index], _logits(method, support[index], UNEVEN, query[index]))


def check_eval_mode_keeps_weights(method: Method) -> None:
    """Adapting in eval mode changes no parameter and no buffer."""
    before = copy.deepcopy(method.state_dict())
    method(_images(len(UNEVEN)), UNEVEN, _images(5, 2))
    _same_state(method, before)


def check_heads_are_independent(method: Method) -> None:
    """A head does not change with the next episode, also if threads adapt to several at once."""
    query = _features(method, 4, 2)
    head = method.adapt(_features(method, len(UNEVEN)), UNEVEN, WAY)
    before = head.logits(query).detach()
    method.adapt(_features(method, len(LABELS), 5), LABELS, WAY).logits(_features(method, 3, 6))
    assert torch.equal(head.logits(query).detach(), before)
    tasks = [_features(method, len(UNEVEN), seed) for seed in range(4)]
    expected = [_logits(method, support, UNEVEN, query) for support in tasks]
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda support: _logits(method, support, UNEVEN, query), tasks * 5))
    assert all(torch.equal(logits, expected[number % 4]) for number, logits in enumerate(answers))


def check_linear_head(method: Method) -> None:
    """A linear head has the softmax of the logits."""
    head, query = method.adapt(_features(method, len(UNEVEN)), UNEVEN, WAY), _features(method, 5, 2)
    if (linear := head.linear()) is not None:
        _close(linear.logits(query).softmax(-1), head.logits(query).softmax(-1))


def check_gradients(method: Method) -> None:
    """The loss is a number with the logits of the queries, and its gradient reaches every parameter."""
    if not method.trainable:
        return
    loss, logits = method.train().loss(_episode())
    assert logits.shape == (2 * WAY, WAY)
    assert loss.shape == ()
    loss.backward()
    for name, parameter in method.named_parameters():
        gradient = parameter.grad
        assert not parameter.requires_grad or (gradient is not None and gradient.isfinite().all()), name
    assert any(parameter.grad is not None and parameter.grad.any() for parameter in method.backbone.parameters())


def check_training_lowers_the_loss(method: Method) -> None:
    """Training on one episode lowers its loss."""
    if not method.trainable:
        return
    optimizer, losses = torch.optim.Adam(method.train().parameters(), lr=3e-3), []
    with torch.random.fork_rng():
        for _ in range(20):
            torch.manual_seed(0)  # the same draws in every step
            loss = method.loss(_episode()).loss
            losses.append(loss.item())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert losses[-1] < losses[0]


def check_precision(method: Method) -> None:
    """Logits under bf16 autocast are close to those in float32, and those in float64 have its digits."""
    episode = _images(len(UNEVEN)), UNEVEN, _images(5, 2)
    exact = method(*episode).detach().float()
    with torch.autocast("cpu", torch.bfloat16):
        rough = method(*episode).detach().float()
    assert _change(rough, exact) < 0.1 * float(exact.amax() - exact.amin()) + 0.05
    with _refused("convert one of them by .float()"):
        method(episode[0].double(), UNEVEN, episode[2].double())
    double = method.double()(episode[0].double(), UNEVEN, episode[2].double()).detach()
    assert double.dtype == torch.float64
    assert (double != double.float()).any(), "computed in float32"
    assert _change(double, exact) < 1e-3 * (1 + float(exact.abs().amax()))


def check_evaluation(method: Method) -> None:
    """Evaluation gives the accuracy of the logits, says what is transductive, and refuses what has diverged."""
    blobs, spec = _blobs(), EpisodeSpec(WAY, 2, 3, 4)
    evaluator, sampler = Evaluator(method, blobs), blobs.sampler(spec)
    accuracies = evaluator.accuracies(spec)
    assert evaluator.evaluate(spec, bootstrap=False).transductive == method.transductive
    for index, accuracy in enumerate(accuracies):
        support, query = to_float_tensor(blobs.gather(sampler[index].indices), torch.device("cpu")).split([16, 24])
        right = method(support, class_labels(WAY, 2), query).argmax(-1) == class_labels(WAY, 3)
        assert math.isclose(accuracy, right.double().mean().item())
    with torch.no_grad():
        next(method.backbone.parameters()).fill_(math.nan)
    with _refused("diverged"):
        Evaluator(method, blobs).accuracies(spec)


def check_refusals(method: Method) -> None:
    """What cannot be meant is refused in a sentence; images normalized by mean and deviation pass."""
    query, dim = _images(2), max(WAY, method.feature_shape[0])
    with _refused("support image"):
        method(_images(4), torch.tensor([0, 1, 3, 3]), query)
    with _refused("pass `labels.argmax(-1)`"):  # one-hot labels as long as the features
        method.adapt(_features(method, len(LABELS)), torch.nn.functional.one_hot(LABELS, dim), WAY)
    with _refused("divide uint8 by 255"):
        method.embed((255 * query).byte())
    with _refused("options"):
        method.with_options(color="red")
    assert method.embed((query - 0.45) / 0.22).isfinite().all()


METHOD_CHECKS: tuple[Callable[[Method], None], ...] = (
    check_shapes,
    check_order_of_queries,
    check_queries_apart,
    check_order_of_support,
    check_order_of_classes,
    check_shots_may_differ,
    check_batches,
    check_eval_mode_keeps_weights,
    check_heads_are_independent,
    check_linear_head,
    check_gradients,
    check_training_lowers_the_loss,
    check_precision,
    check_evaluation,
    check_refusals,
)


def check_feature_shape(backbone: Backbone) -> None:
    """Features are vectors of length `dim`, known before the first image."""
    assert backbone(_of(backbone, 2)).shape == (2, backbone.dim)
    with _refused("takes images of"):
        backbone(torch.rand(2, backbone.image_shape[0] + 1, *backbone.image_shape[1:]))


def check_maps(backbone: Backbone) -> None:
    """Where the backbone has maps, they have their declared shape, and `pool` makes its features of them."""
    if not hasattr(backbone, "map_shape"):
        return
    images = _of(backbone, 2)
    maps = backbone.maps(images)
    assert maps.shape == (2, *backbone.map_shape)
    _close(backbone.pool(maps), backbone(images))


def check_images_apart(backbone: Backbone) -> None:
    """In eval mode the features of an image do not depend on the others in its batch, nor change the network."""
    images, before = _of(backbone, 3), copy.deepcopy(backbone.state_dict())
    _close(backbone(images)[:1], backbone(images[:1]))
    _same_state(backbone, before)


def check_configuration(backbone: Backbone) -> None:
    """What affects the features besides the weights is plain values, from which a digest is computed."""
    assert json.loads(json.dumps(backbone.configuration())) == backbone.configuration()


BACKBONE_CHECKS: tuple[Callable[[Backbone], None], ...] = (
    check_feature_shape,
    check_maps,
    check_images_apart,
    check_configuration,
)


def _images(count: int, seed: int = 1) -> Tensor:
    return torch.rand(count, 1, SIDE, SIDE, generator=torch.Generator().manual_seed(seed))


def _of(backbone: Backbone, count: int) -> Tensor:
    return torch.rand(count, *backbone.image_shape, generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def _features(method: Method, count: int, seed: int = 1) -> Tensor:
    return method.embed(_images(count, seed))


def _logits(method: Method, support: Tensor, labels: Tensor, query: Tensor) -> Tensor:
    return method.logits(support, labels, query, WAY).detach()


def _episode(shot: int = 2, query: int = 2, seed: int = 3) -> EpisodeImages:
    return EpisodeImages(_images(WAY * (shot + query), seed), WAY, shot, query, torch.arange(WAY))


def _blobs() -> ImageSet:
    """Ten classes of 12 images, each class scattered around an image of its own."""
    generator = np.random.default_rng(0)
    values = generator.integers(0, 256, (10, 1, SIDE, SIDE, 1)) + generator.integers(-60, 61, (10, 12, SIDE, SIDE, 1))
    pixels = values.clip(0, 255).astype(np.uint8).reshape(-1, SIDE, SIDE, 1)
    names = tuple(f"class {label}" for label in range(10))
    return ImageSet("blobs", "test", pixels, np.arange(120), np.repeat(np.arange(10), 12), names, fingerprint="blobs")


def _class_order_changes(method: Method) -> float:
    """Return the largest change of logits, beyond a permutation, over some orders of the classes."""
    support, query, labels = _features(method, WAY), _features(method, 5, 2), torch.arange(WAY)
    expected, changes = _logits(method, support, labels, query), []
    for seed in range(20):
        order = torch.randperm(WAY, generator=torch.Generator().manual_seed(seed))
        changes.append(_change(_logits(method, support[order], labels, query), expected[:, order]))
    return max(changes)


def _change(actual: Tensor, expected: Tensor) -> float:
    return float((actual - expected).abs().max())


def _close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-4)


def _same_state(module: torch.nn.Module, before: dict[str, Tensor]) -> None:
    after = module.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(tensor, before[name]) for name, tensor in after.items())


@contextmanager
def _refused(words: str) -> Iterator[None]:
    said = "nothing"
    try:
        yield
    except UserError as error:
        said = str(error)
    assert words in said, f"expected a UserError with {words!r}, got {said}"
