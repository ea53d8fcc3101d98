"""Input of `nodeagent check`, and the result of one check: level, reason and fix."""

import enum
import re
from typing import TYPE_CHECKING

from msgspec import Struct, field

from nodeagent.core.admission.node_rules import NodeRules
from nodeagent.core.model.config import Config
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.policy_options import parse_boolean
from nodeagent.core.model.topology import Topology
from nodeagent.formats.kernel.settings import Settings

if TYPE_CHECKING:
    from nodeagent.core.model.devices import PlacedDevices
    from nodeagent.views.check.runtime_facts import RuntimeFacts


class Level(enum.Enum):
    OK = "ok"
    NOTE = "note"
    """Nothing is wrong, but the fact is worth knowing."""
    WARNING = "warning"
    """Pods run, but slower or less isolated than possible."""
    FAILURE = "failure"
    """The agent can't work, or another program works against it."""
    UNKNOWN = "unknown"
    """A file for the check is missing or unreadable."""


class SettingWrite(Struct, frozen=True):
    """A setting that may be changed and reverted at any time. The change doesn't move processes, and lasts until the next boot."""

    path: str
    """Path below the root."""
    text: str
    before: str
    """Value to restore."""


class Purpose(enum.StrEnum):
    """Purpose of a node, which sets the level of some results."""

    SERVICE = "service"
    BENCHMARK = "benchmark"


class CheckResult(Struct, frozen=True):
    check: str
    """Stable name of the check."""
    level: Level
    reason: str
    """One sentence with the deciding values."""
    fix: str = ""
    """A command, or a setting and its place. Empty if no fix is needed."""
    writes: tuple[SettingWrite, ...] = ()
    """Writes of `--fix`. Empty if a person has to decide."""


def parse_kernel_version(release: str | None) -> tuple[int, int] | None:
    """Return the first two numbers of a kernel release. None means that the release has another form."""
    found = re.match(r"(\d{1,4})\.(\d{1,4})", release or "")
    return None if found is None else (int(found[1]), int(found[2]))


class NodeFacts(Struct, frozen=True):
    """All data read from a node."""

    topology: Topology
    settings: Settings = field(default_factory=Settings)
    config: Config | None = None
    rules: NodeRules | None = None
    """Managers for the configuration, if it fits the machine."""
    config_problem: str | None = None
    """Reason why `config` and `rules` are None. None if both are set."""
    config_is_missing: bool = False
    """Whether there is no configuration at all."""
    config_command: str = ""
    """Command that reports every error in the configuration, or that brings a missing one. Empty if the configuration isn't in a file."""
    config_file: str = "the configuration"
    """Place to fix the configuration: a file's name, or a description."""
    runtime: "RuntimeFacts | None" = None
    """Facts about the container runtime. None if `nriSocket` isn't set, or for a capture, which has none."""
    devices: "PlacedDevices | None" = None
    """Devices of the machine. None if the configuration has no extended resources."""
    purpose: Purpose = Purpose.SERVICE
    kubelet_problem: str = ""
    """Change to kubelet that is required before the agent can place its containers. Empty if none is known."""

    @property
    def why_unconfigured(self) -> str:
        """Reason why checks that depend on the configuration are unknown."""
        wrong = self.config_problem is not None and not self.config_is_missing
        return "the configuration is invalid" if wrong else "the configuration is missing"

    def text(self, path: str) -> str | None:
        """Return the text of a setting without its line end. None means that the file doesn't exist."""
        found = self.settings.sample.files.get(path)
        return None if found is None else found.strip()

    def is_hidden(self, path: str) -> bool:
        """Tell whether permission to read the file was denied."""
        return path in self.settings.unreadable

    @property
    def is_static(self) -> bool:
        return self.config is not None and self.config.placement.cpu_manager_policy == "static"

    @property
    def gives_whole_cores(self) -> bool:
        """Whether exclusive CPUs are whole cores."""
        options = {} if self.config is None else dict(self.config.placement.cpu_manager_policy_options)
        option = "full-pcpus-only"
        return self.is_static and option in options and parse_boolean(option, options[option], "") is True

    @property
    def reserved(self) -> CpuSet:
        """Reserved CPUs, which no pod gets exclusively."""
        return CpuSet() if self.rules is None else self.rules.reserved
