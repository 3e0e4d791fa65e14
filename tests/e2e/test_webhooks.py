"""Messages and statuses survive the server: it is killed between the commit and the answer."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.forge import GITHUB_TOKEN, SHA, Forge
from tests.support.receiver import Reply, listening, receiver
from tests.support.server import Server, wait_for


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A server without workers at first, so that it sends nothing."""
    server = Server(
        tmp_path,
        worker="false",
        webhook_allow_networks="127.0.0.1/32",
        webhook_timeout_seconds="1",
        github_token=GITHUB_TOKEN,
    )
    model = tmp_path / "models" / "tiny"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_bytes(b"")
    yield server
    server.stop()


def test_a_killed_server_sends_what_it_committed(server: Server) -> None:
    with receiver() as hook, listening(Forge()) as forge:
        hook.replies, forge.replies = [Reply(hangs=True)], [Reply(hangs=True)]
        server.env["ASSAY_GITHUB_API_URL"] = forge.url
        server.start()
        webhook = server.http.post("/v1/webhooks", json={"url": hook.url}).json()
        job_id = server.submit(
            {
                "model": {"kind": "folder", "path": "tiny"},
                "data": {"kind": "inline", "documents": ["one two"]},
            }
        )
        target = {"forge": "github", "repository": "acme/models", "sha": SHA}
        server.http.put(f"/v1/jobs/{job_id}/commit", json=target).raise_for_status()
        server.http.post(f"/v1/jobs/{job_id}/cancel").raise_for_status()
        server.kill()

        server.env["ASSAY_WORKER"] = "true"
        server.start()
        wait_for(lambda: hook.messages and forge.messages, within_s=20, what="first tries")
        server.kill()

        server.start()
        wait_for(lambda: len(hook.messages) > 1, within_s=30, what="a second try")
        wait_for(lambda: forge.states, within_s=30, what="a status")
        wait_for(lambda: _last(server, webhook)["state"] == "delivered", within_s=10, what="noted")
        first, second = hook.messages
        assert (first.id, first.body) == (second.id, second.body)
        assert first.json["data"]["job_id"] == job_id
        assert second.is_signed_with(webhook["secret"])
        assert _last(server, webhook)["num_tries"] == 2
        assert forge.states == ["error"]


def _last(server: Server, webhook: dict[str, Any]) -> dict[str, Any]:
    item: dict[str, Any] = server.http.get(webhook["links"]["deliveries"]).json()["items"][0]
    return item
