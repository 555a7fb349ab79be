"""Training over a frozen backbone: features once, then the episodes of a run in seconds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from tapnet.backbones import PRETRAINED
from tapnet.batches import class_labels
from tapnet.calibration import calibrate
from tapnet.checkpoint import BEST, Checkpoint, Header, write_atomically
from tapnet.datasets import load_dataset
from tapnet.embedding import default_cache
from tapnet.evaluation import Evaluation, Evaluator
from tapnet.hardware import describe, resolve_device
from tapnet.methods import EmbeddingMethod
from tapnet.recipe import Recipe
from tapnet.training.folder import Point, RunFolder
from tapnet.training.loop import VALIDATION_SEED, Step, smallest_reference_distance
from tapnet.training.schedule import learning_rate


def train_frozen(
    recipe: Recipe, folder: Path, device: str = "auto", watch: Callable[[Step], None] | None = None
) -> Path:
    """Train what a method has besides its backbone; gives the checkpoint that was best on validation classes.

    The folder receives recipe.yaml, curve.jsonl and best.safetensors, which leaves out the weights of the backbone.
    """
    if (folder / BEST).exists():
        raise ValueError(f"{folder} already holds a run: give another --out.")
    run = _FrozenRun(recipe, device)
    write_atomically(folder / "recipe.yaml", yaml.safe_dump(recipe.as_dict(), sort_keys=False).encode())
    points: list[Point] = []
    steps: list[tuple[float, float]] = []  # loss and accuracy of each episode since the last point
    best: dict[str, Any] = {"accuracy": -1.0}
    kept: dict[str, Tensor] = {}
    for episode in range(recipe.training.episodes):
        steps.append(run.step(episode))
        loss = steps[-1][0]
        done = episode + 1
        point = None
        if done % recipe.validation.every == 0 or done == recipe.training.episodes:
            result = run.validate()
            point = run.point(done, np.mean(steps, axis=0), result)
            points.append(point)
            steps.clear()
            if result.accuracy > best["accuracy"]:
                found = {"accuracy": result.accuracy, "ci95": result.ci95, "episode": done}
                best, kept = found | asdict(recipe.validation), run.weights()
        if watch:
            watch(Step(done, loss, point))
    RunFolder(folder).write_curve(points)
    run.checkpoint(kept, best).write(folder / BEST)
    return folder / BEST


class _FrozenRun:
    """The features of both splits, and the parameters that learn."""

    def __init__(self, recipe: Recipe, device: str) -> None:
        if recipe.backbone.name not in PRETRAINED:
            raise ValueError(
                f"A frozen backbone needs to be pretrained: {' or '.join(PRETRAINED)}, got {recipe.backbone.name}."
            )
        self.recipe, self.device = recipe, resolve_device(device)
        train_set, validation_set = (
            load_dataset(recipe.data.name, split, recipe.data.root, **recipe.data.options)
            for split in (recipe.data.train_split, recipe.validation.split)
        )
        training, validation = recipe.training, recipe.validation
        self.sampler = train_set.episodes(training.way, training.shot, training.query, recipe.seed)
        validation_set.episodes(validation.way, validation.shot, validation.query)  # or refuse now
        with torch.random.fork_rng():
            torch.manual_seed(recipe.seed)
            method = recipe.build(train_set.image_shape).to(self.device).eval()
        if not isinstance(method, EmbeddingMethod):
            raise ValueError(f"{recipe.method.name} has no features apart from its task: it cannot be trained frozen.")
        self.method = method
        method.backbone.requires_grad_(False)
        parameters = [parameter for parameter in method.parameters() if parameter.requires_grad]
        if not parameters:
            raise ValueError(f"{recipe.method.name} has nothing to learn besides its backbone.")
        self.optimizer = torch.optim.Adam(parameters, lr=training.learning_rate)
        train_judge, self.judge = (
            Evaluator(method, images, cache=default_cache()) for images in (train_set, validation_set)
        )
        self.train_set, self.features = train_set, train_judge.features
        assert len(self.judge.features)  # now, while the cache knows the method by its first weights

    def step(self, index: int) -> tuple[float, float]:
        """Learn from one episode; gives its loss and its accuracy."""
        training, episode = self.recipe.training, self.sampler[index]
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(training, index)
        support, query = (self.features[part.reshape(-1)].clone() for part in (episode.support, episode.query))
        self.method.train()
        logits = self.method.logits(support, class_labels(training.way, training.shot, self.device), query)
        answers = class_labels(training.way, training.query, self.device)
        loss = F.cross_entropy(logits, answers)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.method.eval()
        return loss.item(), (logits.argmax(dim=-1) == answers).double().mean().item()

    def validate(self) -> Evaluation:
        asked = self.recipe.validation
        return self.judge.evaluate(asked.way, asked.shot, asked.query, asked.episodes, VALIDATION_SEED, bootstrap=False)

    def point(self, episode: int, means: NDArray[np.float64], result: Evaluation) -> Point:
        return Point(
            episode=episode,
            loss=float(means[0]),
            training_accuracy=float(means[1]),
            validation_accuracy=result.accuracy,
            validation_ci95=result.ci95,
            learning_rate=learning_rate(self.recipe.training, episode - 1),
            reference_distance=smallest_reference_distance(self.method),
        )

    def weights(self) -> dict[str, Tensor]:
        """What was learnt: everything but the backbone."""
        state = self.method.state_dict()
        return {name: tensor.cpu().clone() for name, tensor in state.items() if not name.startswith("backbone.")}

    def checkpoint(self, weights: dict[str, Tensor], best: dict[str, Any]) -> Checkpoint:
        features, labels = self.judge.features.cpu().numpy(), self.judge.images.labels
        sets = (self.train_set, self.judge.images)
        header = Header(
            recipe=self.recipe,
            image_shape=self.train_set.image_shape,
            episode=self.recipe.training.episodes,
            validation=best,
            data={images.split: images.fingerprint for images in sets},
            hardware=describe(self.device, "float32"),
            calibration=calibrate(features, labels, weights.get("references"), weights.get("reference_bias")),
        )
        return Checkpoint(header, weights)
