"""The paper's protocol from cached features, embedding a split, and methods that cannot use cached features.

The first is 5-way 5-shot 15-query, 512 dimensions, 12,000 images. Ours draws the episodes, too; the loops get theirs
for nothing.
"""

from __future__ import annotations

import resource
from collections.abc import Callable
from typing import cast

import numpy as np
import torch
from pairs import Row, compared
from torch import Tensor

from tapnet.backbones import Backbone, make_backbone
from tapnet.data import ImageSet, load_dataset
from tapnet.data.batches import class_labels, episode_images
from tapnet.data.episodes import EpisodeSampler, EpisodeSpec
from tapnet.evaluation.embedding import embed, fused
from tapnet.evaluation.evaluator import Evaluator
from tapnet.functional import class_prototypes, projection_errors, select_references
from tapnet.hardware import to_float_tensor
from tapnet.methods import METHODS, TapNet
from tapnet.paper.variants import dimension_accuracies

CLASSES, EACH, DIM, WAY, SHOT, QUERY = 20, 600, 512, 5, 5, 15
ONE_SHOT = EpisodeSpec(WAY, 1, QUERY, episodes=8)  # of methods without cached features
LABELS = np.repeat(np.arange(CLASSES), EACH)


class Nothing(Backbone):
    """Stands where the backbone would; its features are made up."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim, self.image_shape = dim, (1, 1, 1)


def evaluator(dim: int = DIM, ways: int = 20, projection_dim: int | None = None) -> Evaluator:
    """An evaluator over made-up features: every class scattered around a centre of its own."""
    torch.manual_seed(0)
    method = TapNet(Nothing(dim), num_references=ways, projection_dim=projection_dim).eval().requires_grad_(False)
    rows = np.arange(len(LABELS))
    names = tuple(map(str, range(CLASSES)))
    images = ImageSet("made-up", "test", np.zeros((len(rows), 1, 1, 1), np.uint8), rows, LABELS, names, "0" * 64)
    evaluated = Evaluator(method, images)
    centres = torch.randn(CLASSES, dim).repeat_interleave(EACH, dim=0)
    evaluated._features = centres + 3 * torch.randn(len(rows), dim)
    return evaluated


def episode_loop(
    evaluated: Evaluator, episodes: int, answer: Callable[[TapNet, Tensor, Tensor], Tensor]
) -> Callable[[], float]:
    """One episode after the other over the cached features; gives the mean accuracy."""
    batch = EpisodeSampler(LABELS, EpisodeSpec(WAY, SHOT, QUERY)).batch(0, episodes)
    method, answers = cast(TapNet, evaluated.method), class_labels(WAY, QUERY)

    def loop() -> float:
        hits = 0.0
        for index in range(episodes):
            support, query = (
                evaluated.features[torch.from_numpy(part[index].reshape(-1))] for part in (batch.support, batch.query)
            )
            scores = answer(method, support, query)
            hits += (scores.argmax(dim=-1) == answers).double().mean().item()
        return hits / episodes

    return loop


def by_full_svd(method: TapNet, support: Tensor, query: Tensor) -> Tensor:
    """As the authors' code: the null space from a full SVD, then squared distances through it."""
    prototypes = class_prototypes(support, class_labels(WAY, SHOT), WAY)
    references = method.references[select_references(prototypes, method.references)]
    basis = torch.linalg.svd(projection_errors(references, prototypes), full_matrices=True).Vh[WAY:].mT
    return -torch.cdist(query @ basis, references @ basis).square()


def by_logits(method: TapNet, support: Tensor, query: Tensor) -> Tensor:
    return method.logits(support, class_labels(WAY, SHOT), query, WAY)


@torch.inference_mode()
def rows(pairs: int = 7, episodes: int = 2000) -> list[Row]:
    evaluated, some = evaluator(), 60
    ours = evaluated.accuracies(EpisodeSpec(WAY, SHOT, QUERY, some)).mean()
    assert abs(ours - episode_loop(evaluated, some, by_full_svd)()) < 1e-3, "the two do not measure the same"
    result = []
    for name, target, answer in (
        ("evaluation: loop with a full SVD / ours", "at least 9, aim 18", by_full_svd),
        ("evaluation: plain loop over features / ours", "", by_logits),
    ):
        slow, fast, ratio = compared(
            episode_loop(evaluated, some, answer),
            lambda: evaluated.accuracies(EpisodeSpec(WAY, SHOT, QUERY, episodes)),
            pairs,
            (some, episodes),
        )
        result.append(
            Row(name, ratio, target, slow, fast, f"{1 / fast:,.0f} episodes a second against {1 / slow:,.0f}")
        )
    single = evaluator(projection_dim=200)
    curve, one, ratio = compared(
        lambda: dimension_accuracies(evaluated, EpisodeSpec(WAY, SHOT, QUERY, episodes)),
        lambda: single.accuracies(EpisodeSpec(WAY, SHOT, QUERY, episodes)),
        pairs,
        (episodes, episodes),
    )
    result.append(Row("evaluation: all 507 D / one D, from cached features", ratio, "below 4, aim 2.5", curve, one))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    result.append(Row("evaluation: peak memory of the process, GB", peak, "below 1"))
    return result


@torch.inference_mode()
def embedding_rows(pairs: int = 5) -> list[Row]:
    """Embedding a split, gathering and conversion included, beside a bare loop over tensors that are there already."""
    images = load_dataset("quickdraw", "test")
    plain = make_backbone("conv4", images.image_shape).eval()
    plain.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # as the folded one
    folded = fused(plain)
    resident = to_float_tensor(images.gather(np.arange(len(images))), torch.device("cpu")).split(256)
    bare, whole, ratio = compared(
        lambda: [folded(part) for part in resident],
        lambda: embed(plain, images),
        pairs,
        (len(images), len(images)),
    )
    apart, together, gain = compared(
        lambda: [plain(part) for part in resident], lambda: [folded(part) for part in resident], pairs
    )
    return [
        Row("embedding: bare loop / a split of drawings, Conv4", ratio, "at least 0.9", bare, whole),
        Row("embedding: batch norm apart / folded in, Conv4", gain, "kept if above 1", apart, together),
    ]


def method_rows(pairs: int = 5) -> list[Row]:
    """Methods that cannot use cached features, beside the bare backbone on the same images."""
    return [_method_row(name, pairs) for name, method in METHODS.items() if method.task_features]


def _method_row(name: str, pairs: int) -> Row:
    torch.manual_seed(0)
    images = load_dataset("quickdraw", "test")
    options = {option: WAY for option in [METHODS[name].way_option] if option}
    method = METHODS[name](make_backbone("conv4", images.image_shape), **options).eval()
    method.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    sampler = images.sampler(ONE_SHOT)
    episodes = [episode_images(images, sampler[index]).images for index in range(ONE_SHOT.episodes)]

    @torch.inference_mode()
    def bare() -> None:
        for episode in episodes:
            method.backbone(episode)

    evaluator = Evaluator(method, images)
    a, b, ratio = compared(bare, lambda: evaluator.accuracies(ONE_SHOT), pairs, (ONE_SHOT.episodes, ONE_SHOT.episodes))
    note = f"{1 / b:.1f} episodes a second, {ONE_SHOT.way}-way {ONE_SHOT.shot}-shot {ONE_SHOT.query}-query"
    return Row(f"evaluation without cached features: bare Conv4 / {name}", ratio, "", a, b, note)
