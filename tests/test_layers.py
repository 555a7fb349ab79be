"""The rule of the house: imports go down only."""

import ast
from pathlib import Path

import pytest

from tapnet.methods import METHODS

SOURCE = Path(__file__).parents[1] / "src" / "tapnet"

LAYERS = {
    name: layer
    for layer, names in enumerate(
        [
            ("errors",),
            ("paths",),
            ("functional", "hardware", "text"),
            ("backbones", "data"),
            ("methods",),
            ("recipe",),
            ("checkpoint",),
            ("evaluation",),
            ("inference", "testing", "training"),
            ("jobs",),
            ("paper",),
            ("web",),
            ("cli",),
            ("__main__",),
        ]
    )
    for name in names
}


def room(module):
    return module.split(".")[1]


def imports_of(path):
    """Modules of ours that a file imports, at its top or inside a function."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        assert not getattr(node, "level", 0), "relative imports would not be seen here"
        if isinstance(node, ast.ImportFrom) and node.module == "tapnet":
            yield from (f"tapnet.{alias.name}" for alias in node.names if alias.name != "__version__")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tapnet."):
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("tapnet."))


FILES = [path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_go_down_only(path):
    here = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    for module in imports_of(path):
        assert room(module) == here or LAYERS[room(module)] < LAYERS[here], f"{path.name} imports {module}"


@pytest.mark.parametrize("name", ["functional", "hardware", "text"])
def test_the_lowest_layer_knows_only_the_errors_of_the_package(name):
    assert set(imports_of(SOURCE / f"{name}.py")) <= {"tapnet.errors"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_only_methods_and_the_papers_analysis_know_a_method_by_name(path):
    if path.relative_to(SOURCE).parts[0] in ("methods", "paper"):
        return
    concrete = {method.__name__ for method in METHODS.values()}
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert not names & concrete
