"""Errors that the API answers with, as a tree; each has a stable code and an HTTP status.

    ApiError
    +-- InvalidRequest 422       the request asks for something that can't be
    |   +-- PathNotAllowed, ModelNotFound, DataNotFound, WeightsUnsafe, ModelIncomplete,
    |       InlineTooLarge, TooManyRanks, ParallelismInvalid, DeviceUnavailable, HubDisabled,
    |       AddressRefused, ForgeNotConfigured, RepositoryNotAllowed
    +-- InvalidCursor 400
    +-- JobNotFound 404, ResultNotReady 404, AttemptNotFound 404, NodeNotFound 404,
    |   CommitNotFound 404, BaselineNotFound 404, WebhookNotFound 404, DeliveryNotFound 404,
    |   RouteNotFound 404
    +-- MethodNotAllowed 405
    +-- TransitionNotAllowed 409, AttemptNotCurrent 409, ContractMismatch 409
    +-- NotComparable 409, RecordsMissing 409
    +-- WebhookDisabled 409, DeliveryPending 409, TooManyWebhooks 409
    +-- CommitFixed 409
    +-- PreconditionFailed 412
    +-- TokenMissing 401, TokenInvalid 401
    +-- InsufficientScope 403
    +-- BodyTooLarge 413
    +-- UnsupportedMediaType 415
    +-- TooManyStreams 429
    +-- InternalError 500
    +-- DatabaseUnavailable 503, NotReady 503

The docstring of a class is the title of its problem; the message of an instance is its detail.
"""

from typing import ClassVar


class ApiError(Exception):
    """The request can't be served"""

    code: ClassVar[str] = "error"
    status: ClassVar[int] = 500

    def __init__(self, detail: str, *, pointer: str | None = None) -> None:
        """Take `detail`, one sentence with place, value and remedy, and a JSON pointer to it."""
        super().__init__(detail)
        self.detail = detail
        self.pointer = pointer

    @classmethod
    def title(cls) -> str:
        """First line of the docstring."""
        return (cls.__doc__ or cls.__name__).splitlines()[0]


class InvalidRequest(ApiError):
    """The request is malformed"""

    code = "invalid_request"
    status = 422


class PathNotAllowed(InvalidRequest):
    """The path lies outside the configured roots"""

    code = "path_not_allowed"
    status = 422


class ModelNotFound(InvalidRequest):
    """There is no such model"""

    code = "model_not_found"
    status = 422


class ModelIncomplete(InvalidRequest):
    """The model folder lacks a file"""

    code = "model_incomplete"
    status = 422


class WeightsUnsafe(InvalidRequest):
    """The model has only pickled weights"""

    code = "weights_unsafe"
    status = 422


class DataNotFound(InvalidRequest):
    """There is no such data set"""

    code = "data_not_found"
    status = 422


class InlineTooLarge(InvalidRequest):
    """The inline documents are too large"""

    code = "inline_too_large"
    status = 422


class TooManyRanks(InvalidRequest):
    """The job asks for more ranks than this server has slots"""

    code = "too_many_ranks"
    status = 422


class ParallelismInvalid(InvalidRequest):
    """The parallelism does not come to the number of ranks"""

    code = "parallelism_invalid"
    status = 422


class DeviceUnavailable(InvalidRequest):
    """This server has no such device"""

    code = "device_unavailable"
    status = 422


class HubDisabled(InvalidRequest):
    """This server does not download from the hub"""

    code = "hub_disabled"
    status = 422


class AddressRefused(InvalidRequest):
    """This server does not send messages to this address"""

    code = "address_refused"
    status = 422


class ForgeNotConfigured(InvalidRequest):
    """This server has no token for this forge"""

    code = "forge_not_configured"
    status = 422


class RepositoryNotAllowed(InvalidRequest):
    """Jobs of this project are not reported to this repository"""

    code = "repository_not_allowed"
    status = 422


