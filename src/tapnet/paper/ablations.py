"""Ablations: what each part of TapNet does for its accuracy. To add one: a line in `ABLATIONS`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from tapnet.data import ImageSet
from tapnet.data.episodes import EpisodeSpec
from tapnet.errors import UserError
from tapnet.evaluation.evaluator import Accuracies, Evaluator, mean_and_ci95
from tapnet.methods import METHODS, TapNet
from tapnet.paper.variants import (
    BatchStatistics,
    RotatedViews,
    dimension_accuracies,
    random_rotation,
    random_selection_accuracies,
    with_options,
)
from tapnet.recipe import Options, Recipe, recipe_from
from tapnet.text import difference, half_width, pluralize

Recipes = dict[str, Recipe]  # by the name of the variant

WAYS = (2, 3, 5, 10, 15, 20, 30, 40, 50, 60, 80, 100)
ROTATIONS, ROTATED_EPISODES = 20, 100  # a rotation takes far longer than the rest of a curve
SHARES = (1, 1 / 4, 1 / 2, 3 / 4, 5 / 4, 3 / 2)  # of the recipe's ways; of 20 they are the paper's six
_MOST_ROWS = 30


@dataclass(frozen=True)
class AblationRow:
    """A variant: its accuracy, and its difference from the base on the same episodes, if there is a base."""

    variant: str
    accuracy: float
    ci95: float
    difference: float | None = None
    difference_ci95: float | None = None
    references_first: float | None = None  # accuracy with the directions of the references as the first columns
    lowest: float | None = None  # accuracy over rotations of the null space
    highest: float | None = None
    training_episodes: int | None = None  # if the variant was trained for the ablation


def paired(accuracies: Mapping[str, Accuracies], base: str | None = None) -> list[AblationRow]:
    """Return one row per variant, from its accuracy in each episode; the base is the first unless named."""
    base = next(iter(accuracies)) if base is None else base
    rows = []
    for variant, values in accuracies.items():
        differences = (None, None) if variant == base else mean_and_ci95(values - accuracies[base])
        rows.append(AblationRow(variant, *mean_and_ci95(values), *differences))
    return rows


def row_table(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Return recorded rows as text, below their headings.

    Of very many rows they are the 1st, 2nd, 5th, 10th and so on, the best and the last.
    """
    best = max(rows, key=lambda row: float(row["accuracy"]))
    steps = {digit * 10**power for power in range(6) for digit in (1, 2, 5)} | {len(rows)}
    few = len(rows) <= _MOST_ROWS
    columns: dict[str, Callable[[Mapping[str, Any]], str]] = {
        "variant": lambda row: row["variant"],
        "accuracy (%)": lambda row: f"{100 * row['accuracy']:.2f}",
        "over episodes": lambda row: half_width(row["ci95"]),
    }
    if any(row["difference"] is not None for row in rows):
        columns["difference"] = lambda row: difference(row["difference"])
        columns["paired interval"] = lambda row: half_width(row["difference_ci95"])
    if rows[0].get("references_first") is not None:
        columns["references first"] = lambda row: f"{100 * row['references_first']:.2f}"
    if rows[0]["lowest"] is not None:
        columns["over rotations"] = lambda row: f"{100 * row['lowest']:.2f} to {100 * row['highest']:.2f}"
    shown = [row for number, row in enumerate(rows, 1) if few or number in steps or row is best]
    return [*columns], [[cell(row) for cell in columns.values()] for row in shown]


def measure_options(variants: dict[str, Options], evaluator: Evaluator, task: EpisodeSpec) -> list[AblationRow]:
    """Return the accuracies of the network with other options of its method."""
    return paired({name: with_options(evaluator, options).accuracies(task) for name, options in variants.items()})


def measure_selection(evaluator: Evaluator, task: EpisodeSpec) -> list[AblationRow]:
    """Return the accuracies if classes take the closest, a random, the farthest or the optimal reference."""
    rules = ("closest", "farthest", "optimal")
    closest, *others = (with_options(evaluator, {"selection": rule}).accuracies(task) for rule in rules)
    random = random_selection_accuracies(evaluator, task)
    return paired({"closest": closest, "random": random, **dict(zip(rules[1:], others, strict=True))})


