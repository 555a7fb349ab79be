"""Checks of what every method and every backbone promises, for those written outside of this package, too.

In the manner of scikit-learn's `check_estimator`::

    from tapnet.testing import check_backbone, check_method

    check_method(SimpleCNAPS, scale=2.0)  # a class (or function) that takes a backbone, and its options
    check_backbone(WideNet((3, 84, 84)))

Both raise AssertionError at the first promise that does not hold.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from tapnet.backbones import Backbone, make_backbone, options_of
from tapnet.data import ImageSet
from tapnet.data.batches import EpisodeImages, class_labels
from tapnet.data.episodes import EpisodeSpec
from tapnet.errors import UserError
from tapnet.evaluation.evaluator import Evaluator
from tapnet.hardware import to_float_tensor
from tapnet.methods import Method

WAY, SIDE = 8, 8
PAIRS = torch.arange(WAY).repeat(2)  # labels of two shots
UNEVEN = torch.arange(WAY).repeat_interleave(torch.tensor([3, 1, 2, 1, 1, 2, 1, 1]))  # shots differ by class


def check_method(kind: Callable[..., Method], expected_failures: Collection[str] = (), **options: Any) -> None:
    """Raise AssertionError unless the method, built by `kind(backbone, **options)`, keeps its promises.

    An option without a default is a number of classes, and 8 unless given. `expected_failures` are names of checks that
    have to fail, such as `check_order_of_support` for a method that reads the support set as a sequence.
    """
    method = example_method(kind, **options)
    for check in METHOD_CHECKS:
        fails = check.__name__ in expected_failures
        try:
            check(copy.deepcopy(method))
        except AssertionError:
            if not fails:
                raise
        else:
            assert not fails, f"{check.__name__} was expected to fail, and passes"


def example_method(kind: Callable[..., Method], **options: Any) -> Method:
    """Return the method in eval mode over a narrow Conv4, a few steps away from its initial weights and statistics."""
    needed = {name: WAY for name, option in options_of(kind).items() if option.default is option.empty}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        method = kind(make_backbone("conv4", (1, SIDE, SIDE), widths=(16,) * 4), **needed | options).train()
        with torch.no_grad():
            for parameter in method.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        for _ in range(3):
            method.loss(_episode(seed=9))
    return method.eval()


def check_queries(method: Method) -> None:
    """A query's logits follow the order of the queries, and depend on others only in methods declared transductive."""
    support, query, others = (_features(method, count, seed) for count, seed in ((len(PAIRS), 1), (6, 2), (6, 4)))
    together = _logits(method, support, PAIRS, query)
    assert (support.shape[1:], together.shape) == (method.feature_shape, (6, WAY))
    _close(_logits(method, support, PAIRS, query.flip(0)), together.flip(0))
    among_others = _logits(method, support, PAIRS, torch.cat([query[:1], others[1:]]))
    if method.transductive:
        assert _change(among_others[:1], together[:1]) > 1e-4
    else:
        _close(among_others[:1], together[:1])
        _close(_logits(method, support, PAIRS, query[:1]), together[:1])


def check_order_of_support(method: Method) -> None:
    """Permuting the support set changes no logit."""
    support, query = _features(method, len(UNEVEN)), _features(method, 5, 2)
    reordered = _logits(method, support.flip(0), UNEVEN.flip(0), query)
    assert _change(reordered, _logits(method, support, UNEVEN, query)) < 1e-3


def check_order_of_classes(method: Method) -> None:
    """Permuting the classes permutes the columns, if need be with `order_free_options`."""
    method = method.with_options(**method.order_free_options)
    support, query, labels = _features(method, WAY), _features(method, 5, 2), torch.arange(WAY)
    expected = _logits(method, support, labels, query)
    for seed in range(10):
        order = torch.randperm(WAY, generator=torch.Generator().manual_seed(seed))
        assert _change(_logits(method, support[order], labels, query), expected[:, order]) < 1e-3


def check_shots_may_differ(method: Method) -> None:
    """One more image of a class changes the logits of that class."""
    support, query = _features(method, WAY + 1), _features(method, 5, 2)
    fewer = _logits(method, support[:WAY], torch.arange(WAY), query)
    more = _logits(method, support, torch.tensor([*range(WAY), 2]), query)
    assert _change(more[:, 2], fewer[:, 2]) > 1e-4


def check_heads(method: Method) -> None:
    """A linear head has the softmax of the logits, and a batch of episodes the logits of each, if that is declared."""
    head, query = method.adapt(_features(method, len(UNEVEN)), UNEVEN, WAY), _features(method, 5, 2)
    if (linear := head.linear()) is not None:
        _close(linear.logits(query).softmax(-1), head.logits(query).softmax(-1))
    if not method.batched:
        return
    support, query = (_features(method, 3 * count, seed).unflatten(0, (3, -1)) for count, seed in ((12, 1), (5, 2)))
    together = _logits(method, support, UNEVEN.expand(3, -1), query)
    for index in range(3):
        _close(together[index], _logits(method, support[index], UNEVEN, query[index]))


