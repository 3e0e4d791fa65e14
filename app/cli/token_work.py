"""What `assay token` does on the server's database.

Apart from the commands, because its imports take a second that no other command needs.
"""

import asyncio
from collections.abc import Callable, Coroutine
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import typer
from pydantic import ValidationError

from app.api.view import format_time
from app.auth import tokens
from app.auth.tokens import FIRST_TOKEN_FILE, Scope, TokenRequest
from app.cli.options import EXIT_SERVER, EXIT_USAGE, make_console, refuse
from app.db import Database
from app.jobs.repository import utcnow
from app.models import DEFAULT_PROJECT, Token
from app.settings import Settings
from app.start import StartError, check_database_url, prepare_database, prepare_state_dir

T = TypeVar("T")
Json = dict[str, Any]


def read_settings() -> Settings:
    """Return the settings of the environment, or end with exit code 2."""
    try:
        return Settings()
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = "_".join(str(part) for part in first["loc"]).upper()
        _give_up(f"ASSAY_{place}: {first['msg']}", EXIT_USAGE)


def create(
    *, name: str, scopes: list[str], project: str | None, days: int | None
) -> tuple[str, str]:
    """Make a token; return its id and its secret."""
    try:
        wanted = frozenset(Scope(word) for word in scopes)
    except ValueError:
        refuse(f"choose from {', '.join(Scope)}", option="--scope")
    if project is None and Scope.ADMIN not in wanted:
        project = DEFAULT_PROJECT
    expires_at = None if days is None else utcnow() + timedelta(days=days)
    try:
        request = TokenRequest(name=name, scopes=wanted, project=project, expires_at=expires_at)
    except ValueError as error:
        refuse(str(error))
    token, secret = _run(lambda database: tokens.create_token(database, request))
    return token.id, secret


def create_first() -> Path:
    """Make the first token; return the file that has it."""
    folder = read_settings().state_dir
    try:
        return _run(lambda database: tokens.create_first_token(database, folder))
    except tokens.TokensExist:
        refuse("there is a token already: make another without this option", option="--first")
    except OSError as error:
        path = folder / FIRST_TOKEN_FILE
        _give_up(f"{path}: {error.strerror}: move it away, or see who may write there", EXIT_SERVER)


def list_all() -> list[Json]:
    """Return what there is to know of all tokens."""
    return [_describe(token) for token in _run(tokens.list_tokens)]


def _describe(token: Token) -> Json:
    times = ("created_at", "expires_at", "last_used_at", "revoked_at")
    return {
        "id": token.id,
        "name": token.name,
        "scopes": token.scopes.split(),
        "project": token.project,
        **{
            name: None if (at := getattr(token, name)) is None else format_time(at)
            for name in times
        },
    }


def revoke(token_id: str) -> None:
    """Let a token open nothing any more."""
    try:
        _run(lambda database: tokens.revoke_token(database, token_id))
    except tokens.NoSuchToken:
        refuse(f"there is no token {token_id[:60]!r}: see `assay token list`", option="ID")


def _run(work: Callable[[Database], Coroutine[Any, Any, T]]) -> T:
    """Do `work` on the migrated database of the settings; what refuses it is one sentence."""
    settings = read_settings()

    async def run() -> T:
        database = Database(settings.sqlalchemy_url)
        try:
            await prepare_database(database, settings.state_dir)
            return await work(database)
        finally:
            await database.close()

    try:
        check_database_url(settings)
        prepare_state_dir(settings.state_dir)
        return asyncio.run(run())
    except StartError as error:
        _give_up(str(error), error.exit_code)


def _give_up(message: str, code: int) -> NoReturn:
    make_console(to_stderr=True).print(f"Error: {message}", soft_wrap=True)
    raise typer.Exit(code)