def measure_dimension(evaluator: Evaluator, task: EpisodeSpec) -> list[AblationRow]:
    """Return the accuracy at every dimension D, paired with the full one, by Householder reflections.

    Each row also has the accuracy with the directions of the references first, and the lowest and highest accuracy over
    random rotations of the null space: measured on the first ROTATED_EPISODES episodes and corrected by how far these
    are from all episodes without a rotation.
    """
    accuracies = dimension_accuracies(evaluator, task)
    full = accuracies.shape[1]
    generator = torch.Generator().manual_seed(task.seed)
    rotated = replace(task, episodes=min(task.episodes, ROTATED_EPISODES))
    rotations = (random_rotation(full, generator) for _ in range(ROTATIONS))
    curves = np.stack([dimension_accuracies(evaluator, rotated, rotation).mean(axis=0) for rotation in rotations])
    curves += accuracies.mean(axis=0) - accuracies[: rotated.episodes].mean(axis=0)
    first: list[Any] = [None] * full  # if the null space is smaller than the span of the references
    if full >= task.way:
        first = dimension_accuracies(evaluator, task, basis="references").mean(axis=0).tolist()
    rows = paired({f"D = {dim}": column for dim, column in enumerate(accuracies.T, 1)}, base=f"D = {full}")
    return [
        replace(row, references_first=value, lowest=float(low), highest=float(high))
        for row, value, low, high in zip(rows, first, curves.min(axis=0), curves.max(axis=0), strict=True)
    ]


def measure_ways(evaluator: Evaluator, task: EpisodeSpec) -> list[AblationRow]:
    """Return the accuracy by number of classes, up to the number of references and of classes in the data."""
    limit = len(evaluator.images.names if evaluator.images.one_rotation_per_class else evaluator.images.class_names)
    if isinstance(evaluator.method, TapNet):
        limit = min(limit, len(evaluator.method.references))
    ways = [way for way in WAYS if way <= limit]
    return [AblationRow(f"{way}-way", *mean_and_ci95(evaluator.accuracies(replace(task, way=way)))) for way in ways]


def measure_batch_statistics(evaluator: Evaluator, task: EpisodeSpec) -> list[AblationRow]:
    """Return the accuracies with batch statistics of training, or of the images of each episode."""
    together = Evaluator(BatchStatistics(evaluator.method), evaluator.images, evaluator.precision)
    return paired({"running": evaluator.accuracies(task), "batch (transductive)": together.accuracies(task)})


def measure_views(evaluator: Evaluator, task: EpisodeSpec) -> list[AblationRow]:
    """Return the accuracies with each image as it is, or in four rotations with a head for each."""
    rotated = Evaluator(RotatedViews(evaluator.method), evaluator.images, evaluator.precision, evaluator.cache)
    return paired({"as it is": evaluator.accuracies(task), "four rotations": rotated.accuracies(task)})


def recipes_of_options(variants: dict[str, Options], recipe: Recipe) -> Recipes:
    """Return the recipe with the method options of each variant."""
    return {name: _varied(recipe, name, options) for name, options in variants.items()}


def recipes_of_compositions(recipe: Recipe) -> Recipes:
    """Return recipes with more ways and fewer queries, or the reverse, at the same number of images per episode."""
    training, recipes = recipe.training, {}
    images = training.way * (training.shot + training.query)
    for way in (round(share * training.way) for share in SHARES):
        query = round(images / way) - training.shot
        if query >= 1 and way >= recipe.validation.way:
            name = f"{way}-way {query}-query"
            recipes[name] = _varied(recipe, name, {"num_references": way}, {"way": way, "query": query})
    return recipes


def _varied(recipe: Recipe, variant: str, options: Options, training: Options | None = None) -> Recipe:
    values = recipe.as_dict()
    if not issubclass(METHODS[recipe.method.name], TapNet):
        raise UserError(f"The ablations are of TapNet, the recipe {recipe.name} trains {recipe.method.name}.")
    for key, words in (("init_from", "start from random weights"), ("teachers", "learn from labels alone")):
        if networks := getattr(recipe.training, key):
            raise UserError(
                f"The variants of an ablation {words}, and {recipe.name} has training.{key}={', '.join(networks)}: set "
                f"training.{key}=[]."
            )
    if options.keys() - inspect.signature(TapNet).parameters.keys():
        values["method"]["name"] = "tapnet-variant"
    values["method"]["options"] |= options
    values["training"] |= training or {}
    return recipe_from(values | {"name": f"{recipe.name}-{folder_name(variant)}"}, f"{recipe.name}, {variant}")


def folder_name(variant: str) -> str:
    """Return the name of the folder in which a variant is trained."""
    return variant.replace(" ", "-")


