"""Ablations: what each part of TapNet does for its accuracy. To add one: a line in `ABLATIONS`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tapnet.data.episodes import EpisodeSpec
from tapnet.errors import UserError
from tapnet.evaluation.evaluator import Evaluator
from tapnet.paper.ablations.measured import (
    ROTATED_EPISODES,
    ROTATIONS,
    Options,
    measure_batch_statistics,
    measure_dimension,
    measure_options,
    measure_selection,
    measure_views,
    measure_ways,
)
from tapnet.paper.ablations.rows import Row
from tapnet.paper.ablations.trained import Recipes, recipes_of_compositions, recipes_of_options
from tapnet.recipe import Recipe
from tapnet.text import pluralize


@dataclass(frozen=True)
class Ablation:
    """A question, answered from a checkpoint (`measure`), by training (`recipes`), or both."""

    question: str
    measure: Callable[[Evaluator, EpisodeSpec], list[Row]] | None = None
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
