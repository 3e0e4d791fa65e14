"""The server's settings: one frozen class, one prefix (`ASSAY_`), read once and passed on.

Nothing else in `app` reads the environment.
"""

import ipaddress
import os
import sys
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, IPvAnyNetwork, SecretStr, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from evaluator.contract.base import MAX_COUNT
from evaluator.contract.launch import CACHE_LIMIT_BYTES


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


_INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "SSL_CERT_FILE")
_INHERITED_FOR_HUB = ("HF_HOME", "HF_ENDPOINT", "HF_TOKEN", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY")

Roots = Annotated[tuple[Path, ...], NoDecode]
Words = Annotated[tuple[str, ...], NoDecode]
CommitPatterns = Annotated[tuple[Annotated[str, Field(pattern=r"^(\*|[^=]+=.+)$")], ...], NoDecode]
ApiUrl = Annotated[str, Field(pattern=r"^https?://[^\s?#@]+$")]
Networks = Annotated[tuple[IPvAnyNetwork, ...], NoDecode]


class Settings(BaseSettings):
    """Every setting has a default that suits one machine and one person."""

    model_config = SettingsConfigDict(
        env_prefix="ASSAY_", frozen=True, extra="forbid", use_attribute_docstrings=True
    )

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: Annotated[int, Field(ge=1, le=65535)] = 8321
    """Port to listen on."""
    public_url: str | None = None
    """Base URL under which runs reach this server; null takes `http://host:port`."""
    allow_unauthenticated: bool = False
    """Accept requests from beyond this machine although there is no token to ask for."""
    state_dir: Path = Path(".assay")
    """Folder for the database, run directories and caches."""
    database_url: SecretStr | None = None
    """`postgresql://...` or `sqlite:///...`; null takes SQLite inside `state_dir`."""
    cache_dir: Path | None = None
    """Folder for converted weights and token ids, shared by jobs; null takes `state_dir/cache`."""
    cache_limit_bytes: Annotated[int, Field(ge=1, le=MAX_COUNT)] = CACHE_LIMIT_BYTES
    """Most bytes of token ids in `cache_dir`; what was not used for longest goes first."""
    model_roots: Roots = (Path("models"),)
    """Folders that models may be read from, separated by `:`."""
    data_roots: Roots = (Path("data"),)
    """Folders that texts may be read from, separated by `:`."""
    allow_hub: bool = False
    """Let runs download models and data sets from the hub."""
    mirror_dir: Path | None = None
    """Folder with copies of hub data sets, used before the hub; docs/data.md says in what shape."""
    inline_max_bytes: Annotated[int, Field(ge=1)] = 1_048_576
    """Most UTF-8 bytes of inline documents in one request."""
    body_max_bytes: Annotated[int, Field(ge=1024)] = 8_388_608
    """Most bytes of a request body."""
    worker: bool = True
    """Run the dispatcher and the reconciler in this process."""
    cpu_slots: Annotated[int, Field(ge=0)] = Field(default_factory=lambda: os.cpu_count() or 1)
    """CPU ranks that may run at once."""
    gpu_slots: Annotated[int, Field(ge=0)] = 0
    """GPU ranks that may run at once, one GPU each."""
    python: str = sys.executable
    """The interpreter that runs the evaluator."""
    warm_launches: Annotated[int, Field(ge=0)] = 0
    """Launches kept ready for jobs to come, with everything imported; each takes about 0.4 GB."""
    stop_grace_seconds: Annotated[float, Field(gt=0)] = 10.0
    """Between asking a launch to stop and killing it."""
    launch_timeout_seconds: Annotated[float, Field(gt=0)] = 30.0
    """Most time until a launch's supervisor is there."""
    start_timeout_seconds: Annotated[float, Field(gt=0)] = 300.0
    """Most time until the first rank reports."""
    stall_timeout_seconds: Annotated[float, Field(gt=0)] = 1800.0
    """Most time without any report of a rank."""
    log_max_bytes: Annotated[int, Field(ge=65_536)] = 5_000_000
    """Most bytes kept of an attempt's log."""
    heartbeat_seconds: Annotated[float, Field(gt=0)] = 15.0
    """Between two heartbeats of an event stream."""
    max_streams: Annotated[int, Field(ge=1)] = 256
    """Event streams that may be open at once."""
    webhook_allow_networks: Networks = ()
    """Networks that messages may be sent to although they are not public, or without TLS,
    separated by `,`."""
    webhook_timeout_seconds: Annotated[float, Field(gt=0, le=60)] = 20.0
    """Most time that a receiver of a message may take to answer."""
    github_api_url: ApiUrl = "https://api.github.com"
    """Base URL of GitHub's REST API; `https://HOST/api/v3` of an Enterprise Server."""
    github_token: SecretStr | None = None
    """A token that may write commit statuses; null reports nothing to GitHub."""
    gitlab_api_url: ApiUrl = "https://gitlab.com/api/v4"
    """Base URL of GitLab's REST API, version 4."""
    gitlab_token: SecretStr | None = None
    """A token with the scope `api`; null reports nothing to GitLab."""
    commit_repositories: CommitPatterns = ("*",)
    """Which projects report to which repositories: patterns like `red=github:acme/*`, separated
    by `,`."""
    commit_inconclusive: Literal["failure", "success"] = "failure"
    """What a commit is told where a gate can't tell or has no baseline."""
    public_badges: Words = ()
    """Projects whose badges anybody may see, separated by `,`."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """Least severity that is logged."""

    @field_validator("model_roots", "data_roots", mode="before")
    @classmethod
    def _split_roots(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(Path(part) for part in value.split(os.pathsep) if part)
        return value

    @field_validator("github_token", "gitlab_token", mode="before")
    @classmethod
    def _drop_empty(cls, value: object) -> object:
        return None if value == "" else value

    @field_validator(
        "webhook_allow_networks", "commit_repositories", "public_badges", mode="before"
    )
    @classmethod
    def _split_words(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches the server."""
        return _is_loopback(self.host)

    @property
    def base_url(self) -> str:
        """Where runs report to."""
        if self.public_url is not None:
            return self.public_url.rstrip("/")
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "::1": "[::1]"}.get(self.host, self.host)  # noqa: S104 - compared, not bound
        return f"http://{host}:{self.port}"

    @property
    def sqlalchemy_url(self) -> str:
        """The database URL with the driver that this project uses."""
        if self.database_url is None:
            return f"sqlite+aiosqlite:///{(self.state_dir / 'assay.db').absolute()}"
        url = self.database_url.get_secret_value()
        for plain, with_driver in (
            ("postgresql://", "postgresql+psycopg://"),
            ("postgres://", "postgresql+psycopg://"),
            ("sqlite://", "sqlite+aiosqlite://"),
        ):
            if url.startswith(plain):
                return with_driver + url.removeprefix(plain)
        return url

    @property
    def runs_dir(self) -> Path:
        """Parent of all run directories."""
        return (self.state_dir / "runs").absolute()

    @property
    def weights_dir(self) -> Path:
        """Folder for converted weights."""
        return (self.cache_dir or self.state_dir / "cache").absolute()

    def launch_environment(self) -> dict[str, str]:
        """What a launch inherits of this process's environment; of the hub's only if it is on."""
        names = _INHERITED + (_INHERITED_FOR_HUB if self.allow_hub else ())
        return {name: os.environ[name] for name in names if name in os.environ}

    def slots(self, device: str) -> int:
        """Ranks that may run at once on `device` (`cpu` or `cuda`)."""
        return self.gpu_slots if device == "cuda" else self.cpu_slots
