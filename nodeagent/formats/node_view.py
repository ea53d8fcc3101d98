"""What is known about a node at one time: the agent publishes it over the local API, captures keep it, every command reads it."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec.structs import replace

from nodeagent.core.admission.node_setup import NodeSetup, on_machine
from nodeagent.core.cgroups.desired_cgroups import Kernel
from nodeagent.core.model.cgroup import ObservedCgroups
from nodeagent.core.model.cgroup_layout import is_of_systemd, unit_at
from nodeagent.core.model.host_processes import HostProcesses
from nodeagent.core.model.state import NodeState
from nodeagent.core.model.topology import Topology
from nodeagent.formats.checkpoint.node_state import SavedState, policies_of, public_document, state_from_document
from nodeagent.formats.config.effective_config import config_document, config_from_document
from nodeagent.formats.syntax.json_values import JsonValue, MisfitError
from nodeagent.formats.topology.topology_json import TopologyDocumentError, topology_document, topology_from_document

if TYPE_CHECKING:
    from nodeagent.core.resources.devices.pools import DevicePool

Document = dict[str, Any]

_CGROUPS = "/sys/fs/cgroup/"
"""The root of all."""


class Observation(Struct, frozen=True):
    """The cgroups and processes observed at one time."""

    at_ms: int = 0
    page_bytes: int = 4096
    cgroups: ObservedCgroups | None = None
    """By path below the pods' cgroup, which is "". None: it was not found or not readable; then nothing is compared."""
    problems: tuple[str, ...] = ()
    """Problems with reading the cgroups."""
    process_counts: Mapping[str, int] = field(default_factory=dict)
    """Processes by cgroup path; those that could not be read are missing."""
    strays: Mapping[str, int] = field(default_factory=dict)
    """Main processes that are outside their container's cgroup, by its path."""
    beside: Mapping[str, int] = field(default_factory=dict)
    """By path, a process in a container's cgroup itself. The agent's and those of `nodeagent exec` are below it."""
    host: HostProcesses | None = None
    """None: not observed."""


class NodeView(Struct, frozen=True):
    """Created by the running agent after each turn: the machine, the configuration and the promises that it decides on.

    If no agent runs, a command creates it from what the agent has saved and from the machine.
    """

    node: NodeSetup
    """Without the CPUs that a cgroup above the pods' one withholds."""
    state: NodeState
    cgroup_root: str | None = None
    """Of the pods' cgroup. None: its location is unknown."""
    pids: Mapping[str, int] | None = None
    """Main processes by run id. None: the launcher did not answer."""
    problems: tuple[str, ...] = ()
    """What a person should look at: invalid manifests, failed writes, an unreachable launcher."""
    recovery: Mapping[str, Any] | None = None
    """The agent's report on a start that could not use its state as it was. None: it could."""
    policies: Mapping[str, str] | None = None
    """Under which the state was saved; None: those of the configuration."""
    is_live: bool = False
    """It comes from the running agent; otherwise it was read from its files."""
    is_ready: bool = False
    """The agent has finished its last turn."""
    is_here: bool = True
    """The node is the one that this program runs on; False: it is a copy, and its processes can't be observed."""
    is_agent_known: bool = True
    """False: only a machine is known, without an agent."""
    hostname: str = ""
    """Empty: unknown."""
    at_ms: int | None = None
    """The time of this view; None: now."""
    copied_at: str | None = None
    """When the copy was made, for people; None: unknown."""
    observation: Observation | None = None
    """None: not observed yet."""
    unit_cgroups: Mapping[str, str] = field(default_factory=dict)
    """Where the cgroups of the systemd units are that pods stand for: path below the root of all cgroups, by the unit's name."""
    pools: "tuple[DevicePool, ...]" = ()
    """The devices that pods may ask for by number. Empty: none, or nobody has looked."""

    @property
    def observed(self) -> Observation:
        """What was observed; empty if nothing was observed."""
        return self.observation or Observation()

    def cgroup_of(self, path: str) -> str:
        """Return the path of a container's cgroup, as one goes there from the pods' cgroup: those of systemd's units and of a container
        runtime are elsewhere.

        Args:
            path: as `PodEntry.container_path` has it.
        """
        where = self._elsewhere(path)
        above = self._below_all.count("/")
        return path if where is None else f"{'../' * above}{where}"

    def cgroup_name(self, path: str) -> str:
        """Return what the kernel calls a container's cgroup in /proc/PID/cgroup; `path` as for `cgroup_of`."""
        where = self._elsewhere(path)
        return f"{self._below_all}/{path}" if where is None else f"/{where}"

    def shown_cgroup(self, path: str) -> str:
        """Return what people find a cgroup by: relative to the pods' one, or complete for a systemd unit's."""
        where = self._elsewhere(path)
        return path if where is None else f"{_CGROUPS}{where}"

    def _elsewhere(self, path: str) -> str | None:
        """Return the path below the root of all cgroups, unless it is below the pods' one."""
        if path.startswith(_CGROUPS):
            return path.removeprefix(_CGROUPS)
        return self.unit_cgroups.get(unit_at(path)) if is_of_systemd(path) else None

    @property
    def _below_all(self) -> str:
        """The pods' cgroup, below the root of all."""
        return (self.cgroup_root or "").removeprefix(_CGROUPS.rstrip("/"))

    @property
    def kernel(self) -> Kernel | None:
        """None: the pods' cgroup was not observed."""
        cgroups = self.observed.cgroups or {}
        return None if "" not in cgroups else Kernel.of(self.node.topology, self.observed.page_bytes, cgroups)


