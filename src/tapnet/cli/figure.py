"""`tapnet figure NAME SOURCE`: a figure of the paper, from one of our runs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from tapnet.cli.options import add_task, listing, output_folder
from tapnet.errors import NotFoundError, UserError
from tapnet.paths import find_checkpoint

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SUFFIXES = (".png", ".svg")
FIGURES = {
    "projection": "an episode in embedding and in projection space (Figure 2)",
    "reference-distance": "smallest distance between references over training (Figure 3)",
    "reference-trajectories": "the paths of the references through training (Figure 4)",
    "dimension": "accuracy against the projection dimension D (Figure 5)",
    "episode-composition": "training classes against queries (supplement, Figure 1)",
    "learning-curve": "accuracy on validation classes over training",
    "rivals": "every method on Omniglot, from the folder of recorded results",
}
_FIGURES = listing("figures", FIGURES)
_EXAMPLES = """
examples:
  tapnet figure projection runs/quickstart
  tapnet figure reference-trajectories runs/quickstart --out figures
  tapnet ablate dimension --checkpoint runs/quickstart --record results
  tapnet figure rivals results --way 5 --shot 1
  tapnet figure dimension results/ablations/dimension-quickdraw-seed0-….json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _FIGURES + _EXAMPLES
    parser.add_argument(
        "name", nargs="?", choices=FIGURES, metavar="NAME", help="see below; without one, list the figures"
    )
    parser.add_argument(
        "source",
        nargs="?",
        help="the folder of a run; for `projection` also a checkpoint; for the figures of ablations a recorded result",
    )
    parser.add_argument("--out", type=output_folder, default=Path("figures"), help="folder for NAME.png and NAME.svg")
    add_task(parser)
    parser.set_defaults(device="cpu", precision="float32")


def run(args: argparse.Namespace) -> None:
    if args.name is None:
        print(_FIGURES, end="")
        return
    if args.source is None:
        raise UserError(f"Expected the source of {args.name}: the folder of a run, or a recorded result.")
    if args.name == "projection":
        find_checkpoint(args.source)
    elif not Path(args.source).exists():
        raise NotFoundError(f"There is nothing at {args.source}: expected the folder of a run, or a recorded result.")

    from tapnet.plotting import save

    figure = _draw(args.name, Path(args.source), args)
    for suffix in _SUFFIXES:
        print(save(figure, args.out / f"{args.name}{suffix}"))


def _draw(name: str, source: Path, args: argparse.Namespace) -> Figure:
    from tapnet.cli.evaluate import candidate
    from tapnet.paper.ablation_figures import dimension_figure, episode_composition_figure
    from tapnet.paper.learning_curve import learning_curve, reference_distance
    from tapnet.paper.projection import projection_figure
    from tapnet.paper.results import read_ablation, read_results
    from tapnet.paper.rivals_figure import rivals_figure
    from tapnet.paper.trajectories import reference_trajectories

    match name:
        case "projection":
            evaluator = candidate(args.source, args).evaluator
            return projection_figure(evaluator.method, evaluator.images, args.way, args.shot, args.query, args.seed)
        case "reference-distance":
            return reference_distance(source)
        case "reference-trajectories":
            return reference_trajectories(source)
        case "dimension":
            return dimension_figure(read_ablation(source))
        case "episode-composition":
            return episode_composition_figure(read_ablation(source))
        case "learning-curve":
            return learning_curve(source)
        case _:
            if not source.is_dir():
                raise NotFoundError(f"There is no folder {source}: expected one that `--record` has filled.")
            return rivals_figure(read_results(source), args.way, args.shot)
