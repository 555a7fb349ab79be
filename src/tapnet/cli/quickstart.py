"""`tapnet quickstart`: the whole way once, on the bundled drawings."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from tapnet.cli.evaluate import EXPLANATION, results_table
from tapnet.cli.options import add_device
from tapnet.cli.train import train_with_progress

TASKS = ((5, 1), (5, 5), (20, 1), (20, 5))  # way, shot
EPISODES = 1000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "A finished run in the folder is evaluated again, an interrupted one goes on."
    parser.add_argument("--out", type=Path, default=Path("runs/quickstart"), help="folder (default: runs/quickstart)")
    parser.add_argument("--method", default="tapnet", help="tapnet, or protonet trained by the same recipe")
    parser.add_argument("--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="change the recipe")
    add_device(parser, precision="auto")


def run(args: argparse.Namespace) -> None:
    from tapnet.checkpoint import LAST, load
    from tapnet.data.episodes import EpisodeSpec
    from tapnet.evaluation.evaluator import Evaluator
    from tapnet.hardware import resolve_device
    from tapnet.methods import TapNet
    from tapnet.paper.learning_curve import learning_curve
    from tapnet.paper.projection import projection_figure
    from tapnet.plotting import save
    from tapnet.recipe import load_recipe
    from tapnet.training.run_folder import RunFolder

    console = Console()
    other = [] if args.method == "tapnet" else [f"method={{name: {args.method}}}", f"name=quickdraw-{args.method}"]
    recipe = load_recipe("quickdraw", [*other, *args.set])
    train_with_progress(recipe, args.out, args.device, args.precision, resume=(args.out / LAST).exists())

    method = load(args.out, resolve_device(args.device))
    judge = Evaluator(method, recipe.data.images("test"))
    results = [judge.evaluate(EpisodeSpec(way, shot, 15, EPISODES)) for way, shot in TASKS]
    RunFolder(args.out).record_evaluation([result.as_dict() for result in results])
    console.print(results_table(results, f"{args.method} on {len(judge.images.names)} classes it has never seen"))
    console.print(EXPLANATION, highlight=False)
    pictures = [save(learning_curve(args.out), args.out / "learning-curve.png")]
    if isinstance(method, TapNet):
        pictures.append(save(projection_figure(method, judge.images), args.out / "projection.png"))
    console.print("\nPictures:", *(f"  {path}" for path in pictures), sep="\n", highlight=False)
    console.print(
        "\nNext:",
        f"  tapnet evaluate {args.out} --way 10 --shot 3",
        "  tapnet train quickdraw --set training.episodes=3000 --out runs/longer",
        "  tapnet fit my_pictures --out mine.task    one folder a class",
        "  tapnet recipes                            what else can be trained",
        "  make compare                              Prototypical Networks beside it",
        sep="\n",
        highlight=False,
    )
