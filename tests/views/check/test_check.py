"""Whether a node is fit: each check at each level, with the values that decided and what mends it; and the command around them."""
# ruff: noqa: E501 (tables: one case, one line)

import json
import re
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from nodeagent.cli.commands import check
from nodeagent.cli.main import main
from nodeagent.core.admission.managers import Admitted, Managers, build, initial
from nodeagent.core.admission.node_setup import NodeSetup, on_machine
from nodeagent.core.admission.what_if import WhatIf
from nodeagent.core.model.config import Config, Placement, ReservedMemory
from nodeagent.core.model.device_selection import DeviceSelection, DeviceSelector
from nodeagent.core.model.devices import Device, DeviceKind, PlacedDevices
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.nri import Runtime
from nodeagent.core.model.pod import Resources
from nodeagent.core.model.quantity import Quantity
from nodeagent.core.model.topology import Cpu, NumaNode, Topology
from nodeagent.errors import NodeAgentError
from nodeagent.formats.config.config_yaml import parse_config
from nodeagent.formats.config.containerd_config import ConfiguredValue, NriConfig, read_nri_config
from nodeagent.formats.kernel import settings as kernel
from nodeagent.formats.kernel.settings import KUBELET_STATE, SETTINGS, SYSTEMD, Settings
from nodeagent.formats.kernel.sysfs_sample import SysfsSample
from nodeagent.formats.manifest.pod_manifest import pod_from_document
from nodeagent.views.check import node_check
from nodeagent.views.check.node_check import describe_checks, is_fit, render_node_check, run_checks
from nodeagent.views.check.runtime_facts import PodsApiFacts, RuntimeFacts
from nodeagent.views.check.verdicts import CheckResult, Level, NodeFacts, Purpose
from tests.cli.test_selected_node import root as root  # noqa: PLC0414 - a fixture
from tests.project.test_every_error import STEP
from tests.support import json_schema
from tests.support.builders import hybrid
from tests.support.inspected_nodes import machine
from tests.support.machine_tree import put_device

GOLDEN = Path(__file__).parents[2] / "golden"
CGROUPS = "sys/fs/cgroup"
SMT = "sys/devices/system/cpu/smt/control"
UNIT = f"{CGROUPS}/nodeagent.slice/nodeagent-pods.service/cgroup.controllers"
NUMA = "proc/sys/kernel/numa_balancing"
ISOLATED = "sys/devices/system/cpu/isolated"
GOOD = {
    "proc/cmdline": "quiet\n",
    "proc/sys/kernel/osrelease": "6.1.0-18-cloud-amd64\n",
    NUMA: "0\n",
    ISOLATED: "\n",
    f"{CGROUPS}/cgroup.controllers": "cpuset cpu io memory hugetlb pids\n",
    UNIT: "cpuset cpu memory pids\n",
    SYSTEMD: "populated 1\nfrozen 0\n",
}
MACHINE = machine()
STATIC = Placement("static", (("full-pcpus-only", "true"),), CpuSet.of(0, 4))
QUIET = Config(STATIC, host_isolation="partition", interrupt_isolation="affinity")
CONTAINERD = Runtime("containerd", "1.7.24", (0, 6, 0), 5000, 2000)
RUNS = "populated 1\nfrozen 0\n"


def service(name: str) -> str:
    return f"{CGROUPS}/system.slice/{name}.service/cgroup.events"


def sample(files: Mapping[str, str]) -> SysfsSample:
    return SysfsSample(MappingProxyType(dict(files)), MappingProxyType({}))


def facts(
    files: Mapping[str, str | None] | None = None,
    placement: Placement | None = STATIC,
    topology: Topology = MACHINE,
    **more: Any,
) -> NodeFacts:
    """A node that is fit, but for what is said; a file of None is not there."""
    present = {path: text for path, text in {**GOOD, **(files or {})}.items() if text is not None}
    settings = Settings(sample(present), more.pop("unreadable", ()))
    if placement is None:
        return NodeFacts(topology, settings, **more)
    config = more.pop("config", Config(placement))
    managers = build(topology, placement)
    assert isinstance(managers, Managers), managers
    return NodeFacts(topology, settings, config, managers)


def runtime(
    files: Mapping[str, str | None] | None = None,
    *,
    kubelet_problem: str = "",
    unreadable: tuple[str, ...] = (),
    scope: str = "container",
    **found: Any,
) -> NodeFacts:
    """A node where a container runtime's containers are to be placed."""
    given = facts(
        files,
        config=Config(replace(STATIC, topology_manager_scope=scope), nri_socket="/run/nri.sock"),
        unreadable=unreadable,
    )
    return replace(given, runtime=RuntimeFacts(**found), kubelet_problem=kubelet_problem)


def giving(*cards: Device, problem: str = "", topology: Topology = MACHINE) -> NodeFacts:
    """A node that gives network cards and disks."""
    gives = tuple(
        DeviceSelection(f"example.com/{kind.value}", (DeviceSelector(kind=kind),))
        for kind in (DeviceKind.NETWORK, DeviceKind.NVME)
    )
    given = facts(placement=Placement("static", reserved_system_cpus=CpuSet.of(0), devices=gives), topology=topology)
    there = PlacedDevices(problem=problem) if problem else PlacedDevices.of(cards, topology)
    return replace(given, devices=there)


def card(slot: int, kind: DeviceKind = DeviceKind.NETWORK, node: int | None = 0) -> Device:
    return Device(f"0000:0{slot}:00.0", kind, 0, numa_node=node)


DISK = card(9, DeviceKind.NVME)


def changed(**fields: Any) -> Topology:
    topology = machine()
    given: dict[str, Any] = {
        "offline": topology.offline, "l3": topology.l3, "isolated": topology.isolated, "nohz_full": topology.nohz_full,
        "skipped": topology.skipped,
    }  # fmt: skip
    numa = fields.pop("numa", topology.numa)
    return Topology.of(topology.cpus, numa, **(given | fields))


def pages(*amounts: int) -> Topology:
    return changed(numa=[NumaNode(n, 2**32, (("hugepages-2Mi", amount),)) for n, amount in enumerate(amounts)])


ONE_NODE = Topology.of([Cpu(number, core=number, socket=0, numa=0) for number in range(4)], [NumaNode(0, 2**30)])
NO_CGROUPS = {f"{CGROUPS}/cgroup.controllers": None, UNIT: None}
GOVERNED = {
    f"sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor": "powersave\n" if cpu > 5 else "performance\n"
    for cpu in range(8)
}


def with_nodes(*sizes_gib: int) -> Topology:
    """MACHINE and NUMA nodes without CPUs, as GPUs and CXL devices have."""
    return changed(numa=[*MACHINE.numa, *(NumaNode(number, size * 2**30) for number, size in enumerate(sizes_gib, 2))])


def reserving(**limits: str) -> Placement:
    """Static memory, with these reservations by NUMA node (n0=...)."""
    amounts = {int(name[1:]): Quantity.parse(text) for name, text in limits.items()}
    total = Quantity.of_bytes(sum(amount.value() for amount in amounts.values()))
    return replace(
        STATIC,
        memory_manager_policy="Static",
        reserved_memory=tuple(
            ReservedMemory(node, Resources.of({"memory": amount})) for node, amount in amounts.items()
        ),
        memory_reservation=Resources.of({"memory": total}),
    )


FALLS_BACK = "other containers' memory may come from there once nearer nodes are full"


def idle(*states: tuple[str, str, str]) -> dict[str, str]:
    """Name, latency and `disable` of CPU 0's idle states."""
    parts = ("name", "latency", "disable")
    return {
        kernel.IDLE_STATE.format(number, part): f"{text}\n"
        for number, state in enumerate(states)
        for part, text in zip(parts, state, strict=True)
    }


