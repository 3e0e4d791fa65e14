"""Rules for all tests: markers by folder, clean environment, no network but this machine.

Imports nothing of the project, so that a broken module fails its own tests and no others.
"""

import ipaddress
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

for _name in [name for name in os.environ if name.startswith("ASSAY_")]:
    # Settings of whoever runs the tests must not change what is tested.
    del os.environ[_name]
# Read by the hub libraries when they are imported, and by every process a test starts.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
# As the evaluator sets it; it is read once a process, maybe by a test that computes something else.
os.environ["MKL_CBWR"] = "AUTO,STRICT"

TESTS = Path(__file__).parent
TIERS = frozenset({"unit", "api", "distributed", "e2e", "bench"})
NVIDIA_DEVICE = Path("/dev/nvidia0")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each test the marker of its folder."""
    for item in items:
        tier = item.path.relative_to(TESTS).parts[0]
        if tier not in TIERS:
            msg = f"{item.path} is in none of the folders {sorted(TIERS)}"
            raise pytest.UsageError(msg)
        item.add_marker(tier)
        if item.get_closest_marker("gpu") and not NVIDIA_DEVICE.exists():
            item.add_marker(pytest.mark.skip(reason="no NVIDIA GPU on this machine"))


class NoSkips:
    """Under CI a test that is skipped for another reason than a missing GPU fails the run."""

    def __init__(self) -> None:
        self.skipped: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note what was skipped; an expected failure is not a skip."""
        if report.skipped and not hasattr(report, "wasxfail") and "gpu" not in report.keywords:
            self.skipped.append(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note modules that were skipped as a whole."""
        if report.skipped:
            self.skipped.append(report.nodeid)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Turn a good exit status into a bad one."""
        if self.skipped and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say why."""
        if self.skipped:
            terminalreporter.section("skipped without the marker gpu: not allowed under CI")
            for nodeid in self.skipped:
                terminalreporter.line(nodeid)


def pytest_configure(config: pytest.Config) -> None:
    """Count skips where they are not allowed."""
    if os.environ.get("CI") == "true":
        config.pluginmanager.register(NoSkips(), "no-skips")


class NetworkBlockedError(RuntimeError):
    """A test tried to reach another machine."""


def is_this_machine(host: object) -> bool:
    """True for loopback addresses and `localhost`, the only hosts that tests may reach."""
    if isinstance(host, bytes):
        host = host.decode("ascii", "replace")
    # None and "" are what servers pass for "any address of this machine".
    if host in (None, "", "localhost"):
        return True
    try:
        address = ipaddress.ip_address(str(host))
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


@pytest.fixture(scope="session", autouse=True)
def _network_blocked() -> Iterator[None]:
    """Refuse connections and look-ups that leave this machine; unix sockets are free."""
    patch = pytest.MonkeyPatch()

    def refuse_far(host: object) -> None:
        if not is_this_machine(host):
            msg = f"tests may not reach {host!r}: only loopback and unix sockets"
            raise NetworkBlockedError(msg)

    connect, connect_ex, getaddrinfo = (
        socket.socket.connect,
        socket.socket.connect_ex,
        socket.getaddrinfo,
    )

    def guarded_connect(self: socket.socket, address: tuple[object, ...]) -> None:
        if self.family in (socket.AF_INET, socket.AF_INET6):
            refuse_far(address[0])
        connect(self, address)

    def guarded_connect_ex(self: socket.socket, address: tuple[object, ...]) -> int:
        if self.family in (socket.AF_INET, socket.AF_INET6):
            refuse_far(address[0])
        return connect_ex(self, address)

    def guarded_getaddrinfo(host: object, *args: object, **kwargs: object) -> object:
        refuse_far(host)
        return getaddrinfo(host, *args, **kwargs)  # type: ignore[arg-type]

    patch.setattr(socket.socket, "connect", guarded_connect)
    patch.setattr(socket.socket, "connect_ex", guarded_connect_ex)
    patch.setattr(socket, "getaddrinfo", guarded_getaddrinfo)
    yield
    patch.undo()
