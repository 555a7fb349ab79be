"""`tapnet evaluate CHECKPOINT`: accuracy with its intervals, as a table or as JSON."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from tapnet.cli.options import (
    add_device,
    add_episodes,
    add_processes,
    describe,
    episode_spec,
    output_folder,
    percent,
    processes,
)
from tapnet.wording import half_width, overlap_note, pluralize

if TYPE_CHECKING:
    from tapnet.backbones import ImageShape
    from tapnet.data import ImageSet
    from tapnet.evaluation.evaluator import Evaluation, Evaluator
    from tapnet.methods import Method
    from tapnet.recipe import Data

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
    parser.add_argument("--no-cache", action="store_true", help="compute the features even if they are cached")
    parser.add_argument("--record", type=output_folder, metavar="DIR", help="keep the result for `tapnet table`")
    add_device(parser, precision="float32")
    add_processes(parser)


def run(args: argparse.Namespace) -> None:
    from tapnet import distributed

    with processes(args):
        judge = evaluator(args.checkpoint, args)
        result = judge.evaluate(episode_spec(args))
        if distributed.rank() > 0:
            return
    overlap = overlaps(judge.method, result.dataset)
    if args.json:
        asked = {"checkpoint": str(args.checkpoint), "allow_overlap": overlap}
        print(json.dumps(result.as_dict() | asked))
    else:
        console = Console()
        classes = f"{result.split} classes{overlap_note(overlap)}"
        console.print(results_table([result], f"{args.checkpoint} on {result.dataset} ({classes})"))
        console.print(EXPLANATION, highlight=False)
    if args.record:
        from tapnet.checkpoint import read_checkpoint
        from tapnet.paper.results import record

        header = read_checkpoint(args.checkpoint).header
        print(f"Kept as {record(args.record, header, result, overlap, run_state(args.checkpoint))}", file=sys.stderr)


def run_state(checkpoint: str) -> str:
    """Whether the run that a checkpoint is of came to its end; not known of a single file."""
    from tapnet.training.run_folder import RunFolder

    return str(RunFolder(Path(checkpoint)).facts().get("state", "unknown"))


def evaluator(checkpoint: str, args: argparse.Namespace) -> Evaluator:
    """The evaluator that the options ask for."""
    from tapnet.checkpoint import read_checkpoint
    from tapnet.evaluation.embedding import default_cache
    from tapnet.evaluation.evaluator import Evaluator
    from tapnet.hardware import resolve_device

    loaded = read_checkpoint(checkpoint)
    data = loaded.header.recipe.data
    method = loaded.method()
    if overlaps(method, args.dataset or data.name) and not args.allow_overlap:
        raise ValueError(
            f"{checkpoint} was pretrained on ImageNet, whose classes {args.dataset or data.name} is made of, so the "
            "result would not be on unseen classes: --allow-overlap measures it all the same, and the result says so."
        )
    images = images_for(data, args)
    _check_other_size(checkpoint, loaded.header.image_shape, images)
    if images.fingerprint == loaded.header.data.get(data.train_split):
        print(
            f"Note: {checkpoint} was trained on these classes ({args.split}); this is no accuracy on unseen ones.",
            file=sys.stderr,
        )
    cache = None if getattr(args, "no_cache", False) else default_cache()
    return Evaluator(method.to(resolve_device(args.device)), images, args.precision, cache)


def images_for(data: Data, args: argparse.Namespace) -> ImageSet:
    """The images that the options ask for, of a network that was trained on `data`."""
    turned = {} if args.rotations is None else {"rotations": args.rotations}
    if args.dataset not in (None, data.name):
        data = replace(data, name=args.dataset, root=None, options={})
    return replace(data, options=data.options | turned).images(args.split, args.root)


def _check_other_size(checkpoint: str, needed: ImageShape, images: ImageSet) -> None:
    if images.image_shape != needed:
        wanted, found = (
            f"{height}×{width} with {pluralize(channels, 'channel')}"
            for channels, height, width in (needed, images.image_shape)
        )
        raise ValueError(
            f"{checkpoint} takes images of {wanted}, those of {images.name} are {found}: prepare them for it with "
            f"`tapnet data prepare … --size {needed[1]}`, or choose another --dataset."
        )


def overlaps(method: Method, dataset: str) -> bool:
    """Whether the backbone was pretrained on classes of the dataset, so that they are not unseen."""
    from tapnet.backbones.efficientnet_lite0 import EfficientNetLite0
    from tapnet.backbones.hugging_face import HuggingFace

    return isinstance(method.backbone, EfficientNetLite0 | HuggingFace) and dataset in _IMAGENET


EXPLANATION = (
    "Over episodes: 95% interval for these classes and images. Over classes: 95% interval for others of the same kind, "
    "by resampling classes and images. One training run; another seed may differ."
)


def results_table(results: list[Evaluation], title: str) -> Table:
    table = Table(title=title, title_justify="left")
    for heading in ("task", "accuracy", "over episodes", "over classes", "episodes"):
        table.add_column(heading, justify="left" if heading == "task" else "right")
    for result in results:
        intervals = (half_width(result.ci95), half_width(result.ci95_bootstrap))
        table.add_row(describe(result), percent(result.accuracy), *intervals, str(result.episodes))
    return table
