"""Snapshot of a node. The agent publishes this snapshot over the local API, captures store it, and every command reads it."""

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec.structs import replace

from nodeagent.core.admission.node_rules import KnownNode, ReadNode, read_node_of
from nodeagent.core.cgroups.desired_cgroups import Kernel
from nodeagent.core.model.cgroup import ObservedCgroups
from nodeagent.core.model.cgroup_layout import is_pinned, unit_at
from nodeagent.core.model.host_processes import HostProcesses
from nodeagent.core.model.state import NodeState
from nodeagent.core.model.topology import Topology
from nodeagent.formats.checkpoint.node_state import SavedState, policies_of, public_document, state_from_document
from nodeagent.formats.config.effective_config import config_document, config_from_document
from nodeagent.formats.syntax.json_values import JsonValue, MisfitError
from nodeagent.formats.topology.topology_json import TopologyDocumentError, topology_document, topology_from_document

if TYPE_CHECKING:
    from nodeagent.core.model.device_pools import DevicePool
    from nodeagent.core.model.problem_kinds import ProblemKind
    from nodeagent.core.model.reservation import ReservedRoom

Document = dict[str, Any]

_CGROUPS = "/sys/fs/cgroup/"
"""Directory of the root cgroup, with a final slash."""


class Observation(Struct, frozen=True):
    """Cgroups and processes observed at one time."""

    at_ms: int = 0
    page_bytes: int = 4096
    cgroups: ObservedCgroups | None = None
    """Cgroups by path below the pods' cgroup, which is "". None means that the pods' cgroup was not found or not readable. Desired and
    actual values are then not compared.
    """
    problems: tuple[str, ...] = ()
    """Errors from reading the cgroups."""
    process_counts: Mapping[str, int] = field(default_factory=dict)
    """Number of processes by cgroup path. Unreadable cgroups are left out."""
    strays: Mapping[str, int] = field(default_factory=dict)
    """PIDs of containers' main processes that run outside their container's cgroup, by the path of the container's cgroup."""
    beside: Mapping[str, int] = field(default_factory=dict)
    """PIDs of processes that are directly in a container's cgroup, by the cgroup's path. Another program has put them there, because the
    agent and `nodeagent exec` start processes in child cgroups.
    """
    host: HostProcesses | None = None
    """Host processes. None means that they were not observed."""


