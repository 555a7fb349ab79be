"""`tapnet train` and `quickstart`: train with a progress bar, and print where the result is."""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

from tapnet.cli.evaluate import EXPLANATION, ONE_RUN, print_results
from tapnet.cli.options import add_device, add_processes, add_set, command, processes
from tapnet.cli.output import percent, print_prose
from tapnet.errors import UserError
from tapnet.text import half_width, pluralize

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from tapnet.recipe import Recipe
    from tapnet.training import Step
    from tapnet.training.run_folder import Point

_TRAIN_EXAMPLES = """examples:
  tapnet train quickdraw
  tapnet train my.yaml --out runs/mine --set training.episodes=500 training.query=8
  tapnet train --resume runs/mine
  tapnet train --resume runs/quickdraw --set training.episodes=2400 training.cycles=2
  tapnet train my.yaml --from runs/omniglot-cpu
  tapnet train omniglot-60way --method matching
  tapnet train photos --frozen-backbone
  tapnet train my.yaml --out runs/trial --no-test
  tapnet train quickdraw --devices 2 --set training.meta_batch=2
"""

_QUICKSTART_TASKS = ((5, 1), (5, 5), (20, 1), (20, 5))  # way, shot
_VALIDATES_ON_TEST = (
    "WARNING: validation uses test classes (validation.split=test). They choose the checkpoint, so there will be no "
    "test result."
)


def add_train_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _TRAIN_EXAMPLES
    parser.add_argument("recipe", nargs="?", help="a YAML file or the name of a bundled recipe (`tapnet recipes`)")
    parser.add_argument("--out", type=Path, help="folder of the run (default: runs/NAME)")
    add_set(parser)
    parser.add_argument("--method", metavar="NAME", help="train this method in place of the recipe's")
    parser.add_argument("--resume", type=Path, metavar="DIR", help="resume a run; with --set, also a finished one")
    parser.add_argument(
        "--from",
        dest="weights",
        metavar="CHECKPOINT",
        help="initialize from this: a file, a run or a bundled name",
    )
    parser.add_argument("--frozen-backbone", action="store_true", help="train all but the backbone, on cached features")
    parser.add_argument("--no-test", action="store_true", help="do not evaluate on test classes at the end")
    parser.add_argument("--tensorboard", action="store_true", help="write the curve for TensorBoard, too")
    add_device(parser, precision="auto")
    add_processes(parser)


def run_train(args: argparse.Namespace) -> None:
    from tapnet import hardware
    from tapnet.recipe import changed, load_recipe
    from tapnet.training.run_folder import EVALUATION, RunFolder

    if args.recipe is None and args.resume is None:
        raise UserError(
            "Expected a recipe to start a run, or --resume DIR to resume one; `tapnet recipes` lists the recipes."
        )
    if args.resume is not None:
        given = args.recipe, args.out, args.weights, args.method
        if args.frozen_backbone or any(option is not None for option in given):
            raise UserError(
                "--resume continues the run in its folder by its recipe: leave out RECIPE, --out, --from, --method and "
                "--frozen-backbone."
            )
        with warnings.catch_warnings(action="ignore"):  # the run warns again when it is restored
            header, folder = RunFolder(args.resume).newest().header, args.resume
        recipe = changed(header.recipe, args.set)
        if args.precision == "auto":
            args.precision = header.hardware.get("precision", "auto")  # a run keeps its precision unless told otherwise
        if recipe == header.recipe and header.episode == recipe.training.episodes and (folder / EVALUATION).exists():
            print(f"{folder} is finished, after {header.episode} episodes.\nTry: {command('evaluate', folder)}")
            return
    else:
        frozen = ["training.frozen_backbone=true"] if args.frozen_backbone else []
        if args.weights is not None and any(change.startswith("training.init_from=") for change in args.set):
            raise UserError("--from and --set training.init_from are the same: give one of them.")
        initial = [] if args.weights is None else [f"training.init_from={json.dumps(args.weights, ensure_ascii=False)}"]
        recipe = load_recipe(args.recipe, [*args.set, *frozen, *initial], args.method)
        folder = args.out or Path("runs") / recipe.name
    with processes(args) as fabric:
        best = train_with_progress(
            recipe,
            folder,
            args.device,
            args.precision,
            args.resume is not None,
            fabric,
            args.tensorboard,
            test=not args.no_test,
        )
        if hardware.rank() == 0:
            if not args.no_test:
                print(_test_result(folder))
            split = ("--split", "val") if args.no_test else ()
            print(f"Best checkpoint: {best}\nTry: {command('evaluate', folder, *split)}")


