"""How fast the command line answers, beside an import of PyTorch."""

from __future__ import annotations

import subprocess
import sys

from pairs import Row, compared


def rows(pairs: int = 7) -> list[Row]:
    torch_import = [sys.executable, "-c", "import torch"]
    result = []
    for option in ("--help", "--version"):
        ours = [sys.executable, "-m", "tapnet", option]
        a, b, ratio = compared(lambda ours=ours: _run(ours), lambda: _run(torch_import), pairs)
        result.append(Row(f"start-up: tapnet {option} / import torch", ratio, "below 0.3", a, b))
    return result


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True)