class NodeView(Struct, frozen=True, dict=True):
    """State of a node: the machine, the configuration and the allocations. The running agent creates the view after each turn.

    Without a running agent, a command creates the view from the saved state and from the machine.
    """

    node: KnownNode
    """Configuration and machine. CPUs that a cgroup above the pods' cgroup withholds are left out."""
    state: NodeState
    cgroup_root: str | None = None
    """Path of the pods' cgroup. None if the path is unknown."""
    pids: Mapping[str, int] | None = None
    """PIDs of main processes by run ID. None means that the launcher did not answer."""
    problems: tuple[str, ...] = ()
    """Problems that need attention: invalid manifests, failed writes, an unreachable launcher."""
    wrong: "Mapping[ProblemKind, int]" = field(default_factory=dict)
    """Number of problems by kind, as counted by the agent. Kinds without problems are missing. Empty for a view that
    the agent did not make.
    """
    recovery: Mapping[str, Any] | None = None
    """Report of an agent whose start changed the saved state, for instance by a recovery. None means that the agent used the saved state
    unchanged.
    """
    policies: Mapping[str, str] | None = None
    """Policies with which the state was saved. None means that they equal the configured policies."""
    is_live: bool = False
    """Whether the view comes from the running agent. Otherwise it was read from the agent's files."""
    is_ready: bool = False
    """Whether the agent completed its last turn, saved the state, and reached the launcher."""
    is_here: bool = True
    """Whether the command runs on the node itself. Otherwise it reads copied files, and the node's processes can't be observed."""
    is_agent_known: bool = True
    """Whether the view contains data of an agent. Otherwise it contains only the machine."""
    hostname: str = ""
    """Name of the node. Empty if unknown."""
    at_ms: int | None = None
    """Time of this view. None means that the view is current."""
    copied_at: str | None = None
    """Time when the view was copied, as text for people. None if the time is unknown."""
    observation: Observation | None = None
    """Observed cgroups and processes. None means that nothing has been observed yet."""
    unit_cgroups: Mapping[str, str] = field(default_factory=dict)
    """Cgroup of each pinned systemd unit, as a path below the root cgroup, by unit name."""
    pools: "tuple[DevicePool, ...]" = ()
    """Pools of extended resources. Empty if there are no such resources or devices haven't been scanned."""
    reservations: "tuple[ReservedRoom, ...] | None" = None
    """Reservations that have not ended, ordered by their start times. None means that they are unknown, because only the running agent
    knows the reservations.
    """

    @property
    def observed(self) -> Observation:
        """Observation of cgroups and processes. It is empty if nothing was observed."""
        return self.observation or Observation()

    def cgroup_of(self, path: str) -> str:
        """Return the path of a container's cgroup, relative to the pods' cgroup. `path` is the container's path from
        `PodEntry.container_path`.

        Cgroups of systemd units and of container runtimes are outside the pods' cgroup, so their paths start with
        `../`.
        """
        where = self._path_outside(path)
        above = self._pods_cgroup.count("/")
        return path if where is None else f"{'../' * above}{where}"

    def cgroup_name(self, path: str) -> str:
        """Return a container's cgroup as /proc/PID/cgroup names it. `path` is the container's path from `PodEntry.container_path`."""
        where = self._path_outside(path)
        return f"{self._pods_cgroup}/{path}" if where is None else f"/{where}"

    def shown_cgroup(self, path: str) -> str:
        """Return the path of a cgroup as shown to people: relative to the pods' cgroup, or absolute if the cgroup is outside the pods'
        cgroup.
        """
        where = self._path_outside(path)
        return path if where is None else f"{_CGROUPS}{where}"

    def _path_outside(self, path: str) -> str | None:
        """Return a cgroup's path below the root cgroup if the cgroup is outside the pods' cgroup, otherwise None."""
        if path.startswith(_CGROUPS):
            return path.removeprefix(_CGROUPS)
        return self.unit_cgroups.get(unit_at(path)) if is_pinned(path) else None

    @property
    def _pods_cgroup(self) -> str:
        """Path of the pods' cgroup below the root cgroup."""
        return (self.cgroup_root or "").removeprefix(_CGROUPS.rstrip("/"))

    @cached_property
    def kernel(self) -> Kernel | None:
        """Properties of the kernel. None if the pods' cgroup was not observed."""
        cgroups = self.observed.cgroups or {}
        return None if "" not in cgroups else Kernel.of(self.node.topology, self.observed.page_bytes, cgroups)


def view_document(view: NodeView) -> Document:
    """Format a view without its observation and without the containers' variables, which may be secret."""
    topology, decided_on = view.node.topology, view.node.rules.topology
    differing = {} if decided_on == topology else {"decidedOn": topology_document(decided_on)}
    return {
        "config": config_document(view.node.config),
        "state": public_document(view.state, view.policies or policies_of(view.node.config.placement)),
        "reservedCPUs": str(view.node.reserved),
        "topology": topology_document(topology),
        **differing,
        "cgroupRoot": view.cgroup_root,
        "manifestDirectory": view.node.config.static_pod_path,
        **({"unitCgroups": dict(view.unit_cgroups)} if view.unit_cgroups else {}),
        **({"devices": _format_pools(view.pools)} if view.pools else {}),
        **({} if view.reservations is None else {"reservations": [one.as_document() for one in view.reservations]}),
        "pids": None if view.pids is None else dict(view.pids),
        "live": view.is_live,
        "ready": view.is_ready,
        "problems": list(view.problems),
        "recovery": None if view.recovery is None else dict(view.recovery),
    }


