"""The command line: one file per group of commands, each with `add_NAME_arguments` and `run_NAME`; parse, call, print.

Nothing heavy is imported before a command runs, so that help and version are printed at once.
"""

from __future__ import annotations

import argparse
import importlib
import io
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress

from tapnet import __version__
from tapnet.errors import UserError
from tapnet.text import did_you_mean, one_line, printable

COMMANDS = {  # name: module, and what the command does
    "quickstart": ("evaluate", "train on the bundled drawings, evaluate, save two plots"),
    "train": ("train", "train a method by a recipe"),
    "sweep": ("runs", "train many variants: a grid or list of recipes, changes and seeds"),
    "evaluate": ("evaluate", "measure the accuracy of a checkpoint on classes it has never seen"),
    "compare": ("evaluate", "compare checkpoints on the same episodes, with paired differences"),
    "recipes": ("runs", "list the recipes"),
    "import-chainer": ("paper", "convert a checkpoint of the authors' Chainer code"),
    "fit": ("fit", "learn the classes in a folder of your own images"),
    "predict": ("predict", "classify images with a fitted task"),
    "add": ("fit", "add images or classes to a fitted task"),
    "remove": ("fit", "remove classes or images from a fitted task"),
    "score": ("score", "evaluate a fitted task on labeled images: accuracy, mistakes, thresholds"),
    "explain": ("score", "explain why a task classifies an image as it does"),
    "export": ("fit", "export a fitted task to one ONNX file"),
    "serve": ("serve", "start the web page for teaching a classifier, and its HTTP service"),
    "info": ("score", "show what a task, checkpoint or ONNX file contains"),
    "ablate": ("paper", "measure what each part of the method contributes to the accuracy"),
    "table": ("paper", "print a table of the paper with our results beside it"),
    "figure": ("paper", "draw a figure of the paper from one of our runs"),
    "data": ("data", "list, prepare, check, download and show datasets"),
    "runs": ("runs", "list runs with their state and result"),
}

_EXAMPLES = """examples:
  tapnet quickstart                                   everything once, in a few minutes
  tapnet train quickdraw --out runs/mine              train by a bundled recipe
  tapnet train quickdraw --set training.episodes=200  … with a change
  tapnet evaluate runs/mine --way 20 --shot 1         20-way 1-shot on unseen classes
  tapnet COMMAND --help                               more on a command
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; a user's mistake ends in one sentence and exit code 2."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments and not arguments[0].startswith("-") and arguments[0] not in COMMANDS:
        hint = did_you_mean(arguments[0], COMMANDS) or ": `tapnet --help` lists them"
        print(f"tapnet: there is no command {printable(arguments[0])}{hint}.", file=sys.stderr)
        return 2
    args, unknown = _parser(arguments).parse_known_args(arguments)
    if unknown:
        args.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    if args.command is None:
        args.parser.print_help()
        return 0
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # file names may hold bytes that are no text
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_, **__: print(printable(f"tapnet: {message}"), file=sys.stderr)
            _function("run_{}", args.command)(args)
            print(end="", flush=True)  # a closed stdout is no file to flush
    except BrokenPipeError:  # the reader stopped reading, as in `tapnet recipes | head`
        with suppress(OSError, ValueError):  # or the interpreter complains about the closed pipe when it ends
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + 13  # as if SIGPIPE had ended the process
    except (UserError, OSError) as error:  # anything else is a bug, and looks like one
        if os.environ.get("TAPNET_DEBUG"):
            raise
        print(printable(f"tapnet {args.command}: {_message(error, args)}"), file=sys.stderr)
        return 2
    except KeyboardInterrupt as stop:
        print(f"\n{stop}" if str(stop) else "\nStopped.", file=sys.stderr)
        return 130
    return 0


def _parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    """Return the parser of all commands, with the options of the one that is asked for."""
    form = argparse.RawDescriptionHelpFormatter
    words = "Few-shot image classification by task-adaptive projection (TapNet, ICML 2019)."
    parser = argparse.ArgumentParser("tapnet", description=words, epilog=_EXAMPLES, formatter_class=form)
    parser.add_argument("--version", action="version", version=f"tapnet {__version__}")
    parser.set_defaults(parser=parser)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, (_, summary) in COMMANDS.items():
        description = f"{summary[0].upper()}{summary[1:]}."
        command = commands.add_parser(name, help=summary, description=description, formatter_class=form)
        command.set_defaults(parser=command)
        if name in arguments[:1]:
            _function("add_{}_arguments", name)(command)
    return parser


def _function(name: str, command: str) -> Callable[..., None]:
    """Return a function of a command from its module, such as `run_train` of train.py."""
    module = importlib.import_module(f"tapnet.cli.{COMMANDS[command][0]}")
    function: Callable[..., None] = getattr(module, name.format(command.replace("-", "_")))
    return function


def _message(error: Exception, args: argparse.Namespace) -> str:
    """Return what an error says and, if it names a parameter that the command has, the flag that would fix it."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    parameter = getattr(error, "parameter", None)
    flag = f" (--{parameter.replace('_', '-')})" if parameter and hasattr(args, parameter) else ""
    return f"{one_line(error)}{flag}"
