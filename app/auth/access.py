"""Who sends a request, and what they may do."""

import logging
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import select, update
from sqlalchemy.exc import DBAPIError

from app.auth.tokens import TOKEN_PREFIX, Scope, any_token
from app.db import Database
from app.errors import InsufficientScope, TokenInvalid, TokenMissing
from app.ids import hash_token
from app.jobs.repository import utcnow
from app.models import Token

NOTE_USE_EVERY_S = 60.0
"""Between two writes of the time a token was last used."""

_BEARER = re.compile(r"bearer +(\S+)", re.IGNORECASE)
_OURS = re.compile(rf"{TOKEN_PREFIX}[\w-]{{43}}", re.ASCII)

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Caller:
    """Whoever sends a request."""

    token_id: str | None
    """Null as long as the server has no token and asks for none."""
    scopes: frozenset[Scope]
    project: str | None
    """The one they see; null: all."""

    def need(self, scope: Scope) -> None:
        """Refuse whoever lacks `scope`.

        Raises:
            InsufficientScope: they do.
        """
        if not self.scopes & {scope, Scope.ADMIN}:
            msg = f"this token lacks the scope {scope}: ask for one that has it"
            raise InsufficientScope(msg, scope=scope)


ANYBODY = Caller(None, frozenset({Scope.ADMIN}), None)
"""Each caller of a server without a token."""


class Access:
    """Knows callers by their tokens. Once there was a token, nobody gets in without one again."""

    def __init__(self, database: Database) -> None:
        """Take the database with the tokens."""
        self._database = database
        self._needs_token = False
        self._noted_at_s: dict[str, float] = {}
        """By token: when its use was last written, on the monotonic clock."""

    async def needs_token(self) -> bool:
        """Return whether there is, or was, a token. Asked anew until the first is seen."""
        if not self._needs_token:
            async with self._database.read() as session:
                self._needs_token = await any_token(session)
        return self._needs_token

    async def identify(self, authorization: Sequence[str]) -> Caller:
        """Return who sends these headers `Authorization`.

        Raises:
            TokenMissing: there is none.
            TokenInvalid: it is unknown, revoked or too old.
        """
        if not await self.needs_token():
            return ANYBODY
        if not authorization:
            msg = "send `Authorization: Bearer` with a token; `assay token create` makes one"
            raise TokenMissing(msg)
        token = await self._find(authorization)
        await self._note_use(token)
        scopes = frozenset(Scope(word) for word in token.scopes.split())
        return Caller(token.id, scopes, token.project)

    async def _find(self, authorization: Sequence[str]) -> Token:
        bearer = _BEARER.fullmatch(authorization[0]) if len(authorization) == 1 else None
        token = None
        if bearer is not None and _OURS.fullmatch(bearer[1]):
            # The database compares hashes: how long that takes tells nothing about the secret.
            query = select(Token).where(Token.token_hash == hash_token(bearer[1]))
            async with self._database.read() as session:
                token = (await session.scalars(query)).one_or_none()
        if token is None:
            msg = "no token is like the one sent; `assay token list` shows which there are"
            raise TokenInvalid(msg)
        if token.revoked_at is not None:
            msg = f"token {token.id} was revoked: make another with `assay token create`"
            raise TokenInvalid(msg)
        if token.expires_at is not None and token.expires_at <= utcnow():
            msg = f"token {token.id} has expired: make another with `assay token create`"
            raise TokenInvalid(msg)
        return token

    async def _note_use(self, token: Token) -> None:
        """Write that the token is used; where that fails, its holder is served all the same."""
        now_s = time.monotonic()
        if now_s - self._noted_at_s.get(token.id, -NOTE_USE_EVERY_S) < NOTE_USE_EVERY_S:
            return
        self._noted_at_s[token.id] = now_s
        try:
            async with self._database.write() as session:
                change = update(Token).where(Token.id == token.id).values(last_used_at=utcnow())
                await session.execute(change)
        except DBAPIError:
            _log.warning(
                "the use of a token is not noted", extra={"token": token.id}, exc_info=True
            )