@dataclass(frozen=True)
class Case:
    check: str
    level: str
    said: str
    """In the reason."""
    facts: NodeFacts = field(default_factory=facts)
    fix: str = ""
    """In the fix; empty: there is none."""


CASES = [
    Case("kernel", "ok", "6.1.0-18-cloud-amd64 is 5.14 or later"),
    Case("kernel", "failure", "5.10.0-28-amd64 is older than 5.14", facts({"proc/sys/kernel/osrelease": "5.10.0-28-amd64"}), "sudo apt install"),
    Case("kernel", "unknown", "the release is unknown", facts({"proc/sys/kernel/osrelease": None})),
    Case("kernel", "unknown", "unknown: huh", facts({"proc/sys/kernel/osrelease": "huh"})),
    Case("cgroup-v2", "ok", "mounted at /sys/fs/cgroup"),
    Case("cgroup-v2", "failure", "not mounted at /sys/fs/cgroup", facts(NO_CGROUPS), "systemd.unified_cgroup_hierarchy=1"),
    Case("cgroup-v2", "unknown", "is this a copied root?", facts({**NO_CGROUPS, "proc/cmdline": None})),
    Case("controllers", "ok", "cpuset, cpu, memory are available"),
    Case("controllers", "failure", "memory is not available (cgroup_disable=memory", facts({f"{CGROUPS}/cgroup.controllers": "cpuset cpu", "proc/cmdline": "cgroup_disable=memory"}), "remove cgroup_disable=memory"),
    Case("controllers", "failure", "cpuset, memory is not available (cgroup v1 may use them)", facts({f"{CGROUPS}/cgroup.controllers": "cpu"}), "cgroup_no_v1=all"),
    Case("controllers", "unknown", "cgroup v2 is missing", facts(NO_CGROUPS)),
    Case("delegation", "ok", "the pods' cgroup has cpuset, cpu, memory, pids"),
    Case("delegation", "warning", "does not run", facts({UNIT: None}), "systemctl start nodeagent-pods"),
    Case("delegation", "failure", "has no cpuset", facts({UNIT: "cpu memory"}), "Delegate=yes"),
    Case("delegation", "note", "cgroupRoot is /sys/fs/cgroup/x", facts(config=Config(STATIC, cgroup_root="/sys/fs/cgroup/x"))),
    Case("delegation", "unknown", "cgroup v2 is missing", facts(NO_CGROUPS)),
    Case("configuration", "ok", "it is valid for this machine"),
    Case("configuration", "warning", "no configuration at /x", facts(placement=None, config_problem="no configuration at /x", config_is_missing=True, config_command="sudo install -D examples/config.yaml /x"), "examples/config.yaml /x"),
    Case("configuration", "failure", "f:1: a; f:2: b", facts(placement=None, config_problem="f:1: a\nf:2: b", config_command="nodeagent config validate f"), "nodeagent config validate f"),
    Case("reserved-cpus", "ok", "0,4: whole cores on NUMA node 0"),
    Case("reserved-cpus", "ok", "no CPU is allocated exclusively", facts(placement=Placement())),
    Case("reserved-cpus", "warning", "reservedSystemCPUs has 0 without the siblings 4: ", facts(placement=Placement("static", reserved_system_cpus=CpuSet.of(0))), 'reservedSystemCPUs: "0,4"'),
    Case("reserved-cpus", "warning", "all CPUs of NUMA node 0", facts(placement=Placement("static", reserved_system_cpus=CpuSet.parse("0-1,4-5"))), "reservedSystemCPUs"),
    Case("reserved-cpus", "unknown", "the configuration is missing", facts(placement=None)),
    Case("reserved-cpus", "unknown", "the configuration is invalid", facts(placement=None, config_problem="f:1: a")),
    Case("cpus", "ok", "8 of 8 are online"),
    *(Case("cpus", "ok", f"{cpus} are offline because SMT is off: nothing is to be done", facts({SMT: "off\n"}, topology=changed(offline=CpuSet.parse(cpus)))) for cpus in ("8-15", "8-31")),
    Case("cpus", "ok", "9 are offline because SMT is forced off: nothing is to be done, unless a core was taken offline, which can't be seen", facts({SMT: "forceoff\n"}, topology=changed(offline=CpuSet.of(9)))),
    Case("cpus", "note", "8-17 are offline, more than SMT takes from 8 cores, so whole cores were taken offline; SMT is off", facts({SMT: "off\n"}, topology=changed(offline=CpuSet.parse("8-17"))), "for n in $(seq 8 17); do echo 1"),
    Case("cpus", "note", "9 offline", facts({"sys/devices/system/cpu/smt/control": "on\n"}, topology=changed(offline=CpuSet.of(9))), "cpu9/online"),
    Case("memory-only-nodes", "ok", "NUMA nodes 2-9 have no CPUs, like memory of CXL or GPUs, and no memory now", facts(topology=with_nodes(*[0] * 8))),
    Case("memory-only-nodes", "note", "NUMA nodes 2-4 have no CPUs, like memory of CXL or GPUs (192Gi on 2,4); memoryManagerPolicy None allocates no memory, so the containers' memory may come from there once nearer nodes are full", facts(topology=with_nodes(96, 0, 96)), "memoryManagerPolicy: Static"),
    Case("memory-only-nodes", "note", f"NUMA node 2 has no CPUs, like memory of CXL or GPUs (96Gi); the memory manager allocates that memory to Guaranteed pods, as any node's, and {FALLS_BACK}", facts(placement=reserving(n0="100Mi"), topology=with_nodes(96)), "{numaNode: 2, limits: {memory: 98240Mi}}"),
    Case("memory-only-nodes", "ok", f"reservedMemory withholds all but 64 MiB of it from Guaranteed pods, and {FALLS_BACK}", facts(placement=reserving(n0="100Mi", n2="98240Mi"), topology=with_nodes(96))),
    Case("memory-only-nodes", "ok", f"reservedMemory withholds all but 44 to 64 MiB of each from Guaranteed pods, and {FALLS_BACK}", facts(placement=reserving(n0="100Mi", n2="98240Mi", n3="98260Mi"), topology=with_nodes(96, 96))),
    Case("memory-only-nodes", "ok", f"reservedMemory keeps Guaranteed pods off it, and {FALLS_BACK}", facts(placement=reserving(n0="100Mi", n2="96Gi"), topology=with_nodes(96))),
    Case("memory-only-nodes", "unknown", "the configuration is missing", facts(placement=None, topology=with_nodes(96))),
    Case("cpus", "note", "9 offline, 11 of unknown core", facts(topology=changed(offline=CpuSet.of(9), skipped=CpuSet.of(11))), "cpu9/online"),
    Case("core-classes", "note", "there are performance cores 0-7 and efficiency cores 8-11, and pods without a required class", facts(topology=hybrid()), "exclusiveCoreClass: performance"),
    Case("core-classes", "ok", "pods get performance cores if enough are free", facts(placement=replace(STATIC, exclusive_core_class="performance"), topology=hybrid())),
    Case("core-classes", "ok", "no CPU is allocated exclusively", facts(placement=Placement(), topology=hybrid())),
    Case("core-classes", "unknown", "the configuration is missing", facts(placement=None, topology=hybrid())),
    Case("devices", "ok", "2 example.com/network, 1 example.com/nvme", giving(card(1), card(2, node=1), DISK)),
    Case("devices", "warning", "no device matches example.com/network, example.com/nvme", giving(), "nodeagent topology --devices"),
    Case("devices", "warning", "no device matches example.com/nvme: pods", giving(card(1)), "change devices in the configuration"),
    Case("devices", "note", "the NUMA node of 0000:01:00.0, 0000:02:00.0 is unknown", giving(card(1, node=None), card(2, node=7), DISK), "firmware"),
    Case("devices", "ok", "1 example.com/network, 1 example.com/nvme", giving(card(1, node=None), DISK, topology=ONE_NODE)),
    Case("devices", "unknown", "cannot use /sys/x", giving(problem="cannot use /sys/x")),
    Case("smt", "ok", "a core's threads have one owner"),
    Case("smt", "ok", "no CPU is allocated exclusively", facts(placement=Placement())),
    Case("smt", "unknown", "the configuration is missing", facts(placement=None, config_problem="no configuration at /x", config_is_missing=True)),
    Case("smt", "unknown", "the configuration is invalid", facts(placement=None, config_problem="f:1: a")),
    Case("smt", "ok", "every core has one thread (SMT is not supported)", facts({"sys/devices/system/cpu/smt/control": "notsupported\n"}, Placement(), ONE_NODE)),
    Case("smt", "note", "two owners may share a core", facts(placement=replace(STATIC, cpu_manager_policy_options=())), 'full-pcpus-only: "true"'),
    Case("smt", "ok", "every core has one thread (SMT is off)", facts({"sys/devices/system/cpu/smt/control": "off\n"}, Placement(), ONE_NODE)),
    Case("host-isolation", "warning", "host processes may run on exclusive CPUs", fix="hostIsolation: partition in the configuration"),
    Case("host-isolation", "ok", "the kernel keeps host processes off", facts({"proc/sys/kernel/osrelease": "6.7.0\n"}, config=QUIET)),
    Case("host-isolation", "note", "systemd keeps host processes off", facts(config=QUIET), "kernel 6.7 or later"),
    Case("host-isolation", "unknown", "the kernel's release is unknown", facts({"proc/sys/kernel/osrelease": None}, config=QUIET)),
    Case("host-isolation", "warning", "nothing keeps host processes off", facts({SYSTEMD: None}, config=QUIET), "kernel 6.7 or later"),
    Case("host-isolation", "unknown", "unknown whether systemd keeps host processes off", facts({SYSTEMD: None}, config=QUIET, unreadable=(SYSTEMD,))),
    Case("host-isolation", "ok", "no CPU is allocated exclusively", facts(placement=Placement())),
    Case("host-isolation", "note", "the kernel doesn't spread them over CPUs 2-3", facts(placement=replace(STATIC, isolated_cpus="prefer"), topology=changed(isolated=CpuSet.parse("2-3"))), "hostIsolation: partition"),
    Case("host-isolation", "unknown", "the configuration is missing", facts(placement=None)),
    Case("interrupts", "warning", "exclusive CPUs may get interrupts", fix="interruptIsolation: affinity in the configuration"),
    Case("interrupts", "note", "except those that the kernel binds", facts(config=QUIET), "isolcpus=managed_irq,1-3,5-7 in GRUB_CMDLINE_LINUX"),
    Case("interrupts", "ok", "avoid CPUs 2-3, too", facts({"proc/cmdline": "isolcpus=managed_irq,2-3\n"}, config=QUIET)),
    Case("interrupts", "ok", "no CPU is allocated exclusively", facts(placement=Placement())),
    Case("interrupts", "unknown", "the configuration is invalid", facts(placement=None, config_problem="f:1: a")),
    Case("isolcpus", "ok", "no CPU is isolated at boot"),
    Case("isolcpus", "ok", "no CPU is isolated at boot", facts(placement=Placement())),
    Case("isolcpus", "ok", "CPUs 2-3 are isolated, and none is allocated exclusively", facts(placement=Placement(isolated_cpus="prefer"), topology=changed(isolated=CpuSet.parse("2-3")))),
    Case("isolcpus", "note", "no CPU is isolated", facts(placement=None)),
    Case("isolcpus", "warning", "CPUs 2-3 are isolated but allocated like others", facts(topology=changed(isolated=CpuSet.parse("2-3"))), "isolatedCPUs: prefer"),
    Case("isolcpus", "warning", "reserved CPUs 4 are isolated", facts(topology=changed(isolated=CpuSet.parse("4-6"))), "reservedSystemCPUs"),
    Case("isolcpus", "note", "spreads no load over the isolated CPUs 2-3 (isolatedCPUs: prefer)", facts(placement=replace(STATIC, isolated_cpus="prefer"), topology=changed(isolated=CpuSet.parse("2-3"))), "taskset -c"),
    Case("isolcpus", "note", "CPUs 2-3 are isolated", facts(placement=None, topology=changed(isolated=CpuSet.parse("2-3")))),
    Case("isolcpus", "warning", "CPUs 2-3 are isolated", facts({ISOLATED: None, "proc/cmdline": "quiet isolcpus=managed_irq,domain,2-3,99\n"}), "isolatedCPUs: prefer"),
    Case("isolcpus", "ok", "no CPU is isolated at boot", facts({ISOLATED: None, "proc/cmdline": "isolcpus=managed_irq,2-3\n"})),
    Case("isolcpus", "ok", "no CPU is isolated at boot", facts({ISOLATED: None})),
    Case("isolcpus", "ok", "no CPU is isolated at boot", facts({"proc/cmdline": "isolcpus=2-3\n"})),
    Case("isolcpus", "unknown", "neither /sys/devices/system/cpu nor /proc/cmdline", facts({ISOLATED: None, "proc/cmdline": None})),
    Case("isolcpus", "unknown", "neither", facts({ISOLATED: None, "proc/cmdline": "isolcpus=2-N:1/2\n"})),
    Case("nohz-full", "ok", "CPUs 2-3 are tickless", facts({ISOLATED: None, "proc/cmdline": "nohz_full=2-3\n"})),
    Case("nohz-full", "ok", "every CPU has its timer tick", facts({ISOLATED: None})),
    Case("nohz-full", "unknown", "neither", facts({ISOLATED: None, "proc/cmdline": None})),
    Case("nohz-full", "ok", "every CPU has its timer tick", facts(config=QUIET)),
    Case("nohz-full", "note", "every CPU has its timer tick", facts({"sys/devices/system/cpu/nohz_full": "\n"}, config=QUIET), "nohz_full=1-3,5-7 in GRUB_CMDLINE_LINUX"),
    Case("governor", "unknown", "is missing", facts({ISOLATED: None})),
    Case("nohz-full", "ok", "every CPU has its timer tick"),
    Case("nohz-full", "ok", "CPUs 2-3 are tickless", facts(topology=changed(nohz_full=CpuSet.parse("2-3")))),
    Case("nohz-full", "warning", "reserved CPUs 0,4 are tickless", facts(topology=changed(nohz_full=CpuSet.parse("0-7"))), "nohz_full=1-3,5-7 in GRUB_CMDLINE_LINUX"),
    Case("nohz-full", "warning", "reserved CPUs 4 are tickless", facts(topology=changed(nohz_full=CpuSet.of(4))), "no nohz_full"),
    Case("huge-pages", "note", "there are none", fix="tee /proc/sys/vm/nr_hugepages # until the next boot; undo: echo 0 | sudo tee /proc/sys/vm/nr_hugepages"),
    Case("huge-pages", "warning", "hugepages-2Mi are uneven: 4 MiB on node 0, 0 MiB on node 1", facts(topology=pages(2**22, 0)), "echo 2 | sudo tee /sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages # until the next boot; undo: echo 0 | sudo tee /sys"),
    Case("huge-pages", "note", "limits are not enforced (no hugetlb controller)", facts(topology=pages(2**22, 2**22))),
    Case("huge-pages", "ok", "hugepages-2Mi 8 MiB, the same on every NUMA node", facts({UNIT: "cpuset cpu memory hugetlb"}, topology=pages(2**22, 2**22))),
    Case("numa-balancing", "ok", "the kernel doesn't move memory"),
    Case("numa-balancing", "ok", "the kernel doesn't support it", facts({NUMA: None})),
    Case("numa-balancing", "ok", "one NUMA node", facts({NUMA: "1"}, Placement(), ONE_NODE)),
    Case("numa-balancing", "warning", "kernel.numa_balancing is 1", facts({NUMA: "1\n"}), "sysctl -w kernel.numa_balancing=0"),
    Case("numa-balancing", "unknown", "is missing", facts({NUMA: None, "proc/sys/kernel/osrelease": None})),
    Case("governor", "ok", "does not scale"),
    Case("governor", "ok", "performance on every CPU", facts(dict.fromkeys(GOVERNED, "performance"))),
    Case("governor", "warning", "powersave on CPUs 6-7", facts(GOVERNED), "cpupower -c 6-7 frequency-set -g performance # until the next boot; undo: sudo cpupower -c 6-7 frequency-set -g powersave"),
    Case("governor", "warning", "powersave on CPUs 0-7", facts(dict.fromkeys(GOVERNED, "powersave")), "cpupower frequency-set -g performance # until the next boot; undo: sudo cpupower frequency-set -g powersave"),
    Case("irqbalance", "ok", "does not run"),
    Case("irqbalance", "warning", "may put interrupts on pods' exclusive CPUs", facts({service("irqbalance"): RUNS}), "interruptIsolation: affinity"),
    Case("irqbalance", "ok", "the agent tells it", facts({service("irqbalance"): RUNS}, config=Config(STATIC, interrupt_isolation="affinity"))),
    Case("irqbalance", "ok", "does not run", facts({service("irqbalance"): "populated 0\nfrozen 0\n"})),
    Case("irqbalance", "unknown", "cgroup v2 is missing", facts(NO_CGROUPS)),
    Case("kubelet", "ok", "does not run"),
    Case("kubelet", "warning", "policy none", facts({service("kubelet"): RUNS, KUBELET_STATE: '{"policyName": "none"}'}), "systemctl disable --now kubelet"),
    Case("kubelet", "warning", "policy unknown", facts({f"{CGROUPS}/kubepods.slice/cgroup.events": RUNS, KUBELET_STATE: "[1]"}), "cpuManagerPolicy: none"),
    Case("kubelet", "failure", "two managers allocate the same CPUs", facts({service("kubelet"): RUNS, KUBELET_STATE: '{"policyName": "static", "entries": {}}'}), "systemctl disable --now kubelet"),
    Case("kubelet", "note", "still has CPU assignments", facts({KUBELET_STATE: '{"policyName": "static", "entries": {"uid": {"app": "1"}}}'}), "nodeagent checkpoint show /var/lib/kubelet/cpu_manager_state"),
    Case("kubelet", "unknown", "cannot be read", facts(unreadable=(KUBELET_STATE,)), "sudo nodeagent check"),
    Case("kubelet", "unknown", "cgroup v2 is missing", facts(NO_CGROUPS)),
    Case("kubelet", "ok", "it leaves CPUs and memory to the agent", runtime({service("kubelet"): RUNS, KUBELET_STATE: '{"policyName": "none"}'})),
    Case("kubelet", "failure", "says CPU manager policy static", runtime({KUBELET_STATE: '{"policyName": "static"}'}), "systemctl restart nodeagent"),
    Case("kubelet", "failure", "f: cpuManagerPolicy: must be none", runtime(kubelet_problem="f: cpuManagerPolicy: must be none"), "systemctl restart nodeagent"),
    Case("kubelet", "unknown", "cannot be read", runtime(unreadable=(KUBELET_STATE,)), "sudo nodeagent check"),
    Case("nri", "ok", "containerd 1.7.24 at /run/nri.sock accepts plugins (NRI 0.6.0 or later)", runtime(found=CONTAINERD)),
    Case("nri", "failure", "No such file", runtime(problem="cannot serve the container runtime at /run/nri.sock: No such file", hint="`systemctl status containerd`"), "systemctl status"),
    Case("nri", "unknown", "only root may use /run/nri.sock", runtime(problem="Permission denied", is_hidden=True), "sudo nodeagent check"),
    Case("nri", "unknown", "can only be checked on the node itself", runtime()),
    Case("containerd", "ok", "it has no configuration", runtime(found=CONTAINERD)),
    Case("containerd", "ok", "leaves NRI on", runtime(found=CONTAINERD, config=NriConfig())),
    Case("containerd", "ok", "leaves NRI on", runtime(problem="x", config=NriConfig(is_off=ConfiguredValue(False, "c"), socket=ConfiguredValue("/run/nri.sock", "c")))),
    Case("containerd", "note", "off before containerd 2.0", runtime(problem="x", hint="y", config=NriConfig()), "disable = false"),
    Case("containerd", "failure", "c turns NRI off", runtime(found=CONTAINERD, config=NriConfig(is_off=ConfiguredValue(True, "c"))), "disable = false"),
    Case("containerd", "failure", "is /x (c), but nriSocket is /run/nri.sock", runtime(config=NriConfig(socket=ConfiguredValue("/x", "c"))), "nriSocket: /x in the configuration"),
    Case("containerd", "unknown", "c: Invalid statement", runtime(found=CONTAINERD, config_problem="c: Invalid statement"), "sudo containerd config dump"),
    Case("nri-timeouts", "ok", "waits 2 s for an answer, of which 0.3 s are the agent's margin", runtime(found=CONTAINERD)),
    Case("nri-timeouts", "ok", "waits 10 s", runtime(found=CONTAINERD, config=NriConfig(request_timeout_ms=ConfiguredValue(10_000, "c")))),
    Case("nri-timeouts", "warning", "sets 1.5 s, but the agent assumes 2 s", runtime(found=CONTAINERD, config=NriConfig(request_timeout_ms=ConfiguredValue(1500, "c"))), "plugin_request_timeout"),
    Case("nri-timeouts", "warning", "waits 0.5 s", runtime(found=replace(CONTAINERD, request_timeout_ms=500)), "plugin_request_timeout"),
    Case("nri-timeouts", "warning", "for a plugin to register", runtime(config=NriConfig(request_timeout_ms=ConfiguredValue(2000, "c"), registration_timeout_ms=ConfiguredValue(500, "c"))), "plugin_registration_timeout"),
    Case("nri-timeouts", "failure", "no container could start", runtime(config=NriConfig(request_timeout_ms=ConfiguredValue(300, "c"))), "plugin_request_timeout"),
    Case("nri-timeouts", "unknown", "time limit for answers is unknown", runtime()),
    Case("pods-api", "ok", "at /var/lib/kubelet/pods-api/pods-api.sock provides the data that the runtime doesn't get", runtime(pods_api=PodsApiFacts())),
    Case("pods-api", "note", "Burstable container's memory request", runtime(pods_api=PodsApiFacts("x", "y", is_absent=True)), "kubelet 1.37 or later"),
    Case("pods-api", "warning", "with topologyManagerScope pod", runtime(pods_api=PodsApiFacts("x", "y", is_absent=True), scope="pod"), "topologyManagerScope: container"),
    Case("pods-api", "warning", "it has not answered in time", runtime(pods_api=PodsApiFacts("it has not answered in time", "systemctl status kubelet")), "systemctl status kubelet"),
    Case("pods-api", "unknown", "only root may use", runtime(pods_api=PodsApiFacts("Permission denied", "y", is_hidden=True)), "sudo nodeagent check"),
    Case("pods-api", "unknown", "can only be checked on the node itself", runtime()),
    Case("numad", "warning", "moves processes and their memory", facts({service("numad"): RUNS}), "disable --now numad # undo: sudo systemctl enable --now numad"),
    Case("tuned", "note", "its profile may set", facts({service("tuned"): RUNS}), "disable --now tuned # undo: sudo systemctl enable --now tuned"),
    Case("swap", "ok", "there is no swap", facts({kernel.SWAPS: "Filename Type Size Used Priority\n"})),
    Case("swap", "ok", "no swap is in use", facts({kernel.SWAPS: "Filename Type Size Used Priority\n/dev/sda2 partition 1048576 0 -2\n"})),
    Case("swap", "note", "2 MiB of swap are in use", facts({kernel.SWAPS: "Filename Type Size Used Priority\n/dev/sda2 partition 1048576 2048 -2\n"}), "sudo swapoff /dev/sda2 # needs as much free memory; undo: sudo swapon /dev/sda2"),
    Case("swap", "note", "20 KiB of swap are in use: a page that comes back from a disk takes milliseconds", facts({kernel.SWAPS: "Filename Type Size Used Priority\n/dev/sda2 partition 1048576 20 -2\n"}), "sudo swapoff /dev/sda2 # needs as much free memory; undo: sudo swapon /dev/sda2"),
    Case("swap", "note", "2 MiB of swap are in use: a page that comes back from zram is decompressed first", facts({kernel.SWAPS: "Filename Type Size Used Priority\n/dev/zram0 partition 1048576 2048 100\n/dev/sda2 partition 1048576 0 -2\n"}), "sudo swapoff /dev/zram0 /dev/sda2 # needs as much free memory; undo: sudo swapon /dev/zram0 /dev/sda2"),
    Case("swap", "note", "3 MiB of swap are in use: a page that comes back from a disk takes milliseconds", facts({kernel.SWAPS: "Filename Type Size Used Priority\n/dev/zram0 partition 1048576 2048 100\n/dev/sda2 partition 1048576 1024 -2\n"}), "sudo swapoff /dev/zram0 /dev/sda2 # needs as much free memory; undo: sudo swapon /dev/zram0 /dev/sda2"),
    Case("swap", "note", "2 MiB of swap are in use", facts({kernel.SWAPS: "Filename Type Size Used Priority\n/a\\040file file 1048576 2048 -2\n"}), "undo: sudo swapon '/a file'"),
    Case("turbo", "ok", "no_turbo is 0, which matters for benchmarks only", facts({kernel.NO_TURBO: "0\n"})),
    Case("clocksource", "warning", "the clock is hpet", facts({kernel.CLOCKSOURCE: "hpet\n", kernel.CLOCKSOURCES: "tsc hpet acpi_pm\n"}), "echo tsc | sudo tee"),
    Case("clocksource", "warning", "the clock is hpet", facts({kernel.CLOCKSOURCE: "hpet\n", kernel.CLOCKSOURCES: "hpet acpi_pm\n"}), "dmesg"),
    Case("clocksource", "ok", "the clock is arch_sys_counter", facts({kernel.CLOCKSOURCE: "arch_sys_counter\n"})),
    Case("c-states", "note", "sleep as deep as C6, and then take up to 133 µs", facts(idle(("POLL", "0", "0"), ("C1", "2", "0"), ("C6", "133", "0"), ("C8", "600", "1"))), "cpupower idle-set -D 10"),
    Case("c-states", "note", "sleep as deep as C8", facts(idle(("POLL", "0", "0"), ("C1", "2", "0"), ("C6", "133", "1"), ("C8", "600", "0"))), "undo: sudo cpupower idle-set -E && sudo cpupower idle-set -d 2"),
    Case("c-states", "ok", "wake up within 2 µs (C1, as of CPU 0)", facts(idle(("POLL", "0", "0"), ("C1", "2", "0"), ("C6", "133", "1")))),
    Case("mitigations", "ok", "against meltdown", facts({kernel.VULNERABILITIES[0]: "Mitigation: PTI\n", kernel.VULNERABILITIES[1]: "Not affected\n"})),
    Case("mitigations", "ok", "no mitigation", facts({kernel.VULNERABILITIES[0]: "Vulnerable\n"})),
]  # fmt: skip


