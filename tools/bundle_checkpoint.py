"""Bundle the best checkpoint of a run: `python tools/bundle_checkpoint.py RUN NAME`.

Weights go to half precision, temperatures are fitted on validation classes where the run has none, and the test
classes are scored once for the model card beside it.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import torch

from tapnet.calibration import calibrate
from tapnet.checkpoint import BEST, BUNDLED, Checkpoint, read_checkpoint
from tapnet.embedding import embed
from tapnet.evaluation import Evaluation, Evaluator

TASKS = ((5, 1), (5, 5), (20, 1), (20, 5))
CARD = """# {name}

{kind} with {count} references, trained by the recipe `{recipe}` (seed {seed}): {episodes} episodes of {way}-way
{shot}-shot on the training classes of `{data}`; the checkpoint after episode {best} was best on the validation classes
({validation}). Weights in half precision, {size:,} bytes.

Made with: `tapnet train {recipe}` and `python tools/bundle_checkpoint.py runs/{recipe} {name}`.

Accuracy on the test classes, which chose nothing, with the half-precision weights ({shown} episodes each):

| task | accuracy | over episodes | over classes |
|---|---|---|---|
{rows}

For: {use}.

Not for other kinds of pictures, whose features are poor. Its probabilities are calibrated
on the validation classes of `{data}` only.
"""
USES = {
    "drawings": "simple line drawings, dark on light or light on dark, at 28×28",
    "characters": "handwritten characters and signs, dark on light or light on dark, at 28×28",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("name", choices=USES)
    parser.add_argument("--root", help="folder of the prepared datasets")
    args = parser.parse_args()
    checkpoint = read_checkpoint(args.run / BEST)
    halves = {key: value.half() if value.is_floating_point() else value for key, value in checkpoint.weights.items()}
    small = replace(checkpoint, weights=halves)
    method = small.method()
    header = checkpoint.header
    images = header.recipe.data.images(header.recipe.validation.split, args.root)
    features = embed(method, images).numpy()
    tables = calibrate(features, images.labels, method.references, projection_dim=method.projection_dim)
    small = replace(small, header=replace(header, calibration=tables, hardware={}))
    path = BUNDLED / f"{args.name}.safetensors"
    small.write(path)
    judge = Evaluator(read_checkpoint(path).method(), header.recipe.data.images("test", args.root))
    results = [judge.evaluate(way, shot, 15, 1000) for way, shot in TASKS]
    path.with_suffix(".md").write_text(card(args.name, small, results, path.stat().st_size), encoding="utf-8")
    print(path.with_suffix(".md").read_text(encoding="utf-8"))


def card(name: str, checkpoint: Checkpoint, results: list[Evaluation], size: int) -> str:
    recipe, best = checkpoint.header.recipe, checkpoint.header.validation or {}
    rows = "\n".join(map(_row, results))
    return CARD.format(
        name=name,
        kind=f"TapNet over {recipe.backbone.name}",
        count=len(checkpoint.weights["references"]),
        recipe=recipe.name,
        seed=recipe.seed,
        episodes=recipe.training.episodes,
        way=recipe.training.way,
        shot=recipe.training.shot,
        data=recipe.data.name,
        best=best["episode"],
        validation=f"{best['way']}-way {best['shot']}-shot: {100 * best['accuracy']:.2f}%",
        size=size,
        shown=results[0].episodes,
        rows=rows,
        use=USES[name],
    )


def _row(result: Evaluation) -> str:
    values = (f"± {100 * (value or 0):.2f}" for value in (result.ci95, result.ci95_bootstrap))
    return f"| {result.way}-way {result.shot}-shot | {100 * result.accuracy:.2f}% | {' | '.join(values)} |"


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
