"""A fifth domain: processes of somebody's supervisor, which tells of them and moves them over a socket."""

import json
import socket
from pathlib import Path

from msgspec import Struct

from nodeagent.core.cgroups.write_order import Change, GiveUnitBack, SetAttribute
from nodeagent.core.domains.domain import DomainInput, DomainView
from nodeagent.core.model.cgroup import Attribute, ObservedCgroup, UnitSettings
from nodeagent.core.model.cgroup_layout import is_pinned_by, pinned_pod_path, unit_at
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.pod import Container, Pod, ResourceRequirements, Resources
from nodeagent.core.model.quantity import Quantity
from nodeagent.core.model.state import Origin
from nodeagent.core.turn.pod_sources import Manifest, ManifestProblem, PodSource
from nodeagent.daemon.domains.passive_domain import PassiveDomain
from nodeagent.edge.cgroups.cgroupfs.files import CgroupError

NAME = "supervisor"
_SUFFIX = ".scope"
"""What is pinned has a name as units have."""
_SECONDS = 5.0


class Told(Struct, frozen=True):
    """A process, as the supervisor tells of it."""

    name: str
    wanted: int
    cpus: CpuSet

    @property
    def uid(self) -> str:
        return f"{NAME}-{self.name}"

    @property
    def pod(self) -> Pod:
        amounts = Resources((("cpu", Quantity.of(self.wanted)), ("memory", Quantity.of_bytes(1 << 20))))
        container = Container("main", resources=ResourceRequirements(amounts, amounts), unit=f"{self.name}{_SUFFIX}")
        return Pod(self.uid, NAME, self.name, (container,))

    def observed(self) -> ObservedCgroup:
        return ObservedCgroup(
            f"{pinned_pod_path(NAME, self.uid)}/{self.name}{_SUFFIX}",
            frozenset(),
            frozenset(),
            ((Attribute.CPUSET_CPUS, self.cpus),),
            self.cpus,
            None,
            is_populated=True,
            is_frozen=False,
            unit=UnitSettings(self.cpus),
        )


class SupervisorDomain(PassiveDomain):
    """Args:
    socket_path: of the supervisor.
    everything: what a process gets back that had everything.
    """

    name = NAME

    def __init__(self, socket_path: Path, everything: CpuSet) -> None:
        self._path, self._everything = socket_path, everything
        self._told: tuple[Told, ...] = ()
        self._problem = ""

    def _ask(self, request: dict[str, str]) -> None:
        """Ask, and remember what there is. Raises OSError."""
        with socket.socket(socket.AF_UNIX) as channel:
            channel.settimeout(_SECONDS)
            channel.connect(str(self._path))
            channel.sendall(json.dumps(request).encode() + b"\n")
            answer = json.loads(channel.makefile().readline() or '{"error": "no answer"}')
        if "error" in answer:
            raise OSError(answer["error"])
        rows = answer["processes"].items()
        self._told = tuple(Told(name, wanted, CpuSet.parse(cpus)) for name, (wanted, cpus) in rows)

    def bring(self, *, rescan: bool, part: float = 1.0) -> tuple[PodSource, ...]:
        try:
            self._ask({})
        except OSError as err:
            self._problem = f"the supervisor does not answer: {err} (is it running?)"
            return (PodSource(is_blind=True, problems=(ManifestProblem(NAME, self._problem),), name=NAME),)
        self._problem = ""
        return (PodSource(tuple(Manifest(t.pod, Origin(t.name, NAME, NAME)) for t in self._told), name=NAME),)

    def observe(self, _input: DomainInput, /) -> DomainView:
        seen = (one.observed() for one in self._told)
        return DomainView({there.path: there for there in seen})

    def owns(self, path: str, /) -> bool:
        return is_pinned_by(NAME, path)

    def apply(self, change: Change, /) -> None:
        match change:
            case SetAttribute(_, Attribute.CPUSET_CPUS, CpuSet() as cpus):
                pass
            case GiveUnitBack(_, before):
                cpus = before.allowed_cpus or self._everything
            case _:
                return  # it has CPUs alone to give
        try:
            self._ask({"set": unit_at(change.path).removesuffix(_SUFFIX), "cpus": str(cpus)})
        except OSError as err:
            raise CgroupError(f"the supervisor: {err}", path=change.path, error=None, hint="is it running?") from err

    def standing_problem(self) -> str | None:
        return self._problem or None