def verdict(given: NodeFacts, name: str) -> CheckResult:
    (found,) = [v for v in run_checks(given) if v.check == name]
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.check}: {case.level}: {case.said}")
def test_a_verdict_says_what_decided_and_what_mends_it(case: Case) -> None:
    found = verdict(case.facts, case.check)
    assert (found.level.value, case.said in found.reason) == (case.level, True), found
    assert case.fix in found.fix
    assert bool(case.fix) == bool(found.fix), found.fix
    if case.fix:
        assert STEP.search(found.fix)
        is_command = found.fix.startswith(("sudo ", "echo ", "systemctl ", "nodeagent "))
        assert not is_command or not re.search(r"[()]", found.fix.partition("#")[0]), "it can be pasted"


@pytest.mark.parametrize("shell", ["sh", "bash"])
@pytest.mark.parametrize("cpus", ["5", "2,5,13-14", "64-255"])
def test_the_command_for_offline_cpus_brings_all_of_them_online(shell: str, cpus: str, tmp_path: Path) -> None:
    (said,) = [v.fix for v in run_checks(facts(topology=changed(offline=CpuSet.parse(cpus)))) if v.check == "cpus"]
    command, _, back = said.partition(" # until the next boot; undo: ")
    assert len(command) < 100
    names = [f"sys/devices/system/cpu/cpu{cpu}/online" for cpu in range(256)]
    for name in names:
        write(tmp_path / name, "0\n")
    for words, written in ((said, cpus), (back, "")):
        here = words.replace("sudo ", "").replace("/sys/", f"{tmp_path}/sys/")
        subprocess.run([shell, "-euc", here], check=True, stdout=subprocess.DEVNULL)
        online = CpuSet.from_ids(cpu for cpu, name in enumerate(names) if (tmp_path / name).read_text() == "1\n")
        assert str(online) == written
    assert back


