"""What the repository's root files promise: versions, locks, targets, budgets, compose files."""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from app.settings import Settings

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
MAKEFILE = (ROOT / "Makefile").read_text()
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 50


def test_changelog_starts_with_the_package_version() -> None:
    versions = re.findall(r"^## \[(\d[^\]]*)\]", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert versions[0] == PYPROJECT["project"]["version"]


def test_license_is_what_the_metadata_says() -> None:
    assert PYPROJECT["project"]["license"] == "Apache-2.0"
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License" in text
    assert "Version 2.0, January 2004" in text


# Make targets


def phony_targets() -> list[str]:
    """The targets that the Makefile offers."""
    found = re.search(r"^\.PHONY:((?:.*\\\n)*.*)$", MAKEFILE, re.M)
    assert found
    return found[1].replace("\\\n", " ").split()


@pytest.mark.parametrize("target", phony_targets())
def test_make_target_is_listed_and_documented(target: str) -> None:
    assert re.search(rf"^{target}:.*## \S", MAKEFILE, re.M), "no ## text: make help omits it"
    docs = "".join((ROOT / name).read_text() for name in ("README.md", "CONTRIBUTING.md"))
    assert re.search(rf"make {target}\b", docs), "neither README.md nor CONTRIBUTING.md name it"


def test_documented_make_targets_exist() -> None:
    for name in ("README.md", "CONTRIBUTING.md"):
        named = re.findall(
            r"(?:`|^ {0,4}(?:\$ )?)make ([a-z0-9-]+)", (ROOT / name).read_text(), re.M
        )
        assert not set(named) - set(phony_targets()), name


def test_ci_runs_what_people_run() -> None:
    assert re.search(r"^make check test$", (ROOT / ".ci/run").read_text(), re.M)


# Budgets


def python_files() -> Iterator[Path]:
    """All code and tests."""
    for folder in ("app", "evaluator", "migrations", "tests"):
        yield from sorted((ROOT / folder).rglob("*.py"))


def num_body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from `def` to the end, the docstring not counted."""
    first, last = function.lineno, function.end_lineno
    assert last is not None
    body = function.body[0]
    is_docstring = isinstance(body, ast.Expr) and isinstance(body.value, ast.Constant)
    docstring = (body.end_lineno or body.lineno) - body.lineno + 1 if is_docstring else 0
    return last - first + 1 - docstring


def test_files_stay_small() -> None:
    sizes = {str(p.relative_to(ROOT)): len(p.read_text().splitlines()) for p in python_files()}
    assert sizes
    assert not {name: size for name, size in sizes.items() if size > MAX_FILE_LINES}


def test_functions_stay_small() -> None:
    too_long = []
    for path in python_files():
        if "versions" in path.parts:
            continue  # a migration lists its tables one after the other
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                size = num_body_lines(node)
                if size > MAX_FUNCTION_LINES:
                    too_long.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name} {size}")
    assert not too_long


# Locks


def pins(name: str) -> dict[str, set[str]]:
    """Versions by package; a package may have one for each Python version."""
    found: dict[str, set[str]] = {}
    for line in (ROOT / name).read_text().splitlines():
        if match := re.match(r"([a-z0-9.-]+)(?:\[[a-z,]+\])?==([^ ;\\]+)", line):
            found.setdefault(canonicalize_name(match[1]), set()).add(match[2])
    return found


def declared(*, extras: list[str], groups: list[str]) -> list[Requirement]:
    """What pyproject.toml asks for, torch not counted."""
    project = PYPROJECT["project"]
    texts: list[str] = list(project["dependencies"])
    for extra in extras:
        texts += project["optional-dependencies"][extra]
    for group in groups:
        texts += PYPROJECT["dependency-groups"][group]
    return [need for text in texts if (need := Requirement(text)).name != "torch"]


@pytest.mark.parametrize(
    ("lock", "extras", "groups"),
    [
        ("requirements.lock", ["server", "evaluator"], ["build", "dev", "torch-dependencies"]),
        ("docker/full.lock", ["server", "evaluator"], ["build", "torch-dependencies"]),
        ("docker/server.lock", ["server"], ["build"]),
    ],
)
def test_lock_satisfies_what_is_declared(lock: str, extras: list[str], groups: list[str]) -> None:
    pinned = pins(lock)
    for need in declared(extras=extras, groups=groups):
        versions = pinned.get(canonicalize_name(need.name), set())
        assert versions, f"{need} is not in {lock}: make lock"
        assert all(need.specifier.contains(version) for version in versions), f"{need}: make lock"


@pytest.mark.parametrize("lock", ["docker/full.lock", "docker/server.lock"])
def test_images_have_the_versions_that_were_tested(lock: str) -> None:
    tested = pins("requirements.lock")
    assert not {name: found for name, found in pins(lock).items() if not found <= tested[name]}


@pytest.mark.parametrize(
    "lock",
    ["requirements.lock", "requirements-demo.lock", "docker/full.lock", "docker/server.lock"],
)
def test_lock_has_hashes_and_neither_torch_nor_hosts(lock: str) -> None:
    text = (ROOT / lock).read_text()
    assert "://" not in text
    names = set(pins(lock))
    assert names
    assert not [n for n in names if n in {"torch", "triton"} or n.startswith(("nvidia", "cuda"))]
    blocks = re.split(r"\n(?=[a-z])", text)
    assert all("--hash=sha256:" in block for block in blocks if "==" in block)


def test_server_image_has_no_evaluator_libraries() -> None:
    assert not {"torch", "transformers", "numpy", "pyarrow"} & set(pins("docker/server.lock"))


def test_torch_is_one_version_everywhere() -> None:
    made = re.search(r"^TORCH_VERSION := (\S+)$", MAKEFILE, re.M)
    built = re.search(r"^ARG TORCH_VERSION=(\S+)$", (ROOT / "docker/Dockerfile").read_text(), re.M)
    assert made
    assert built
    assert made[1] == built[1]
    needs = PYPROJECT["project"]["optional-dependencies"]["evaluator"]
    torch = next(need for text in needs if (need := Requirement(text)).name == "torch")
    assert torch.specifier.contains(Version(made[1]))


# Containers and hooks


def load_yaml(name: str) -> Any:
    """A YAML file of the repository."""
    return yaml.safe_load((ROOT / name).read_text())


@pytest.mark.parametrize("name", ["docker/compose.yaml", "docker/compose.test.yaml"])
def test_compose_publishes_on_this_machine_only(name: str) -> None:
    services = load_yaml(name)["services"]
    for service in services.values():
        assert "healthcheck" in service or "build" in service
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:"), port


def test_compose_server_waits_for_a_healthy_database() -> None:
    services = load_yaml("docker/compose.yaml")["services"]
    assert services["server"]["depends_on"]["database"]["condition"] == "service_healthy"
    assert services["database"]["image"].startswith("postgres:18")


def test_dockerfile_runs_as_somebody_and_is_watched() -> None:
    text = (ROOT / "docker/Dockerfile").read_text()
    stages = re.findall(r"^FROM \S+ AS (\S+)$", text, re.M)
    assert {"server", "full"} <= set(stages)
    assert re.search(r"^USER [1-9]", text, re.M), "a number, so that Kubernetes can check it"
    assert "/readyz" in text


@pytest.mark.parametrize("name", ["docker/Dockerfile", "docker/compose.yaml"])
def test_containers_use_settings_that_exist(name: str) -> None:
    used = set(re.findall(r"\bASSAY_([A-Z_]+)\b", (ROOT / name).read_text()))
    assert used
    assert used <= {field.upper() for field in Settings.model_fields}


def test_hooks_fetch_nothing() -> None:
    repos = load_yaml(".pre-commit-config.yaml")["repos"]
    assert [repo["repo"] for repo in repos] == ["local"]
    for hook in repos[0]["hooks"]:
        assert hook["entry"].startswith(".venv/bin/")


# Decisions


@pytest.mark.parametrize("path", sorted((ROOT / "docs/adr").glob("0*.md")), ids=lambda p: p.stem)
def test_decision_has_every_part_of_the_template(path: Path) -> None:
    template = (ROOT / "docs/adr/template.md").read_text()
    wanted = re.findall(r"^## .*$", template, re.M)
    assert wanted
    assert re.findall(r"^## .*$", path.read_text(), re.M) == wanted
    assert re.search(r"^- Status: \w+", path.read_text(), re.M)
    assert re.search(r"^- Date: \d{4}-\d\d-\d\d$", path.read_text(), re.M)
