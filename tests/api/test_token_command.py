"""`assay token`, on a database of its own."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from app.cli.main import cli


@pytest.fixture(autouse=True)
def state_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The server's state directory, not made yet."""
    folder = tmp_path / "state"
    monkeypatch.setenv("ASSAY_STATE_DIR", str(folder))
    return folder


def run(*words: str) -> Result:
    return CliRunner().invoke(cli, ["token", *words])


def listed(*words: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(run("list", "--json", *words).stdout)
    return rows


def test_create_list_revoke() -> None:
    made = run("create", "--name", "ci", "--project", "red", "--days", "9")
    assert made.exit_code == 0, made.output
    assert re.fullmatch(r"assay_[\w-]{43}\n", made.stdout)
    assert re.fullmatch(r"tok_\w{26}, shown this once:\n", made.stderr)
    (row,) = listed()
    assert (row["name"], row["project"], row["scopes"]) == (
        "ci",
        "red",
        ["jobs:read", "jobs:write"],
    )
    assert row["expires_at"] > row["created_at"]
    assert (row["last_used_at"], row["revoked_at"]) == (None, None)
    assert run("revoke", row["id"]).exit_code == 0
    (row,) = listed()
    assert row["revoked_at"] is not None
    table = run("list").stdout
    assert row["id"] in table
    assert made.stdout.strip() not in table + json.dumps(row)


def test_the_first_is_written_and_not_shown(state_dir: Path) -> None:
    done = run("create", "--first")
    assert (done.exit_code, done.stdout) == (0, f"{state_dir / 'admin-token'}\n")
    assert "assay_" not in done.output
    (row,) = listed("--state-dir", str(state_dir))
    assert (row["scopes"], row["project"]) == (["admin"], None)
    again = run("create", "--first")
    assert again.exit_code == 2
    assert "there is a token already" in again.stderr


def test_a_file_in_its_place_is_named(state_dir: Path) -> None:
    state_dir.mkdir()
    (state_dir / "admin-token").touch()
    done = run("create", "--first")
    assert done.exit_code == 4
    assert f"{state_dir / 'admin-token'}: File exists: move it away" in done.stderr
    assert listed() == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["create"], "name ''"),
        (["create", "--name", "a\nb"], "printable"),
        (["create", "--name", "a", "--scope", "jobs"], "jobs:read, jobs:write, hooks:write"),
        (["create", "--name", "a", "--scope", "admin", "--project", "red"], "leave out one"),
        (["create", "--name", "a", "--project", "Red/../"], "project 'Red/../'"),
        (["create", "--first", "--name", "a"], "no other options"),
        (["revoke", "tok_0"], "there is no token 'tok_0'"),
    ],
)
def test_what_makes_no_sense_is_refused(words: list[str], said: str) -> None:
    done = run(*words)
    assert done.exit_code == 2
    assert said in re.sub(r"\s+│?\s*", " ", done.stderr.replace("│", ""))
    assert listed() == []


def test_a_database_that_is_no_good_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASSAY_DATABASE_URL", "sqlite:////no/such/x.db")
    done = run("list")
    assert done.exit_code == 4
    assert "/no/such/x.db" in done.stderr
    monkeypatch.setenv("ASSAY_PORT", "high")
    done = run("list")
    assert (done.exit_code, done.stderr.startswith("Error: ASSAY_PORT: ")) == (2, True)
