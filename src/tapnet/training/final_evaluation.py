"""The final evaluation of a run: its best checkpoint on test classes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from tapnet import hardware
from tapnet.checkpoint import read_checkpoint
from tapnet.data.episodes import NotEnoughDataError
from tapnet.data.packed import UnknownSplitError
from tapnet.evaluation.candidates import ClassOverlap, class_overlap
from tapnet.evaluation.evaluator import Evaluation, Evaluator
from tapnet.recipe import Recipe
from tapnet.training.run_folder import RunFolder

FINAL_EPISODES = 2000


def final_evaluation(recipe: Recipe, folder: Path, device: str | torch.device = "cpu") -> Evaluation | str:
    """Return the accuracy on test classes and write it to evaluation.json, or return the reason why there is none.

    There is none if the dataset has no test classes, or too few images for episodes like those of validation, or if
    training or validation has used the test classes.
    """
    task = recipe.validation
    try:
        images = recipe.data.images("test")
        images.sampler(task.episode_spec(0))
    except (UnknownSplitError, NotEnoughDataError) as reason:
        return f"Not evaluated on test classes: {reason}"
    checkpoint = read_checkpoint(folder)
    method = checkpoint.method().to(device)
    overlap = class_overlap(recipe, method, images, lineage=checkpoint.header.lineage)
    if overlap.trained_on or overlap.validated_on:
        return _no_test_result(recipe, overlap, has_ancestors=bool(checkpoint.header.lineage.ancestors))
    cached = not method.task_features  # otherwise every episode runs the whole network, so there are fewer
    spec = replace(task.episode_spec(0), episodes=max(task.episodes, FINAL_EPISODES) if cached else task.episodes)
    result = Evaluator(method, images).evaluate(spec, bootstrap=cached)
    if hardware.rank() == 0:
        RunFolder(folder).record_evaluation([result.as_dict() | overlap.as_dict()])
    return result


def _no_test_result(recipe: Recipe, overlap: ClassOverlap, has_ancestors: bool) -> str:
    used = []
    if overlap.trained_on:
        used.append(f"training (data.train_split={recipe.data.train_split})")
    if overlap.validated_on:
        used.append(f"validation (validation.split={recipe.validation.split})")
    by = " and ".join(used) + (", here or of a network that it learned from" if has_ancestors else "")
    return f"WARNING: no test result. Test classes were used by {by}, so their accuracy is not one on unseen classes."
