"""A source of pods, as a domain looks at it."""

from typing import Protocol

from nodeagent.core.model.config import Config
from nodeagent.core.turn.pod_sources import PodSource


class SourceReader(Protocol):
    """It wakes the deciding thread itself when there is something new."""

    def look(self, *, rescan: bool) -> PodSource:
        """Return what the source has; with `rescan` as it is now, otherwise as of the last look."""
        ...

    def follow(self, config: Config) -> None:
        """Apply another configuration."""
        ...
