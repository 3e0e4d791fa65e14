"""The rules of tests/conftest.py hold."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import TIERS, NetworkBlockedError

ROOT = Path(__file__).parents[2]


def run_pytest(
    folder: Path, tier: str, source: str, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run one test file under a copy of the rules, in its own interpreter."""
    tests = folder / "tests"
    (tests / tier).mkdir(parents=True)
    for name in ("pyproject.toml", "tests/conftest.py"):
        (folder / name).write_text((ROOT / name).read_text())
    (tests / tier / "test_it.py").write_text(source)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(tests)],
        cwd=folder,
        env={"PATH": os.environ["PATH"], **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


SKIPS = "import pytest\n@pytest.mark.skip(reason='x')\ndef test_a(): pass\ndef test_b(): pass\n"


def test_skip_fails_under_ci_and_only_there(tmp_path: Path) -> None:
    under_ci = run_pytest(tmp_path / "ci", "unit", SKIPS, CI="true")
    assert under_ci.returncode == 1, under_ci.stdout
    assert "not allowed under CI" in under_ci.stdout
    assert "test_it.py::test_a" in under_ci.stdout
    at_home = run_pytest(tmp_path / "home", "unit", SKIPS)
    assert at_home.returncode == 0, at_home.stdout


def test_gpu_test_may_be_skipped_under_ci(tmp_path: Path) -> None:
    done = run_pytest(
        tmp_path,
        "unit",
        SKIPS.replace("@pytest.mark.skip", "@pytest.mark.gpu\n@pytest.mark.skip"),
        CI="true",
    )
    assert done.returncode == 0, done.stdout


def test_module_skip_fails_under_ci(tmp_path: Path) -> None:
    source = "import pytest\npytest.importorskip('no_such_module_here')\n"
    done = run_pytest(tmp_path, "unit", source + "def test_a(): pass\n", CI="true")
    assert done.returncode != 0, done.stdout


def test_costly_tier_is_off_unless_asked(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, "bench", "def test_a(): pass\n")
    assert "1 deselected" in done.stdout


def test_test_outside_the_tiers_is_refused(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, "elsewhere", "def test_a(): pass\n")
    assert done.returncode == 4, done.stdout
    assert "is in none of the folders" in done.stderr + done.stdout


def test_marker_is_the_folder(request: pytest.FixtureRequest) -> None:
    assert {mark.name for mark in request.node.iter_markers()} & TIERS == {"unit"}


def test_settings_are_stripped(tmp_path: Path) -> None:
    source = (
        "import os\ndef test_a(): assert not [n for n in os.environ if n.startswith('ASSAY_')]\n"
    )
    done = run_pytest(tmp_path, "unit", source, ASSAY_PORT="1")
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("host", ["192.0.2.1", "2001:db8::1"])
def test_far_address_is_refused(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as far, pytest.raises(NetworkBlockedError):
        far.connect((host, 80))
    with socket.socket(family) as far, pytest.raises(NetworkBlockedError):
        far.connect_ex((host, 80))


def test_name_look_up_is_refused() -> None:
    with pytest.raises(NetworkBlockedError):
        socket.create_connection(("model-hub.invalid", 443), timeout=1)


def test_loopback_is_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname(), timeout=5).close()
