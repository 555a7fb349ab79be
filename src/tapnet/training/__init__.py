"""The training loop, and the folder of a run, which documents itself and survives faults."""

from tapnet.training.loop import Run, Step, learning_rate, train
from tapnet.training.outcome import Interrupted
from tapnet.training.run_folder import Point, RunFolder, find_runs, read_curve

__all__ = ["Interrupted", "Point", "Run", "RunFolder", "Step", "find_runs", "learning_rate", "read_curve", "train"]