def _test_result(folder: Path) -> str:
    """Return a line with the accuracy on test classes in the run folder, or the reason why there is none."""
    from tapnet.training.run_folder import RunFolder

    run = RunFolder(folder)
    if reason := run.metadata().get("not_tested"):
        return str(reason)
    result = run.evaluation()[0]
    accuracy = f"{percent(result['accuracy'])} {half_width(result['ci95'])} over episodes"
    return f"Test classes, {result['way']}-way {result['shot']}-shot: {accuracy}"


def add_quickstart_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "A finished run in the folder is evaluated again, an interrupted one is resumed."
    parser.add_argument("--out", type=Path, default=Path("runs/quickstart"), help="folder (default: runs/quickstart)")
    parser.add_argument("--method", default="tapnet", help="tapnet, or protonet trained by the same recipe")
    add_set(parser)
    add_device(parser, precision="auto")


def run_quickstart(args: argparse.Namespace) -> None:
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
    results = [evaluator.evaluate(EpisodeSpec(way, shot, 15, 1000)) for way, shot in _QUICKSTART_TASKS]
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


def train_with_progress(
    recipe: Recipe,
    folder: Path,
    device: str,
    precision: str,
    resume: bool,
    fabric: Fabric | None = None,
    tensorboard: bool = False,
    quiet: bool = False,
    again: str | None = None,
    test: bool = True,
) -> Path:
    """Train with a progress bar; on Ctrl-C print where the state is and how to resume: by `again`, else by --resume."""
    from tapnet import hardware
    from tapnet.training import Interrupted, train

    console = Console(quiet=quiet or hardware.rank() > 0)
    log = _tensorboard(folder) if tensorboard and hardware.rank() == 0 else None
    progress = _progress(console)
    bar = progress.add_task("training", total=recipe.training.episodes, loss="—", validation="—")
    with ExitStack() as shown:

        def begin(done: int, lineage: list[str]) -> None:
            lines = ["; ".join([_describe(recipe), *([] if done else lineage)])]
            if recipe.validation.split == "test":
                lines.append(_VALIDATES_ON_TEST)
            console.print(*lines, sep="\n", highlight=False, soft_wrap=not console.is_terminal)
            progress.update(bar, completed=done)
            shown.enter_context(progress)

        def watch(step: Step) -> None:
            progress.update(bar, completed=step.episode, loss=f"{step.loss:.2f}")
            if step.point:
                accuracy = f"{percent(step.point.validation_accuracy)} {half_width(step.point.validation_ci95)}"
                progress.update(bar, validation=percent(step.point.validation_accuracy))
                line = f"  episode {step.episode:>6}   loss {step.point.loss:.3f}   validation {accuracy}"
                progress.console.print(line, highlight=False)
                if log:
                    log(step.point)

        try:
            return train(recipe, folder, device, precision, resume, watch, fabric=fabric, started=begin, test=test)
        except Interrupted as stop:
            resume_with = again or command("train", "--resume", stop.folder, *([] if test else ["--no-test"]))
            raise KeyboardInterrupt(f"{stop} Resume with: {resume_with}") from None


def _describe(recipe: Recipe) -> str:
    training = recipe.training
    network = f"frozen {recipe.backbone.name}" if training.frozen_backbone else recipe.backbone.name
    first = ", after the features of every image" if training.frozen_backbone else ""
    return (
        f"{recipe.name}: {recipe.method.name} with {network} on {recipe.data.name}, {training.episodes} episodes of "
        f"{training.way}-way {training.shot}-shot, {pluralize(training.query, 'query')} per class{first}"
    )


def _tensorboard(folder: Path) -> Callable[[Point], None]:
    """Return a function that writes a point of the learning curve as TensorBoard events."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ModuleNotFoundError:
        raise UserError("--tensorboard needs TensorBoard: pip install 'tapnet[tensorboard]'.") from None

    @cache
    def opened() -> SummaryWriter:  # not before the first point: a run that fails to start leaves no files
        return SummaryWriter(str(folder / "tensorboard"))

    def log(point: Point) -> None:
        writer = opened()
        values = asdict(point)
        for name, value in (values.pop("diagnostics") | values).items():
            if name != "episode":
                writer.add_scalar(name, value, point.episode)
        writer.flush()

    return log


class _Speed(ProgressColumn):
    """Episodes per second."""

    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:.1f} episodes/s" if task.speed else "— episodes/s")


def _progress(console: Console) -> Progress:
    return Progress(
        BarColumn(bar_width=12),
        TextColumn("{task.completed}/{task.total}"),
        _Speed(table_column=Column(no_wrap=True)),
        TextColumn("loss {task.fields[loss]}  validation {task.fields[validation]}"),
        TimeRemainingColumn(),
        TextColumn("left"),
        console=console,
    )
