"""Agents that are started before their job, so that it need not wait for Python's imports.

Each is a launch like any other, under a supervisor and with a launch id, in a folder of its own;
its attempt takes over the id, and the folder becomes the attempt's run directory. An agent serves
one job. Those that an earlier server left end by themselves, and are swept here at the start.
"""

import asyncio
import contextlib
import logging
import os
import shutil
import time
from pathlib import Path

from app.ids import new_id
from app.launchers import processes
from app.launchers.base import Alive, Command, Launch, Launcher, LaunchError, LaunchRef
from app.settings import Settings
from app.workers.launching import base_environment
from evaluator.contract.env import SPEC_FILE
from evaluator.contract.warm import ORDER_FILE, READY_FILE, WarmOrder

_log = logging.getLogger(__name__)

RETRY_AFTER_S = 60.0
"""After an agent ended that was never ready: the next one would fare no better."""


class WarmPool:
    """Keeps agents ready, and hands them out."""

    def __init__(self, settings: Settings, launcher: Launcher) -> None:
        """Take what it works with."""
        self._settings = settings
        self._launcher = launcher
        self._folder = settings.runs_dir / ".warm"
        self._agents: list[LaunchRef] = []
        self._retry_at = 0.0

    async def clear(self) -> None:
        """End all agents that have no job."""
        self._agents.clear()
        folders = list(self._folder.iterdir()) if self._folder.is_dir() else []
        for folder in folders:
            await self._end(LaunchRef(launch_id=folder.name, run_dir=folder))

    async def turn(self) -> None:
        """Replace agents that ended, and start what is missing."""
        for agent in list(self._agents):
            if not isinstance(await self._launcher.look(agent), Alive):
                self._agents.remove(agent)
                self._note_end(agent)
                await self._end(agent)
        while (
            len(self._agents) < self._settings.warm_launches and time.monotonic() >= self._retry_at
        ):
            await self._start()

    def ready(self) -> LaunchRef | None:
        """An agent that can take a job now; it stays here until it is handed over."""
        return next(
            (agent for agent in self._agents if (agent.run_dir / READY_FILE).exists()), None
        )

    def hand_over(self, agent: LaunchRef, run_dir: Path) -> None:
        """Make the folder of an agent the run directory of an attempt.

        Raises:
            OSError: It can't be.
        """
        self._agents.remove(agent)
        run_dir.parent.mkdir(parents=True, exist_ok=True)
        agent.run_dir.rename(run_dir)

    async def _start(self) -> None:
        launch_id = new_id("lnc")
        ref = LaunchRef(launch_id=launch_id, run_dir=self._folder / launch_id)
        me = processes.identify(os.getpid())
        argv = (self._settings.python, "-m", "evaluator.warm", str(me.pid), str(me.start_ticks))
        launch = Launch(
            ref=ref,
            agents=(Command(argv=argv, env=base_environment(self._settings)),),
            grace_s=self._settings.stop_grace_seconds,
            log_max_bytes=self._settings.log_max_bytes,
        )
        try:
            await self._launcher.start(launch)
        except LaunchError as error:
            self._retry_at = time.monotonic() + RETRY_AFTER_S
            _log.warning("a warm agent can't be started", extra={"cause": str(error)})
        else:
            self._agents.append(ref)

    def _note_end(self, agent: LaunchRef) -> None:
        if not (agent.run_dir / READY_FILE).exists():
            self._retry_at = time.monotonic() + RETRY_AFTER_S
            _log.warning("a warm agent ended before it was ready", extra={"agent": agent.launch_id})

    async def _end(self, agent: LaunchRef) -> None:
        with contextlib.suppress(LaunchError):  # told by the next sweep, which finds it again
            await self._launcher.sweep(agent)
        await asyncio.to_thread(shutil.rmtree, agent.run_dir, ignore_errors=True)


def give_order(launch: Launch, num_ranks: int) -> None:
    """Tell the agent in a run directory what to do.

    Raises:
        OSError: The order can't be written.
    """
    order = WarmOrder(
        num_ranks=num_ranks,
        spec_path=str(launch.ref.run_dir / SPEC_FILE),
        env=dict(launch.agents[0].env),
    )
    temporary = launch.ref.run_dir / f"{ORDER_FILE}.tmp"
    temporary.write_text(order.model_dump_json())
    temporary.rename(launch.ref.run_dir / ORDER_FILE)
