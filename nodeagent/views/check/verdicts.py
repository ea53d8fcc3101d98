"""The input of `nodeagent check`, and its verdict on one thing: level, reason, and fix."""

import enum
import re
from typing import TYPE_CHECKING

from msgspec import Struct, field

from nodeagent.core.admission.managers import Managers
from nodeagent.core.model.config import Config
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.topology import Topology
from nodeagent.formats.kernel.settings import Settings

if TYPE_CHECKING:
    from nodeagent.core.model.devices import PlacedDevices
    from nodeagent.views.check.runtime_facts import RuntimeFacts


class Level(enum.Enum):
    OK = "ok"
    NOTE = "note"
    """Nothing is wrong, but worth knowing."""
    WARNING = "warning"
    """Pods run, but less well, or less isolated, than they could."""
    FAILURE = "failure"
    """The agent can't do its work, or another program works against it."""
    UNKNOWN = "unknown"
    """The file that is missing or unreadable."""


class Write(Struct, frozen=True):
    """A setting that may be changed and reverted at any time: it moves no process and lasts until the next boot."""

    path: str
    """Below the root."""
    text: str


class CheckResult(Struct, frozen=True):
    check: str
    """Stable name."""
    level: Level
    reason: str
    """In one sentence, with the deciding values."""
    fix: str = ""
    """A command, or what to set where; empty: nothing to do."""
    writes: tuple[Write, ...] = ()
    """What `--fix` does. Empty: a person has to decide."""


def kernel_version(release: str | None) -> tuple[int, int] | None:
    """Return the first two numbers of a kernel's release; None: it has none."""
    found = re.match(r"(\d{1,4})\.(\d{1,4})", release or "")
    return None if found is None else (int(found[1]), int(found[2]))


class NodeFacts(Struct, frozen=True):
    """All that was read of a node."""

    topology: Topology
    settings: Settings = field(default_factory=Settings)
    config: Config | None = None
    managers: Managers | None = None
    """With the configuration, as far as it fits the machine."""
    config_problem: str | None = None
    """Why both are missing."""
    config_is_missing: bool = False
    """The problem is that there is no configuration at all."""
    config_command: str = ""
    """The command that reports every error in the judged configuration; empty: it is in no file."""
    config_file: str = "the configuration"
    """Where to correct it: the named file, otherwise in words."""
    runtime: "RuntimeFacts | None" = None
    """Of the container runtime; None: `nriSocket` isn't set, or a capture is judged, which has nothing of it."""
    devices: "PlacedDevices | None" = None
    """Those of the machine; None: the configuration gives none."""
    kubelet_problem: str = ""
    """What has to be changed before the runtime's containers can be placed here; empty: nothing, or it wasn't looked at."""

    @property
    def why_unconfigured(self) -> str:
        """Why everything that depends on the configuration is unknown."""
        wrong = self.config_problem is not None and not self.config_is_missing
        return "the configuration is wrong" if wrong else "the configuration is missing"

    def text(self, path: str) -> str | None:
        """A setting's text without its line end; None: the file doesn't exist."""
        found = self.settings.sample.files.get(path)
        return None if found is None else found.strip()

    def is_hidden(self, path: str) -> bool:
        """Whether reading it was not permitted."""
        return path in self.settings.unreadable

    @property
    def is_static(self) -> bool:
        return self.config is not None and self.config.placement.cpu_manager_policy == "static"

    @property
    def reserved(self) -> CpuSet:
        """The CPUs that no pod gets for itself, as configured."""
        return CpuSet() if self.managers is None else self.managers.reserved
