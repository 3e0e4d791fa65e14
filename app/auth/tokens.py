"""Bearer tokens: make, list, revoke. The secret is shown once; what is stored is its hash."""

import os
import re
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import Database
from app.ids import hash_token, new_id, new_token
from app.jobs.repository import utcnow
from app.models import Token

TOKEN_PREFIX = "assay_"  # noqa: S105 - the part that is no secret
"""What programs that look for leaked secrets know a token by."""
FIRST_TOKEN_FILE = "admin-token"  # noqa: S105 - a file name

_NAME = re.compile(r"[^\x00-\x1f\x7f-\x9f\ud800-\udfff]{1,100}")
_PROJECT = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")


class Scope(StrEnum):
    """What a token allows."""

    JOBS_READ = "jobs:read"
    """Look at jobs, their logs, results and comparisons."""
    JOBS_WRITE = "jobs:write"
    """Submit, cancel and retry jobs."""
    HOOKS_WRITE = "hooks:write"
    """Set up triggers and notifications."""
    METRICS_READ = "metrics:read"
    """Read the server's figures, which are of all projects and name no job."""
    ADMIN = "admin"
    """Everything, in all projects."""


@dataclass(frozen=True, kw_only=True)
class TokenRequest:
    """A token that somebody wants.

    Raises:
        ValueError: name or project can't be one, there is no scope, or `admin` is bound to a
            project.
    """

    name: str
    """What it is for."""
    scopes: frozenset[Scope]
    project: str | None
    """Null for `admin` alone: all projects."""
    expires_at: datetime | None = None

    def __post_init__(self) -> None:
        """Check."""
        if not _NAME.fullmatch(self.name):
            msg = f"name {self.name[:100]!r}: write 1 to 100 printable characters"
            raise ValueError(msg)
        if not self.scopes:
            msg = f"a token without a scope allows nothing: name one of {', '.join(Scope)}"
            raise ValueError(msg)
        if (self.project is None) != (Scope.ADMIN in self.scopes):
            msg = "admin is for all projects, every other token for one: leave out one of the two"
            raise ValueError(msg)
        if self.project is not None and not _PROJECT.fullmatch(self.project):
            msg = f"project {self.project[:64]!r}: write a to z, 0 to 9 and -, 64 at most"
            raise ValueError(msg)


FIRST_TOKEN = TokenRequest(name="first", scopes=frozenset({Scope.ADMIN}), project=None)


class TokensExist(Exception):
    """There is a token already, so none can be the first."""


class NoSuchToken(Exception):
    """No token has this id."""


async def any_token(session: AsyncSession) -> bool:
    """Return whether there ever was a token; one that is revoked or too old counts."""
    return (await session.scalar(select(Token.id).limit(1))) is not None


async def create_token(database: Database, request: TokenRequest) -> tuple[Token, str]:
    """Store a token; return it with its secret, which can't be had again."""
    secret = new_token(TOKEN_PREFIX)
    token = _make(request, secret)
    async with database.write() as session:
        session.add(token)
    return token, secret


async def create_first_token(database: Database, folder: Path) -> Path:
    """Write an admin token into a file of `folder` that only its owner can read.

    Raises:
        TokensExist: it would not be the first.
        OSError: the file exists, or can't be written; then there is no token either.
    """
    path = folder / FIRST_TOKEN_FILE
    secret = new_token(TOKEN_PREFIX)
    async with database.write() as session:
        if await any_token(session):
            raise TokensExist
        session.add(_make(FIRST_TOKEN, secret))
        await session.flush()
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(f"{secret}\n")
    return path


def _make(request: TokenRequest, secret: str) -> Token:
    return Token(
        id=new_id("tok"),
        name=request.name,
        token_hash=hash_token(secret),
        scopes=" ".join(sorted(request.scopes)),
        project=request.project,
        created_at=utcnow(),
        expires_at=request.expires_at,
    )


async def list_tokens(database: Database) -> list[Token]:
    """Return all tokens, oldest first, those that are revoked too."""
    async with database.read() as session:
        return list((await session.scalars(select(Token).order_by(Token.id))).all())


async def revoke_token(database: Database, token_id: str) -> Token:
    """Let a token open nothing from now on; one that is revoked stays so.

    Raises:
        NoSuchToken: there is none with this id.
    """
    async with database.write() as session:
        token = await session.get(Token, token_id, with_for_update=True)
        if token is None:
            raise NoSuchToken
        token.revoked_at = token.revoked_at or utcnow()
    return token
