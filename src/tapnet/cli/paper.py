"""`tapnet ablate`, `table`, `figure` and `import-chainer`: the paper's tables, figures, ablations and checkpoints."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tapnet.cli.evaluate import candidate, evaluation_data
from tapnet.cli.options import ENGINE, TASK, add_shared, check_engine, episode_spec, listing, output_folder
from tapnet.cli.output import ERRORS, OUT, print_prose, print_table
from tapnet.cli.runs import train_runs
from tapnet.errors import NotFoundError, UserError
from tapnet.paths import find_checkpoint

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from tapnet.data.episodes import EpisodeSpec
    from tapnet.evaluation.candidates import Candidate
    from tapnet.paper.ablations import Ablation, AblationRow

_ABLATE_EXAMPLES = """examples:
  tapnet ablate                                            list the ablations
  tapnet ablate selection --checkpoint runs/mine --way 20
  tapnet ablate dimension --checkpoint drawings --split val
  tapnet ablate gradient --recipe quickdraw --set training.episodes=300
"""
_RESULTS = Path("results")
_OURS = ", ours"  # ends the names of our rows
TABLES = {
    "main-omniglot-mini": "Table 1: Omniglot and miniImageNet",
    "main-tiered": "Table 2: tieredImageNet",
    "episode-composition": "supplement, Table 1: training classes against queries",
    "hyperparameters": "supplement, Table 2: settings of meta-training",
    "references": "supplement, section 2.3: settings of the references",
    "network-sizes": "supplement, Table 3: miniImageNet by the size of the network",
    "network-sizes-tiered": "supplement, Table 4: tieredImageNet with Conv4",
    "parameters": "supplement, Table 5: number of parameters",
    "rivals": "every method on Omniglot, from our runs",
    "rivals-mini-imagenet": "methods on miniImageNet, from our runs",
}
_TABLES = f"""{listing("tables", TABLES)}
A row with the name of a recipe is ours, made for smaller machines; the recipe says where it departs from the paper.
"""
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
_FIGURE_EXAMPLES = """
examples:
  tapnet figure projection runs/quickstart
  tapnet figure reference-trajectories runs/quickstart --out figures
  tapnet ablate dimension --checkpoint runs/quickstart --record results
  tapnet figure rivals results --way 5 --shot 1
  tapnet figure dimension results/quickdraw/quickdraw.json
"""
_IMPORT_EXAMPLES = """examples:
  tapnet import-chainer save/TapNet_miniImageNet_ResNet12 --out runs/authors
  tapnet import-chainer save/TapNet_tieredImageNet_ResNet12 --recipe tiered-imagenet-5shot --out runs/tiered
