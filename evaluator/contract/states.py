"""The states of a job and the reasons why one ends without a result, a meaning for each."""

from enum import StrEnum


class JobState(StrEnum):
    """Where a job is. Only `app.jobs.transitions` decides what may follow what."""

    QUEUED = "queued"
    """Waits for free slots."""
    STARTING = "starting"
    """An attempt was launched; none of its ranks has reported yet."""
    RUNNING = "running"
    """At least one rank of the current attempt has reported."""
    FINISHING = "finishing"
    """The result has arrived; the processes of the attempt are still ending."""
    CANCELLING = "cancelling"
    """Somebody asked to stop; processes are being ended."""
    SUCCEEDED = "succeeded"
    """The result of the current attempt arrived, is valid, and no process is left."""
    FAILED = "failed"
    """No attempt is left and the last one ended with a known reason."""
    CANCELLED = "cancelled"
    """Stopped on request; no process is left."""
    TIMED_OUT = "timed_out"
    """The time limit passed; no process is left."""
    LOST = "lost"
    """The last attempt vanished without a word, and no attempt is left."""

    @property
    def is_terminal(self) -> bool:
        """True where nothing but an explicit retry moves the job again."""
        return self in TERMINAL_STATES


TERMINAL_STATES = frozenset(
    {
        JobState.SUCCEEDED,
        JobState.FAILED,
        JobState.CANCELLED,
        JobState.TIMED_OUT,
        JobState.LOST,
    }
)


class FailureReason(StrEnum):
    """Why an attempt ended without a result. A closed list; the words are stable."""

    MODEL_NOT_FOUND = "model_not_found"
    """There is no model at this path or under this hub name."""
    MODEL_UNSUPPORTED = "model_unsupported"
    """The model's architecture can't be loaded as a causal language model."""
    WEIGHTS_UNSAFE = "weights_unsafe"
    """The model has only pickled weights; safetensors or GGUF are needed."""
    WEIGHTS_INVALID = "weights_invalid"
    """The weight files are cut short, do not fit the config, or can't be parsed."""
    TOKENIZER_MISSING = "tokenizer_missing"
    """The model comes without a tokenizer."""
    TOKENIZER_MISMATCH = "tokenizer_mismatch"
    """The tokenizer produces ids that the model's embedding does not have."""
    DATA_NOT_FOUND = "data_not_found"
    """There is no data set at this path or under this name."""
    DATA_INVALID = "data_invalid"
    """A record of the data set can't be parsed."""
    DATA_ENCODING = "data_encoding"
    """The text is not valid UTF-8; the message names the byte offset."""
    DATA_EMPTY = "data_empty"
    """No document of the data set has a token to score."""
    FIELD_MISSING = "field_missing"
    """A record lacks the text field, or the field is no text."""
    WINDOW_TOO_LONG = "window_too_long"
    """The window exceeds the positions that the model has."""
    LOSS_NOT_FINITE = "loss_not_finite"
    """A window's loss is NaN or infinite; the message names window and document."""
    OUT_OF_MEMORY = "out_of_memory"
    """A rank could not get the memory it needed."""
    DEVICE_UNAVAILABLE = "device_unavailable"
    """The asked device or its communication backend is not there."""
    PLAN_MISMATCH = "plan_mismatch"
    """Ranks or attempts derived different plans: data, tokenizer or request changed."""
    AUDIT_UNDECIDED = "audit_undecided"
    """Ranks contradict each other and nothing says who is wrong, or all are; it names them."""
    RANK_DIED = "rank_died"
    """A rank ended by a signal, or left without saying why."""
    COMMUNICATION = "communication"
    """Ranks could not reach each other or the rendezvous store."""
    SPEC_INVALID = "spec_invalid"
    """The launch spec is not there, is no JSON, or has a wrong field."""
    CONTRACT_MISMATCH = "contract_mismatch"
    """Server and evaluator speak different versions of the contract."""
    SUPERSEDED = "superseded"
    """The server told this attempt that it is no longer the current one."""
    LAUNCH_FAILED = "launch_failed"
    """The launch could not be started."""
    START_TIMEOUT = "start_timeout"
    """The launch started but no rank reported in time."""
    STALLED = "stalled"
    """A rank stopped making progress; the message names it."""
    DEADLINE = "deadline"
    """The job's time limit passed."""
    RESULT_MISSING = "result_missing"
    """The launch ended well but left no result."""
    RESULT_INVALID = "result_invalid"
    """The result does not agree with the ledger."""
    LAUNCH_LOST = "launch_lost"
    """The processes vanished without an exit record (a reboot, or somebody killed them)."""
    CANCELLED = "cancelled"
    """Somebody asked to stop."""
    INTERNAL = "internal"
    """A defect of ours; the traceback is in the log."""
