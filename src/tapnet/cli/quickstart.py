"""`tapnet quickstart`: training, evaluation and plots, on the bundled drawings."""

from __future__ import annotations

import argparse
from pathlib import Path

from tapnet.cli.evaluate import EXPLANATION, ONE_RUN, print_results
from tapnet.cli.options import add_device, command
from tapnet.cli.tables import print_prose
from tapnet.cli.train import train_with_progress

TASKS = ((5, 1), (5, 5), (20, 1), (20, 5))  # way, shot
EPISODES = 1000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "A finished run in the folder is evaluated again, an interrupted one is resumed."
    parser.add_argument("--out", type=Path, default=Path("runs/quickstart"), help="folder (default: runs/quickstart)")
    parser.add_argument("--method", default="tapnet", help="tapnet, or protonet trained by the same recipe")
    parser.add_argument("--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="change the recipe")
    add_device(parser, precision="auto")


def run(args: argparse.Namespace) -> None:
    from tapnet.checkpoint import load
    from tapnet.data.episodes import EpisodeSpec
    from tapnet.evaluation.evaluator import Evaluator
    from tapnet.hardware import resolve_device
    from tapnet.paper.learning_curve import learning_curve
    from tapnet.paper.projection import has_projection, projection_figure
    from tapnet.paths import LAST
    from tapnet.plotting import save
    from tapnet.recipe import load_recipe
    from tapnet.training.run_folder import RunFolder

    other = [] if args.method == "tapnet" else [f"method={{name: {args.method}}}", f"name=quickdraw-{args.method}"]
    recipe = load_recipe("quickdraw", [*other, *args.set])
    train_with_progress(recipe, args.out, args.device, args.precision, resume=(args.out / LAST).exists(), test=False)

    method = load(args.out, resolve_device(args.device))
    evaluator = Evaluator(method, recipe.data.images("test"))
    results = [evaluator.evaluate(EpisodeSpec(way, shot, 15, EPISODES)) for way, shot in TASKS]
    RunFolder(args.out).record_evaluation([result.as_dict() for result in results])
    print_results(results, f"{args.method} on {len(evaluator.images.names)} classes it has never seen")
    print_prose(EXPLANATION + ONE_RUN)
    plots = [save(learning_curve(args.out), args.out / "learning-curve.png")]
    if has_projection(method):
        plots.append(save(projection_figure(method, evaluator.images), args.out / "projection.png"))
    print("\nPlots:", *(f"  {path}" for path in plots), sep="\n")
    print(
        "\nNext:",
        f"  {command('evaluate', args.out)} --way 10 --shot 3",
        "  tapnet train quickdraw --set training.episodes=3000 --out runs/longer",
        "  tapnet fit my_images --out mine.task      one folder per class",
        "  tapnet recipes                            what else can be trained",
        "  make compare                              Prototypical Networks beside it",
        sep="\n",
    )
