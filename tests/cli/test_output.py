"""Tables, prose and progress on terminals of any width and in files, and how errors below the command line read."""

import ast
import re
import sys
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

import tapnet
from tapnet.cli import main, output, predict
from tapnet.cli.output import print_prose, print_table

SOURCE = Path(tapnet.__file__).parent
BELOW = [path for path in SOURCE.rglob("*.py") if path.relative_to(SOURCE).parts[0] not in ("cli", "web")]


def test_a_table_fits_80_columns_and_breaks_names_at_hyphens(capsys, monkeypatch, tmp_path):
    (tmp_path / "results").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert main(["table", "network-sizes"]) == 0
    printed = re.sub(r"\x1b\[\d+m", "", capsys.readouterr().out)  # bold
    table = [line for line in printed.splitlines() if line.startswith("│")]
    assert max(map(len, table)) <= 80
    assert any(line.startswith("│ mini-imagenet-") for line in table)
    assert not any("…" in line for line in table)


@pytest.mark.parametrize("columns", ["50", "200"])
def test_a_table_and_prose_in_a_pipe_are_not_folded(columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    name, text = "a name of several words that is wider than a narrow terminal", "Prose of many words. " * 20
    print_table(("name", "value"), [(name, "1.00%")])
    print_prose(text, indent=2)
    table, prose = capsys.readouterr().out.rsplit("┘\n", 1)
    assert f"│ {name} │ 1.00% │" in table
    assert prose == f"  {text}\n"


def test_prose_is_wrapped_on_a_terminal(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "50")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    print_prose("words [of many kinds] " * 20, indent=2)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 1
    assert all(line.startswith("  ") and len(line) <= 50 for line in lines)
    assert "[of" in lines[0]


def test_output_to_a_file_stays_there_while_a_bar_is_on_the_terminal(monkeypatch, capsys):
    terminal = StringIO()
    monkeypatch.setattr(output, "ERRORS", Console(file=terminal, force_terminal=True))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with output.progress_bar("images") as bar:
        bar.add_task("", total=2)
        sys.stdout.write("file,class\n")
    assert capsys.readouterr().out == "file,class\n"
    assert "images, time left" in terminal.getvalue()


def test_time_left_does_not_count_the_start_of_a_cluster(monkeypatch, capsys):
    times = iter([100.0, 100.1, 140.0, 190.0])  # parts of 100, 100, 200 and 600 images, the first two by two workers
    monkeypatch.setattr(predict, "time", SimpleNamespace(monotonic=lambda: next(times)))
    log = predict.TextProgress()
    log(100, 1000), log(200, 1000), log(400, 1000), log(1000, 1000)  # nothing is left after the last one
    assert capsys.readouterr().err == "400 of 1,000 images, 7.5 per second, 0:01:20 left\n"


def test_no_message_below_the_command_line_names_a_flag():
    """Whole commands to copy, and texts without a sentence, are no messages."""
    for path in BELOW:
        for text in filter(re.compile(r"[.:;?!]( |$)").search, messages(path)):
            outside = re.sub(r"`[^`]*`|tapnet [a-z-]+ .*", "", text)
            assert not re.search(r"(?<![\w-])--[a-z]", outside), (path, text)


def messages(path):
    """Every text of more than two words in a file, besides its docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if id(node) in inside | documentation:
            continue
        if isinstance(node, ast.JoinedStr):
            yield "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value.split()) > 2:
            yield node.value


def test_every_refusal_is_an_error_of_the_user():
    """A plain ValueError comes from a library, by a bug of ours."""
    for path in BELOW:
        raised = [node.exc for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Raise)]
        names = {ast.unparse(error.func) for error in raised if isinstance(error, ast.Call)}
        assert not names & {"ValueError", "FileNotFoundError"}, path