def measure_runs(evaluators: Mapping[str, Evaluator], task: EpisodeSpec, training_episodes: int) -> list[AblationRow]:
    """Return the accuracies of the trained variants on the same episodes, paired with the first."""
    rows = paired({variant: evaluator.accuracies(task) for variant, evaluator in evaluators.items()})
    return [replace(row, training_episodes=training_episodes) for row in rows]


def check_measurable(recipes: Recipes, images: ImageSet, task: EpisodeSpec) -> None:
    """Raise UserError if the trained variants could not be measured on the task."""
    images.episodes(task.way, task.shot, task.query)
    for variant, recipe in recipes.items():
        if recipe.training.way < task.way:
            raise UserError(
                f"The variant {variant} has {recipe.training.way} references, too few for tasks of {task.way} classes: "
                "choose a smaller way.",
                parameter="way",
            )


@dataclass(frozen=True)
class Ablation:
    """A question, answered from a checkpoint (`measure`), by training (`recipes`), or both."""

    question: str
    measure: Callable[[Evaluator, EpisodeSpec], list[AblationRow]] | None = None
    recipes: Callable[[Recipe], Recipes] | None = None
    episodes: int = 2000  # by default
    note: str = ""
    varies_way: bool = False  # whether rows differ in way, and so in episodes


def _by_training(question: str, variants: dict[str, Options]) -> Ablation:
    return Ablation(question, recipes=partial(recipes_of_options, variants))


def _both_ways(question: str, variants: dict[str, Options]) -> Ablation:
    return Ablation(question, partial(measure_options, variants), partial(recipes_of_options, variants))


REFERENCE_SHOTS: dict[str, Options] = {
    "references (paper)": {"reference_shots": None},
    **{f"reference = {pluralize(shots, 'image')}": {"reference_shots": shots} for shots in (20, 10, 5, 2, 1)},
    "prototypes": {"reference_shots": 0},
}

ABLATIONS: dict[str, Ablation] = {
    "selection": Ablation("which references do the classes of a new task take?", measure_selection),
    "projection-references": _both_ways(
        "is the projection built from modified references (eq. 2) or from the original ones?",
        {name: {"projection_references": name} for name in ("modified", "original")},
    ),
    "classification-references": _both_ways(
        "do the original or the modified references classify?",
        {name: {"classification_references": name} for name in ("original", "modified")},
    ),
    "reference-shots": Ablation(
        "where does a class stand inside the projection: at its reference, or on the way to the mean of its images?",
        partial(measure_options, REFERENCE_SHOTS),
        note="A reference counts for so many images of its class. To choose the number, measure on validation classes.",
    ),
    "initial-norm": _by_training(
        "how long are the references before training?",
        {f"norm {norm}": {"initial_norm": float(norm)} for norm in (1, 3, 10)},
    ),
    "dimension": Ablation(
        "how many dimensions D does the projection keep?",
        measure_dimension,
        episodes=500,
        note=f"Below full D the projection is not unique: the band is over {ROTATIONS} random rotations of the null "
        f"space, on the first {ROTATED_EPISODES} episodes. To choose D, measure on validation classes.",
    ),
    "ways": Ablation(
        "how does the accuracy fall with the number of classes?",
        measure_ways,
        note="Each row has ways, and so episodes, of its own, whatever the way of the task.",
        varies_way=True,
    ),
    "episode-composition": Ablation(
        "many ways or many queries, at as many images per training episode?", recipes=recipes_of_compositions
    ),
    "gradient": _by_training(
        "do gradients pass the projection?",
        {
            name: {"differentiable": through, "projection_dim": None}  # they can at full dimension only
            for name, through in (("constant", False), ("through", True))
        },
    ),
    "distance": _by_training(
        "squared or Euclidean distance in the logits? (Of one network both predict the same.)",
        {name: {"distance": name} for name in ("squared", "euclidean")},
    ),
    "batch-statistics": Ablation(
        "batch normalization by running statistics or by those of the episode?",
        measure_batch_statistics,
        episodes=200,
        note="Transductive: the prediction for an image depends on the other images of its episode.",
    ),
    "views": Ablation(
        "is an image seen once, or in four rotations?",
        measure_views,
        note="Of use where the network was trained on rotated images, as those of Omniglot are.",
    ),
}


def find_ablation(name: str) -> Ablation:
    """Return the ablation of this name; raise UserError if there is none."""
    if name not in ABLATIONS:
        raise UserError(f"An ablation is one of {', '.join(ABLATIONS)}, got {name!r}.")
    return ABLATIONS[name]
