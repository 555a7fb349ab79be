import sys
from io import StringIO

from rich.console import Console

from tapnet.cli import output


def test_output_to_a_file_stays_there_while_a_bar_is_on_the_terminal(monkeypatch, capsys):
    terminal = StringIO()
    monkeypatch.setattr(output, "ERRORS", Console(file=terminal, force_terminal=True))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with output.progress_bar("images") as bar:
        bar.add_task("", total=2)
        sys.stdout.write("file,class\n")
    assert capsys.readouterr().out == "file,class\n"
    assert "images, time left" in terminal.getvalue()