def test_every_level_of_every_check_has_a_case() -> None:
    written: set[tuple[str, str]] = set()
    for module in ("host", "isolation", "placement", "runtime"):
        text = (Path(node_check.__file__).parent / f"{module}.py").read_text()
        name = ""
        for found in re.finditer(
            r'name(?:, \w+)*, ?.* = "([a-z-]+)"|name = "([a-z-]+)"|CheckResult\(\s*(?:"([a-z0-9-]+)"|name), Level\.([A-Z]+)',
            text,
        ):
            name = found[1] or found[2] or found[3] or name
            if found[4]:
                written.add((name, found[4].lower()))
    assert len(written) > 25
    assert written - {(case.check, case.level) for case in CASES} == set()


def test_without_failures_it_is_fit_and_strictly_without_warnings() -> None:
    isolated = {
        "config": replace(QUIET, placement=replace(STATIC, isolated_cpus="prefer")),
        "topology": changed(isolated=CpuSet.parse("1-3,5-7")),
    }
    fit = run_checks(facts(**isolated))
    assert is_fit(fit)
    assert is_fit(fit, strict=True)
    warned = run_checks(facts({NUMA: "1"}, **isolated))
    assert (is_fit(warned), is_fit(warned, strict=True)) == (True, False)
    assert not is_fit(run_checks(facts({UNIT: "cpu"})))
    assert not is_fit(run_checks(facts({NUMA: None, "proc/sys/kernel/osrelease": None})), strict=True)


