"""What a rank needs before anything heavy is imported: the spec, the reports, the first word."""

import json
import logging
from pathlib import Path

from pydantic import ValidationError

from evaluator.contract import CONTRACT_VERSION
from evaluator.contract.env import SPOOL_DIR, spool_name
from evaluator.contract.launch import LaunchSpec
from evaluator.contract.reports import Result
from evaluator.errors import ContractMismatch, EvaluatorError
from evaluator.narrator import Narrator
from evaluator.ranks import RankInfo
from evaluator.reporter import Destination, Reporter
from evaluator.timing import RankClock

logger = logging.getLogger(__name__)


def read_spec(path: Path) -> LaunchSpec:
    """The launch spec in a file.

    Raises:
        ContractMismatch: It can't be read, is of another version, or has a wrong field.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        msg = f"the launch spec {path} can't be read: {error}"
        raise ContractMismatch(msg) from error
    version = content.get("contract_version", CONTRACT_VERSION) if isinstance(content, dict) else 0
    if version != CONTRACT_VERSION:
        msg = (
            f"the launch spec {path} has contract version {version}, but this evaluator has "
            f"{CONTRACT_VERSION}; run server and evaluator of one release"
        )
        raise ContractMismatch(msg)
    try:
        return LaunchSpec.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        msg = f"the launch spec {path} is wrong at {place or 'its top'}: {first['msg']}"
        raise ContractMismatch(msg) from error


def choose_run_dir(spec_path: Path, spec: LaunchSpec, asked: Path | None) -> Path:
    """Folder of this attempt's files: from the command line, else the spec, else beside it."""
    if asked is not None:
        return asked
    return Path(spec.run_dir) if spec.run_dir else spec_path.with_name(f"{spec_path.name}.run")


def open_reporter(spec: LaunchSpec, rank: RankInfo, run_dir: Path) -> Reporter:
    """The rank's reporter; it posts where the spec names a server."""
    spool_path = run_dir / SPOOL_DIR / spool_name(rank.rank)
    return Reporter(spool_path, rank.rank, _destination(spec))


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
            from evaluator.runner import Run

            return Run(
                spec=self._spec,
                rank=self._rank,
                clock=self._clock,
                narrator=self._narrator,
                run_dir=self._run_dir,
            ).execute()
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