"""


def add_ablate_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _ABLATE_EXAMPLES
    parser.add_argument("name", nargs="?", help="the ablation; without one, list them")
    parser.add_argument("--checkpoint", help="variants of a trained network: a run, a file or a bundled name")
    parser.add_argument("--recipe", help="variants that are trained, by this recipe")
    parser.add_argument("--out", type=output_folder, help="folder of the trained runs (default: runs/ablate-NAME)")
    parser.add_argument("--record", type=output_folder, metavar="DIR", help="record the result for `tapnet table`")
    add_shared(parser, "--episodes", default=None, help="default: 2000, or fewer where each takes long")
    add_shared(parser, "--set", *TASK, "--json", "--device", "--precision", *ENGINE)


def run_ablate(args: argparse.Namespace) -> None:
    from tapnet.paper.ablations import ABLATIONS, find_ablation, row_table
    from tapnet.paper.results import ablation_result, record_ablation
    from tapnet.paper.tables import task_words

    if args.name is None:
        if args.json:
            raise UserError("--json needs the name of an ablation; `tapnet ablate` lists them.")
        for name, listed in ABLATIONS.items():
            sources = {"--checkpoint": listed.measure, "--recipe": listed.recipes}
            print(f"{name:<26}{' or '.join(option for option, function in sources.items() if function)}")
            print_prose(listed.question, indent=2)
        return
    ablation = find_ablation(args.name)
    _check_options(ablation, args)
    if args.episodes is None:
        args.episodes = ablation.episodes
    task = episode_spec(args)
    if ablation.measure and args.checkpoint:
        base = candidate(args.checkpoint, args, "float32")
        rows = ablation.measure(base.evaluator, task)
    else:
        base, rows = _train_and_measure(ablation, args, task)
    recorded_task = asdict(task) | ({"way": None} if ablation.varies_way else {})
    rows_as_dicts, overlap = [asdict(row) for row in rows], base.overlap.as_dict()
    result = ablation_result(args.name, base.header, base.evaluator, recorded_task, rows_as_dicts, overlap)
    if args.json:
        print(json.dumps(result))
    else:
        print(f"{args.name}: {task_words(result['task'])}, {task.episodes} episodes")
        print_table(*row_table(rows_as_dicts))
        trained = f"Each variant was trained once, for {rows[0].training_episodes} episodes; another seed may differ."
        if note := trained if rows[0].training_episodes else ablation.note:
            print_prose(note)
    if args.record:
        print(f"Recorded in {record_ablation(args.record, result)}", file=sys.stderr)


def _check_options(ablation: Ablation, args: argparse.Namespace) -> None:
    if (args.checkpoint is None) == (args.recipe is None):
        raise UserError("Expected either --checkpoint, to vary a trained network, or --recipe, to train the variants.")
    if args.checkpoint and ablation.measure is None:
        raise UserError(f"The variants of {args.name} need training: use --recipe in place of --checkpoint.")
    if args.recipe and ablation.recipes is None:
        raise UserError(f"The variants of {args.name} need no training: use --checkpoint in place of --recipe.")
    if args.checkpoint and (args.set or args.out or args.engine):
        raise UserError("--set, --out and --engine are for variants that are trained: leave them out, or use --recipe.")
    check_engine(args)


def _train_and_measure(
    ablation: Ablation, args: argparse.Namespace, task: EpisodeSpec
) -> tuple[Candidate, list[AblationRow]]:
    """Train the variants; return the first of them, with the recipe that they vary, and the rows."""
    from tapnet.paper.ablations import check_measurable, folder_name, measure_runs
    from tapnet.recipe import load_recipe

    assert ablation.recipes is not None
    recipe = load_recipe(args.recipe, args.set)
    recipes = ablation.recipes(recipe)
    check_measurable(recipes, evaluation_data(args).load(recipe.data), task)
    out = args.out or Path("runs") / f"ablate-{args.name}"
    for name, reason in train_runs({folder_name(key): recipes[key] for key in recipes}, out, args, test=False):
        if reason:
            raise UserError(f"{name} failed: {reason}")
    candidates = {variant: candidate(str(out / folder_name(variant)), args, "float32") for variant in recipes}
    evaluators = {variant: opened.evaluator for variant, opened in candidates.items()}
    first = next(iter(candidates.values()))
    base = replace(first, header=replace(first.header, recipe=recipe))
    return base, measure_runs(evaluators, task, recipe.training.episodes)


def add_table_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _TABLES
    parser.add_argument("name", nargs="?", choices=TABLES, metavar="NAME", help="see below; without one, list them")
    parser.add_argument("--results", type=Path, default=_RESULTS, help="folder of recorded results")


def run_table(args: argparse.Namespace) -> None:
    if args.name is None:
        print(_TABLES, end="")
        return

    from tapnet.paper.results import read_ablations, read_results
    from tapnet.paper.tables import filled_table

    filled = filled_table(args.name, [*read_results(args.results), *read_ablations(args.results)])
    if not args.results.is_dir():
        if args.results != _RESULTS:
            raise NotFoundError(f"There is no folder {args.results}: expected one that `--record` has filled.")
        ERRORS.print(f"There is no folder {_RESULTS} here, so ours are left out: give that of a checkout as --results.")
        published = [row for row in filled.rows if not row[0].endswith(_OURS)]
        filled = replace(filled, rows=published, commands=[])
    print(filled.title)
    ours = [number for number, (name, *_) in enumerate(filled.rows) if name.endswith(_OURS)]
    print_table(filled.headings, filled.rows, bold=ours)
    sections = {"Notes:": filled.notes, "Run:": filled.runs, "Not run; each with its command:": filled.commands}
    for title, lines in sections.items():
        if lines:
            print(title, *(f"  {line}" for line in lines), sep="\n")


def add_figure_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _FIGURES + _FIGURE_EXAMPLES
    parser.add_argument("name", nargs="?", choices=FIGURES, metavar="NAME", help="see below; without one, list them")
    words = "the folder of a run; for `projection` also a checkpoint; for the figures of ablations a recorded result"
    parser.add_argument("source", nargs="?", help=words)
    parser.add_argument("--out", type=output_folder, default=Path("figures"), help="folder for NAME.png and NAME.svg")
    add_shared(parser, *TASK)
    parser.set_defaults(device="cpu", precision="float32")


def run_figure(args: argparse.Namespace) -> None:
    if args.name is None:
        print(_FIGURES, end="")
        return
    if args.source is None:
        raise UserError(f"Expected the source of {args.name}: the folder of a run, or a recorded result.")
    if args.name == "projection":
        find_checkpoint(args.source)
    elif not Path(args.source).exists():
        raise NotFoundError(f"There is nothing at {args.source}: expected the folder of a run, or a recorded result.")

    from tapnet.evaluation.plotting import save

    figure = _draw(args.name, Path(args.source), args)
    for suffix in (".png", ".svg"):
        print(save(figure, args.out / f"{args.name}{suffix}"))


def _draw(name: str, source: Path, args: argparse.Namespace) -> Figure:
    from tapnet.paper import figures
    from tapnet.paper.results import read_ablation, read_results

    if name == "projection":
        evaluator = candidate(args.source, args).evaluator
        task = args.way, args.shot, args.query, args.seed
        return figures.projection_figure(evaluator.method, evaluator.images, *task)
    if name == "rivals":
        if not source.is_dir():
            raise NotFoundError(f"There is no folder {source}: expected one that `--record` has filled.")
        return figures.rivals_figure(read_results(source), args.way, args.shot)
    if name == "dimension":
        return figures.dimension_figure(read_ablation(source, name))
    if name == "episode-composition":
        return figures.episode_composition_figure(read_ablation(source, name))
    of_runs = {
        "reference-distance": figures.reference_distance,
        "reference-trajectories": figures.reference_trajectories,
        "learning-curve": figures.learning_curve,
    }
    return of_runs[name](source)


def add_import_chainer_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _IMPORT_EXAMPLES
    parser.add_argument("file", type=Path, help="a file of Chainer's save_npz, with the ResNet-12")
    parser.add_argument("--out", type=Path, required=True, help="the folder to write, such as runs/authors")
    parser.add_argument("--recipe", default="mini-imagenet-5shot", help="how it was trained (default: %(default)s)")
    parser.add_argument("--image-size", type=int, default=84, help="height and width of its images (default: 84)")


def run_import_chainer(args: argparse.Namespace) -> None:
    from tapnet.paper.chainer import import_chainer
    from tapnet.paths import BEST, LAST
    from tapnet.recipe import load_recipe

    if any((args.out / name).exists() for name in (BEST, LAST)):
        raise FileExistsError(f"{args.out} already holds a run: choose another --out.")
    checkpoint = import_chainer(args.file, load_recipe(args.recipe), args.image_size)
    checkpoint.write(args.out / BEST)
    recipe = checkpoint.header.recipe
    channels, height, width = checkpoint.header.image_shape
    bias = " with a bias" if "reference_bias" in checkpoint.weights else ""
    network = f"{recipe.backbone.name} for images of {channels}×{height}×{width}, {recipe.training.way} references"
    OUT.print(f"{args.out / BEST}: {network}{bias}.\nTry: tapnet evaluate {args.out}")
