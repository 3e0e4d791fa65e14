"""The base of every contract type, and the field types that several of them share."""

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


class Contract(BaseModel):
    """Frozen; unknown fields are refused; numbers are finite, since JSON has no NaN."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


MAX_COUNT = 2**48
"""Far above anything real, and low enough that sums of counts fit into int64."""

Count = Annotated[int, Field(strict=True, ge=0, le=MAX_COUNT)]
"""A number of things."""

PositiveCount = Annotated[int, Field(strict=True, ge=1, le=MAX_COUNT)]
"""A number of things of which there is at least one."""

Seconds = Annotated[float, Field(ge=0)]
"""A duration from a monotonic clock."""

Nats = Annotated[float, Field()]
"""A negative log likelihood, natural log."""

Name = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")]
"""A short human word without control characters."""


def encodable(value: object) -> object:
    """The value, which is no text with half of a surrogate pair.

    Goes before a type of text: a limit of length behind it would count items, not characters, and
    one in front of it would refuse such a text without saying why.

    Raises:
        ValueError: It is.
    """
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            msg = f"character {error.start} is half of a surrogate pair, which is no text"
            raise ValueError(msg) from None
    return value


Text = Annotated[str, BeforeValidator(encodable)]
"""Any text that UTF-8 can carry; JSON's escapes can write more than that."""

PathText = Annotated[str, Field(min_length=1, max_length=1024, pattern=r"^[^\x00-\x1f\x7f]*$")]
"""A path as somebody wrote it; the server resolves it inside its roots."""

Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
"""A SHA-256 digest."""

HubName = Annotated[str, Field(max_length=200, pattern=r"^[\w-][\w.-]*(/[\w-][\w.-]*)?$")]
"""`organisation/name` or `name` on a model hub."""
Revision = Annotated[str, Field(max_length=200, pattern=r"^[\w][\w./-]*$")]
"""A commit hash, tag or branch on a model hub."""