def test_the_total_says_what_is_not_known() -> None:
    def total(given: NodeFacts) -> str:
        return render_node_check(describe_checks(run_checks(given))).splitlines()[-1]

    assert total(facts()).startswith("fit: ")
    assert total(facts({**NO_CGROUPS, "proc/cmdline": None})).startswith("fit as far as known: ")
    assert total(facts(NO_CGROUPS)).startswith("NOT fit: ")


def test_its_document_is_as_its_schema_says() -> None:
    for case in CASES:
        json_schema.check(describe_checks(run_checks(case.facts)), "check")
    names = json_schema.schema("check")["properties"]["checks"]["items"]["properties"]["check"]["enum"]
    assert {case.check for case in CASES} | {name for name, *_ in KERNEL_SETTINGS} == set(names)


def test_only_what_lasts_until_the_next_boot_is_mended_by_itself() -> None:
    for case in CASES:
        for write in verdict(case.facts, case.check).writes:
            assert write.path in {NUMA, kernel.CLOCKSOURCE} or write.path.endswith("/cpufreq/scaling_governor")
            assert write.path in SETTINGS or re.sub(r"cpu\d+", "cpu#", write.path) in SETTINGS


def test_the_text_is_as_it_was_looked_at() -> None:
    files = {NUMA: "1", service("irqbalance"): RUNS, UNIT: "cpu memory", **GOVERNED}
    found = run_checks(facts(files, replace(STATIC, cpu_manager_policy_options=()), pages(2**22, 0)))
    text = render_node_check(describe_checks(found))
    assert max(len(line) for line in text.splitlines() if "fix: " not in line) <= 80
    assert {line.strip().removeprefix("fix: ") for line in text.splitlines() if "fix: " in line} == {
        each.fix for each in found if each.fix
    }
    assert text == (GOLDEN / "check.txt").read_text()
    coloured = render_node_check(describe_checks(found), coloured=True)
    assert re.sub(r"\x1b\[[0-9;]+m", "", coloured) == text
    assert coloured.count("\x1b[0m") == len(found) + 1


