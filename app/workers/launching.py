"""From a claimed attempt to what is launched: its run directory and its environment."""

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path

from app.db import Database
from app.jobs.ledger import is_complete, load_rows, to_entry
from app.jobs.paths import resolve_data, resolve_model
from app.jobs.request import JobRequest
from app.launchers.base import Launch, LaunchRef, torchrun_argv
from app.models import Attempt, Job, LedgerRow
from app.settings import Settings
from evaluator.contract.env import FINISHED_FILE, SPEC_FILE, TOKEN_FILE
from evaluator.contract.launch import LaunchSpec
from evaluator.contract.parallelism import GroupShape


@dataclass(frozen=True)
class Claimed:
    """An attempt whose row stands and whose launch is to be made."""

    job: Job
    attempt: Attempt
    token: str
    """Only here and in the run directory; the database has its hash."""


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
    spec = await asyncio.to_thread(_spec, claimed, ref.run_dir, settings, has_finished=bool(rows))
    await asyncio.to_thread(_write, claimed, ref.run_dir, spec, rows)
    return Launch(
        ref=ref,
        argv=torchrun_argv(settings.python, job.num_ranks, ref.run_dir / SPEC_FILE),
        env=_environment(spec, attempt, settings),
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
        launch=request.launch.model_copy(update={"device": job.device}),
        run_dir=str(run_dir),
        cache_dir=str(settings.weights_dir),
        mirror_dir=str(settings.mirror_dir.absolute()) if settings.mirror_dir else None,
        finished_path=str(run_dir / FINISHED_FILE) if has_finished else None,
        finished_plan=job.plan["digest"] if has_finished and job.plan else None,
        finished_model=job.model_digest if has_finished else None,
        finished_group=GroupShape.model_validate(job.group_shape)
        if has_finished and job.group_shape
        else None,
        report_url=f"{settings.base_url}/v1/attempts/{attempt.id}/reports",
        token_path=str(run_dir / TOKEN_FILE),
    )


def _write(claimed: Claimed, run_dir: Path, spec: LaunchSpec, rows: list[LedgerRow]) -> None:
    """Write all files; the directory is new, because an attempt's number is used once."""
    run_dir.mkdir(parents=True)
    (run_dir / SPEC_FILE).write_text(spec.model_dump_json(indent=1))
    if rows:
        lines = (to_entry(row).model_dump_json() + "\n" for row in rows)
        (run_dir / FINISHED_FILE).write_text("".join(lines))
    descriptor = os.open(run_dir / TOKEN_FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(claimed.token)


def _environment(spec: LaunchSpec, attempt: Attempt, settings: Settings) -> dict[str, str]:
    offline = "0" if settings.allow_hub else "1"
    return {
        **settings.launch_environment(),
        "OMP_NUM_THREADS": str(spec.launch.threads_per_rank),
        "PYTHONUNBUFFERED": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": offline,
        "HF_DATASETS_OFFLINE": offline,
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "CUDA_VISIBLE_DEVICES": ",".join(str(gpu) for gpu in attempt.gpus),
    }
