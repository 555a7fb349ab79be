"""Predictions as text: an aligned table, CSV, JSON lines or one JSON list."""

from __future__ import annotations

import csv
import io
import json
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, TextIO

from tapnet.data.source import normalize_name

if TYPE_CHECKING:
    from tapnet.inference.predictor import Prediction


class PredictionWriter(ABC):
    """Writes to a stream and flushes after every batch, so that an interrupted run leaves complete lines.

    With `reject` the class may be "unknown", and the best guess is written beside it.
    """

    def __init__(self, stream: TextIO, top: int, reject: bool, widest: int) -> None:
        self.stream, self.top, self.reject, self.widest = stream, top, reject, max(widest, len("class"))
        self.stream.write(self.heading())

    def write(self, batch: list[Prediction]) -> None:
        self.stream.write("".join(map(self.line, batch)))
        self.stream.flush()

    def close(self) -> None:  # noqa: B027
        """Write the end of the output; most formats have none."""

    def heading(self) -> str:
        """Return the start of the output."""
        return ""

    @abstractmethod
    def line(self, prediction: Prediction) -> str: ...


class Table(PredictionWriter):
    """Class, or "unknown" with the nearest class in brackets; probability; further classes with theirs; file."""

    def heading(self) -> str:
        more = "".join(f"  {'next':<{self.widest}}  {'':>6}" for _ in range(self.top - 1))
        return f"{'class':<{self._first}}  {'prob.':>6}{more}  file\n"

    def line(self, prediction: Prediction) -> str:
        best = f"{prediction.label} ({prediction.best})" if prediction.rejected else prediction.best
        names = f"{best:<{self._first}}", *(f"{name:<{self.widest}}" for name, _ in prediction.ranked[1:])
        values = (f"{100 * value:5.1f}%" for _, value in prediction.ranked)
        cells = "  ".join(f"{name}  {value}" for name, value in zip(names, values, strict=True))
        return f"{cells}  {normalize_name(str(prediction.image))}\n"

    @property
    def _first(self) -> int:
        """The width of the first column."""
        return self.widest + (len("unknown ()") if self.reject else 0)


class Csv(PredictionWriter):
    """One row per image, with a heading."""

    def heading(self) -> str:
        more = [cell for rank in range(2, self.top + 1) for cell in (f"class_{rank}", f"probability_{rank}")]
        return _csv_line(["file", "class", *(["best_guess"] if self.reject else []), "probability", *more])

    def line(self, prediction: Prediction) -> str:
        guess = [prediction.best] if self.reject else []
        more = [cell for name, value in prediction.ranked[1:] for cell in (name, f"{value:.6f}")]
        file = normalize_name(str(prediction.image))  # on one line, whatever its name
        return _csv_line([file, prediction.label, *guess, f"{prediction.probability:.6f}", *more])


class JsonLines(PredictionWriter):
    """One object per line, so that the file is valid after every line."""

    def line(self, prediction: Prediction) -> str:
        return json.dumps(self.row(prediction), ensure_ascii=False) + "\n"

    def row(self, prediction: Prediction) -> dict[str, Any]:
        row: dict[str, Any] = {"file": str(prediction.image), "class": prediction.label}
        if self.reject:
            row["best_guess"] = prediction.best
        row["probability"] = round(prediction.probability, 6)
        if self.top > 1:
            row["top"] = [{"class": name, "probability": round(value, 6)} for name, value in prediction.ranked]
        return row


class JsonList(JsonLines):
    """One list of objects, which is closed even after an interruption."""

    _written = 0

    def heading(self) -> str:
        return "["

    def line(self, prediction: Prediction) -> str:
        self._written += 1
        return ("\n" if self._written == 1 else ",\n") + json.dumps(self.row(prediction), ensure_ascii=False)

    def close(self) -> None:
        self.stream.write("\n]\n")


def _csv_line(cells: list[str]) -> str:
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerow(cells)
    return stream.getvalue()


FORMATS: dict[str, type[PredictionWriter]] = {"table": Table, "csv": Csv, "json": JsonList, "jsonl": JsonLines}
