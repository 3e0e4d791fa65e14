"""How forges are told: requests to GitHub and GitLab, and what their answers mean. Pure."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

import httpx
from pydantic import SecretStr

from app.notify.sender import Outcome
from app.settings import Settings
from app.statuses.target import Forge
from app.statuses.told import WORDS, CommitState

_GITLAB_REFUSAL = re.compile(r"Cannot transition status via :\w+ from :(\w+)")
"""Source: packit-service#741 and GitLab's own state machine of commit statuses."""
RATE_LIMIT_SECONDS = 60.0
"""To wait after 403 or 429 where the forge names no time.

Source: GitHub's REST API, "Rate limits": wait at least one minute.
"""
UNANSWERED_SECONDS = 5.0
"""To wait after a request without an answer: the forge may still be working on it, and what is sent
next must not be overtaken."""
_MAY_BE_RATE_LIMIT: Final = (httpx.codes.FORBIDDEN, httpx.codes.TOO_MANY_REQUESTS)


@dataclass(frozen=True)
class Api:
    """Where a forge is asked, and as whom."""

    url: str
    token: SecretStr


def apis(settings: Settings) -> dict[Forge, Api]:
    """Return the forges that this server has a token for."""
    urls = {Forge.GITHUB: settings.github_api_url, Forge.GITLAB: settings.gitlab_api_url}
    tokens = {Forge.GITHUB: settings.github_token, Forge.GITLAB: settings.gitlab_token}
    return {
        forge: Api(url.rstrip("/"), token)
        for forge, url in urls.items()
        if (token := tokens[forge]) is not None
    }


@dataclass(frozen=True, kw_only=True)
class Post:
    """A request."""

    url: str
    headers: Mapping[str, str]
    body: bytes


def make_post(
    forge: Forge,
    api: Api,
    *,
    repository: str,
    sha: str,
    context: str,
    state: CommitState,
    description: str,
    target_url: str,
) -> Post:
    """Return the request that sets a status.

    Source: GitHub's REST API, "Create a commit status", version 2022-11-28; GitLab's REST API v4,
    "Set commit pipeline status".
    """
    fields = {
        "state": WORDS[forge][state],
        "target_url": target_url,
        "description": description,
        "context" if forge is Forge.GITHUB else "name": context,
    }
    token = api.token.get_secret_value()
    match forge:
        case Forge.GITHUB:
            url = f"{api.url}/repos/{repository}/statuses/{sha}"
            headers = {
                "Authorization": f"Bearer {token}",
                "Accept": "application/vnd.github+json",
                "X-GitHub-Api-Version": "2022-11-28",
            }
        case Forge.GITLAB:
            url = f"{api.url}/projects/{quote(repository, safe='')}/statuses/{sha}"
            headers = {"PRIVATE-TOKEN": token, "Accept": "application/json"}
    return Post(url=url, headers=headers, body=json.dumps(fields).encode())


def is_taken(forge: Forge, state: CommitState, outcome: Outcome) -> bool:
    """Whether the forge has the status now, also where it says that it had it before."""
    if outcome.error is None:
        return True
    if forge is not Forge.GITLAB or outcome.status_code != httpx.codes.BAD_REQUEST:
        return False
    refusal = _GITLAB_REFUSAL.search(outcome.response or "")
    if refusal is None:
        return False
    word, has = WORDS[forge][state], refusal[1]
    return has == word or (state is CommitState.PENDING and has == "running")


def wait_s(outcome: Outcome) -> float | None:
    """Return the seconds that this status must not be sent for, whatever the schedule says."""
    if outcome.status_code is None:
        return UNANSWERED_SECONDS
    if outcome.retry_after_s is None and outcome.status_code in _MAY_BE_RATE_LIMIT:
        return RATE_LIMIT_SECONDS
    return outcome.retry_after_s
