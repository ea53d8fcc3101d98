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
    """Level of a result that is worth knowing although nothing is wrong."""
    WARNING = "warning"
    """Level of a result that makes pods slower or less isolated than possible."""
    FAILURE = "failure"
    """Level of a result with which the agent can't work, or with which another program reverts the agent's settings."""
    UNKNOWN = "unknown"
    """Level of a check that needs a missing or unreadable file."""


class SettingWrite(Struct, frozen=True):
    """Setting that may be changed and restored at any time. A change moves no processes, and lasts until the next boot."""

    path: str
    """Path of the setting's file, below the root directory."""
    text: str
    before: str
    """Value before the change, which is restored on request."""


class Purpose(enum.StrEnum):
    """Purpose of a node, which determines the level of some results."""

    SERVICE = "service"
    BENCHMARK = "benchmark"


class CheckResult(Struct, frozen=True):
    check: str
    """Stable name of the check."""
    level: Level
    reason: str
    """Reason as one sentence with the decisive values."""
    fix: str = ""
    """Command that fixes the problem, or a setting and its file. Empty means that no fix is needed."""
    writes: tuple[SettingWrite, ...] = ()
    """Settings that `--fix` writes. Empty means that the user must choose a value."""


def parse_kernel_version(release: str | None) -> tuple[int, int] | None:
    """Return the first two numbers of a kernel release. None means that the release can't be parsed."""
    found = re.match(r"(\d{1,4})\.(\d{1,4})", release or "")
    return None if found is None else (int(found[1]), int(found[2]))


class NodeFacts(Struct, frozen=True):
    """All data read from a node."""

    topology: Topology
    settings: Settings = field(default_factory=Settings)
    config: Config | None = None
    rules: NodeRules | None = None
    """Managers for the configuration. None means that the configuration doesn't fit the machine."""
    config_problem: str | None = None
    """Reason why `config` and `rules` are None. The attribute is None if both are set."""
    config_is_missing: bool = False
    """Whether there is no configuration."""
    config_command: str = ""
    """Command that reports every error in the configuration, or creates a missing configuration. Empty means that the configuration isn't
    in a file.
    """
    config_file: str = "the configuration"
    """Place to correct the configuration: a file name, or a description."""
    runtime: "RuntimeFacts | None" = None
    """Facts about the container runtime. None means that `nriSocket` isn't set, or that the node is a capture."""
    devices: "PlacedDevices | None" = None
    """Devices of the machine. None means that the configuration has no extended resources."""
    purpose: Purpose = Purpose.SERVICE
    kubelet_problem: str = ""
    """Required change of kubelet's configuration before the agent can place kubelet's containers. Empty means that no change is known to be
    required.
    """

    @property
    def why_unconfigured(self) -> str:
        """Return the reason why checks that depend on the configuration are unknown."""
        wrong = self.config_problem is not None and not self.config_is_missing
        return "the configuration is invalid" if wrong else "the configuration is missing"

    def text(self, path: str) -> str | None:
        """Return the text of a setting without the line end. None means that the file doesn't exist."""
        found = self.settings.sample.files.get(path)
        return None if found is None else found.strip()

    def is_hidden(self, path: str) -> bool:
        """Return whether permission to read the file was denied."""
        return path in self.settings.unreadable

    @property
    def is_static(self) -> bool:
        return self.config is not None and self.config.placement.cpu_manager_policy == "static"

    @property
    def gives_whole_cores(self) -> bool:
        """Return whether exclusive CPUs are always whole cores."""
        options = {} if self.config is None else dict(self.config.placement.cpu_manager_policy_options)
        option = "full-pcpus-only"
        return self.is_static and option in options and parse_boolean(option, options[option], "") is True

    @property
    def reserved(self) -> CpuSet:
        """Return the reserved CPUs, which a pod never gets exclusively."""
        return CpuSet() if self.rules is None else self.rules.reserved
