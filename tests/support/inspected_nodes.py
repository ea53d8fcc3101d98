"""Nodes to be inspected: a machine of 8 CPUs, pods in every state, and cgroups that hold what was promised, or not."""

from msgspec.structs import replace

from nodeagent.core.admission.managers import Admitted, Rejected, admit, build, initial, remove_pod
from nodeagent.core.admission.node_capacity import allocatable_of
from nodeagent.core.admission.node_setup import NodeSetup
from nodeagent.core.cgroups.desired_cgroups import CONTROLLERS, Kernel, desired_cgroups
from nodeagent.core.model.cgroup import Attribute, DesiredCgroup, ObservedCgroup
from nodeagent.core.model.cgroup_layout import ABOVE, cpuset_path, is_pooled
from nodeagent.core.model.config import Config, Placement
from nodeagent.core.model.host_processes import HostInterrupt, HostProcess, HostProcesses
from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.core.model.pod import (
    ContainerKind,
    Pod,
    ResourceRequirements,
    RestartPolicy,
)
from nodeagent.core.model.state import (
    ContainerStatus,
    Exit,
    NodeState,
    Origin,
    Phase,
    run_id,
)
from nodeagent.core.model.topology import Cpu, NumaNode, Topology
from nodeagent.core.model.waiting import Waiting
from nodeagent.core.turn.pod_sources import Manifest, new_entry
from nodeagent.formats.node_view import NodeView, Observation
from tests.support.pods import amounts, app, pod

NOW_MS = 1_700_000_000_000
GIB = 2**30
ROOT = "/sys/fs/cgroup/nodeagent.slice/nodeagent-pods.service"


