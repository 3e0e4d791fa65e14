"""From a claimed attempt to what is launched: its run directory and its environment."""

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path

from app.db import Database
from app.jobs.ledger import is_complete, load_authors, load_rows, to_entry
from app.jobs.paths import resolve_data, resolve_model
from app.jobs.request import JobRequest
from app.jobs.speeds import load_speeds
from app.launchers.base import Command, Launch, LaunchRef
from app.launchers.torchrun import torchrun_commands
from app.models import Attempt, Job
from app.settings import Settings
from evaluator.contract.env import FINISHED_FILE, SPEC_FILE, TOKEN_FILE
from evaluator.contract.launch import LaunchSpec
from evaluator.contract.reports import FinishedEntry


@dataclass(frozen=True)
class Claimed:
    """An attempt whose row stands and whose launch is to be made."""

    job: Job
    attempt: Attempt
    token: str
    """Only here and in the run directory; the database has its hash."""
    warm: LaunchRef | None = None
    """The agent that waits for it; the attempt has its launch id."""


def launch_ref(settings: Settings, attempt: Attempt) -> LaunchRef:
    """Return the name of an attempt's launch."""
    run_dir = settings.runs_dir / attempt.job_id / str(attempt.number)
    return LaunchRef(launch_id=attempt.launch_id, run_dir=run_dir)


async def prepare(claimed: Claimed, database: Database, settings: Settings) -> Launch:
    """Write the run directory and return what to launch.

    Raises:
        ApiError: model or data are no longer there.
        OSError: the run directory can't be written.
    """
    job, attempt = claimed.job, claimed.attempt
    ref = launch_ref(settings, attempt)
    async with database.read() as session:
        rows = [row for row in await load_rows(session, job.id) if is_complete(row)]
        authors = await load_authors(session, job.id) if rows else {}
        speeds = await load_speeds(session, job)
    finished = [
        FinishedEntry(author=authors[row.attempt, row.rank], entry=to_entry(row)) for row in rows
    ]
    spec = await asyncio.to_thread(_spec, claimed, ref.run_dir, settings, has_finished=bool(rows))
    spec = spec.model_copy(update={"node_speeds": speeds})
    await asyncio.to_thread(_write, claimed, ref.run_dir, spec, finished)
    return Launch(
        ref=ref,
        agents=_agents(spec, attempt, settings, ref.run_dir / SPEC_FILE),
        grace_s=settings.stop_grace_seconds,
        log_max_bytes=settings.log_max_bytes,
    )


def _spec(claimed: Claimed, run_dir: Path, settings: Settings, *, has_finished: bool) -> LaunchSpec:
    job, attempt = claimed.job, claimed.attempt
    request = JobRequest.model_validate(job.request)
    return LaunchSpec(
        job_id=job.id,
        attempt=attempt.number,
        model=resolve_model(request.model, settings),
        data=resolve_data(request.data, settings),
        scoring=request.scoring,
        outputs=request.outputs,
        audit=request.audit,
        launch=request.launch.model_copy(update={"device": job.device}),
        run_dir=str(run_dir),
        cache_dir=str(settings.weights_dir),
        cache_limit_bytes=settings.cache_limit_bytes,
        mirror_dir=str(settings.mirror_dir.absolute()) if settings.mirror_dir else None,
        finished_path=str(run_dir / FINISHED_FILE) if has_finished else None,
        finished_plan=job.plan["digest"] if has_finished and job.plan else None,
        finished_model=job.model_digest if has_finished else None,
        report_url=f"{settings.base_url}/v1/attempts/{attempt.id}/reports",
        token_path=str(run_dir / TOKEN_FILE),
    )


def _write(
    claimed: Claimed, run_dir: Path, spec: LaunchSpec, finished: list[FinishedEntry]
) -> None:
    """Write all files; the directory is new, or that of a warm agent: a number is used once."""
    run_dir.mkdir(parents=True, exist_ok=claimed.warm is not None)
    (run_dir / SPEC_FILE).write_text(spec.model_dump_json(indent=1))
    if finished:
        lines = (entry.model_dump_json() + "\n" for entry in finished)
        (run_dir / FINISHED_FILE).write_text("".join(lines))
    descriptor = os.open(run_dir / TOKEN_FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(claimed.token)


def _agents(
    spec: LaunchSpec, attempt: Attempt, settings: Settings, spec_path: Path
) -> tuple[Command, ...]:
    """Return what to start on each node; nodes share no GPU."""
    nodes, ranks = spec.launch.nodes, spec.launch.ranks_per_node
    commands = torchrun_commands(settings.python, nodes, ranks, spec_path)
    return tuple(
        Command(
            argv=argv,
            env=_environment(spec, attempt.gpus[node * ranks : (node + 1) * ranks], settings),
        )
        for node, argv in enumerate(commands)
    )


def _environment(spec: LaunchSpec, gpus: list[int], settings: Settings) -> dict[str, str]:
    return {
        **base_environment(settings),
        "OMP_NUM_THREADS": str(spec.launch.threads_per_rank),
        "CUDA_VISIBLE_DEVICES": ",".join(str(gpu) for gpu in gpus),
    }


def base_environment(settings: Settings) -> dict[str, str]:
    """What every launch has, whatever its job."""
    offline = "0" if settings.allow_hub else "1"
    return {
        **settings.launch_environment(),
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": offline,
        "HF_DATASETS_OFFLINE": offline,
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }
