"""A mistake of the user ends in one sentence; anything else is a bug and looks like one."""

import ast
import re
from pathlib import Path

import pytest

import tapnet
from tapnet.cli import main, runs
from tapnet.errors import NotFoundError, UserError

SOURCE = Path(tapnet.__file__).parent
BELOW = [path for path in SOURCE.rglob("*.py") if path.relative_to(SOURCE).parts[0] not in ("cli", "web")]


@pytest.fixture
def failing(monkeypatch):
    """A function that runs a command in which an exception is raised."""

    def run(error):
        def fail(_):
            raise error

        monkeypatch.setattr(runs, "run_recipes", fail)
        return main(["recipes"])

    return run


@pytest.mark.parametrize("error", [UserError("Give 2."), NotFoundError("Give 2."), OSError("Give 2.")])
def test_mistake_of_the_user_is_one_sentence(error, failing, capsys):
    assert failing(error) == 2
    assert capsys.readouterr().err == "tapnet recipes: Give 2.\n"


@pytest.mark.parametrize("error", [ValueError("operands could not be broadcast"), TypeError("'NoneType'"), KeyError(3)])
def test_bug_is_not_shown_as_a_mistake_of_the_user(error, failing):
    with pytest.raises(type(error)):
        failing(error)


def test_flag_is_added_to_an_error_that_names_its_parameter(tmp_path, capsys):
    (tmp_path / "best.safetensors").touch()
    assert main(["train", "quickdraw", "--out", str(tmp_path), "--device", "cpu"]) == 2
    assert capsys.readouterr().err.endswith("choose another folder. (--out)\n")


@pytest.mark.parametrize("path", BELOW, ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_message_below_the_command_line_names_a_flag(path):
    """Whole commands to copy, and texts without a sentence, are no messages."""
    for text in filter(re.compile(r"[.:;?!]( |$)").search, messages(path)):
        outside = re.sub(r"`[^`]*`|tapnet [a-z-]+ .*", "", text)
        assert not re.search(r"(?<![\w-])--[a-z]", outside), text


def messages(path):
    """Every text of more than two words in a file, besides its docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if id(node) in parts | documentation:
            continue
        if isinstance(node, ast.JoinedStr):
            yield "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value.split()) > 2:
            yield node.value


@pytest.mark.parametrize("path", BELOW, ids=lambda path: str(path.relative_to(SOURCE)))
def test_every_refusal_is_an_error_of_the_user(path):
    """A plain ValueError comes from a library, by a bug of ours."""
    raised = [node.exc for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Raise)]
    names = {ast.unparse(error.func) for error in raised if isinstance(error, ast.Call)}
    assert not names & {"ValueError", "FileNotFoundError"}
