"""Which image a tag meant on the day of the study."""

from __future__ import annotations


def registry_digest(image: str) -> str | None:
    """The registry's digest (`sha256:...`) of a local image; None for an image that exists only
    here, and where no daemon answers.
    """
    import docker
    from docker.errors import DockerException

    repository = image.partition("@")[0]
    if ":" in repository.rpartition("/")[2]:
        repository = repository.rpartition(":")[0]
    try:
        client = docker.from_env()
    except DockerException:
        return None
    try:
        digests = client.images.get(image).attrs.get("RepoDigests") or []
    except DockerException:
        return None
    finally:
        client.close()
    named = [text.partition("@") for text in digests]
    own = [digest for name, _, digest in named if name.endswith(repository)]
    return own[0] if own else None
