"""Bring the recorded intervals over classes up to date: python tools/update_intervals.py [results].

Earlier versions took 1.96 in place of Student's quantile, and the four rotations of a character for four independent
classes. The first is corrected exactly, from the number of classes. The second cannot be: those intervals become null
until the evaluation is recorded again.
"""

import json
import math
import sys
from pathlib import Path

from scipy.stats import t as student

from tapnet.data import DATASETS
from tapnet.paper.results import DROPPED, INTERVAL

ROOT = Path(__file__).resolve().parents[1]
NORMAL = 1.96


def with_student(wide: float, ci95: float, units: int) -> float:
    """Return the half-width over classes with Student's quantile, from the one that was computed with 1.96."""
    factor = float(student.ppf(0.975, units - 1)) / NORMAL
    return math.sqrt(factor**2 * max(0.0, wide**2 - ci95**2) + ci95**2)


def update(path: Path) -> None:
    """Rewrite a recorded evaluation, unless it is up to date."""
    content = json.loads(path.read_text(encoding="utf-8"))
    task = content["evaluation"]
    if "interval" in task:
        return
    task["interval"] = INTERVAL
    if has_rotations(task):
        task |= {"ci95_bootstrap": None, "interval": DROPPED}
    elif task["ci95_bootstrap"] is not None:
        task["ci95_bootstrap"] = with_student(task["ci95_bootstrap"], task["ci95"], task["classes"])
    path.write_text(json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")


def has_rotations(task: dict) -> bool:
    """Whether the evaluated classes were rotations of others: more classes than the split has by itself."""
    listed = DATASETS[task["dataset"]].splits.get(task["split"], ()) if task["dataset"] in DATASETS else ()
    return bool(listed) and task["classes"] == 4 * len(listed)


if __name__ == "__main__":
    for file in sorted((Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "results").glob("*.json")):
        update(file)
