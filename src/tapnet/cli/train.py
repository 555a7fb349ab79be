"""`tapnet train`: train with a progress bar, and print where the result is."""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from tapnet.cli import options
from tapnet.errors import UserError
from tapnet.text import half_width, install_hint, pluralize

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from tapnet.recipe import Recipe
    from tapnet.training import Point, Step

_EXAMPLES = """examples:
  tapnet train quickdraw
  tapnet train my.yaml --out runs/mine --set training.episodes=500 training.query=8
  tapnet train --resume runs/mine
  tapnet train --resume runs/mine --set training.episodes=2400 training.cycles=2
  tapnet train my.yaml --from runs/omniglot-cpu
  tapnet train omniglot-60way --method matching
  tapnet train photos --frozen-backbone
  tapnet train quickdraw --devices 2 --set training.meta_batch=2
"""


def add_train_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog, add = _EXAMPLES, parser.add_argument
    add("recipe", nargs="?", help="a YAML file or the name of a bundled recipe (`tapnet recipes`)")
    add("--out", type=options.output_folder, help="folder of the run (default: runs/NAME)")
    add("--method", metavar="NAME", help="train this method in place of the recipe's")
    add("--resume", type=Path, metavar="DIR", help="resume a run; with --set, also a finished one")
    add("--from", dest="weights", metavar="CHECKPOINT", help="initialize from this: a file, run or bundled name")
    add("--frozen-backbone", action="store_true", help="train all but the backbone, on cached features")
    add("--no-test", action="store_true", help="do not evaluate on test classes at the end")
    add("--tensorboard", action="store_true", help="write the curve for TensorBoard, too")
    options.add_shared(parser, "--set", "--device", "--precision", *options.PROCESSES)


def run_train(args: argparse.Namespace) -> None:
    from tapnet import hardware
    from tapnet.training.run_folder import RunFolder

    if args.recipe is None and args.resume is None:
        words = "Expected a recipe to start a run, or --resume DIR to resume one; `tapnet recipes` lists the recipes."
        raise UserError(words)
    recipe = _new_recipe(args) if args.resume is None else _resumed_recipe(args)
    if recipe is None:
        print(f"{args.resume} is finished.\nTry: {options.command('evaluate', args.resume)}")
        return
    folder = args.resume or args.out or Path("runs") / recipe.name
    with options.processes(args, recipe.training.meta_batch) as fabric:
        test, resume = not args.no_test, args.resume is not None
        best = train_with_progress(
            recipe, folder, args.device, args.precision, resume, fabric, tensorboard=args.tensorboard, test=test
        )
        if hardware.rank() == 0:
            if test:
                run = RunFolder(folder)
                print(run.metadata().get("not_tested") or _test_result(run.evaluation()[0]))
            split = () if test else ("--split", "val")
            print(f"Best checkpoint: {best}\nTry: {options.command('evaluate', folder, *split)}")


def _new_recipe(args: argparse.Namespace) -> Recipe:
    from tapnet.recipe import load_recipe

    if args.weights is not None and any(change.startswith("training.init_from=") for change in args.set):
        raise UserError("--from and --set training.init_from are the same: give one of them.")
    changes = ["training.frozen_backbone=true"] if args.frozen_backbone else []
    if args.weights is not None:
        changes.append(f"training.init_from={json.dumps(args.weights, ensure_ascii=False)}")
    return load_recipe(args.recipe, [*args.set, *changes], args.method)


def _resumed_recipe(args: argparse.Namespace) -> Recipe | None:
    """Return the recipe of a run to resume, with changes, and keep its precision; `None` if there is nothing to do."""
    from tapnet.recipe import changed
    from tapnet.training.run_folder import EVALUATION, RunFolder

    given = args.recipe, args.out, args.weights, args.method
    if args.frozen_backbone or any(option is not None for option in given):
        raise UserError(
            "--resume continues the run in its folder by its recipe: leave out RECIPE, --out, --from, --method and "
            "--frozen-backbone."
        )
    with warnings.catch_warnings(action="ignore"):  # the run warns again when it is restored
        header = RunFolder(args.resume).newest().header
    recipe = changed(header.recipe, args.set)
    if args.precision == "auto":
        args.precision = header.hardware.get("precision", "auto")
    done = recipe == header.recipe and header.episode == recipe.training.episodes
    return None if done and (args.resume / EVALUATION).exists() else recipe


def _test_result(result: dict[str, Any]) -> str:
    accuracy = f"{100 * result['accuracy']:.2f}% {half_width(result['ci95'])} over episodes"
    return f"Test classes, {result['way']}-way {result['shot']}-shot: {accuracy}"


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
    from tapnet.checkpoint import read_header
    from tapnet.training import Interrupted, train

    console = Console(quiet=quiet or hardware.rank() > 0)
    log = _tensorboard(folder) if tensorboard and hardware.rank() == 0 else None
    progress = Progress(
        BarColumn(bar_width=12),
        TextColumn("{task.completed}/{task.total}"),
        _Speed(),
        TextColumn("loss {task.fields[loss]}  validation {task.fields[validation]}"),
        TimeRemainingColumn(),
        TextColumn("left"),
        console=console,
    )
    bar = progress.add_task("training", total=recipe.training.episodes, loss="—", validation="—")
    with ExitStack() as shown:

        def begin(done: int, lineage: list[str]) -> None:
            lines = ["; ".join([_describe(recipe), *([] if done else lineage)])]
            if recipe.validation.split == "test":
                lines.append(
                    "WARNING: validation uses test classes (validation.split=test). They choose the checkpoint, so "
                    "there will be no test result."
                )
            console.print(*lines, sep="\n", highlight=False, soft_wrap=not console.is_terminal)
            progress.update(bar, completed=done)
            shown.enter_context(progress)

        def watch(step: Step) -> None:
            loss = "—" if step.loss is None else f"{step.loss:.2f}"
            progress.update(bar, completed=step.episode, loss=loss)
            if point := step.point:
                accuracy = f"{100 * point.validation_accuracy:.2f}%"
                progress.update(bar, validation=accuracy)
                loss = "  —  " if point.loss is None else f"{point.loss:.3f}"
                line = f"  episode {step.episode:>6}   loss {loss}   validation {accuracy}"
                progress.console.print(f"{line} {half_width(point.validation_ci95)}", highlight=False)
                if log:
                    log(point)

        try:
            best = train(recipe, folder, device, precision, resume, watch, fabric=fabric, started=begin, test=test)
        except Interrupted as stop:
            resume_with = again or options.command("train", "--resume", stop.folder, *([] if test else ["--no-test"]))
            raise KeyboardInterrupt(f"{stop} Resume with: {resume_with}") from None
    if (read_header(best).validation or {}).get("episode") == 0:
        console.print("The best checkpoint is the start: no step of training made it better on validation classes.")
    return best


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
        raise UserError(f"--tensorboard needs TensorBoard: {install_hint('tensorboard')}.") from None

    opened: list[SummaryWriter] = []  # not before the first point: a run that fails to start leaves no files

    def log(point: Point) -> None:
        if not opened:
            opened.append(SummaryWriter(str(folder / "tensorboard")))
        values = asdict(point)
        for name, value in (values.pop("diagnostics") | values).items():
            if name != "episode" and value is not None:
                opened[0].add_scalar(name, value, point.episode)
        opened[0].flush()

    return log


class _Speed(ProgressColumn):
    """Episodes per second."""

    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:.1f} episodes/s" if task.speed else "— episodes/s", no_wrap=True)
