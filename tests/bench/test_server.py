"""What the server costs: start, memory, reports. Printed and written as JSON; nothing is asserted
of a time, because timings depend on the machine and on its neighbours."""

import asyncio
import json
import os
import platform
import time
from datetime import UTC, datetime
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any

import httpx
import psutil
import pytest

from app.main import create_app
from app.settings import Settings
from evaluator.contract import CONTRACT_VERSION
from tests.api.factories import claim, submit
from tests.api.played import hello, progress
from tests.support.server import Server

if TYPE_CHECKING:
    from app.api.deps import Parts

ROUNDS = 5
NUM_REPORTERS = 256
NUM_ROUNDS_OF_REPORTS = 4
OUTPUT = Path(__file__).parents[2] / ".assay" / "bench"


def write(name: str, figures: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    """Print the figures and keep them with a description of the machine."""
    machine = {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "load": os.getloadavg(),
    }
    record = {"at": datetime.now(UTC).isoformat(), "machine": machine, **figures}
    OUTPUT.mkdir(parents=True, exist_ok=True)
    (OUTPUT / f"{name}.json").write_text(json.dumps(record, indent=1))
    with capsys.disabled():
        print(f"\n{name}: {json.dumps(figures)}")  # noqa: T201 - what a benchmark is for


def test_start_and_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    starts, sizes = [], []
    for number in range(ROUNDS):
        folder = tmp_path / str(number)
        folder.mkdir()
        server = Server(folder)
        began = time.monotonic()
        server.start()
        starts.append(time.monotonic() - began)
        assert server.process is not None
        sizes.append(psutil.Process(server.process.pid).memory_info().rss)
        server.stop()
    figures = {
        "start_to_readyz_s": {"median": median(starts), "max": max(starts)},
        "resident_bytes": median(sizes),
    }
    write("server_start", figures, capsys)


async def test_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Many ranks at once, each waiting for its answer before it sends the next report."""
    for name in ("models/tiny", "data"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        (tmp_path / "models/tiny" / name).write_text("{}")
    (tmp_path / "data/text.txt").write_text("text")
    settings = Settings(
        state_dir=tmp_path, model_roots=(tmp_path / "models",), data_roots=(tmp_path / "data",),
        worker=False,
    )  # fmt: skip
    app = create_app(settings)
    latencies: list[float] = []

    async def report(client: httpx.AsyncClient, url: str, token: str, rank: int) -> None:
        reports = [hello(rank)] + [
            progress(seq, rank * 100 + seq, rank=rank)
            for seq in range(2, NUM_ROUNDS_OF_REPORTS + 2)
        ]
        for each in reports:
            body = {"contract_version": CONTRACT_VERSION, "reports": [each.model_dump(mode="json")]}
            began = time.monotonic()
            answer = await client.post(url, json=body, headers={"Authorization": f"Bearer {token}"})
            latencies.append(time.monotonic() - began)
            assert answer.status_code == httpx.codes.NO_CONTENT, answer.text

    async with app.router.lifespan_context(app):
        parts: Parts = app.state.parts
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://bench") as client:
            job = await submit(client)
            attempt_id, token = await claim(parts, job["id"])
            url = f"/v1/attempts/{attempt_id}/reports"
            began, cpu = time.monotonic(), time.process_time()
            ranks = range(NUM_REPORTERS)
            await asyncio.gather(*(report(client, url, token, rank) for rank in ranks))
            wall, used = time.monotonic() - began, time.process_time() - cpu
    figures = {
        "reports_per_second": len(latencies) / wall,
        "cpu_ms_per_report": 1000 * used / len(latencies),
        "latency_s": {"median": median(latencies), "p99": quantiles(latencies, n=100)[98]},
        "reporters": NUM_REPORTERS,
    }
    write("server_reports", figures, capsys)
