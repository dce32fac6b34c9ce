"""Whether the servers of one study are one and the same engine."""

from __future__ import annotations

from autotune.engines.facts import engine_facts
from autotune.errors import EnvironmentFault
from autotune.launch.identity import served_version


class VersionWatch:
    """Asks each ready server for its version. An engine that names none is not watched."""

    def __init__(self, engine: str, probed: str | None) -> None:
        """`probed`: the version that the program or the image promised, if it did."""
        self._route = engine_facts(engine).routes.get("version")
        self._probed = probed
        self._first: str | None = None

    def look(self, url: str) -> str | None:
        """A note about the first server if it is another version than promised, else None.

        Raises EnvironmentFault when a later server is another version than the first: the engine
        was changed under the study, and its trials cannot be compared.
        """
        if self._route is None or (version := served_version(url, self._route)) is None:
            return None
        if self._first is None:
            self._first = version
            if self._probed and not _agree(version, self._probed):
                return (
                    f"the server says that it is version {version}; {self._probed} was expected, "
                    "and flags were checked for that"
                )
        elif version != self._first:
            raise EnvironmentFault(
                message="the engine was changed during the study",
                seen=f"version {self._first} at first, {version} now",
                so="trials of two versions cannot be compared",
                hint="go back to the first version and resume, or begin a new study",
            )
        return None


def _agree(one: str, other: str) -> bool:
    """Whether two versions are the same as far as both are written."""
    a, b = (text.lstrip("v").partition("+")[0] for text in (one, other))
    return a == b or a.startswith(f"{b}.") or b.startswith(f"{a}.")