class InvalidCursor(ApiError):
    """The cursor is not one of ours"""

    code = "invalid_cursor"
    status = 400


class JobNotFound(ApiError):
    """There is no such job"""

    code = "job_not_found"
    status = 404


class ResultNotReady(ApiError):
    """The job has no result yet"""

    code = "result_not_ready"
    status = 404


class AttemptNotFound(ApiError):
    """The job has no such attempt"""

    code = "attempt_not_found"
    status = 404


class NodeNotFound(ApiError):
    """The job has no such node"""

    code = "node_not_found"
    status = 404


class CommitNotFound(ApiError):
    """The job is reported to no commit"""

    code = "commit_not_found"
    status = 404


class BaselineNotFound(ApiError):
    """No job was promoted under this name"""

    code = "baseline_not_found"
    status = 404


class WebhookNotFound(ApiError):
    """There is no such webhook"""

    code = "webhook_not_found"
    status = 404


class DeliveryNotFound(ApiError):
    """The webhook has no such delivery"""

    code = "delivery_not_found"
    status = 404


class TransitionNotAllowed(ApiError):
    """The job's state does not allow this"""

    code = "transition_not_allowed"
    status = 409


class AttemptNotCurrent(ApiError):
    """This attempt is no longer the current one"""

    code = "attempt_not_current"
    status = 409


class ContractMismatch(ApiError):
    """Server and evaluator speak different contract versions"""

    code = "contract_mismatch"
    status = 409


class NotComparable(ApiError):
    """The two jobs can't be compared"""

    code = "not_comparable"
    status = 409


class RecordsMissing(ApiError):
    """The per-window records of the job are gone or damaged"""

    code = "records_missing"
    status = 409


class TokensNotKept(ApiError):
    """The job has no nll of each token"""

    code = "tokens_not_kept"
    status = 404


class WebhookDisabled(ApiError):
    """The webhook is disabled"""

    code = "webhook_disabled"
    status = 409


class DeliveryPending(ApiError):
    """The message is going to be sent anyway"""

    code = "delivery_pending"
    status = 409


class TooManyWebhooks(ApiError):
    """The server has as many webhooks as it takes"""

    code = "too_many_webhooks"
    status = 409


class CommitFixed(ApiError):
    """The job is reported to another commit"""

    code = "commit_fixed"
    status = 409


class PreconditionFailed(ApiError):
    """The job has changed since you read it"""

    code = "precondition_failed"
    status = 412


class TokenMissing(ApiError):
    """This server asks for a bearer token"""

    code = "token_missing"
    status = 401


class TokenInvalid(ApiError):
    """The bearer token is wrong, revoked or too old"""

    code = "token_invalid"
    status = 401


class InsufficientScope(ApiError):
    """The bearer token does not allow this"""

    code = "insufficient_scope"
    status = 403

    def __init__(self, detail: str, *, scope: str) -> None:
        """Take the sentence, and the scope that is missing."""
        super().__init__(detail)
        self.scope = scope


class BodyTooLarge(ApiError):
    """The request body is too large"""

    code = "body_too_large"
    status = 413


class TooManyStreams(ApiError):
    """Too many event streams are open"""

    code = "too_many_streams"
    status = 429


class RouteNotFound(ApiError):
    """There is nothing at this path"""

    code = "route_not_found"
    status = 404


class MethodNotAllowed(ApiError):
    """This path does not take this method"""

    code = "method_not_allowed"
    status = 405


class UnsupportedMediaType(ApiError):
    """The request body is not declared as JSON"""

    code = "unsupported_media_type"
    status = 415


class InternalError(ApiError):
    """The server has a defect"""

    code = "internal"
    status = 500


class DatabaseUnavailable(ApiError):
    """The database does not answer"""

    code = "database_unavailable"
    status = 503


class NotReady(ApiError):
    """The server can't do its work"""

    code = "not_ready"
    status = 503
