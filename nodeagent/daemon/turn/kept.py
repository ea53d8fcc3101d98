"""What the deciding thread keeps in memory from one turn to the next, as one value. A restart begins without it, and misses nothing."""

from collections.abc import Mapping

from msgspec import Struct

from nodeagent.core.admission.managers import Managers
from nodeagent.core.model.cgroup import DesiredCgroup
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.state import PodEntry
from nodeagent.core.model.topology import Topology
from nodeagent.core.model.violations import Shortfall
from nodeagent.core.turn.pod_sources import ManifestProblem
from nodeagent.daemon.turn.execution import FailureResponse
from nodeagent.daemon.turn.troubles import Trouble

POLL_SECONDS = 0.05


class Kept(Struct, frozen=True):
    settled_on: Managers
    """The managers whose machine the promises of the state match."""
    whole: Topology
    """The machine, including the CPUs that cgroups above the pods' one withhold."""
    is_saved: bool
    """The state on disk is the current one."""
    chain: tuple[tuple[str, CpuSet], ...] = ()
    """The CPUs of the pods' cgroup and of all above it, as of the last look at the machine."""
    save_failed: bool = False
    """In the last turn."""
    held_off: tuple[PodEntry, ...] = ()
    """Pods that could have been admitted if the decision had been saved."""
    machine_trouble: tuple[Trouble, ...] = ()
    settled: Mapping[str, DesiredCgroup] = {}
    """The cgroups that were as desired when the last turn ended."""
    refused_partitions: CpuSet | None = None
    """CPUs of partitions that could not begin in the last turn. None: no turn has tried yet."""
    answer: FailureResponse = FailureResponse()
    """The response to failed cgroup writes."""
    troubles: frozenset[Trouble] = frozenset()
    """Those that were logged and still last."""
    source_problems: tuple[ManifestProblem, ...] = ()
    """Problems with manifests, as of the last turn."""
    shadows: tuple[tuple[str, str], ...] = ()
    """Files whose pods don't count, and why, as of the last turn."""
    shortfalls: Mapping[Shortfall, Mapping[str, str]] = {}
    """With the fields by which each was logged."""
    poll_seconds: float = POLL_SECONDS
    """How long to wait for what sends no notification: longer each time it has not come."""
