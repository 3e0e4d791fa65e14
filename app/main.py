"""Puts the server together: the only place where parts are wired."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute
from starlette.middleware import Middleware

from app.api import (
    commits,
    comparisons,
    events,
    gates,
    health,
    jobs,
    logs,
    metrics,
    nodes,
    records,
    reports,
    tokens,
    webhooks,
)
from app.api.deps import Parts
from app.api.streams import Streams
from app.auth.access import Access
from app.db import Database
from app.disk import DiskProbe
from app.error_handlers import install_error_handlers
from app.jobs.hub import Hub
from app.jobs.ingest import Absorber
from app.jobs.repository import moves_of
from app.jobs.service import JobService
from app.jobs.writer import ReportWriter
from app.launchers.local import LocalLauncher
from app.metrics import count_moves
from app.middleware import AskForToken, BodyLimit, RequestContext
from app.notify.outbox import Outbox
from app.notify.service import WebhookService
from app.settings import Settings
from app.start import prepare_database, prepare_state_dir, refuse_open_door, worker_lock
from app.statuses.outbox import note_statuses
from app.statuses.service import CommitService
from app.workers import Workers

_ROUTERS: Sequence[APIRouter] = (
    reports.router,  # asked most by far, and routes are tried in order
    jobs.router,
    commits.router,
    events.router,
    logs.router,
    nodes.router,
    records.router,
    tokens.router,
    comparisons.router,
    gates.router,
    gates.baselines_router,
    webhooks.router,
    metrics.router,
    health.router,
)


def _make_parts(settings: Settings) -> Parts:
    hub, absorber = Hub(), Absorber()
    database = Database(
        settings.sqlalchemy_url,
        on_change=hub.notify,
        before_commit=(Outbox(settings.base_url), note_statuses),
        after_commit=lambda session: count_moves(moves_of(session)),
    )
    workers = None
    if settings.worker:
        workers = Workers(database, settings, LocalLauncher(), absorber)
    wake = workers.wake if workers is not None else _nobody_to_wake
    return Parts(
        settings=settings,
        database=database,
        access=Access(database),
        hub=hub,
        jobs=JobService(database, settings, hub, wake),
        webhooks=WebhookService(database, settings, wake),
        commits=CommitService(database, settings, wake),
        writer=ReportWriter(database, absorber),
        workers=workers,
        streams=Streams(settings.max_streams),
    )


def _nobody_to_wake() -> None:
    """Another process runs the loops; they look by themselves."""


@asynccontextmanager
async def _run_parts(parts: Parts) -> AsyncIterator[None]:
    """Start the parts in order, and stop them in the reverse one.

    Raises:
        StartError: the state directory, its lock or the database refuses.
    """
    state_dir = parts.settings.state_dir
    prepare_state_dir(state_dir)
    async with AsyncExitStack() as stack:
        if parts.workers is not None:
            stack.enter_context(worker_lock(state_dir))
        stack.push_async_callback(parts.database.close)
        await prepare_database(parts.database, state_dir)
        await refuse_open_door(parts.settings, parts.access)
        stack.push_async_callback(parts.streams.drain)
        await parts.writer.start()
        stack.push_async_callback(parts.writer.stop)
        if parts.workers is not None:
            await parts.workers.start()
            stack.push_async_callback(parts.workers.stop)
        stack.callback(parts.streams.close)
        yield


def create_app(settings: Settings) -> FastAPI:
    """Return the server; its parts run for as long as its lifespan.

    There is no page at /docs: the framework's own loads its scripts from other machines.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        parts = _make_parts(settings)
        app.state.parts = parts
        app.state.disk = DiskProbe(settings.state_dir)
        async with _run_parts(parts):
            yield

    app = FastAPI(
        lifespan=lifespan,
        openapi_url=None,  # app.api.health serves the document
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        middleware=[
            Middleware(RequestContext),
            Middleware(AskForToken),  # before a byte of the body is read
            Middleware(BodyLimit, max_bytes=settings.body_max_bytes),
        ],
    )
    for router in _ROUTERS:
        app.include_router(router)
    routes = [r for router in _ROUTERS for r in router.routes if isinstance(r, APIRoute)]
    install_error_handlers(app, routes)
    return app
