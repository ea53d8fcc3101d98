"""Data from which `nodeagent check` judges a node, and the result of one check: level, reason and fix."""

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
    """Level of a result that makes pods slower or less isolated than they could be."""
    FAILURE = "failure"
    """Level of a problem because of which the agent can't work, or another program reverts the agent's settings."""
    UNKNOWN = "unknown"
    """Level of a check whose result is unknown, because a file that it needs is missing or unreadable."""


class SettingWrite(Struct, frozen=True):
    """Kernel setting that can be changed and restored at any time. The change moves no processes, and lasts until the next boot."""

    path: str
    """Path of the setting's file, relative to the root directory."""
    text: str
    before: str
    """Value before the change. It is written back if the user undoes the change."""


class Purpose(enum.StrEnum):
    """Purpose of a node: running services or benchmarks. It determines how serious some results are."""

    SERVICE = "service"
    BENCHMARK = "benchmark"


class CheckResult(Struct, frozen=True):
    check: str
    """Name of the check, which stays the same in all versions."""
    level: Level
    reason: str
    """Reason for the level, as one sentence with the values that decided it."""
    fix: str = ""
    """Command, or setting and file to edit, that fixes the problem. Empty means that no fix is needed or known."""
    writes: tuple[SettingWrite, ...] = ()
    """Settings that `nodeagent check --fix` writes. Empty means that `--fix` changes nothing."""


def parse_kernel_version(release: str | None) -> tuple[int, int] | None:
    """Return the first two numbers of a kernel release. None means that the release can't be parsed."""
    found = re.match(r"(\d{1,4})\.(\d{1,4})", release or "")
    return None if found is None else (int(found[1]), int(found[2]))


class NodeFacts(Struct, frozen=True):
    """Everything that the checks know about a node."""

    topology: Topology
    settings: Settings = field(default_factory=Settings)
    config: Config | None = None
    rules: NodeRules | None = None
    """Rules of the node, made from the configuration. None means that the configuration is missing or doesn't fit the machine."""
    config_problem: str | None = None
    """Reason why `config` and `rules` are None. None means that the configuration is valid for the machine."""
    config_is_missing: bool = False
    """Whether the configuration file is missing."""
    config_command: str = ""
    """Command that lists the errors of the configuration, or creates a missing configuration. Empty means that the configuration isn't in a
    file.
    """
    config_file: str = "the configuration"
    """Place where users can correct the configuration: a file name or a description."""
    runtime: "RuntimeFacts | None" = None
    """Data about the container runtime. None means that `nriSocket` isn't set, or that the node is a capture."""
    devices: "PlacedDevices | None" = None
    """Devices of the machine. None means that the configuration has no extended resources, so devices weren't scanned."""
    purpose: Purpose = Purpose.SERVICE
    kubelet_problem: str = ""
    """Change that kubelet's configuration needs before the agent can place kubelet's containers. Empty means that no change is known to be
    needed.
    """

    @property
    def why_unconfigured(self) -> str:
        """Return why checks that depend on the configuration have an unknown result."""
        wrong = self.config_problem is not None and not self.config_is_missing
        return "the configuration is invalid" if wrong else "the configuration is missing"

    def text(self, path: str) -> str | None:
        """Return the content of a setting's file, stripped of white space. None means that the file doesn't exist."""
        found = self.settings.sample.files.get(path)
        return None if found is None else found.strip()

    def is_hidden(self, path: str) -> bool:
        """Return whether the file couldn't be read because permission was denied."""
        return path in self.settings.unreadable

    @property
    def is_static(self) -> bool:
        return self.config is not None and self.config.placement.cpu_manager_policy == "static"

    @property
    def gives_whole_cores(self) -> bool:
        """Return whether pods get exclusive CPUs only as whole cores."""
        options = {} if self.config is None else dict(self.config.placement.cpu_manager_policy_options)
        option = "full-pcpus-only"
        return self.is_static and option in options and parse_boolean(option, options[option], "") is True

    @property
    def reserved(self) -> CpuSet:
        """Return the reserved CPUs, which are never allocated exclusively."""
        return CpuSet() if self.rules is None else self.rules.reserved
