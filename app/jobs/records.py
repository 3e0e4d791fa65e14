"""Reads the per-window records that a run left in its directory, and checks that they are whole."""

import asyncio
import gzip
import hashlib
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from app.db import Database
from app.errors import RecordsMissing, ResultNotReady, TokensNotKept
from app.jobs.comparison import Comparison, Side, compare
from app.jobs.ledger import load_rows, total
from app.jobs.repository import load_job
from app.jobs.windows import WindowTable
from app.models import Job
from app.settings import Settings
from evaluator.contract.env import TOKENS_FILE, WINDOWS_FILE
from evaluator.contract.reports import Result, WindowRecord
from evaluator.contract.states import JobState

_CHUNK_BYTES = 1 << 18
_BROKEN = (OSError, EOFError, zlib.error)
"""What reading a damaged gzip file ends in; `gzip.BadGzipFile` is an OSError."""


@dataclass(frozen=True)
class RecordsFile:
    """A file that a job which succeeded has left."""

    job_id: str
    path: Path
    digest: str
    """By the result; of the uncompressed records, or of the file of tokens."""


def public_result(job: Job) -> Result:
    """Return the result of a job that succeeded.

    Raises:
        ResultNotReady: it has not.
    """
    if job.state is JobState.SUCCEEDED and job.result is not None:
        return Result.model_validate(job.result)
    msg = f"job {job.id} is {job.state}"
    if job.state.is_terminal:
        msg += " and will have no result unless it is retried"
    raise ResultNotReady(msg)


def records_file(job: Job, settings: Settings) -> RecordsFile:
    """Return where the records of a job should be; its current attempt is the one that succeeded.

    Raises:
        ResultNotReady: the job has no result yet.
    """
    digest = public_result(job).windows_digest
    path = settings.runs_dir / job.id / str(job.attempt) / WINDOWS_FILE
    return RecordsFile(job.id, path, digest)


def tokens_file(job: Job, settings: Settings) -> RecordsFile:
    """Return where the nll of each token should be.

    Raises:
        ResultNotReady: the job has no result yet.
        TokensNotKept: it was not asked for them.
    """
    digest = public_result(job).tokens_digest
    if digest is None:
        msg = f"job {job.id} was not asked for them: submit it with outputs.token_nll"
        raise TokensNotKept(msg)
    path = settings.runs_dir / job.id / str(job.attempt) / TOKENS_FILE
    return RecordsFile(job.id, path, digest)


def check_tokens(file: RecordsFile) -> int:
    """Compare the file's digest with the result's; returns its size in bytes.

    Raises:
        RecordsMissing: it is gone, or damaged.
    """
    try:
        with file.path.open("rb") as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
            num_bytes = stream.tell()
    except OSError as error:
        raise _damaged(file, f"it can't be read ({error.strerror})") from error
    _compare_digest(file, found)
    return num_bytes


def read_chunks(file: RecordsFile) -> Iterator[bytes]:
    """Yield the uncompressed records.

    Raises:
        RecordsMissing: there are none, or they are damaged.
    """
    try:
        with gzip.open(file.path) as stream:
            while chunk := stream.read(_CHUNK_BYTES):
                yield chunk
    except FileNotFoundError as error:
        msg = f"job {file.job_id}: its run directory has no {WINDOWS_FILE} (any more)"
        raise RecordsMissing(msg) from error
    except _BROKEN as error:
        raise _damaged(file, f"it can't be read ({error})") from error


def read_file(file: RecordsFile) -> Iterator[bytes]:
    """Yield the file as it is; call `check_digest` or `check_tokens` before."""
    with file.path.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            yield chunk


def check_digest(file: RecordsFile) -> None:
    """Read all records and compare their digest with the result's.

    Raises:
        RecordsMissing: there are none, or they are damaged.
    """
    digest = hashlib.sha256()
    for chunk in read_chunks(file):
        digest.update(chunk)
    _compare_digest(file, digest.hexdigest())


def read_records(file: RecordsFile) -> WindowTable:
    """Return the records.

    Raises:
        RecordsMissing: there are none, or they are damaged.
    """
    check_digest(file)
    try:
        return WindowTable(map(WindowRecord.model_validate_json, _lines(file)))
    except ValueError as error:  # pydantic's is one
        raise _damaged(file, "a line is no record of this version, or out of order") from error


def _lines(file: RecordsFile) -> Iterator[bytes]:
    rest = b""
    for chunk in read_chunks(file):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines
    if rest:
        yield rest


def check_total(file: RecordsFile, windows: WindowTable, ledger: tuple[float, int]) -> None:
    """Compare the records' sum with the ledger's, nats and scored tokens.

    Raises:
        RecordsMissing: they differ.
    """
    found = math.fsum(windows.nll_nats), sum(windows.num_scored)
    if found != ledger:
        raise _damaged(file, f"it sums to {found}, the ledger to {ledger} (nats, tokens)")


def _compare_digest(file: RecordsFile, found: str) -> None:
    if f"sha256:{found}" != file.digest:
        raise _damaged(file, f"its digest is sha256:{found}, the result says {file.digest}")


def _damaged(file: RecordsFile, what: str) -> RecordsMissing:
    return RecordsMissing(f"job {file.job_id}: {file.path.name} is damaged: {what}; run it again")


async def compare_jobs(
    database: Database, settings: Settings, baseline_id: str, candidate_id: str
) -> Comparison:
    """Compare two jobs that have succeeded.

    Raises:
        JobNotFound, ResultNotReady, RecordsMissing: of either job.
        NotComparable: it names what differs.
    """
    baseline = await load_scored(database, settings, baseline_id)
    candidate = await load_scored(database, settings, candidate_id)
    return await asyncio.to_thread(_compare, baseline, candidate)


@dataclass(frozen=True)
class Scored:
    """A job that succeeded, and where its records are."""

    file: RecordsFile
    result: Result
    ledger: tuple[float, int]

    def side(self) -> Side:
        """Read the records.

        Raises:
            RecordsMissing: they are gone, or damaged.
        """
        windows = read_records(self.file)
        check_total(self.file, windows, self.ledger)
        return Side(self.result, windows)


async def load_scored(database: Database, settings: Settings, job_id: str) -> Scored:
    """Return a job that has succeeded.

    Raises:
        JobNotFound: there is none with this id.
        ResultNotReady: it has no result.
    """
    async with database.read() as session:
        job = await load_job(session, job_id)
        file = records_file(job, settings)
        rows = await load_rows(session, job_id)
    return Scored(file, public_result(job), await asyncio.to_thread(total, rows))


def _compare(baseline: Scored, candidate: Scored) -> Comparison:
    return compare(baseline.side(), candidate.side())
