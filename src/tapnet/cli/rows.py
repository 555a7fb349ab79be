"""Predictions as lines of text: an aligned table, CSV, or one JSON object a line. Each batch is whole when written."""

from __future__ import annotations

import csv
import io
import json
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from tapnet.inference.prediction import Prediction


class PredictionWriter(ABC):
    """Writes to a stream, flushing after every batch, so that an interrupted run leaves whole lines."""

    def __init__(self, stream: TextIO, top: int, widest: int) -> None:
        self.stream, self.top, self.widest = stream, top, max(widest, len("unknown"))
        self.stream.write(self.heading())

    def write(self, batch: list[Prediction]) -> None:
        self.stream.write("".join(map(self.line, batch)))
        self.stream.flush()

    @abstractmethod
    def heading(self) -> str: ...

    @abstractmethod
    def line(self, prediction: Prediction) -> str: ...


class Table(PredictionWriter):
    """class, probability, file; further classes with their probabilities between."""

    def heading(self) -> str:
        more = "".join(f"  {'next':<{self.widest}}  {'':>6}" for _ in range(self.top - 1))
        return f"{'class':<{self.widest}}  {'prob.':>6}{more}  file\n"

    def line(self, prediction: Prediction) -> str:
        ranked = [(prediction.label, prediction.probability), *prediction.ranked[1:]]
        cells = "  ".join(f"{name:<{self.widest}}  {100 * value:5.1f}%" for name, value in ranked)
        return f"{cells}  {prediction.file}\n"


class Csv(PredictionWriter):
    """One line a picture, with a heading."""

    def heading(self) -> str:
        more = [cell for rank in range(2, self.top + 1) for cell in (f"class_{rank}", f"probability_{rank}")]
        return _csv_line(["file", "class", "probability", *more])

    def line(self, prediction: Prediction) -> str:
        more = [cell for name, value in prediction.ranked[1:] for cell in (name, f"{value:.6f}")]
        return _csv_line([str(prediction.file), prediction.label, f"{prediction.probability:.6f}", *more])


class Json(PredictionWriter):
    """One object a line, so that the file is whole after every line."""

    def heading(self) -> str:
        return ""

    def line(self, prediction: Prediction) -> str:
        top = [{"class": name, "probability": round(value, 6)} for name, value in prediction.ranked]
        row = {"file": str(prediction.file), "class": prediction.label, "probability": round(prediction.probability, 6)}
        return json.dumps(row | ({"top": top} if self.top > 1 else {}), ensure_ascii=False) + "\n"


def _csv_line(cells: list[str]) -> str:
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerow(cells)
    return stream.getvalue()


FORMATS: dict[str, type[PredictionWriter]] = {"table": Table, "csv": Csv, "json": Json}
