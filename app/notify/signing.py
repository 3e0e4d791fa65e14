"""Signs messages so that their receiver knows who sent them, and that nobody changed them.

Source: Standard Webhooks 1.0.0, https://www.standardwebhooks.com, the symmetric scheme `v1`.
"""

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Iterable

_PREFIX = "whsec_"
_KEY_BYTES = 32
"""Of a new secret; the specification asks for 24 to 64."""


def new_secret() -> str:
    """Return a fresh secret: `whsec_` and the base64 of 32 random bytes."""
    return _PREFIX + base64.b64encode(secrets.token_bytes(_KEY_BYTES)).decode()


def sign(secret: str, message_id: str, unix_seconds: int, body: bytes) -> str:
    """Return `v1,` and the base64 of the HMAC-SHA256 of `id.seconds.body`.

    Raises:
        ValueError: `secret` is not `whsec_` and base64.
    """
    text = f"{message_id}.{unix_seconds}.".encode() + body
    digest = hmac.digest(_key(secret), text, hashlib.sha256)
    return f"v1,{base64.b64encode(digest).decode()}"


def signed_headers(
    secrets: Iterable[str], message_id: str, unix_seconds: int, body: bytes
) -> dict[str, str]:
    """Return the three headers of a message.

    Args:
        secrets: all that are valid now, the newest first; there are two while one takes over from
            the other, and a receiver that knows either accepts the message.
        message_id: the same at every try, so that a receiver sees a repetition.
        unix_seconds: of this try.
        body: exactly the bytes that are sent.
    """
    signatures = (sign(secret, message_id, unix_seconds, body) for secret in secrets)
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(unix_seconds),
        "webhook-signature": " ".join(signatures),
    }


def _key(secret: str) -> bytes:
    if not secret.startswith(_PREFIX):
        msg = f"a signing secret begins with {_PREFIX}"
        raise ValueError(msg)
    try:
        return base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
    except binascii.Error as error:
        msg = f"what follows {_PREFIX} in a signing secret is base64"
        raise ValueError(msg) from error
