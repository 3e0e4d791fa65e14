"""The one table of what may follow what. Pure: state and event in, state out."""

from enum import StrEnum

from app.errors import TransitionNotAllowed
from evaluator.contract.states import JobState


class JobEvent(StrEnum):
    """What can happen to a job."""

    CLAIM = "claim"
    """The dispatcher takes it and makes an attempt."""
    REPORT = "report"
    """A rank of the current attempt reported for the first time."""
    RESULT = "result"
    """The result of the current attempt arrived."""
    CANCEL = "cancel"
    """Somebody asks to stop."""
    SUCCEED = "succeed"
    """The attempt ended with a valid result."""
    REQUEUE = "requeue"
    """The attempt ended without one, and there is another try."""
    FAIL = "fail"
    """The attempt ended without one, and there is no other try."""
    LOSE = "lose"
    """The attempt vanished, and there is no other try."""
    TIME_OUT = "time_out"
    """The attempt was stopped at the time limit."""
    STOPPED = "stopped"
    """The attempt was stopped on request."""
    RETRY = "retry"
    """Somebody asks to try again."""


_S, _E = JobState, JobEvent
_ACTIVE = (_S.STARTING, _S.RUNNING, _S.FINISHING)

TRANSITIONS: dict[tuple[JobState, JobEvent], JobState] = {
    (_S.QUEUED, _E.CLAIM): _S.STARTING,
    (_S.QUEUED, _E.CANCEL): _S.CANCELLED,
    (_S.QUEUED, _E.TIME_OUT): _S.TIMED_OUT,
    (_S.STARTING, _E.REPORT): _S.RUNNING,
    (_S.STARTING, _E.RESULT): _S.FINISHING,
    (_S.RUNNING, _E.RESULT): _S.FINISHING,
    (_S.FINISHING, _E.SUCCEED): _S.SUCCEEDED,
    (_S.CANCELLING, _E.STOPPED): _S.CANCELLED,
    **{(state, _E.CANCEL): _S.CANCELLING for state in _ACTIVE},
    **{(state, _E.REQUEUE): _S.QUEUED for state in _ACTIVE},
    **{(state, _E.FAIL): _S.FAILED for state in _ACTIVE},
    **{(state, _E.LOSE): _S.LOST for state in _ACTIVE},
    **{(state, _E.TIME_OUT): _S.TIMED_OUT for state in _ACTIVE},
    (_S.FAILED, _E.RETRY): _S.QUEUED,
    (_S.CANCELLED, _E.RETRY): _S.QUEUED,
    (_S.TIMED_OUT, _E.RETRY): _S.QUEUED,
    (_S.LOST, _E.RETRY): _S.QUEUED,
}


def next_state(state: JobState, event: JobEvent) -> JobState:
    """Return the state that follows.

    Raises:
        TransitionNotAllowed: `event` can't happen in `state`.
    """
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        allowed = sorted(source for source, known in TRANSITIONS if known is event)
        msg = (
            f"a job that is {state} does not take '{event}'; it needs to be {' or '.join(allowed)}"
        )
        raise TransitionNotAllowed(msg) from None