def machine(offline: str = "") -> Topology:
    """2 sockets, each one NUMA node with one L3, of 2 cores with 2 threads; c and c + 4 are siblings."""
    gone = CpuSet.parse(offline)
    return Topology.of(
        [Cpu(id=c, core=c % 4, socket=c % 4 // 2, numa=c % 4 // 2) for c in range(8) if c not in gone],
        [NumaNode(n, 4 * GIB) for n in range(2)],
        offline=gone,
        l3=[CpuSet.parse("0-1,4-5") - gone, CpuSet.parse("2-3,6-7") - gone],
    )


class World:
    """Grows by one pod at a time; what is promised is what the managers promise."""

    def __init__(
        self,
        topology: Topology | None = None,
        placement: Placement | None = None,
        *,
        host_isolation: str = "none",
        interrupt_isolation: str = "none",
    ) -> None:
        placement = placement or Placement("static", reserved_system_cpus=CpuSet.of(0))
        self.config = Config(placement, host_isolation=host_isolation, interrupt_isolation=interrupt_isolation)
        managers = build(topology or machine(), placement)
        assert not hasattr(managers, "message"), managers
        self.managers = managers
        room = allocatable_of(self.config, cpu_count=1, memory_bytes=2**30, hugepages=())
        self.node = NodeSetup(self.config, managers.topology, managers, room, managers.reserved)
        self.state = NodeState(initial(managers), (), 7)
        self.pids: dict[str, int] = {}
        self.populated: set[str] = set()

    def add(self, new: Pod, *statuses: ContainerStatus, **more) -> "World":
        """Decide on a pod; its containers run unless statuses are given."""
        origin = Origin(f"{new.name}.yaml")
        entry = replace(new_entry(Manifest(new, origin), NOW_MS - 90_000, pod_level_resources=True), containers=())
        match admit(self.managers, self.state.promises, new):
            case Admitted(promises=promises):
                entry = replace(entry, containers=statuses or tuple(running(c.name) for c in new.containers), **more)
                self.state = replace(self.state, promises=promises, entries=(*self.state.entries, entry))
            case Rejected(reason=reason, message=message):
                entry = replace(entry, refusal=Waiting(reason, message, NOW_MS - 90_000))
                self.state = replace(self.state, entries=(*self.state.entries, entry))
        if not entry.is_active:
            promises, _ = remove_pod(self.managers, self.state.promises, new.uid)
            self.state = replace(self.state, promises=promises)
        for index, status in enumerate(entry.containers):
            if status.is_started and new.container(status.name).command:
                self.pids[run_id(entry, status)] = 1000 + 10 * len(self.state.entries) + index
        return self

    @property
    def kernel(self) -> Kernel:
        path = () if self.config.host_isolation == "none" else (ABOVE, "")
        return Kernel(4096, NumaSet.of(0, 1), self.managers.topology.online, path_to_partitions=path)

    def desired_cgroups(self) -> tuple[DesiredCgroup, ...]:
        return desired_cgroups(self.config, self.managers, self.kernel, self.state)

    def observed(self) -> dict[str, ObservedCgroup]:
        """Cgroups as desired; a container has processes if its main one runs."""
        running_paths = {
            f"{w.path}"
            for w in self.desired_cgroups()
            if w.is_leaf
            for e in self.state.entries
            for s in e.containers
            if w.path.endswith(f"pod{e.pod.uid}/{s.name}")
            and s.is_started
            and s.started_at_ms
            and e.pod.container(s.name).command
        }
        running_paths |= {cpuset_path(path) for path in running_paths}
        return {w.path: as_desired(w, populated=w.path in running_paths) for w in self.desired_cgroups()}

    def view(self, **more) -> NodeView:
        """Everything known and as promised, unless told otherwise."""
        cgroups = more.pop("cgroups", self.observed())
        counts = {path: int(there.is_populated) for path, there in (cgroups or {}).items()}
        of_observation = {
            name: more.pop(name) for name in ("strays", "beside", "host", "process_counts") if name in more
        }
        observation = Observation(NOW_MS, 4096, cgroups, **({"process_counts": counts} | of_observation))
        fields = {
            "node": self.node,
            "state": self.state,
            "cgroup_root": ROOT,
            "pids": self.pids,
            "is_live": True,
            "is_ready": True,
            "observation": observation,
        }
        return NodeView(**(fields | more))


def as_desired(want: DesiredCgroup, *, populated: bool = False) -> ObservedCgroup:
    frozen = want.is_starved
    attributes = (*want.attributes, (Attribute.FREEZE, frozen))
    mems = want.get(Attribute.CPUSET_MEMS)
    return ObservedCgroup(
        path=want.path,
        controllers=CONTROLLERS,
        subtree_control=want.controllers,
        attributes=attributes,
        cpus_effective=None if is_pooled(want.path) else want.cpus() or CpuSet.parse("0-7"),
        mems_effective=None if is_pooled(want.path) else mems if isinstance(mems, NumaSet) else NumaSet.of(0, 1),
        is_populated=populated,
        is_frozen=frozen,
    )


def changed(there: ObservedCgroup, attribute: Attribute, value, **more) -> ObservedCgroup:
    others = tuple(item for item in there.attributes if item[0] is not attribute)
    return replace(there, attributes=(*others, (attribute, value)), **more)


def running(name: str, **more) -> ContainerStatus:
    return ContainerStatus(name, attempt=more.pop("attempt", 1), started_at_ms=NOW_MS - 60_000, **more)


def ended(name: str, code: int = 0, **more) -> ContainerStatus:
    return running(name, exit=Exit(NOW_MS - 30_000, code=code), **more)


def idle() -> World:
    return World()


def everything() -> tuple[World, dict[str, ObservedCgroup], NodeView]:
    """One pod in each state, and a node on which somebody has meddled."""
    world = World()
    world.add(
        pod(
            "web",
            app("setup", kind=ContainerKind.INIT, cpu="2", memory="64Mi"),
            app("app", cpu="2", memory="64Mi", hugepages_2Mi="4Mi"),
            app("helper", cpu="500m", memory="64Mi"),
        ),
        ended("setup"),
        running("app"),
        running("helper", attempt=3, last_exit=Exit(NOW_MS - 61_000, signal=9, is_oom_kill=True), oom_kills_seen=2),
    )
    world.add(
        pod("batch", app("work", resources=ResourceRequirements(amounts("500m", "32Mi"), amounts("1500m", "128Mi")))),
        ended("work", 1, attempt=4, backoff_step=3, last_exit=Exit(NOW_MS - 70_000, code=1)),
    )
    world.add(pod("slot", app("slot", command=(), cpu="1", memory="64Mi")))
    world.add(pod("too-big", app("app", cpu="7", memory="64Mi")))
    world.add(
        pod("old", app("app", cpu="1", memory="64Mi")),
        running("app", stop_by_ms=NOW_MS + 12_000),
        deleting_since_ms=NOW_MS - 18_000,
    )
    world.add(pod("idle", app("idle")))
    world.add(pod("job", app("once"), restart_policy=RestartPolicy.NEVER), ended("once"), outcome=Phase.SUCCEEDED)
    observed = world.observed()
    observed["poduid-web/app"] = changed(
        observed["poduid-web/app"], Attribute.CPUSET_CPUS, CpuSet.parse("0-7"), cpus_effective=CpuSet.parse("0-7")
    )
    helper = "poduid-web/helper"
    observed[helper] = replace(observed[helper], oom_kills=2)
    weight = "shared/pool/payload/burstable/poduid-batch"
    observed[weight] = changed(observed[weight], Attribute.CPU_WEIGHT, 1)
    observed["poduid-gone"] = replace(
        observed["poduid-web"], path="poduid-gone", is_populated=True, cpus_effective=CpuSet.of(3)
    )
    host = HostProcesses(
        (HostProcess(1, "systemd", CpuSet.of(1, 5)), HostProcess(412, "dbus-daemon", CpuSet.of(1))),
        61,
        CpuSet.of(1, 5),
        interrupts=(
            HostInterrupt(24, "eth0-rx-0", CpuSet.of(1, 5), is_bound=False),
            HostInterrupt(31, "nvme0q2", CpuSet.of(1), is_bound=True),
        ),
    )
    problems = ("bad.yaml:3: spec.containers: must have at least one container",)
    return world, observed, world.view(cgroups=observed, host=host, problems=problems)
