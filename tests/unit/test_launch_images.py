"""Image digests, with the daemon's answers as a double."""

from __future__ import annotations

from types import SimpleNamespace

import docker
import pytest
from docker.errors import DockerException, ImageNotFound

from autotune.launch.images import registry_digest

DIGESTS = ["vllm/vllm-openai@sha256:aaa", "other/name@sha256:bbb"]


def daemon(monkeypatch: pytest.MonkeyPatch, digests: list[str] | None) -> None:
    def get(image: str) -> SimpleNamespace:
        if digests is None:
            raise ImageNotFound("no such image")
        return SimpleNamespace(attrs={"RepoDigests": digests})

    client = SimpleNamespace(images=SimpleNamespace(get=get), close=lambda: None)
    monkeypatch.setattr(docker, "from_env", lambda: client)


@pytest.mark.parametrize(
    "image",
    ["vllm/vllm-openai:v0.26.0", "vllm/vllm-openai", "vllm/vllm-openai@sha256:aaa"],
)
def test_digest_is_the_one_of_the_images_own_repository(
    monkeypatch: pytest.MonkeyPatch, image: str
) -> None:
    daemon(monkeypatch, DIGESTS)
    assert registry_digest(image) == "sha256:aaa"


def test_image_that_exists_only_here_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    daemon(monkeypatch, [])
    assert registry_digest("local:1") is None
    daemon(monkeypatch, None)
    assert registry_digest("gone:1") is None


def test_no_daemon_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise DockerException("no daemon")

    monkeypatch.setattr(docker, "from_env", refuse)
    assert registry_digest("local:1") is None
