"""Interface of a source of pods."""

from typing import Protocol

from nodeagent.core.model.config import Config
from nodeagent.core.turn.pod_sources import PodSource


class SourceReader(Protocol):
    """A source of pods that wakes the deciding thread when its pods change."""

    def look(self, *, rescan: bool) -> PodSource:
        """Return the pods: with `rescan` as of now, otherwise as of the last read."""
        ...

    def follow(self, config: Config) -> None:
        """Apply another configuration."""
        ...
