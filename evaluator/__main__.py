"""Entry: `python -m evaluator job.json` alone, `torchrun ... -m evaluator job.json` on many ranks.

Heavy libraries are imported only once the first report is out, so that `--help` answers at once and
a server hears of a rank before it loads anything.
"""

import time

STARTED = time.monotonic()

import argparse  # noqa: E402 - the clock starts before any import
import faulthandler  # noqa: E402
import logging  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402
from collections.abc import Callable, Mapping, Sequence  # noqa: E402
from dataclasses import dataclass  # noqa: E402
from functools import partial  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import NoReturn  # noqa: E402

from evaluator.contract.reports import Result  # noqa: E402
from evaluator.errors import fault_of  # noqa: E402
from evaluator.exchange.ranks import RankInfo, die_with_launcher, under_torchrun  # noqa: E402
from evaluator.log import JsonLines  # noqa: E402
from evaluator.session import Session, choose_run_dir, read_spec  # noqa: E402


@dataclass(frozen=True, kw_only=True)
class Options:
    """The command line."""

    spec_path: Path
    run_dir: Path | None


def parse(arguments: Sequence[str] | None) -> Options:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m evaluator",
        description="Score a text with a language model and report its perplexity.",
        epilog=(
            "The result is printed as JSON, the log goes to stderr. Under torchrun "
            "(torchrun --standalone --nproc-per-node 2 -m evaluator job.json) the ranks share "
            "the work and rank 0 prints the result."
        ),
    )
    parser.add_argument("spec", type=Path, help="JSON file with at least 'model' and 'data'")
    parser.add_argument(
        "--run-dir", type=Path, help="folder for reports; default: the spec's, else <spec>.run"
    )
    options = parser.parse_args(arguments)
    return Options(spec_path=options.spec, run_dir=options.run_dir)


def main(arguments: Sequence[str] | None = None, started: float = STARTED) -> int:
    """Run one rank; answers the exit code.

    Args:
        arguments: Of the command line; None takes those of the process.
        started: By the monotonic clock, when this rank began.
    """
    # A crash inside a library ends the process without an exception; this leaves its stack.
    faulthandler.enable()
    if under_torchrun(os.environ):
        die_with_launcher()
    # Read when tqdm is imported: bars do not belong among JSON lines.
    os.environ.setdefault("TQDM_DISABLE", "1")
    options = parse(arguments)
    if "RANK" in os.environ:
        return _launched(options, started)
    return _alone(options, started)


def _alone(options: Options, started: float) -> int:
    """Result on stdout and 0, or the reason on stderr and 1."""
    try:
        result = _open(options, started).run()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return 130
    except Exception as error:  # noqa: BLE001 - the edge of the program
        return _say_why(error)
    assert result is not None, "a run of one rank has the result"
    _print_result(result)
    return 0


def _launched(options: Options, started: float) -> int:
    """As alone, but a result that a server waits for is not printed.

    What went wrong is raised out of `record`, which leaves it in a file for torchrun.
    """
    has_server = True
    run: Callable[[], Result | None]
    try:
        session = _open(options, started)
        has_server, run = session.has_server, session.run
    except Exception as error:  # noqa: BLE001 - the edge of the program
        run = partial(_fail, error)
    # Imports torch, so it waits until the first report is out.
    from torch.distributed.elastic.multiprocessing.errors import record

    try:
        result = record(run)()
    except Exception as error:  # noqa: BLE001 - the edge of the program
        return _say_why(error)
    if result is not None and not has_server:
        _print_result(result)
    return 0


def _fail(error: Exception) -> None:
    raise error


def _say_why(error: BaseException) -> int:
    """One sentence, the last of this process; the log has the traceback."""
    fault = fault_of(error)
    sys.stderr.write(f"{fault.reason}: {fault.message}\n")
    return 1


def _print_result(result: Result) -> None:
    sys.stdout.write(result.model_dump_json(indent=2) + "\n")


def _open(options: Options, started: float) -> Session:
    rank = RankInfo.from_env(os.environ)
    _set_logging(rank.log_context())
    spec = read_spec(options.spec_path)
    _set_logging({"job_id": spec.job_id, **rank.log_context()})
    run_dir = choose_run_dir(options.spec_path, spec, options.run_dir)
    return Session(spec, rank, run_dir, started)


def _set_logging(context: Mapping[str, int | str]) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines(context))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    # One line per POST is noise.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    logging.captureWarnings(True)


def end(code: int) -> NoReturn:
    """End the process without taking the interpreter down.

    A rank that had done all its work was seen to abort in that (1 of 40 launches, "terminate called
    without an active exception"), which made torchrun end the others and call the run failed. The
    native threads of torch and tokenizers outlive Python's threads; compare pytorch/pytorch#179291.
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    end(main())
