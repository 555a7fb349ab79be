"""The one place that knows the version; importing it imports nothing else."""

__version__ = "0.1.0"
