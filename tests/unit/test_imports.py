"""Imports point one way: app -> evaluator.contract <- evaluator; migrations -> app."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
EVALUATOR_LIBRARIES = frozenset(
    {
        "accelerate",
        "datasets",
        "gguf",
        "numpy",
        "pyarrow",
        "safetensors",
        "tokenizers",
        "torch",
        "transformers",
    }
)
SERVER_LIBRARIES = frozenset(
    {
        "aiosqlite",
        "alembic",
        "fastapi",
        "psycopg",
        "pydantic_settings",
        "rich",
        "sqlalchemy",
        "starlette",
        "typer",
        "uvicorn",
    }
)


class Import(NamedTuple):
    """One imported name and where it stands."""

    module: str
    place: str

    @property
    def top(self) -> str:
        """The package that is installed."""
        return self.module.partition(".")[0]


def imports_of(path: Path) -> Iterator[Import]:
    """Every import of a file, those inside functions included."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            # `from evaluator import contract` names the module evaluator.contract.
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            yield Import(name, f"{path.relative_to(ROOT)}:{node.lineno} imports {name}")


def imports_under(folder: str, *, without: str | None = None) -> list[Import]:
    """Every import of every file of a folder."""
    paths = sorted((ROOT / folder).rglob("*.py"))
    assert paths
    skipped = None if without is None else ROOT / without
    return [
        found
        for path in paths
        if skipped is None or skipped not in path.parents
        for found in imports_of(path)
    ]


def test_contract_imports_pydantic_and_standard_library_only() -> None:
    allowed = sys.stdlib_module_names | {"pydantic"}
    assert not [
        found.place
        for found in imports_under("evaluator/contract")
        if found.top not in allowed and not found.module.startswith("evaluator.contract")
    ]


def test_evaluator_imports_nothing_of_the_server() -> None:
    banned = SERVER_LIBRARIES | {"app", "migrations", "tests"}
    assert not [found.place for found in imports_under("evaluator") if found.top in banned]


def test_app_imports_nothing_of_the_evaluator_but_the_contract() -> None:
    banned = EVALUATOR_LIBRARIES | {"tests"}
    assert not [
        found.place
        for found in imports_under("app")
        if found.top in banned
        or (found.top == "evaluator" and not found.module.startswith("evaluator.contract"))
    ]


def test_migrations_import_the_database_side_only() -> None:
    banned = EVALUATOR_LIBRARIES | {"fastapi", "tests", "uvicorn"}
    paths = sorted((ROOT / "migrations").rglob("*.py"))
    found = [found for path in paths for found in imports_of(path)]
    assert not [one.place for one in found if one.top in banned]


def test_evaluator_package_is_empty() -> None:
    assert (ROOT / "evaluator" / "__init__.py").read_text() == ""


@pytest.mark.parametrize("module", ["app.main", "app.cli.main"])
def test_server_loads_no_torch(module: str) -> None:
    code = f"import sys, {module}; print(*sorted(sys.modules), sep='\\n')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert module.partition(".")[0] in loaded
    assert not loaded & EVALUATOR_LIBRARIES