def view_document(view: NodeView) -> Document:
    """Spell it, except what was observed: without the containers' variables, which may hold secrets."""
    topology, decided_on = view.node.topology, view.node.managers.topology
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
        **({"devices": _pools_document(view.pools)} if view.pools else {}),
        "pids": None if view.pids is None else dict(view.pids),
        "live": view.is_live,
        "ready": view.is_ready,
        "problems": list(view.problems),
        "recovery": None if view.recovery is None else dict(view.recovery),
    }


class ViewReader:
    """Reads one document after the other; unchanged parts cost only the comparison."""

    def __init__(self) -> None:
        self._state: tuple[object, SavedState] | None = None
        self._node: tuple[object, NodeSetup] | None = None

    def __call__(self, document: JsonValue) -> NodeView:
        """Read the result of `view_document`.

        Args:
            document: as parsed.

        Raises:
            NodeStateError: the state in it does not fit.
            MisfitError: something else in it is missing, or has the wrong type.
        """
        state = document.field("state").value
        if self._state is None or self._state[0] != state:
            self._state = state, state_from_document(state)
        of_node = [
            document.object().get(name)
            for name in ("config", "manifestDirectory", "reservedCPUs", "topology", "decidedOn")
        ]
        if self._node is None or self._node[0] != of_node:
            self._node = of_node, _node(document)
        saved = self._state[1]
        root, pids, recovery = (document.optional(name) for name in ("cgroupRoot", "pids", "recovery"))
        units, pools = document.optional("unitCgroups"), document.optional("devices")
        return NodeView(
            node=self._node[1],
            state=saved.state,
            cgroup_root=None if root is None else root.text(),
            unit_cgroups={} if units is None else dict(units.by_name(JsonValue.text)),
            pids=None if pids is None else dict(pids.by_name(JsonValue.whole)),
            problems=document.field("problems").each(JsonValue.text),
            recovery=None if recovery is None else _recovery(recovery),
            policies=saved.policies,
            is_live=document.field("live").flag(),
            is_ready=document.field("ready").flag(),
            pools=() if pools is None else _pools(pools),
        )


def _pools_document(pools: "tuple[DevicePool, ...]") -> list[Document]:
    from nodeagent.formats.topology.device_pools import pools_document  # noqa: PLC0415 - few nodes give devices

    return pools_document(pools)


def _pools(document: JsonValue) -> "tuple[DevicePool, ...]":
    from nodeagent.formats.topology.device_pools import pools_from_document  # noqa: PLC0415 - as above

    return pools_from_document(document)


def _node(document: JsonValue) -> NodeSetup:
    config = config_from_document(document.field("config"))
    manifests = document.optional("manifestDirectory")
    config = config if manifests is None else replace(config, static_pod_path=manifests.text())
    topology = _topology(document.field("topology"))
    other = document.optional("decidedOn")
    decided_on = topology if other is None else _topology(other)
    node = on_machine(config, decided_on, document.field("reservedCPUs").cpus())
    if isinstance(node, NodeSetup):
        return replace(node, topology=topology)
    raise MisfitError("; ".join(refused.text for refused in node))


def _topology(document: JsonValue) -> Topology:
    try:
        return topology_from_document(document.value)
    except TopologyDocumentError as err:
        raise MisfitError(f"{document.path}: {err.message}") from err


def _recovery(document: JsonValue) -> Mapping[str, Any]:
    """Read what the agent reported about its start; `inspect` shows each of these."""

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
