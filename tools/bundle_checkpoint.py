"""Bundle the best checkpoint of a run: `python tools/bundle_checkpoint.py RUN NAME`.

Weights go to half precision, temperatures are fitted on validation classes with them, and the test classes are scored
once for the model card beside it.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from tapnet.checkpoint import Checkpoint, read_checkpoint
from tapnet.data import ImageSet
from tapnet.data.episodes import EpisodeSpec
from tapnet.evaluation.calibration import calibrate
from tapnet.evaluation.embedding import embed
from tapnet.evaluation.evaluator import Evaluation, Evaluator
from tapnet.paths import BEST, BUNDLED
from tapnet.text import class_half_width, half_width

TASKS, EPISODES = ((5, 1), (5, 5), (20, 1), (20, 5)), 1000
CARD = """# {name}

{kind} with {count} references, trained by the recipe `{recipe}` (seed {seed}): {episodes}
episodes of {way}-way {shot}-shot on the training classes of `{data}`; the checkpoint after episode {best} was best on
the validation classes ({validation}). Weights in half precision, {size:,} bytes.{origin}

Made with: `tapnet train {recipe}` and `python tools/bundle_checkpoint.py runs/{recipe} {name}`.

Accuracy on the test classes, which chose no checkpoint, with the half-precision weights ({shown} episodes each):

| task | accuracy | over episodes | over classes |
|---|---|---|---|
{rows}

For: {use}.

Not for other kinds of images, whose features are poor. Its probabilities are calibrated
on the validation classes of `{data}` only.

Licence: MIT, as the code. {source}.
"""
USES = {
    "drawings": "simple line drawings, dark on light or light on dark, at 28×28",
    "characters": "handwritten characters and signs, dark on light or light on dark, at 28×28",
}
SOURCES = {
    "drawings": "The drawings are from *Quick, Draw!* by Google, CC BY 4.0",
    "characters": "Omniglot, by Brenden Lake, is under the MIT licence",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("name", choices=USES)
    parser.add_argument("--root", help="folder of the prepared datasets")
    args = parser.parse_args()
    checkpoint = read_checkpoint(args.run / BEST)
    halves = {key: value.half() if value.is_floating_point() else value for key, value in checkpoint.weights.items()}
    small = replace(checkpoint, weights=halves, header=replace(checkpoint.header, hardware={}))
    recipe = small.header.recipe
    small = replace(small, header=replace(small.header, calibration=temperatures(small, args.root)))
    path = BUNDLED / f"{args.name}.safetensors"
    small.write(path)
    results = scores(path, recipe.data.images("test", args.root))
    path.with_suffix(".md").write_text(card(args.name, small, results, path.stat().st_size), encoding="utf-8")
    print(path.with_suffix(".md").read_text(encoding="utf-8"))


def temperatures(checkpoint: Checkpoint, root: str | None) -> dict[str, Any]:
    method, recipe = checkpoint.method(), checkpoint.header.recipe
    images = recipe.data.images(recipe.validation.split, root)
    return calibrate(method, (embed(method.backbone, images), images.labels))


def scores(path: Path, images: ImageSet) -> list[Evaluation]:
    evaluator = Evaluator(read_checkpoint(path).method(), images)
    return [evaluator.evaluate(EpisodeSpec(way, shot, 15, EPISODES)) for way, shot in TASKS]


def card(name: str, checkpoint: Checkpoint, results: list[Evaluation], size: int) -> str:
    recipe, best = checkpoint.header.recipe, checkpoint.header.validation or {}
    rows = "\n".join(map(_row, results))
    origin = checkpoint.header.lineage.describe()
    return CARD.format(
        name=name,
        kind=f"TapNet over {recipe.backbone.name}",
        count=len(checkpoint.weights["references"]),
        recipe=recipe.name,
        seed=recipe.seed,
        origin=f"\nThe run was {'; '.join(origin)}." if origin else "",
        episodes=recipe.training.episodes,
        way=recipe.training.way,
        shot=recipe.training.shot,
        data=recipe.data.name,
        best=best["episode"],
        validation=f"{best['way']}-way {best['shot']}-shot: {100 * best['accuracy']:.2f}%",
        size=size,
        shown=EPISODES,
        rows=rows,
        use=USES[name],
        source=SOURCES[name],
    )


def _row(result: Evaluation) -> str:
    values = half_width(result.ci95), class_half_width(result.ci95_bootstrap, result.ci95_bootstrap_at_most)
    return f"| {result.way}-way {result.shot}-shot | {100 * result.accuracy:.2f}% | {' | '.join(values)} |"


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
