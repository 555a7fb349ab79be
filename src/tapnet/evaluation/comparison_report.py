"""A comparison as text tables, a plot, a Markdown page and a self-contained HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from io import StringIO
from os.path import commonpath
from pathlib import Path
from typing import TYPE_CHECKING

from tapnet.evaluation.comparison import CORRECTION, LEVEL, Comparison, Group
from tapnet.paths import write_atomically
from tapnet.plotting import COLORS, new_figure, save
from tapnet.text import difference, half_width, markdown_table, overlap_note, pluralize

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ENDINGS = (".md", ".html")
NOTE = (
    "Over episodes: 95% interval for these classes and images. Over classes: for others of the same kind. Over seeds: "
    f"for the mean over other seeds of training. Pairs: Student's paired test over episodes, {CORRECTION}'s correction "
    f"for the number of pairs, significant below {LEVEL:g}; another training seed may decide otherwise. Time per "
    "episode: on this machine; the network is left out where its features are cached."
)


@dataclass(frozen=True)
class TextTable:
    """A table ready to print; the first column holds names."""

    title: str
    headings: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


def title(result: Comparison) -> str:
    """Return the task of a comparison in one line."""
    note = overlap_note(any(run.overlap.pretrained_on for run in result.runs))
    spec, images = result.spec, result.images
    task = f"{spec.way}-way {spec.shot}-shot on {images.name} ({len(images.class_names)} {images.split} classes{note})"
    return f"{task}, {spec.episodes:,} identical episodes"


def tables(result: Comparison) -> list[TextTable]:
    """Return accuracies, costs and paired differences, of which seeds of a single recipe have none."""
    labels = short_names([group.name for group in result.groups])
    pairs = [_pairs(result, labels)] if result.pairs else []
    return [_accuracies(result, labels), _costs(result, labels), *pairs]


def short_names(names: Sequence[str]) -> dict[str, str]:
    """Return each path relative to the folder that all have in common."""
    parents = [str(Path(name).parent) for name in names]
    try:
        shared = commonpath(parents)
    except ValueError:  # absolute and relative ones
        shared = ""
    short = {name: str(Path(name).relative_to(shared)) if shared else name for name in names}
    return short if len({*short.values()}) == len(short) else {name: name for name in names}


def _accuracies(result: Comparison, labels: dict[str, str]) -> TextTable:
    rows = []
    for group in result.groups:
        spread, seeds = group.spread, len(group.runs)
        rows.append(
            (
                labels[group.name] + (f" ({seeds} seeds)" if seeds > 1 else ""),
                group.runs[0].method,
                f"{100 * spread.accuracy:.2f}%",
                half_width(spread.ci95),
                half_width(_over_classes(group)),
                half_width(spread.seed_ci95),
            )
        )
    headings = ("run", "method", "accuracy", "over episodes", "over classes", "over seeds")
    return TextTable("Accuracy", headings, rows)


def _over_classes(group: Group) -> float | None:
    """Return the widest interval over classes of a group's runs: they share their classes."""
    widths = [run.evaluation.ci95_bootstrap for run in group.runs]
    return max((width for width in widths if width is not None), default=None)


def _pairs(result: Comparison, labels: dict[str, str]) -> TextTable:
    rows = [
        (
            f"{labels[pair.second]} − {labels[pair.first]}",
            difference(pair.difference),
            half_width(pair.ci95),
            f"{pair.corrected_p_value:.2g}" if pair.corrected_p_value >= 1e-16 else "< 1e-16",
            "yes" if pair.significant else "no",
        )
        for pair in result.pairs
    ]
    headings = ("pair", "difference", "paired interval", f"p ({CORRECTION})", "significant")
    title = f"Paired differences, with {CORRECTION}'s correction for {pluralize(len(rows), 'pair')}"
    return TextTable(title, headings, rows)


def _costs(result: Comparison, labels: dict[str, str]) -> TextTable:
    rows = []
    for group in result.groups:
        first, hours = group.runs[0], [run.training_seconds for run in group.runs]
        known = [seconds / 3600 for seconds in hours if seconds is not None]
        milliseconds = 1000 * sum(run.seconds_per_episode for run in group.runs) / len(group.runs)
        rows.append(
            (
                labels[group.name],
                f"{first.extra_parameters:,}",
                f"{first.training_episodes:,}",
                f"{sum(known) / len(known):.2f}" if known else "—",
                f"{milliseconds:.2f}{'' if first.cached_features else ' *'}",
                "yes" if first.evaluation.transductive else "no",
            )
        )
    headings = (
        "run",
        "extra parameters",
        "training episodes",
        "training hours",
        "ms per test episode",
        "transductive",
    )
    starred = any(not run.cached_features for run in result.runs)
    return TextTable("Costs" + (" (*: with its network)" if starred else ""), headings, rows)


def figure(result: Comparison) -> Figure:
    """Return a plot of the accuracies with both intervals, and of the single runs of a group."""
    labels = short_names([group.name for group in result.groups])
    drawn, axis = new_figure(7, 1.2 + 0.5 * len(result.groups))
    for place, group in enumerate(result.groups):
        accuracy, widest = 100 * group.spread.accuracy, _over_classes(group)
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


def markdown(result: Comparison, plot: str | None = None) -> str:
    """Return a page with all tables, and the plot in the file of that name."""
    drawn = [f"![Accuracies with their intervals]({plot})"] if plot else []
    accuracies, *others = map(_section, tables(result))
    return "\n\n".join(["# Comparison", title(result), accuracies, *drawn, *others, NOTE]) + "\n"


def _section(table: TextTable) -> str:
    return f"## {table.title}\n\n{markdown_table(table.headings, table.rows)}"


def html(result: Comparison) -> str:
    """Return a self-contained page with the plot."""
    drawing = StringIO()
    figure(result).savefig(drawing, format="svg")
    svg = drawing.getvalue()
    accuracies, *others = map(_html_table, tables(result))
    head = f"<h1>Comparison</h1><p>{escape(title(result))}</p>"
    return _PAGE.format(body="\n".join([head, accuracies, svg[svg.index("<svg") :], *others, f"<p>{escape(NOTE)}</p>"]))


def _html_table(table: TextTable) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in table.headings)
    rows = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in table.rows)
    return f"<h2>{escape(table.title)}</h2><table><tr>{head}</tr>{rows}</table>"


def write(result: Comparison, path: Path) -> list[Path]:
    """Write the page in the format of its ending, .md with a plot beside it or .html; return the files written."""
    if path.suffix.lower() == ".html":
        write_atomically(path, html(result).encode())
        return [path]
    plot = save(figure(result), path.with_suffix(".svg"))
    write_atomically(path, markdown(result, plot.name).encode())
    return [path, plot]


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
