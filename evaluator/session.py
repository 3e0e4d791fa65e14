"""What a rank needs before anything heavy is imported: the spec, the reports, the first word."""

import json
import logging
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from evaluator.contract import CONTRACT_VERSION
from evaluator.contract.data import HubData, InlineData, KnownData
from evaluator.contract.env import SPOOL_DIR, spool_name
from evaluator.contract.launch import HubModel, LaunchSpec
from evaluator.contract.places import place_in, words_of
from evaluator.contract.reports import Result
from evaluator.contract.strict_json import unique_members
from evaluator.errors import ContractMismatch, EvaluatorError, SpecInvalid
from evaluator.exchange.ranks import RankInfo
from evaluator.reporting.narrator import Narrator
from evaluator.reporting.reporter import Destination, Reporter
from evaluator.reporting.timing import RankClock

logger = logging.getLogger(__name__)


def read_spec(path: Path) -> LaunchSpec:
    """The launch spec in a file.

    Raises:
        SpecInvalid: It is not there, is no JSON, or has a wrong field.
        ContractMismatch: It is of another version.
    """
    content = _read_json(path)
    version = content.get("contract_version", CONTRACT_VERSION)
    if isinstance(version, int) and version != CONTRACT_VERSION:
        msg = (
            f"the launch spec {path} has contract version {version}, but this evaluator has "
            f"{CONTRACT_VERSION}; run server and evaluator of one release"
        )
        raise ContractMismatch(msg)
    try:
        return _with_absolute_paths(LaunchSpec.model_validate(content))
    except ValidationError as error:
        first = error.errors()[0]
        parts = place_in(content, first["loc"], is_missing=first["type"] == "missing")
        place = ".".join(str(part) for part in parts)
        msg = f"the launch spec {path} is wrong at {place or 'its top'}: {words_of(first)}"
        raise SpecInvalid(msg) from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=unique_members)
    except OSError as error:
        msg = f"the launch spec {path.absolute()} can't be read: {error.strerror or error}"
        raise SpecInvalid(msg) from error
    except (ValueError, RecursionError) as error:
        msg = f"the launch spec {path} is no JSON: {error}"
        raise SpecInvalid(msg) from error
    if not isinstance(content, dict):
        msg = f"the launch spec {path} is no JSON object but {type(content).__name__}"
        raise SpecInvalid(msg)
    return content


def _with_absolute_paths(spec: LaunchSpec) -> LaunchSpec:
    """The spec as seen from this working directory, so that every message says where it looked."""
    sources = {"model": spec.model, "data": spec.data}
    return spec.model_copy(
        update={
            name: source.model_copy(update={"path": str(Path(source.path).absolute())})
            for name, source in sources.items()
            if not isinstance(source, HubModel | HubData | KnownData | InlineData)
        }
    )


def choose_run_dir(spec_path: Path, spec: LaunchSpec, asked: Path | None) -> Path:
    """Folder of this attempt's files: from the command line, else the spec, else beside it."""
    if asked is not None:
        return asked
    return Path(spec.run_dir) if spec.run_dir else spec_path.with_name(f"{spec_path.name}.run")


def open_reporter(spec: LaunchSpec, rank: RankInfo, run_dir: Path) -> Reporter:
    """The rank's reporter; it posts where the spec names a server.

    Without a server the same spec may be run again and again: what an earlier run left goes.
    """
    folder = run_dir / SPOOL_DIR
    spool_path = folder / spool_name(rank.rank)
    if spec.report_url is None and rank.restart == 0:
        spool_path.unlink(missing_ok=True)
        if rank.rank == 0:
            _remove_others(folder, rank.world_size)
    return Reporter(spool_path, rank.rank, _destination(spec))


def _remove_others(folder: Path, world_size: int) -> None:
    """Remove the spools of an earlier run that had more ranks."""
    ours = {spool_name(rank) for rank in range(world_size)}
    for path in folder.glob("rank-*.jsonl"):
        if path.name not in ours:
            path.unlink(missing_ok=True)


def _destination(spec: LaunchSpec) -> Destination | None:
    if spec.report_url is None:
        return None
    if spec.token_path is None:
        return Destination(spec.report_url)
    try:
        token = Path(spec.token_path).read_text(encoding="utf-8").strip()
    except OSError as error:
        # The server reads the spool at the end, so the run is still worth its time.
        logger.error("the token can't be read, reports stay in the spool: %s", error)
        return None
    return Destination(spec.report_url, token)


class Session:
    """One rank from its first word to its last."""

    def __init__(self, spec: LaunchSpec, rank: RankInfo, run_dir: Path, started: float) -> None:
        self._spec = spec
        self._rank = rank
        self._run_dir = run_dir
        self.has_server = spec.report_url is not None
        """True where somebody else waits for the result."""
        self._clock = RankClock(rank, started)
        self._narrator = Narrator(open_reporter(spec, rank, run_dir), rank, self._clock)
        self._narrator.hello(spec)

    def run(self) -> Result | None:
        """The run; its failure is reported, logged and raised on.

        Returns:
            The result on rank 0, None elsewhere.
        """
        try:
            # Imports torch and transformers, which takes seconds.
            from evaluator.runner import execute

            return execute(self._spec, self._rank, self._clock, self._narrator, self._run_dir)
        except EvaluatorError as error:
            logger.error("the run failed", extra={"reason": error.reason, "cause": error.message})
            self._narrator.failure(error)
            raise
        except Exception as error:
            logger.exception("the run failed")
            self._narrator.failure(error)
            raise
        finally:
            self._narrator.close()
