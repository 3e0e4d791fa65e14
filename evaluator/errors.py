"""Why a run ends without a result. Every class maps to one reason of the contract.

    EvaluatorError
    +-- ModelNotFound        +-- DataNotFound     +-- WindowTooLong
    +-- ModelUnsupported     +-- DataInvalid      +-- LossNotFinite
    +-- WeightsUnsafe        +-- DataEncoding     +-- OutOfMemory
    +-- WeightsInvalid       +-- DataEmpty        +-- DeviceUnavailable
    +-- TokenizerMissing     +-- FieldMissing     +-- PlanMismatch
    +-- TokenizerMismatch                         +-- Communication
    +-- ContractMismatch     +-- Superseded       +-- Stalled
    +-- SpecInvalid          +-- AuditUndecided   +-- ResultInvalid

The docstring of a class is the message that is used where none is given. Torch is looked up only
when it is loaded already, so that the entry can name a failure before anything heavy is there.
"""

import inspect
import sys
from typing import ClassVar, NamedTuple

from evaluator.contract.states import FailureReason

DECIDED_BY_SERVER = frozenset(
    {
        FailureReason.RANK_DIED,
        FailureReason.LAUNCH_FAILED,
        FailureReason.START_TIMEOUT,
        FailureReason.DEADLINE,
        FailureReason.RESULT_MISSING,
        FailureReason.LAUNCH_LOST,
        FailureReason.CANCELLED,
    }
)
"""Reasons that only somebody outside the run can see."""


class EvaluatorError(Exception):
    """The run can't go on."""

    reason: ClassVar[FailureReason] = FailureReason.INTERNAL

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or inspect.getdoc(type(self)))

    @property
    def message(self) -> str:
        """One sentence that names place, value and remedy."""
        return str(self.args[0])


class ModelNotFound(EvaluatorError):
    """There is no model at this path or under this hub name."""

    reason = FailureReason.MODEL_NOT_FOUND


class ModelUnsupported(EvaluatorError):
    """The model can't be loaded as a causal language model."""

    reason = FailureReason.MODEL_UNSUPPORTED


class WeightsUnsafe(EvaluatorError):
    """The model has only pickled weights; convert them to safetensors."""

    reason = FailureReason.WEIGHTS_UNSAFE


class WeightsInvalid(EvaluatorError):
    """The weight files can't be parsed or do not fit the config."""

    reason = FailureReason.WEIGHTS_INVALID


class TokenizerMissing(EvaluatorError):
    """The model comes without a tokenizer."""

    reason = FailureReason.TOKENIZER_MISSING


class TokenizerMismatch(EvaluatorError):
    """The tokenizer produces ids that the model's embedding does not have."""

    reason = FailureReason.TOKENIZER_MISMATCH


class DataNotFound(EvaluatorError):
    """There is no data set at this path or under this name."""

    reason = FailureReason.DATA_NOT_FOUND


class DataInvalid(EvaluatorError):
    """A record of the data set can't be parsed."""

    reason = FailureReason.DATA_INVALID


class DataEncoding(EvaluatorError):
    """The text is not valid UTF-8."""

    reason = FailureReason.DATA_ENCODING


class DataEmpty(EvaluatorError):
    """No document of the data set has a token to score."""

    reason = FailureReason.DATA_EMPTY


class FieldMissing(EvaluatorError):
    """A record lacks the text field, or the field is no text."""

    reason = FailureReason.FIELD_MISSING


class WindowTooLong(EvaluatorError):
    """The window exceeds the positions that the model has."""

    reason = FailureReason.WINDOW_TOO_LONG


class LossNotFinite(EvaluatorError):
    """A window's loss is NaN or infinite."""

    reason = FailureReason.LOSS_NOT_FINITE


class OutOfMemory(EvaluatorError):
    """The rank ran out of memory; ask for a smaller scoring.batch_tokens or scoring.window."""

    reason = FailureReason.OUT_OF_MEMORY


class DeviceUnavailable(EvaluatorError):
    """The asked device or its communication backend is not there."""

    reason = FailureReason.DEVICE_UNAVAILABLE


class PlanMismatch(EvaluatorError):
    """Ranks or attempts derived different plans."""

    reason = FailureReason.PLAN_MISMATCH


class Communication(EvaluatorError):
    """Ranks could not reach each other or the rendezvous store."""

    reason = FailureReason.COMMUNICATION


class SpecInvalid(EvaluatorError):
    """The launch spec is not there, is no JSON, or has a wrong field."""

    reason = FailureReason.SPEC_INVALID


class ContractMismatch(EvaluatorError):
    """The launch spec is of another version than this evaluator's contract."""

    reason = FailureReason.CONTRACT_MISMATCH


class Superseded(EvaluatorError):
    """The server answered that this attempt is no longer the current one."""

    reason = FailureReason.SUPERSEDED


class Stalled(EvaluatorError):
    """A rank stopped making progress."""

    reason = FailureReason.STALLED


class AuditUndecided(EvaluatorError):
    """Ranks contradict each other and nothing says who is wrong, or all of them are."""

    reason = FailureReason.AUDIT_UNDECIDED


class ResultInvalid(EvaluatorError):
    """The result does not agree with the ledger."""

    reason = FailureReason.RESULT_INVALID


class Fault(NamedTuple):
    """What goes into a `Failure` report."""

    reason: FailureReason
    message: str


def fault_of(error: BaseException) -> Fault:
    """Reason and message for whatever ended the run; foreign errors are told by their kind."""
    if isinstance(error, EvaluatorError):
        return Fault(error.reason, error.message)
    text = f"{type(error).__name__}: {error}".strip().removesuffix(":")
    if is_out_of_memory(error):
        return Fault(FailureReason.OUT_OF_MEMORY, f"{OutOfMemory().message} ({text})")
    if _is_communication(error):
        return Fault(FailureReason.COMMUNICATION, f"{Communication().message} ({text})")
    return Fault(FailureReason.INTERNAL, text)


def is_out_of_memory(error: BaseException) -> bool:
    """True for Python's, CUDA's and the CPU allocator's way of saying that memory ran out."""
    if isinstance(error, MemoryError):
        return True
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(error, torch.OutOfMemoryError):
        return True
    # The CPU allocator raises a bare RuntimeError; its name in the text is all there is.
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)


def _is_communication(error: BaseException) -> bool:
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and isinstance(error, distributed.DistError):
        return True
    return isinstance(error, RuntimeError) and "gloo" in str(error).lower()
