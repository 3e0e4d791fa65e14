"""A forge on a real socket: it takes statuses as the manuals of GitHub and GitLab say.

GitLab keeps one open status for each name of a commit, and refuses what its state machine does not
know: a state that it has, and `pending` of what runs. A status that has ended is followed by a new
one.
"""

import json
import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from tests.support.receiver import Message, Receiver, Reply

SHA = "6dcb09b5b57875f334f61aebed695e2e4193db5e"
GITHUB_TOKEN = "github-secret"
GITLAB_TOKEN = "gitlab-secret"
_GITHUB = re.compile(r"/repos/([\w-]+/[\w.-]+)/statuses/([0-9a-f]+)")
_GITLAB = re.compile(r"/projects/([\w.%-]+)/statuses/([0-9a-f]+)")
_EVENTS = {
    "pending": "enqueue", "running": "run", "success": "success", "failed": "drop",
    "canceled": "cancel",
}  # fmt: skip
_MAY_FOLLOW = {"pending": {"running", "success", "failed", "canceled"}}
_MAY_FOLLOW["running"] = _MAY_FOLLOW["pending"] - {"running"}


@dataclass(frozen=True)
class Taken:
    """A status that the forge has taken."""

    place: tuple[str, str, str]
    """Repository, commit, context."""
    state: str
    description: str
    target_url: str


class Forge(Receiver):
    """Both forges in one; `replies` go before what the manuals say."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[Taken] = []
        self.num_refused = 0
        """Statuses that GitLab's state machine refused."""
        self.loses_answers = 0
        """How many statuses to take without an answer."""

    @property
    def url(self) -> str:
        """Base of both APIs."""
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def states(self) -> list[str]:
        """What was taken, in order."""
        return [each.state for each in self.taken]

    def answer(self, message: Message) -> Reply:
        """Take a status, or say why not."""
        if found := _GITHUB.fullmatch(message.path):
            reply = self._github(message, found[1], found[2])
        elif found := _GITLAB.fullmatch(message.path):
            reply = self._gitlab(message, unquote(found[1]), found[2])
        else:
            reply = _say(404, "Not Found")
        if reply.status == 201 and self.loses_answers:
            self.loses_answers -= 1
            return Reply(drops=True)
        return reply

    def _github(self, message: Message, repository: str, sha: str) -> Reply:
        if message.headers.get("authorization") != f"Bearer {GITHUB_TOKEN}":
            return _say(401, "Bad credentials")
        fields = message.json
        if sha != SHA:
            return _say(422, f"No commit found for SHA: {sha}")
        if fields["state"] not in ("error", "failure", "pending", "success"):
            return _say(422, "Validation Failed")
        if len(fields["description"]) > 140:
            return _say(422, "description is too long (maximum is 140 characters)")
        self._take((repository, sha, fields["context"]), fields)
        return _say(201, "")

    def _gitlab(self, message: Message, project: str, sha: str) -> Reply:
        if message.headers.get("private-token") != GITLAB_TOKEN:
            return _say(401, "401 Unauthorized")
        fields = message.json
        place = (project, sha, fields["name"])
        known = [each.state for each in self.taken if each.place == place]
        before, state = known[-1] if known else "created", fields["state"]
        if before in _MAY_FOLLOW and state not in _MAY_FOLLOW[before]:
            self.num_refused += 1
            event = _EVENTS[state]
            return _say(
                400,
                f"Cannot transition status via :{event} from :{before} (Reason(s): Status cannot "
                f'transition via "{event}")',
            )
        self._take(place, fields)
        return _say(201, "")

    def _take(self, place: tuple[str, str, str], fields: dict[str, Any]) -> None:
        self.taken.append(
            Taken(place, fields["state"], fields["description"], fields["target_url"])
        )


def _say(status: int, message: str) -> Reply:
    body = json.dumps({"message": message}).encode()
    return Reply(status, {"Content-Type": "application/json"}, body)
