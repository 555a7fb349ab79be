"""`tapnet figure NAME SOURCE`: a figure of the paper, from one of our runs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from tapnet.cli.options import add_task, output_folder
from tapnet.errors import NotFoundError, UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_KINDS = ("png", "svg")
_FIGURES = """figures:
  projection              an episode in embedding and in projection space (Figure 2)
  reference-distance      smallest distance between references over training (Figure 3)
  reference-trajectories  the paths of the references through training (Figure 4)
  dimension               accuracy against the projection dimension D (Figure 5)
  episode-composition     training classes against queries (supplement, Figure 1)
  learning-curve          accuracy on validation classes over training
  rivals                  every method on Omniglot, from the folder of kept results
"""
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
        help="the folder of a run; for `projection` also a checkpoint; for the figures of ablations a kept result",
    )
    parser.add_argument("--out", type=output_folder, default=Path("figures"), help="folder for NAME.png and NAME.svg")
    add_task(parser)
    parser.set_defaults(device="cpu", precision="float32")


def run(args: argparse.Namespace) -> None:
    if args.name is None:
        print(_FIGURES, end="")
        return
    if args.source is None:
        raise UserError(f"Give what to draw {args.name} from: the folder of a run, or a kept result.")

    from tapnet.plotting import save

    figure = FIGURES[args.name](args)
    for kind in _KINDS:
        print(save(figure, args.out / f"{args.name}.{kind}"))


def _projection(args: argparse.Namespace) -> Figure:
    from tapnet.cli.evaluate import candidate
    from tapnet.paper.projection import projection_figure

    found = candidate(args.source, args).evaluator
    return projection_figure(found.method, found.images, args.way, args.shot, args.query, args.seed)


def _reference_distance(args: argparse.Namespace) -> Figure:
    from tapnet.paper.learning_curve import reference_distance

    return reference_distance(Path(args.source))


def _reference_trajectories(args: argparse.Namespace) -> Figure:
    from tapnet.paper.trajectories import reference_trajectories

    return reference_trajectories(Path(args.source))


def _learning_curve(args: argparse.Namespace) -> Figure:
    from tapnet.paper.learning_curve import learning_curve

    return learning_curve(Path(args.source))


def _dimension(args: argparse.Namespace) -> Figure:
    from tapnet.paper.ablation_figures import dimension_figure
    from tapnet.paper.results import read_ablation

    return dimension_figure(read_ablation(Path(args.source)))


def _episode_composition(args: argparse.Namespace) -> Figure:
    from tapnet.paper.ablation_figures import episode_composition_figure
    from tapnet.paper.results import read_ablation

    return episode_composition_figure(read_ablation(Path(args.source)))


def _rivals(args: argparse.Namespace) -> Figure:
    from tapnet.paper.results import read_results
    from tapnet.paper.rivals_figure import rivals_figure

    if not Path(args.source).is_dir():
        raise NotFoundError(f"There is no folder {args.source}: give one that `--record` has filled.")
    return rivals_figure(read_results(Path(args.source)), args.way, args.shot)


FIGURES = {
    "projection": _projection,
    "reference-distance": _reference_distance,
    "reference-trajectories": _reference_trajectories,
    "dimension": _dimension,
    "episode-composition": _episode_composition,
    "learning-curve": _learning_curve,
    "rivals": _rivals,
}
