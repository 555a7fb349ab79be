"""Episodes per second of the methods that cannot use cached features, beside the bare backbone on the same images."""

from __future__ import annotations

import torch
from pairs import Row, compared

from tapnet.backbones import make_backbone
from tapnet.data import load_dataset
from tapnet.data.batches import episode_images
from tapnet.data.episodes import EpisodeSpec
from tapnet.evaluation.evaluator import Evaluator
from tapnet.methods import METHODS

SPEC = EpisodeSpec(way=5, shot=1, query=15, episodes=8)
OPTIONS = {"maml": {"way": 5}, "reptile": {"way": 5}, "shifted-neurons": {"way": 5}}


def rows(pairs: int = 5) -> list[Row]:
    names = [name for name, method in METHODS.items() if method.task_features]
    return [_row(name, pairs) for name in names]


def _row(name: str, pairs: int) -> Row:
    torch.manual_seed(0)
    images = load_dataset("quickdraw", "test")
    method = METHODS[name](make_backbone("conv4", images.image_shape), **OPTIONS.get(name, {})).eval()
    method.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    sampler = images.sampler(SPEC)
    episodes = [episode_images(images, sampler[index]).images for index in range(SPEC.episodes)]

    @torch.inference_mode()
    def bare() -> None:
        for episode in episodes:
            method.backbone(episode)

    evaluator = Evaluator(method, images)
    a, b, ratio = compared(bare, lambda: evaluator.accuracies(SPEC), pairs, (SPEC.episodes, SPEC.episodes))
    note = f"{1 / b:.1f} episodes a second, {SPEC.way}-way {SPEC.shot}-shot {SPEC.query}-query"
    return Row(f"evaluation without cached features: bare Conv4 / {name}", ratio, "", a, b, note)
