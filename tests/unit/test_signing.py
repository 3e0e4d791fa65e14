"""Signatures of messages, against the vector that Standard Webhooks publishes."""

import base64
import shutil
import subprocess

import pytest

from app.notify.signing import new_secret, sign, signed_headers

# Source: the test suites of the Standard Webhooks libraries, version 1.0.0.
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
MESSAGE_ID = "msg_p5jXN8AQM9LWM0D4loKWxJek"
SECONDS = 1614265330
BODY = b'{"test": 2432232314}'
SIGNATURE = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_the_published_vector() -> None:
    assert sign(SECRET, MESSAGE_ID, SECONDS, BODY) == SIGNATURE


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to compare with")
def test_openssl_signs_alike() -> None:
    secret = new_secret()
    key = base64.b64decode(secret.removeprefix("whsec_"))
    assert len(key) == 32
    command = ["openssl", "dgst", "-sha256", "-mac", "HMAC", "-macopt", f"hexkey:{key.hex()}"]
    text = b"msg_1.1700000000." + BODY
    digest = subprocess.run([*command, "-binary"], input=text, capture_output=True, check=True)
    expected = f"v1,{base64.b64encode(digest.stdout).decode()}"
    assert sign(secret, "msg_1", 1700000000, BODY) == expected


def test_while_a_secret_rotates_both_have_signed() -> None:
    other = new_secret()
    headers = signed_headers((other, SECRET), MESSAGE_ID, SECONDS, BODY)
    assert headers == {
        "webhook-id": MESSAGE_ID,
        "webhook-timestamp": "1614265330",
        "webhook-signature": f"{sign(other, MESSAGE_ID, SECONDS, BODY)} {SIGNATURE}",
    }


@pytest.mark.parametrize(
    "changed",
    [("msg_2", SECONDS, BODY), (MESSAGE_ID, SECONDS + 1, BODY), (MESSAGE_ID, SECONDS, b"{}")],
)
def test_id_time_and_body_are_all_signed(changed: tuple[str, int, bytes]) -> None:
    assert sign(SECRET, *changed) != SIGNATURE


@pytest.mark.parametrize("secret", ["", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_not base64"])
def test_what_is_no_secret_signs_nothing(secret: str) -> None:
    with pytest.raises(ValueError, match="signing secret"):
        sign(secret, MESSAGE_ID, SECONDS, BODY)
