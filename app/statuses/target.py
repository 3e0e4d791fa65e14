"""Where a job is reported to: a commit on a forge, under a name. Pure."""

import hashlib
import json
from enum import StrEnum
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from evaluator.contract.base import Contract, Text

DEFAULT_CONTEXT = "assay"


class Forge(StrEnum):
    """Who keeps the commit."""

    GITHUB = "github"
    GITLAB = "gitlab"


_SEGMENT = r"\.?[A-Za-z0-9_][A-Za-z0-9_.-]*"  # neither . nor .., which lead elsewhere
Repository = Annotated[
    str,
    Field(
        max_length=255,
        pattern=rf"^{_SEGMENT}(/{_SEGMENT}){{0,19}}$",
        examples=["acme/models"],
    ),
]
Sha = Annotated[
    str,
    Field(
        pattern=r"^([0-9A-Fa-f]{40}|[0-9A-Fa-f]{64})$",
        examples=["6dcb09b5b57875f334f61aebed695e2e4193db5e"],
    ),
    AfterValidator(str.lower),
]
Context = Annotated[Text, Field(min_length=1, max_length=255, pattern=r"^[^\x00-\x1f\x7f]+$")]


class CommitTarget(Contract):
    """A commit that is told what happens to a job."""

    forge: Forge
    repository: Repository
    """`owner/name`; on GitLab the path of the project, groups included, or its number."""
    sha: Sha
    """The whole hash of the commit, 40 or 64 hexadecimal digits."""
    context: Context = DEFAULT_CONTEXT
    """Tells this status from others of the commit."""

    @model_validator(mode="after")
    def _check_repository(self) -> "CommitTarget":
        if self.forge is Forge.GITHUB and self.repository.count("/") != 1:
            msg = "a repository on GitHub is written owner/name"
            raise ValueError(msg)
        return self

    @property
    def key(self) -> str:
        """Equal for two targets that the forge takes for one.

        Forges do not tell upper from lower case in repositories, and GitHub neither in contexts.
        """
        context = self.context.lower() if self.forge is Forge.GITHUB else self.context
        parts = [self.forge, self.repository.lower(), self.sha, context]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def __str__(self) -> str:
        """Return `forge:repository@sha`."""
        return f"{self.forge}:{self.repository}@{self.sha}"
