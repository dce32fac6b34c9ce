"""A container image that borrows this host's own system: made in a second, from nothing.

The image holds only empty folders and the links of a merged /usr. The host's /usr, its loader
settings, the Python that runs this file and any further folders are mounted read-only, so that any
program that runs on the host runs in the container. For tests; needs a Docker daemon.

    python tests/real_engine/host_image.py TAG [FOLDER ...]

makes the image if it is not there and prints {"image": TAG, "python": ..., "mounts": [...]}: what a
study's `engine:` section needs to run `python -m autotune.simulator` in a container.
"""

from __future__ import annotations

import io
import json
import sys
import tarfile
from pathlib import Path
from typing import Any

# /sbin is a folder of the image, not a link into /usr: Docker mounts its own init there first.
_FOLDERS = ("dev", "etc", "home", "opt", "proc", "root", "run", "sbin", "sys", "tmp", "usr", "var")
_MERGED = ("bin", "lib", "lib32", "lib64", "libx32")
_SETTINGS = ("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives")


def build(tag: str) -> None:
    """Import the image into the local daemon unless it has it. Raises DockerException."""
    import docker

    client = docker.from_env()
    try:
        try:
            client.images.get(tag)
        except docker.errors.ImageNotFound:
            name, _, version = tag.partition(":")
            client.api.import_image_from_data(_root(), repository=name, tag=version or "latest")
    finally:
        client.close()


def folders(*more: Path) -> list[Path]:
    """What must be mounted: the host's system, this Python, and `more`; no folder twice or inside
    another."""
    wanted = [Path("/usr"), *map(Path, _SETTINGS), Path(sys.prefix), Path(sys.base_prefix), *more]
    wanted += [Path(f"/{name}") for name in _MERGED if not Path(f"/{name}").is_symlink()]
    present = sorted({path for path in wanted if path.exists()})
    return [p for p in present if not any(other in p.parents for other in present)]


def mounts(*more: Path) -> list[dict[str, Any]]:
    """The folders as mounts at the same place, read-only."""
    return [
        {"source": str(path), "target": str(path), "read_only": True} for path in folders(*more)
    ]


def _root() -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for name in _FOLDERS:
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name.endswith("tmp") else 0o755
            tar.addfile(entry)
        for name in _MERGED:
            entry = tarfile.TarInfo(name)
            if Path(f"/{name}").is_symlink():
                entry.type, entry.linkname = tarfile.SYMTYPE, f"usr/{name}"
            else:
                entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
    return data.getvalue()


def main() -> None:
    if len(sys.argv) < 2:
        sys.exit("usage: host_image.py TAG [FOLDER ...]")
    tag, more = sys.argv[1], [Path(word).resolve() for word in sys.argv[2:]]
    build(tag)
    print(json.dumps({"image": tag, "python": sys.executable, "mounts": mounts(*more)}))


if __name__ == "__main__":
    main()