# The command


RunCommand = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> RunCommand:
    def run_one(*words: str) -> tuple[int, str, str]:
        status = main(["check", *words])
        out, err = capfd.readouterr()
        return status, out, err

    return run_one


@pytest.fixture
def node(root: Path) -> Path:
    """A copied root with everything that is judged."""
    for path, text in GOOD.items():
        write(root / path, text)
    return root


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def levels(text: str) -> dict[str, str]:
    return {each["check"]: each["level"] for each in json.loads(text)["checks"]}


def test_a_copied_root_is_checked_with_its_own_configuration(node: Path, run: RunCommand) -> None:
    status, out, err = run("--root", str(node), "-o", "json")
    assert (status, err) == (0, "")
    found = levels(out)
    assert (found["configuration"], found["reserved-cpus"], found["cgroup-v2"]) == ("ok", "warning", "ok")
    assert yaml.safe_load(run("--root", str(node), "-o", "yaml")[1]) == json.loads(out)
    assert run("--root", str(node), "--strict")[0] == 2


def test_what_fails_is_exit_status_2(node: Path, run: RunCommand) -> None:
    write(node / UNIT, "cpu\n")
    status, out, err = run("--root", str(node))
    assert (status, err) == (2, "")
    assert out.splitlines()[-1].startswith("NOT fit: ")


def test_the_configuration_given_is_the_one_that_is_judged(node: Path, run: RunCommand, tmp_path: Path) -> None:
    write(tmp_path / "c.yaml", "cpuManagerPolicy: static\nreservedSystemCPUs: 0,4\n")
    assert (
        levels(run("--root", str(node), "--config", str(tmp_path / "c.yaml"), "-o", "json")[1])["reserved-cpus"] == "ok"
    )
    write(tmp_path / "c.yaml", "cpuManagerPolicy: static\nreservedSystemCPUs: '0'\n")
    assert (
        f'fix: reservedSystemCPUs: "0,4" in {tmp_path}/c.yaml\n'
        in run("--root", str(node), "--config", str(tmp_path / "c.yaml"))[1]
    )
    write(tmp_path / "c.yaml", "cpuManagerPolicy: static\nreservedSystemCPUs: '99'\n")
    status, out, _ = run("--root", str(node), "--config", str(tmp_path / "c.yaml"), "-o", "json")
    assert (status, levels(out)["configuration"]) == (2, "failure")
    fixes = {each["check"]: each["fix"] for each in json.loads(out)["checks"]}
    assert fixes["configuration"] == f"nodeagent config validate {tmp_path}/c.yaml --root {node}"
    write(node / "etc/nodeagent/config.yaml", "cpuManagerPolicy: wrong\n")
    assert (
        f"fix: nodeagent config validate {node}/etc/nodeagent/config.yaml --root {node}\n"
        in run("--root", str(node))[1]
    )


