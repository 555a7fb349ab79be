"""Make RESULTS.md and results/README.md from the files in results/: python tools/write_results.py."""

from pathlib import Path

from tapnet.paper.report import details, report

ROOT = Path(__file__).resolve().parents[1]

if __name__ == "__main__":
    (ROOT / "RESULTS.md").write_text(report(ROOT / "results"), encoding="utf-8")
    (ROOT / "results" / "README.md").write_text(details(ROOT / "results"), encoding="utf-8")