class ViewReader:
    """Decoder of a series of documents. Unchanged parts are compared but not decoded again.

    Args:
        pod: the only pod whose entry the caller needs, as its UID, namespace/name or name. If no pod has this name, or if it is None, all
            entries are decoded.
    """

    def __init__(self, pod: str | None = None) -> None:
        self._pod = pod
        self._state: tuple[object, SavedState] | None = None
        self._node: tuple[object, ReadNode] | None = None

    def __call__(self, document: JsonValue) -> NodeView:
        """Decode the result of `view_document`.

        Raises:
            NodeStateError: the state in the document is invalid.
            MisfitError: another value is missing or has the wrong type.
        """
        state = document.field("state").value
        if self._pod is not None:
            state = _select_entries(state, self._pod)
        if self._state is None or self._state[0] != state:
            self._state = state, state_from_document(state)
        node_parts = [
            document.object().get(name)
            for name in ("config", "manifestDirectory", "reservedCPUs", "topology", "decidedOn")
        ]
        if self._node is None or self._node[0] != node_parts:
            config = config_from_document(document.field("config"))
            manifests = document.read_optional("manifestDirectory", JsonValue.text, config.static_pod_path)
            topology = _decode_topology(document.field("topology"))
            decided_on = document.read_optional("decidedOn", _decode_topology, topology)
            config = replace(config, static_pod_path=manifests)
            self._node = node_parts, read_node_of(config, topology, decided_on, document.field("reservedCPUs").cpus())
        saved = self._state[1]
        units = document.read_optional("unitCgroups", lambda found: found.by_name(JsonValue.text), ())
        return NodeView(
            node=self._node[1],
            state=saved.state,
            cgroup_root=document.read_optional("cgroupRoot", JsonValue.text, None),
            unit_cgroups=dict(units),
            pids=document.read_optional("pids", lambda pids: dict(pids.by_name(JsonValue.whole)), None),
            problems=document.field("problems").each(JsonValue.text),
            recovery=document.read_optional("recovery", _decode_recovery, None),
            policies=saved.policies,
            is_live=document.field("live").flag(),
            is_ready=document.field("ready").flag(),
            pools=document.read_optional("devices", _decode_pools, ()),
            reservations=document.read_optional("reservations", lambda found: found.each(_decode_reservation), None),
        )


def _select_entries(state: object, pod: str) -> object:
    """Return a state's document with only the entries of the pods with this name. If no pod has this name, return the
    document unchanged.
    """

    def has_name(entry: object) -> bool:
        match entry:
            case {"pod": {"metadata": {"name": name, "namespace": namespace, "uid": uid}}}:
                return pod in {uid, name, f"{namespace}/{name}"}
        return False

    match state:
        case {"entries": list(entries), **others}:
            found = [entry for entry in entries if has_name(entry)]
            return {**others, "entries": found} if found else state
    return state


def _format_pools(pools: "tuple[DevicePool, ...]") -> list[Document]:
    from nodeagent.formats.topology.device_pools import pools_document  # noqa: PLC0415 - few nodes have devices

    return pools_document(pools)


def _decode_pools(document: JsonValue) -> "tuple[DevicePool, ...]":
    from nodeagent.formats.topology.device_pools import pools_from_document  # noqa: PLC0415 - few nodes have devices

    return pools_from_document(document)


def _decode_reservation(document: JsonValue) -> "ReservedRoom":
    from nodeagent.core.model.reservation import ReservedRoom  # noqa: PLC0415 - few nodes have reservations

    return ReservedRoom(
        name=document.field("name").text(),
        user=document.field("user").whole(),
        cpus=document.field("cpus").text(),
        memory=document.read_optional("memory", JsonValue.text, None),
        from_ms=document.field("fromMs").whole(),
        until_ms=document.field("untilMs").whole(),
        jobs=document.field("jobs").each(JsonValue.text),
    )


def _decode_topology(document: JsonValue) -> Topology:
    try:
        return topology_from_document(document.value)
    except TopologyDocumentError as err:
        raise MisfitError(f"{document.path}: {err.message}") from err


def _decode_recovery(document: JsonValue) -> Mapping[str, Any]:
    """Decode the agent's report on how its start changed the saved state. Every value is checked, because `inspect` shows all of them."""

    def texts(value: JsonValue) -> dict[str, str | None]:
        return dict(value.by_name(lambda each: each.or_none(JsonValue.text)))

    def difference(value: JsonValue) -> dict[str, str | None]:
        needed = {name: value.field(name).text() for name in ("pod", "resource", "before", "after", "why")}
        return {"container": None} | texts(value) | needed

    def refused(value: JsonValue) -> dict[str, str]:
        return {name: value.field(name).text() for name in ("pod", "message")}

    return {
        **{name: list(document.field(name).each(JsonValue.text)) for name in ("adopted", "problems", "setAside")},
        "differences": list(document.field("differences").each(difference)),
        "refused": list(document.field("refused").each(refused)),
    }