@pytest.mark.parametrize("is_there", [True, False])
def test_the_command_for_a_missing_configuration_brings_one_and_its_undoing_removes_it(
    is_there: bool, run: RunCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "etc/nodeagent/config.yaml"
    (own.parent if is_there else tmp_path / "etc").mkdir(parents=True)
    monkeypatch.setattr(check, "find_own_config", lambda _: str(own))
    monkeypatch.setattr("nodeagent.cli.support.node.selected_machine.find_own_config", lambda _: str(own))
    monkeypatch.setattr(check, "read_node", refuse_node)
    found = json.loads(run("-o", "json")[1])["checks"]
    (fix,) = (one["fix"].replace("sudo ", "") for one in found if one["check"] == "configuration")
    subprocess.run(["sh", "-euc", fix], check=True, cwd="/")
    parse_config(own.read_bytes(), "f")
    subprocess.run(["sh", "-euc", fix.partition(" # undo: ")[2]], check=True, cwd="/")
    assert (own.exists(), own.parent.exists()) == (False, is_there)


def refuse_node(*_: object) -> None:
    raise NodeAgentError("no configuration at f", hint="")


def test_a_missing_configuration_of_a_copy_is_not_brought_to_this_machine(node: Path, run: RunCommand) -> None:
    (node / "etc/nodeagent/config.yaml").unlink()
    found = json.loads(run("--root", str(node), "-o", "json")[1])["checks"]
    (fix,) = (one["fix"] for one in found if one["check"] == "configuration")
    assert fix == f"copy the node's own to {node}/etc/nodeagent/config.yaml, or name one with --config FILE"


def test_devices_are_looked_at_where_the_configuration_gives_some(node: Path, run: RunCommand, tmp_path: Path) -> None:
    put_device(node, "0000:01:00.0", **{"class": "0x020000"}, numa_node="0")
    gives = "devices: [{resource: example.com/nic, select: [{kind: network}]}]\n"
    write(tmp_path / "c.yaml", f"cpuManagerPolicy: static\nreservedSystemCPUs: 0,4\n{gives}")
    words = ("--config", str(tmp_path / "c.yaml"), "-o", "json")
    (found,) = (one for one in json.loads(run("--root", str(node), *words)[1])["checks"] if one["check"] == "devices")
    assert (found["level"], found["reason"]) == ("ok", "1 example.com/nic")
    assert "devices" not in levels(run("--root", str(node), "-o", "json")[1])
    write(node / "sys/bus/pci/devices/0000:01:00.0/class", "many\n")
    assert levels(run("--root", str(node), *words)[1])["devices"] == "unknown"


def test_without_a_configuration_the_rest_is_checked(node: Path, run: RunCommand) -> None:
    (node / "etc/nodeagent/config.yaml").unlink()
    status, out, _ = run("--root", str(node), "-o", "json")
    assert (status, levels(out)["configuration"], levels(out)["kernel"]) == (0, "warning", "ok")


def test_a_copied_root_has_what_containerd_and_kubelet_were_told(node: Path, run: RunCommand) -> None:
    write(node / "etc/nodeagent/config.yaml", "nriSocket: /run/nri.sock\n")
    write(node / "etc/containerd/config.toml", "disabled_plugins = ['io.containerd.nri.v1.nri']\n")
    write(node / "var/lib/kubelet/config.yaml", "cpuManagerPolicy: static\n")
    status, out, _ = run("--root", str(node), "-o", "json", "--config", str(node / "etc/nodeagent/config.yaml"))
    found = levels(out)
    assert (status, found["nri"], found["containerd"], found["kubelet"]) == (2, "unknown", "failure", "failure")


def test_without_a_state_the_configuration_counts(node: Path, run: RunCommand) -> None:
    (node / "var/lib/nodeagent/nodeagent_state").write_text("damaged")
    assert levels(run("--root", str(node), "-o", "json")[1])["configuration"] == "ok"


def test_a_capture_is_checked_as_the_node_was(
    node: Path, run: RunCommand, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write(node / service("irqbalance"), RUNS)
    write(node / "proc/cmdline", "quiet cgroup_disable=memory secret=1\n")
    write(node / f"{CGROUPS}/cgroup.controllers", "cpuset cpu\n")
    assert main(["capture", "--root", str(node), "--out", str(tmp_path / "node.json")]) == 0
    capfd.readouterr()
    assert run("--machine", str(tmp_path / "node.json")) == run("--root", str(node))


def test_a_described_machine_is_checked_as_far_as_it_goes(
    node: Path, run: RunCommand, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    main(["topology", "--root", str(node), "-o", "json"])
    write(tmp_path / "machine.json", capfd.readouterr().out)
    status, out, _ = run("--machine", str(tmp_path / "machine.json"), "-o", "json")
    assert (status, levels(out)["cgroup-v2"], levels(out)["configuration"]) == (0, "unknown", "warning")


def test_this_node_is_checked(run: RunCommand) -> None:
    status, out, err = run("-o", "json")
    assert status in {0, 2}
    assert err == ""
    json_schema.check(json.loads(out), "check")


@pytest.mark.parametrize("option", ["--root", "--machine"])
def test_a_copy_is_not_mended(
    option: str, node: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(check, "apply_fixes", lambda _: pytest.fail("it was mended"))
    with pytest.raises(SystemExit) as end:
        main(["check", option, str(node), "--fix"])
    assert end.value.code == 64
    out, err = capfd.readouterr()
    assert out == ""
    assert err.splitlines()[-2:] == [
        "nodeagent: only this node can be fixed, not a copy: leave out --fix, or run it on the node itself",
        "hint: nodeagent check --help lists the arguments",
    ]


def test_mending_writes_the_settings_and_says_so(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for path, text in {NUMA: "1\n", **GOVERNED}.items():
        write(tmp_path / path, text)
    (tmp_path / "run").mkdir()
    check.apply_fixes(run_checks(facts({NUMA: "1\n", **GOVERNED})), str(tmp_path))
    assert (tmp_path / NUMA).read_text().strip() == "0"
    assert {(tmp_path / path).read_text().strip()[:11] for path in GOVERNED} == {"performance"}
    assert capfd.readouterr().err == (
        f"fixed numa-balancing: wrote 0 to /{NUMA}\n"
        "fixed governor: wrote performance to 2 files such as /sys/devices/system/cpu/cpu6/cpufreq/scaling_governor\n"
    )


def test_levels_sort_nothing_out() -> None:
    """One verdict for each check, in one order, whatever the levels are."""
    names = [v.check for v in run_checks(facts())]
    assert len(names) == len(set(names))
    assert [v.check for v in run_checks(facts(NO_CGROUPS, None))] == names
    assert {v.level for v in run_checks(facts())} <= set(Level)


@pytest.mark.parametrize(
    "text", ["", "memoryManagerPolicy: Static\nreservedMemory: [{numaNode: 0, limits: {memory: 100Mi}}]\n"]
)
def test_the_reservation_that_check_proposes_keeps_guaranteed_pods_off_nodes_without_cpus(text: str) -> None:
    topology = with_nodes(96, 0, 64)
    text += "cpuManagerPolicy: static\nreservedSystemCPUs: '0,4'\n"
    (before,) = [
        verdict
        for verdict in run_checks(NodeFacts(topology, config=parse_config(text.encode(), "f")))
        if verdict.check == "memory-only-nodes"
    ]
    policy, amount, reserved = re.split(
        r", memory: | in systemReserved, and ", before.fix.removesuffix(" in the configuration")
    )
    kept = "\n".join(line for line in text.splitlines() if not line.startswith(("memoryManager", "reservedMemory")))
    mended = f"{kept}\n{policy}\n{reserved}\nsystemReserved: {{memory: {amount}}}\n"
    config = parse_config(mended.encode(), "f")
    node = on_machine(config, topology)
    assert isinstance(node, NodeSetup), node
    (after,) = [
        verdict for verdict in run_checks(NodeFacts(topology, config=config)) if verdict.check == "memory-only-nodes"
    ]
    assert (after.level, after.fix) == (Level.OK, "")
    free = sum(topology_node.memory_bytes for topology_node in topology.numa if topology_node.id in {0, 1})
    what_if = WhatIf.of(node.managers, initial(node.managers))
    for size, is_admitted in ((free - 2**28, True), (free + 2**28, False)):
        pod = pod_from_document(
            {
                "metadata": {"name": "p"},
                "spec": {"containers": [{"name": "c", "resources": {"limits": {"cpu": "1", "memory": str(size)}}}]},
            }
        )
        assert isinstance(what_if.judge(pod), Admitted) is is_admitted


KERNEL_SETTINGS = [
    # check, file, costly, fine, level for a service and for a benchmark
    ("thp", kernel.THP, "[always] madvise never", "always [madvise] never", "note", "warning"),
    ("ksm", kernel.KSM, "1", "0", "note", "warning"),
    ("turbo", kernel.NO_TURBO, "0", "1", "ok", "warning"),
    ("boost", kernel.BOOST, "1", "0", "ok", "warning"),
    ("aslr", kernel.ASLR, "2", "0", "ok", "note"),
    ("rt-throttling", kernel.RT_RUNTIME, "950000", "-1", "ok", "note"),
    ("nmi-watchdog", kernel.NMI_WATCHDOG, "1", "0", "ok", "warning"),
    ("stat-interval", kernel.STAT_INTERVAL, "1", "120", "ok", "note"),
    ("perf-rate", kernel.PERF_RATE, "100000", "1000", "ok", "note"),
    ("timer-migration", kernel.TIMER_MIGRATION, "1", "0", "ok", "note"),
]


@pytest.mark.parametrize(("name", "path", "costly", "fine", "service_level", "benchmark_level"), KERNEL_SETTINGS)
def test_a_setting_of_the_kernel_counts_by_what_the_node_is_for(
    name: str, path: str, costly: str, fine: str, service_level: str, benchmark_level: str
) -> None:
    for purpose, level in ((Purpose.SERVICE, service_level), (Purpose.BENCHMARK, benchmark_level)):
        found = verdict(replace(facts({path: f"{costly}\n"}), purpose=purpose), name)
        assert found.level.value == level
        assert bool(found.fix) == (level != "ok")
        assert level == "ok" or re.search(r"; undo: echo \S+ \| sudo tee /|there is nothing to undo", found.fix)
        assert bool(found.writes) == (level == "warning")
        good = verdict(replace(facts({path: f"{fine}\n"}), purpose=purpose), name)
        assert (good.level.value, good.fix, good.writes) == ("ok", "", ())
    assert not [found for found in run_checks(facts()) if found.check == name], (
        "a kernel without the file has no such setting"
    )


def test_what_is_fixed_is_recorded_once_and_undone(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    costly = {path: text for _, path, text, *_ in KERNEL_SETTINGS} | {NUMA: "1"} | GOVERNED
    for path, text in costly.items():
        write(tmp_path / path, f"{text.strip()}\n")
    (tmp_path / "run").mkdir()

    def read() -> dict[str, str]:
        return {path: (tmp_path / path).read_text().split("\n")[0] for path in costly}

    def look() -> tuple[CheckResult, ...]:
        return run_checks(
            replace(facts({path: f"{text}\n" for path, text in read().items()}), purpose=Purpose.BENCHMARK)
        )

    before = read()
    warned = {found.check for found in look() if found.level is Level.WARNING and found.writes}
    assert warned == {"thp", "ksm", "turbo", "boost", "nmi-watchdog", "numa-balancing", "governor"}
    check.apply_fixes(look(), str(tmp_path))
    assert not [found for found in look() if found.writes], "the fixes have worked"
    for path, text in costly.items():
        if path == NUMA:  # something else switches it on again
            (tmp_path / path).write_text(f"{text}\n")
    check.apply_fixes(look(), str(tmp_path))
    check.undo_fixes(str(tmp_path))
    # Only the kernel cuts off what a shorter value leaves, and puts the chosen word into brackets.
    wanted = before | {kernel.THP: "always"}
    assert all(text.startswith(wanted[path].strip()) for path, text in read().items())
    assert not (tmp_path / "run/nodeagent-check.json").exists()
    capfd.readouterr()
    check.undo_fixes(str(tmp_path))
    assert capfd.readouterr().err == "nothing to undo: --fix has recorded nothing since the boot\n"


# What it advises about the configuration

_SETTING = re.compile(r"^(\w+): (.+?)(?: \(or \w+\))? in ")


def configured(given: NodeFacts, line: str) -> NodeFacts:
    """Add a line to the configuration."""
    assert given.config is not None
    static = "cpuManagerPolicy: static\nkubeReserved: {cpu: '1'}\n"
    usual, changed_config = (parse_config(text.encode(), "x") for text in (static, static + line))
    placement, config = given.config.placement, given.config
    for name in placement.__struct_fields__:
        if (value := getattr(changed_config.placement, name)) != getattr(usual.placement, name):
            placement = replace(placement, **{name: value})
    for name in config.__struct_fields__:
        if name != "placement" and (value := getattr(changed_config, name)) != getattr(usual, name):
            config = replace(config, **{name: value})
    config = replace(config, placement=placement)
    managers = build(given.topology, placement)
    assert isinstance(managers, Managers), managers
    return replace(given, config=config, rules=managers)


_RESERVATION = re.compile(r"memoryManagerPolicy: Static, memory: (\w+) in systemReserved, and (reservedMemory: .*) in ")
ADVISED = [
    case
    for case in CASES
    if case.facts.config is not None
    and _SETTING.match(fix := verdict(case.facts, case.check).fix)
    and not _RESERVATION.match(fix)
]


@pytest.mark.parametrize("case", ADVISED, ids=lambda case: f"{case.check}: {case.said}")
def test_the_line_that_is_advised_for_the_configuration_mends_it(case: Case) -> None:
    found = verdict(case.facts, case.check)
    line = _SETTING.match(found.fix)
    assert line is not None
    after = verdict(configured(case.facts, f"{line[1]}: {line[2]}"), case.check)
    assert (after.level in {Level.OK, Level.NOTE}, after.fix != found.fix) == (True, True), (found.fix, after.reason)


def test_lines_for_the_configuration_are_advised() -> None:
    keys = {line[1] for case in ADVISED if (line := _SETTING.match(verdict(case.facts, case.check).fix))}
    assert keys >= {
        "hostIsolation",
        "interruptIsolation",
        "isolatedCPUs",
        "cpuManagerPolicyOptions",
        "exclusiveCoreClass",
    }


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.check == "memory-only-nodes" and case.fix], ids=lambda case: case.said
)
def test_the_reservation_that_is_advised_keeps_pods_off_the_memory_of_nodes_without_cpus(case: Case) -> None:
    line = _RESERVATION.match(verdict(case.facts, case.check).fix)
    assert line is not None
    lines = f"memoryManagerPolicy: Static\nsystemReserved: {{memory: {line[1]}}}\n{line[2]}"
    after = verdict(configured(case.facts, lines), case.check)
    assert (after.level, after.fix) == (Level.OK, "")


# What it advises about huge pages and containerd


def seen_pages(root: Path, given: Topology) -> Topology:
    """Read the numbers of huge pages; those for the whole node are spread over its NUMA nodes."""
    at_all = root / "proc/sys/vm/nr_hugepages"
    spread = (int(at_all.read_text()) // len(given.numa)) if at_all.exists() else 0
    numa = []
    for one in given.numa:
        path = root / f"sys/devices/system/node/node{one.id}/hugepages/hugepages-2048kB/nr_hugepages"
        count = int(path.read_text()) if path.exists() else dict(one.hugepages).get("hugepages-2Mi", 0) >> 21
        numa.append(NumaNode(one.id, one.memory_bytes, (("hugepages-2Mi", (count + spread) << 21),)))
    return Topology.of(given.cpus, numa)


@pytest.mark.parametrize("amounts", [(0, 0, 0), (2**22, 0, 0), (2**22, 2**21, 0), (0, 2**23, 2**23)])
def test_the_command_for_huge_pages_is_enough(amounts: tuple[int, ...], tmp_path: Path) -> None:
    numa = [NumaNode(number, 2**32, (("hugepages-2Mi", amount),)) for number, amount in enumerate(amounts)]
    before = Topology.of([Cpu(number, core=number, socket=0, numa=number) for number in range(3)], numa)
    found = verdict(facts(placement=Placement(), topology=before), "huge-pages")
    for path in re.findall(r"/((?:proc|sys)/\S+)", found.fix.partition("#")[0]):
        (tmp_path / path).parent.mkdir(parents=True)
    here = re.sub(r"/(proc|sys)/", rf"{tmp_path}/\1/", found.fix.replace("sudo ", ""))
    command, _, back = here.partition(" # until the next boot; undo: ")
    files = {UNIT: "cpuset cpu memory hugetlb"}
    subprocess.run(["sh", "-euc", command], check=True, stdout=subprocess.DEVNULL)
    after = verdict(facts(files, Placement(), seen_pages(tmp_path, before)), "huge-pages")
    assert (after.level, after.fix) == (Level.OK, ""), after.reason
    subprocess.run(["sh", "-euc", back], check=True, stdout=subprocess.DEVNULL)
    assert verdict(facts(files, Placement(), seen_pages(tmp_path, before)), "huge-pages") == found


_CONTAINERD = re.compile(r'(?:before 2\.0: )?(\w+ = \S+) in (\[plugins\.".*?"\])')
CONTAINERDS = [case for case in CASES if _CONTAINERD.match(verdict(case.facts, case.check).fix)]


@pytest.mark.parametrize("case", CONTAINERDS, ids=lambda case: f"{case.check}: {case.said}")
def test_the_line_that_is_advised_for_containerd_mends_it(case: Case) -> None:
    line = _CONTAINERD.match(verdict(case.facts, case.check).fix)
    assert line is not None
    assert case.facts.runtime is not None
    added = read_nri_config((("c", f"version = 3\n{line[2]}\n{line[1]}\n".encode()),))
    fields = {name: value for name in added.__struct_fields__ if (value := getattr(added, name)) is not None}
    mended = replace(case.facts.runtime, config=replace(case.facts.runtime.config or NriConfig(), **fields))
    after = verdict(replace(case.facts, runtime=mended), case.check)
    assert (after.level, after.fix) == (Level.OK, ""), after.reason


def test_the_reasons_begin_in_one_column_however_long_a_check_is_called() -> None:
    verdicts = run_checks(facts(topology=with_nodes(96, 0, 96)))
    lines = render_node_check(describe_checks(verdicts), width=400).splitlines()
    of_checks = [line for line in lines if line[:1].strip() and ": " not in line[:9]]
    starts = {line.index(verdict.reason) for verdict in verdicts for line in of_checks if verdict.reason in line}
    assert starts == {len("note     memory-only-nodes ")}
