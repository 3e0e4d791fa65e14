"""Help and documentation name the same commands and exit codes."""

import re
from importlib.metadata import version
from pathlib import Path

from typer.main import get_command
from typer.testing import CliRunner

from app.cli import options
from app.cli.main import cli

PAGE = (Path(__file__).parents[2] / "docs/cli.md").read_text()
COMMANDS = sorted(getattr(get_command(cli), "commands"))  # noqa: B009 - typer hides the type
HELP = CliRunner().invoke(cli, ["--help"], terminal_width=200).stdout


def test_every_command_is_documented_and_no_other() -> None:
    assert sorted(re.findall(r"^\| `assay (\w+)", PAGE, re.MULTILINE)) == COMMANDS


def test_every_exit_code_is_documented_and_in_the_help() -> None:
    codes = {value for name, value in vars(options).items() if name.startswith("EXIT_")}
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)} == codes
    text = " ".join(HELP.split())
    assert {int(code) for code in re.findall(r"(\d+) [a-z]", text.partition("codes:")[2])} == codes


def test_the_version_is_printed() -> None:
    done = CliRunner().invoke(cli, ["--version"])
    assert (done.exit_code, done.stdout) == (0, f"assay {version('assay')}\n")


def test_every_option_says_what_it_does() -> None:
    for command in getattr(get_command(cli), "commands").values():  # noqa: B009
        assert command.help, command.name
        assert [p.name for p in command.params if not getattr(p, "help", None)] == []