def check_heads_are_independent(method: Method) -> None:
    """Adapting changes no parameter, no buffer and no earlier head, also if threads adapt at once."""
    query, state = _features(method, 4, 2), copy.deepcopy(method.state_dict())
    tasks = [_features(method, len(UNEVEN), seed) for seed in range(3, 6)]
    heads = [method.adapt(support, UNEVEN, WAY) for support in tasks]
    expected = [head.logits(query).detach() for head in heads]
    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(lambda support: _logits(method, support, UNEVEN, query), tasks * 3))
    assert all(torch.equal(logits, expected[number % 3]) for number, logits in enumerate(answers))
    assert all(torch.equal(head.logits(query), logits) for head, logits in zip(heads, expected, strict=True))
    _same_state(method, state)


def check_training(method: Method) -> None:
    """The gradient of the loss reaches every parameter, and training on one episode lowers it."""
    optimizer, losses = torch.optim.Adam(method.train().parameters(), lr=3e-4), []
    with torch.random.fork_rng():
        for _ in range(10):
            torch.manual_seed(0)  # the same draws in every step
            loss, logits = method.loss(_episode())
            assert (loss.shape, logits.shape, loss.requires_grad) == ((), (2 * WAY, WAY), True)
            losses.append(loss.item())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert losses[-1] < losses[0]
    trained = [(name, parameter.grad) for name, parameter in method.named_parameters() if parameter.requires_grad]
    assert all(gradient is not None and gradient.isfinite().all() for _, gradient in trained)
    assert any(gradient is not None and gradient.any() for name, gradient in trained if name.startswith("backbone."))


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
    generator = np.random.default_rng(0)
    values = generator.integers(0, 128, (10, 1, SIDE, SIDE, 1)) + generator.integers(0, 128, (10, 12, SIDE, SIDE, 1))
    rows, labels, names = np.arange(120), np.repeat(np.arange(10), 12), tuple(map(str, range(10)))
    pixels = values.astype(np.uint8).reshape(-1, SIDE, SIDE, 1)
    images = ImageSet("blobs", "test", pixels, rows, labels, names, fingerprint="blobs")
    spec = EpisodeSpec(WAY, 2, 3, 4)
    evaluator, sampler = Evaluator(method, images), images.sampler(spec)
    assert evaluator.evaluate(spec, bootstrap=False).transductive == method.transductive
    for index, accuracy in enumerate(evaluator.accuracies(spec)):
        support, query = to_float_tensor(images.gather(sampler[index].indices), torch.device("cpu")).split([16, 24])
        right = method(support, class_labels(WAY, 2), query).argmax(-1) == class_labels(WAY, 3)
        assert math.isclose(accuracy, right.double().mean().item())
    with torch.no_grad():
        next(method.backbone.parameters()).fill_(math.nan)
    with _refused("diverged"):
        Evaluator(method, images).accuracies(spec)


def check_refusals(method: Method) -> None:
    """What cannot be meant is refused in a sentence; images normalized by mean and deviation pass."""
    query, dim = _images(2), max(WAY, method.feature_shape[0])
    with _refused("support image"):
        method(_images(4), torch.tensor([0, 1, 3, 3]), query)
    with _refused("pass `labels.argmax(-1)`"):  # one-hot labels as long as the features
        method.adapt(_features(method, len(PAIRS)), F.one_hot(PAIRS, dim), WAY)
    with _refused("divide uint8 by 255"):
        method.embed((255 * query).byte())
    with _refused("options"):
        method.with_options(color="red")
    assert method.embed((query - 0.45) / 0.22).isfinite().all()


METHOD_CHECKS: tuple[Callable[[Method], None], ...] = (
    *(check_queries, check_order_of_support, check_order_of_classes, check_shots_may_differ, check_heads),
    *(check_heads_are_independent, check_training, check_precision, check_evaluation, check_refusals),
)


def check_backbone(backbone: Backbone) -> None:
    """Raise AssertionError unless the backbone keeps its promises.

    Features are vectors of length `dim`, known before the first image, which `pool` makes of maps of their declared
    shape, if there are any. In eval mode the features of an image depend on no other in its batch, and the network does
    not change. What affects them besides the weights is plain values, from which a digest is computed.
    """
    backbone = copy.deepcopy(backbone).eval()
    before, (channels, *size) = copy.deepcopy(backbone.state_dict()), backbone.image_shape
    images = torch.rand(3, *backbone.image_shape, generator=torch.Generator().manual_seed(1))
    features = backbone(images)
    assert features.shape == (3, backbone.dim)
    _close(backbone(images[:1]), features[:1])
    if hasattr(backbone, "map_shape"):
        maps = backbone.maps(images)
        assert maps.shape == (3, *backbone.map_shape)
        _close(backbone.pool(maps), features)
    with _refused("takes images of"):
        backbone(torch.rand(2, channels + 1, *size))
    assert json.loads(json.dumps(backbone.configuration())) == backbone.configuration()
    _same_state(backbone, before)


def _images(count: int, seed: int = 1) -> Tensor:
    return torch.rand(count, 1, SIDE, SIDE, generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def _features(method: Method, count: int, seed: int = 1) -> Tensor:
    return method.embed(_images(count, seed))


def _logits(method: Method, support: Tensor, labels: Tensor, query: Tensor) -> Tensor:
    return method.logits(support, labels, query, WAY).detach()


def _episode(seed: int = 3) -> EpisodeImages:
    return EpisodeImages(_images(4 * WAY, seed), WAY, 2, 2, torch.arange(WAY))


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
