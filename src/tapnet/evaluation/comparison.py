"""Several networks on identical episodes: accuracies, paired differences and costs, as data, tables and pages.

Runs that differ in their seed only are one group: its accuracy is the mean over the runs, and the spread over seeds is
reported apart from the interval over episodes. Whether two groups differ is tested over their seeds; a single run says
nothing about other seeds, so its differences are not tested.
"""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from html import escape
from io import StringIO
from itertools import combinations
from operator import attrgetter
from os.path import commonpath
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.stats import t as student

from tapnet.checkpoint import Header
from tapnet.data import ImageSet
from tapnet.data.episodes import EpisodeSpec
from tapnet.errors import UserError
from tapnet.evaluation.candidates import Candidate, ClassOverlap, without_seed
from tapnet.evaluation.evaluator import Accuracies, Evaluation, Progress, SeedSpread, mean_and_ci95, seed_spread
from tapnet.evaluation.plotting import COLORS, new_figure, save
from tapnet.methods import Method
from tapnet.paths import write_atomically
from tapnet.text import (
    class_half_width,
    csv_table,
    difference,
    half_width,
    latex_table,
    markdown_table,
    overlap_note,
    pluralize,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TextTable = list[dict[str, str]]  # in each row the cells by their headings, the first of which holds names

CORRECTION, LEVEL = "Holm", 0.05
_INTERVALS = (
    "Over episodes: 95% interval for these runs, classes and images. Over classes: for others of the same kind; not "
    "resolvable where their variance is lost in that of the episodes. Over seeds: for other seeds of training."
)
_COSTS = (
    "Image passes: images of the training episodes, without those of networks that it started from. Time per episode: "
    "on this machine; the network is left out where its features are cached."
)


@dataclass(frozen=True, eq=False)
class RunResult:
    """The accuracy of one run on the episodes, and its costs."""

    checkpoint: str
    header: Header
    evaluation: Evaluation
    overlap: ClassOverlap
    accuracies: Accuracies  # (episodes,)
    extra_parameters: int  # besides the backbone's
    training_seconds: float | None
    seconds_per_episode: float  # of testing, without the network if its features can be cached
    cached_features: bool

    @property
    def image_passes(self) -> int:
        """How many images of training episodes the network has seen, without those of networks it started from."""
        training = self.header.recipe.training
        return self.header.episode * training.way * (training.shot + training.query)

    def as_dict(self) -> dict[str, Any]:
        measured = ("accuracy", "ci95", "ci95_bootstrap", "ci95_bootstrap_at_most", "transductive")
        return {
            "checkpoint": self.checkpoint,
            "method": self.header.recipe.method.name,
            "seed": self.header.recipe.seed,
            "extra_parameters": self.extra_parameters,
            "training_episodes": self.header.episode,
            "image_passes": self.image_passes,
            "training_seconds": self.training_seconds,
            "seconds_per_episode": self.seconds_per_episode,
            "cached_features": self.cached_features,
            **{name: getattr(self.evaluation, name) for name in measured},
            **self.overlap.as_dict(),
        }


@dataclass(frozen=True, eq=False)
class Group:
    """Runs of one recipe with different seeds."""

    runs: tuple[RunResult, ...]

    @property
    def name(self) -> str:
        return self.runs[0].checkpoint

    @property
    def accuracies(self) -> Accuracies:
        """The mean accuracy over the runs in each episode."""
        return np.asarray(np.mean([run.accuracies for run in self.runs], axis=0))

    @property
    def spread(self) -> SeedSpread:
        return seed_spread([run.accuracies for run in self.runs], [run.header.recipe.seed for run in self.runs])


@dataclass(frozen=True)
class Pair:
    """The difference of two groups, second minus first, on the same episodes; tested if both have several seeds."""

    first: str
    second: str
    difference: float
    ci95: float  # of these runs, over episodes
    seed_ci95: float | None = None  # for other seeds and episodes
    p_value: float | None = None  # two-sided, over seeds and episodes
    corrected_p_value: float | None = None  # for the number of tested pairs
    significant: bool | None = None


@dataclass(frozen=True, eq=False)
class Comparison:
    """The result: one row per run, per group of runs and per pair of groups."""

    spec: EpisodeSpec
    images: ImageSet
    precision: str
    runs: tuple[RunResult, ...]
    groups: tuple[Group, ...]
    pairs: tuple[Pair, ...]

    def as_dict(self) -> dict[str, Any]:
        differences = [mean_and_ci95(run.accuracies - self.runs[0].accuracies) for run in self.runs]
        return asdict(self.spec) | {
            "dataset": self.images.name,
            "split": self.images.split,
            "classes": len(self.images.class_names),
            "data_sha256": self.images.fingerprint,
            "precision": self.precision,
            "checkpoints": [
                run.as_dict() | {"difference": mean, "difference_ci95": ci95}
                for run, (mean, ci95) in zip(self.runs, differences, strict=True)
            ],
            "groups": [
                {"name": group.name, "checkpoints": [run.checkpoint for run in group.runs], **asdict(group.spread)}
                for group in self.groups
            ],
            "pairs": [asdict(pair) for pair in self.pairs],
            "correction": CORRECTION,
            "level": LEVEL,
        }


def compare(
    candidates: Iterable[Candidate],
    spec: EpisodeSpec,
    bootstrap: bool = True,
    progress: Callable[[str], Progress] | None = None,
) -> Comparison:
    """Return all candidates on the same episodes; raise UserError if their data differ.

    Without `bootstrap` the interval over classes is left out. `progress` is called with the name of each candidate and
    returns the function that is called with the number of episodes done. Candidates are taken one after the other, so
    with a generator the features of only one are in memory at a time.
    """
    runs, first = [], None
    for candidate in candidates:
        evaluator = candidate.evaluator
        first = first or evaluator
        data = attrgetter("fingerprint", "rotations", "one_rotation_per_class")
        if data(evaluator.images) != data(first.images):
            raise UserError(
                "These checkpoints were trained on different data: name one dataset for all.", parameter="dataset"
            )
        runs.append(_measure(candidate, spec, bootstrap, progress))
    if first is None or len(runs) < 2:
        raise UserError(f"A comparison needs at least 2 checkpoints, got {len(runs)}.")
    groups = _groups(runs)
    return Comparison(spec, first.images, first.precision, tuple(runs), groups, paired_differences(groups))


def _measure(
    candidate: Candidate, spec: EpisodeSpec, bootstrap: bool, progress: Callable[[str], Progress] | None
) -> RunResult:
    evaluator, name, method = candidate.evaluator, candidate.name, candidate.evaluator.method
    if not method.task_features:
        _ = evaluator.features  # outside of the time per episode
    started = time.perf_counter()
    accuracies = evaluator.accuracies(spec, progress and progress(name))
    seconds = time.perf_counter() - started
    over_classes = progress(f"{name}, over classes") if progress and bootstrap else None
    return RunResult(
        checkpoint=name,
        header=candidate.header,
        evaluation=evaluator.evaluate(spec, bootstrap, over_classes, accuracies),
        overlap=candidate.overlap,
        accuracies=accuracies,
        extra_parameters=extra_parameters(method),
        training_seconds=candidate.training_seconds,
        seconds_per_episode=seconds / spec.episodes,
        cached_features=not method.task_features,
    )


def extra_parameters(method: Method) -> int:
    """Return the number of parameters of a method besides those of its backbone, and those that only training needs."""
    left_out = tuple(f"{module}." for module in ("backbone", *method.training_only))
    return sum(parameter.numel() for name, parameter in method.named_parameters() if not name.startswith(left_out))


def _groups(runs: Sequence[RunResult]) -> tuple[Group, ...]:
    """Return the runs by recipe, in the order of their first runs; runs of one seed stay apart."""
    members: dict[tuple[str, int], list[RunResult]] = {}
    seen: Counter[tuple[str, int]] = Counter()
    for run in runs:
        recipe, seed = json.dumps(without_seed(run.header.recipe.as_dict()), sort_keys=True), run.header.recipe.seed
        members.setdefault((recipe, seen[recipe, seed]), []).append(run)
        seen[recipe, seed] += 1
    return tuple(Group(tuple(group)) for group in members.values())


def paired_differences(groups: Sequence[Group]) -> tuple[Pair, ...]:
    """Return every pair of groups with the difference of its accuracies, tested if both groups have several seeds."""
    pairs, tests = [], {}
    for index, (first, second) in enumerate(combinations(groups, 2)):
        pairs.append(Pair(first.name, second.name, *mean_and_ci95(second.accuracies - first.accuracies)))
        if min(len(first.runs), len(second.runs)) > 1:
            tests[index] = seed_test(first, second)
    corrected = holm([p_value for _, p_value in tests.values()])
    for (index, (seed_ci95, p_value)), value in zip(tests.items(), corrected, strict=True):
        tested = replace(pairs[index], seed_ci95=seed_ci95, p_value=p_value)
        pairs[index] = replace(tested, corrected_p_value=value, significant=value < LEVEL)
    return tuple(pairs)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number by Holm's step-down procedure (1979)."""
    order = np.argsort(p_values)
    corrected = np.empty(len(p_values))
    corrected[order] = np.maximum.accumulate(np.asarray(p_values)[order] * range(len(p_values), 0, -1))
    return list(map(float, corrected.clip(max=1)))


def seed_test(first: Group, second: Group) -> tuple[float, float]:
    """Return the half-width of the 95% interval of the difference over seeds and episodes, and its p-value.

    Each group has seeds of its own, and all runs have the same episodes, so the variance of the difference is
    s₁²/n₁ + s₂²/n₂ + d²/E, with the variances s² of the accuracies of n runs and d² of the paired differences of E
    episodes. The degrees of freedom are those of Welch and Satterthwaite.
    """
    differences = second.accuracies - first.accuracies
    samples = [np.array([run.accuracies.mean() for run in group.runs]) for group in (first, second)]
    parts = [(values.var(ddof=1) / len(values), len(values) - 1) for values in (*samples, differences)]
    variance = sum(part for part, _ in parts)
    if variance == 0:
        return 0.0, float(differences.mean() == 0)
    freedom = variance**2 / sum(part**2 / count for part, count in parts)
    statistic = abs(differences.mean()) / math.sqrt(variance)
    return float(student.ppf(0.975, freedom)) * math.sqrt(variance), float(2 * student.sf(statistic, freedom))


def title(result: Comparison) -> str:
    """Return the task of a comparison in one line."""
    spec, images = result.spec, result.images
    seen = overlap_note(any(run.overlap.pretrained_on for run in result.runs))
    task = f"{spec.way}-way {spec.shot}-shot on {images.name} ({len(images.class_names)} {images.split} classes{seen})"
    return f"{task}, {spec.episodes:,} identical episodes"


def note(result: Comparison) -> str:
    """Return what the intervals and tests of a comparison say, and what they do not."""
    sentences = [_INTERVALS]
    if any(pair.p_value is not None for pair in result.pairs):
        sentences.append(f"Pairs: tested over seeds and episodes, {CORRECTION}'s correction, level {LEVEL:g}.")
    if any(pair.p_value is None for pair in result.pairs):
        sentences.append("One run each: differences between runs are not tested.")
    return " ".join([*sentences, _COSTS])


def tables(result: Comparison) -> dict[str, TextTable]:
    """Return accuracies, costs and paired differences by their titles; seeds of a single recipe have no pairs."""
    labels = short_names([group.name for group in result.groups])
    starred = " (*: with its network)" if any(not run.cached_features for run in result.runs) else ""
    tested = sum(pair.p_value is not None for pair in result.pairs)
    correction = f", with {CORRECTION}'s correction for {pluralize(tested, 'test')}" if tested else ""
    listed = {
        "Accuracy": [_accuracy_row(group, labels[group.name]) for group in result.groups],
        f"Costs{starred}": [_cost_row(group, labels[group.name]) for group in result.groups],
        f"Paired differences{correction}": [_pair_row(pair, labels, tested > 0) for pair in result.pairs],
    }
    return {heading: rows for heading, rows in listed.items() if rows}


def short_names(names: Sequence[str]) -> dict[str, str]:
    """Return each path relative to the folder that all have in common."""
    try:
        shared = commonpath([str(Path(name).parent) for name in names])
    except ValueError:  # absolute and relative ones
        shared = ""
    short = {name: str(Path(name).relative_to(shared)) if shared else name for name in names}
    return short if len({*short.values()}) == len(short) else {name: name for name in names}


def _widest(group: Group) -> Evaluation:
    """Return the result with the widest interval over classes: the runs of a group share their classes."""
    results = [run.evaluation for run in group.runs]
    return max(results, key=lambda result: (result.ci95_bootstrap or 0.0, result.ci95_bootstrap_at_most or 0.0))


def _accuracy_row(group: Group, label: str) -> dict[str, str]:
    spread, widest, seeds = group.spread, _widest(group), len(group.runs)
    return {
        "run": label + (f" ({seeds} seeds)" if seeds > 1 else ""),
        "method": group.runs[0].header.recipe.method.name,
        "accuracy": f"{100 * spread.accuracy:.2f}%",
        "over episodes": half_width(spread.ci95),
        "over classes": class_half_width(widest.ci95_bootstrap, widest.ci95_bootstrap_at_most),
        "over seeds": half_width(spread.seed_ci95),
    }


def _cost_row(group: Group, label: str) -> dict[str, str]:
    first = group.runs[0]
    hours = [run.training_seconds / 3600 for run in group.runs if run.training_seconds is not None]
    milliseconds = 1000 * fmean(run.seconds_per_episode for run in group.runs)
    return {
        "run": label,
        "extra parameters": f"{first.extra_parameters:,}",
        "image passes": f"{first.image_passes:,}",
        "training hours": f"{fmean(hours):.2f}" if hours else "—",
        "ms per test episode": f"{milliseconds:.2f}{'' if first.cached_features else ' *'}",
        "transductive": "yes" if first.evaluation.transductive else "no",
    }


def _pair_row(pair: Pair, labels: dict[str, str], tested: bool) -> dict[str, str]:
    row = {"pair": f"{labels[pair.second]} − {labels[pair.first]}", "difference": difference(pair.difference)}
    row["paired interval"] = half_width(pair.ci95)
    if not tested:
        return row
    p_value = pair.corrected_p_value
    return row | {
        "over seeds": half_width(pair.seed_ci95),
        f"p ({CORRECTION})": "—" if p_value is None else f"{p_value:.2g}" if p_value >= 1e-16 else "< 1e-16",
        "significant": "—" if pair.significant is None else "yes" if pair.significant else "no",
    }


def figure(result: Comparison) -> Figure:
    """Return a plot of the accuracies with both intervals, and of the single runs of a group."""
    labels = short_names([group.name for group in result.groups])
    drawn, axis = new_figure(7, 1.2 + 0.5 * len(result.groups))
    for place, group in enumerate(result.groups):
        accuracy, widest = 100 * group.spread.accuracy, _widest(group).ci95_bootstrap
        if widest is not None:
            axis.errorbar(accuracy, place, xerr=100 * widest, fmt="none", ecolor=COLORS[4], elinewidth=5, alpha=0.6)
        axis.errorbar(accuracy, place, xerr=100 * group.spread.ci95, fmt="o", color=COLORS[0], capsize=4)
        if len(group.runs) > 1:
            singles = [100 * run.evaluation.accuracy for run in group.runs]
            axis.plot(singles, [place] * len(singles), "|", color=COLORS[1], markersize=12)
    axis.set(yticks=range(len(result.groups)), yticklabels=[labels[group.name] for group in result.groups])
    axis.set(xlabel="accuracy (%)\nthin: 95% over episodes; wide: over classes; bars: single seeds")
    axis.invert_yaxis()
    axis.grid(alpha=0.3, axis="x")
    return drawn


def markdown(result: Comparison, plot: str) -> str:
    """Return a page with all tables, and the plot in the file of that name."""
    shown = [
        f"## {heading}\n\n{markdown_table([*rows[0]], [[*row.values()] for row in rows])}"
        for heading, rows in tables(result).items()
    ]
    drawn = f"![Accuracies with their intervals]({plot})"
    return "\n\n".join(["# Comparison", title(result), shown[0], drawn, *shown[1:], note(result)]) + "\n"


def html(result: Comparison) -> str:
    """Return a self-contained page with the plot."""
    drawing = StringIO()
    figure(result).savefig(drawing, format="svg")
    svg = drawing.getvalue()
    shown = []
    for heading, rows in tables(result).items():
        lines = [[f"<th>{escape(cell)}</th>" for cell in rows[0]]]
        lines += [[f"<td>{escape(cell)}</td>" for cell in row.values()] for row in rows]
        table = "".join(f"<tr>{''.join(line)}</tr>" for line in lines)
        shown.append(f"<h2>{escape(heading)}</h2><table>{table}</table>")
    parts = [f"<h1>Comparison</h1><p>{escape(title(result))}</p>", shown[0], svg[svg.index("<svg") :], *shown[1:]]
    return _PAGE.format(body="\n".join([*parts, f"<p>{escape(note(result))}</p>"]))


def write(result: Comparison, path: Path) -> list[Path]:
    """Write the page in the format of its ending, .md with a plot beside it or .html; return the files written.

    With the ending .tex it is the tables; with .csv one of accuracies and costs, and beside it one of the pairs.
    """
    form = path.suffix.lower()
    listed = [([*rows[0]], [[*row.values()] for row in rows]) for rows in tables(result).values()]
    if form == ".csv":
        (headings, accuracies), (of_costs, costs), *pairs = listed
        runs = [[*row, *cost[1:]] for row, cost in zip(accuracies, costs, strict=True)]
        pages = {path: csv_table([*headings, *of_costs[1:]], runs)}
        pages |= {path.with_stem(f"{path.stem}-pairs"): csv_table(*table) for table in pairs}
    elif form == ".tex":
        pages = {path: "\n".join(latex_table(*table) for table in listed)}
    elif form == ".html":
        pages = {path: html(result)}
    else:
        pages = {path: markdown(result, path.with_suffix(".svg").name)}
    for page, content in pages.items():
        write_atomically(page, content.encode())
    return [*pages, *([] if form in (".csv", ".tex", ".html") else [save(figure(result), path.with_suffix(".svg"))])]


_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>Comparison</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 64em; margin: 2em auto; padding: 0 1em; }}
table {{ border-collapse: collapse; }} td {{ white-space: nowrap; }} svg {{ max-width: 100%; height: auto; }}
th, td {{ border: 1px solid #ccc; padding: .3em .6em; text-align: right; }}
th:first-child, td:first-child {{ text-align: left; }}
</style></head><body>
{body}
</body></html>
"""
