"""How fast the command line answers, beside an import of PyTorch."""

from __future__ import annotations

import subprocess
import sys

from pairs import Row, Work, compared


def rows(pairs: int = 7) -> list[Row]:
    result = []
    for option in ("--help", "--version"):
        a, b, ratio = compared(_python("-m", "tapnet", option), _python("-c", "import torch"), pairs)
        result.append(Row(f"start-up: tapnet {option} / import torch", ratio, "below 0.3", a, b))
    return result


def _python(*arguments: str) -> Work:
    return lambda: subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
