"""The training loop, and the folder of a run, which documents itself and survives faults."""

from tapnet.training.faults import Diverged
from tapnet.training.loop import Step, train
from tapnet.training.outcome import Interrupted
from tapnet.training.run import Run
from tapnet.training.run_folder import CURVE, Point, RunFolder, read_curve
from tapnet.training.run_summary import find_runs
from tapnet.training.schedule import learning_rate

__all__ = [
    "CURVE",
    "Diverged",
    "Interrupted",
    "Point",
    "Run",
    "RunFolder",
    "Step",
    "find_runs",
    "learning_rate",
    "read_curve",
    "train",
]
