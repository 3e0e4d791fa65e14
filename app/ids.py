"""Identifiers (prefixed, sortable by time) and secrets."""

import hashlib
import secrets
import time

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_RANDOM_BITS = 80
_NUM_CHARACTERS = 26


def new_id(prefix: str) -> str:
    """Return `prefix_` and 26 base-32 characters: 48 bits of Unix milliseconds, 80 random bits.

    Source: the ULID specification, in lower case.
    """
    number = (time.time_ns() // 1_000_000) << _RANDOM_BITS | secrets.randbits(_RANDOM_BITS)
    characters = [_ALPHABET[(number >> (5 * place)) & 31] for place in range(_NUM_CHARACTERS)]
    return f"{prefix}_{''.join(reversed(characters))}"


def new_token(prefix: str = "") -> str:
    """Return a fresh bearer token: `prefix` and 256 random bits in 43 characters."""
    return prefix + secrets.token_urlsafe(32)


def hash_token(token: str) -> str:
    """Return the form in which a token is stored. A random 256-bit secret needs no slow hash."""
    return hashlib.sha256(token.encode()).hexdigest()
