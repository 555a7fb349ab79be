"""`tapnet evaluate CHECKPOINT`: accuracy with its intervals, as a table or as JSON."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from tapnet.cli.options import add_device, add_episodes, add_processes, describe, interval, percent, processes

if TYPE_CHECKING:
    from tapnet.evaluation import Evaluation, Evaluator

_IMAGENET = ("mini-imagenet", "tiered-imagenet", "tiny-imagenet-tiered")
_EXAMPLES = """examples:
  tapnet evaluate runs/quickstart
  tapnet evaluate drawings --way 10
  tapnet evaluate runs/quickstart --way 20 --shot 1 --episodes 10000
  tapnet evaluate runs/quickstart --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EXAMPLES
    parser.add_argument("checkpoint", help="a .safetensors checkpoint or the folder of a run (its best)")
    add_episodes(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--allow-overlap", action="store_true", help="also on classes that the backbone was trained on")
    parser.add_argument("--no-cache", action="store_true", help="compute the features even if they are cached")
    parser.add_argument("--record", type=Path, metavar="DIR", help="keep the result as a file for `tapnet table`")
    add_device(parser, precision="float32")
    add_processes(parser)


def run(args: argparse.Namespace) -> None:
    from tapnet import distribution

    with processes(args):
        result = evaluator(args.checkpoint, args).evaluate(args.way, args.shot, args.query, args.episodes, args.seed)
        if distribution.rank() > 0:
            return
    if args.record:
        from tapnet.checkpoint import read_checkpoint
        from tapnet.results import record

        record(args.record, read_checkpoint(args.checkpoint).header, result)
    if args.json:
        asked = {"checkpoint": str(args.checkpoint), "allow_overlap": args.allow_overlap}
        print(json.dumps(result.as_dict() | asked))
        return
    console = Console()
    console.print(results_table([result], f"{args.checkpoint} on {result.dataset} ({result.split} classes)"))
    console.print(EXPLANATION, highlight=False)


def evaluator(checkpoint: str, args: argparse.Namespace) -> Evaluator:
    """The evaluator that the options ask for."""
    from tapnet.checkpoint import read_checkpoint
    from tapnet.datasets import load_dataset
    from tapnet.embedding import default_cache
    from tapnet.evaluation import Evaluator
    from tapnet.hardware import resolve_device

    loaded = read_checkpoint(checkpoint)
    data = loaded.header.recipe.data
    if not getattr(args, "allow_overlap", False):
        _refuse_overlap(loaded.header.recipe.backbone.name, args.dataset or data.name)
    turned = {} if args.turns is None else {"turns": args.turns}
    if args.dataset in (None, data.name):
        images = load_dataset(data.name, args.split, args.root or data.root, **data.options | turned)
    else:
        images = load_dataset(args.dataset, args.split, args.root, **turned)
    if images.fingerprint == loaded.header.data.get(data.train_split):
        print(
            f"Note: {checkpoint} was trained on these classes ({args.split}); this is no accuracy on unseen ones.",
            file=sys.stderr,
        )
    cache = None if getattr(args, "no_cache", False) else default_cache()
    return Evaluator(loaded.method().to(resolve_device(args.device)), images, args.precision, cache)


def _refuse_overlap(backbone: str, dataset: str) -> None:
    from tapnet.backbones import PRETRAINED

    if backbone in PRETRAINED and dataset in _IMAGENET:
        raise ValueError(
            f"{backbone} was pretrained on ImageNet, whose classes {dataset} is made of, so the result would not be on "
            "unseen classes: --allow-overlap measures it all the same, and the result says so."
        )


EXPLANATION = (
    "Over episodes: 95% interval for these classes and images. Over classes: 95% interval for others of the same kind, "
    "by resampling classes and images. One training run; another seed may differ."
)


def results_table(results: list[Evaluation], title: str) -> Table:
    table = Table(title=title, title_justify="left")
    for heading in ("task", "accuracy", "over episodes", "over classes", "episodes"):
        table.add_column(heading, justify="left" if heading == "task" else "right")
    for result in results:
        intervals = (interval(result.ci95), interval(result.ci95_bootstrap))
        table.add_row(describe(result), percent(result.accuracy), *intervals, str(result.episodes))
    return table
