"""Every policy in the running daemon: the kernel lets the processes use what was decided."""

import json
import re

import pytest

from integration.guest.guest import Guest
from integration.node import CONFIG, Document, Node, container, pod

pytestmark = pytest.mark.configures

SLEEP = ["sleep", "infinity"]
_MIB = 1 << 20

ALIGNED = """
cpuManagerPolicy: static
reservedSystemCPUs: "0"
topologyManagerPolicy: {policy}
topologyManagerScope: {scope}
memoryManagerPolicy: Static
evictionHard: {{memory.available: 100Mi}}
reservedMemory:
  - {{numaNode: 0, limits: {{memory: 100Mi}}}}
"""
TOUCH = "import time; x = bytearray(b'x') * (48 << 20); open('/run/touched', 'w').write('yes\\n'); time.sleep(1e9)"
"""Allocates 48 MiB of memory of its own."""


def with_options(policy_options: str) -> str:
    return f'cpuManagerPolicy: static\nreservedSystemCPUs: "0"\ncpuManagerPolicyOptions: {{{policy_options}}}\n'


def cpus_of(state: Document, name: str, container_name: str = "app") -> str:
    found: str = state["promises"]["pods"][f"uid-{name}"]["cpus"][container_name]
    return found


def members(text: str) -> set[int]:
    """The kernel's list form as a set."""
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


def pages_by_node(node: Node, pid: int) -> dict[int, int]:
    """The private memory of a process: pages on each node, as numa_maps counts them. Files may have been read by others before."""
    text = node.run(f"grep anon= /proc/{pid}/numa_maps | grep -v file=").stdout
    pages: dict[int, int] = {}
    for numa, count in re.findall(r" N(\d+)=(\d+)", text):
        pages[int(numa)] = pages.get(int(numa), 0) + int(count)
    return pages


def refusal(state: Document, name: str) -> tuple[str, str]:
    reason, message, _ = next(e["refusal"] for e in state["entries"] if e["pod"]["metadata"]["name"] == name)
    return reason, message


@pytest.mark.parametrize("scope", [pytest.param("container", marks=pytest.mark.long), "pod"])
def test_single_numa_node_keeps_cpus_and_memory_together(four_nodes: Guest, scope: str) -> None:
    node = Node(four_nodes)
    node.configure(ALIGNED.format(policy="single-numa-node", scope=scope))
    node.run("rm -f /run/touched")
    python = "/opt/nodeagent/bin/python"
    node.apply(
        pod("near", container("app", [python, "-c", TOUCH], cpu="2", memory="128Mi")),
        pod("pair", container("a", SLEEP, cpu="1", memory="32Mi"), container("b", SLEEP, cpu="1", memory="32Mi")),
    )
    state = node.wait_running("near", "pair")
    node.wait_line("/run/touched")
    (pid,) = node.pids(node.cgroup("near", "app"))
    cpus, mems = node.allowed(pid)

    assert cpus == cpus_of(state, "near")
    assert {cpu // 4 for cpu in members(cpus)} == {int(mems)}, "its CPUs are on its memory's node"
    pages = pages_by_node(node, pid)
    assert pages.keys() == {int(mems)}, "from the first page on"
    assert pages[int(mems)] >= 48 * _MIB // 4096
    if scope == "pod":
        both = members(cpus_of(state, "pair", "a")) | members(cpus_of(state, "pair", "b"))
        assert len({cpu // 4 for cpu in both}) == 1

    node.apply(pod("wide", container("app", SLEEP, cpu="5", memory="32Mi")))
    reason, message = refusal(node.wait_refused("wide"), "wide")
    assert reason == "TopologyAffinityError"
    assert message == "Resources cannot be allocated with Topology locality"

    before = node.footprint()
    node.restart_agent()
    assert node.footprint() == before


@pytest.mark.long
def test_memory_of_two_nodes_for_what_fits_on_none(four_nodes: Guest) -> None:
    node = Node(four_nodes)
    node.configure(ALIGNED.format(policy="restricted", scope="container"))
    node.apply(pod("big", container("app", SLEEP, cpu="6", memory="600Mi")))
    state = node.wait_running("big")
    (pid,) = node.pids(node.cgroup("big", "app"))
    cpus, mems = node.allowed(pid)

    assert len(members(mems)) == 2
    assert {cpu // 4 for cpu in members(cpus)} <= members(mems)
    blocks = state["promises"]["pods"]["uid-big"]["memory"]["app"]
    assert blocks == [[mems, "memory", 600 * _MIB]]


def test_huge_pages_are_counted_by_node(four_nodes: Guest) -> None:
    node = Node(four_nodes)
    node.configure(ALIGNED.format(policy="single-numa-node", scope="container"))
    asked = {"cpu": "1", "memory": "32Mi", "hugepages-2Mi": "24Mi"}

    def hungry(name: str) -> Document:
        made = pod(name, container("app", SLEEP))
        made["spec"]["containers"][0]["resources"] = {"limits": asked, "requests": asked}
        return made

    names = [f"hungry-{n}" for n in range(4)]
    node.apply(*map(hungry, names))
    state = node.wait_running(*names)
    places = [{nodes for nodes, _, _ in state["promises"]["pods"][f"uid-{name}"]["memory"]["app"]} for name in names]
    assert all(len(place) == 1 for place in places), "huge pages, memory: one node"
    assert len(set.union(*places)) == 4, "32 MiB of huge pages a node: room for one each"
    assert len([1 for name in names if node.allowed(node.pids(node.cgroup(name, "app"))[0])[1] in "0123"]) == 4

    node.apply(hungry("late"))
    # like kubelet: no node has these huge pages left, which is no hint, and so not a topology error
    assert refusal(node.wait_refused("late"), "late")[0] == "UnexpectedAdmissionError"


@pytest.mark.long
def test_a_pods_own_pool(two_sockets: Guest) -> None:
    node = Node(two_sockets)
    config = """
cpuManagerPolicy: static
reservedSystemCPUs: "0"
topologyManagerPolicy: single-numa-node
topologyManagerScope: pod
memoryManagerPolicy: Static
evictionHard: {memory.available: 100Mi}
reservedMemory:
  - {numaNode: 0, limits: {memory: 100Mi}}
featureGates: {PodLevelResources: true, PodLevelResourceManagers: true}
"""
    node.configure(config)
    asked = {"cpu": "4", "memory": "128Mi"}
    node.apply(
        pod(
            "pooled",
            container("own", SLEEP, cpu="2", memory="64Mi"),
            container("one", SLEEP),
            container("two", SLEEP),
            resources={"limits": asked, "requests": asked},
        ),
        pod("outside", container("app", SLEEP)),
    )
    state = node.wait_running("pooled", "outside")
    promised = state["promises"]["pods"]["uid-pooled"]
    allowed = {name: node.allowed(node.pids(node.cgroup("pooled", name))[0])[0] for name in ("own", "one", "two")}
    outside = node.allowed(node.pids(node.cgroup("outside", "app", qos="besteffort"))[0])[0]

    assert len(members(promised["podCpus"])) == 4
    assert len(members(allowed["own"])) == 2
    assert allowed["one"] == allowed["two"]
    assert members(allowed["one"]) == members(promised["podCpus"]) - members(allowed["own"])
    assert not members(outside) & members(promised["podCpus"])
    assert node.value(node.cgroup("pooled", "own"), "cpu.max").startswith("max ")
    assert node.value(node.cgroup("pooled", "one"), "cpu.max") == "200000 100000"
    before = node.footprint()
    node.kill_agent()
    assert node.footprint() == before
    node.delete("pooled")
    assert node.wait_gone("pooled")["promises"]["default"] == "0-15"


def test_full_cores_only(two_sockets: Guest) -> None:
    node = Node(two_sockets)
    node.configure(with_options('full-pcpus-only: "true"'))
    node.apply(pod("odd", container("app", SLEEP, cpu="3")), pod("even", container("app", SLEEP, cpu="2")))
    state = node.wait_running("even", refused=("odd",))
    assert refusal(state, "odd")[0] == "SMTAlignmentError"
    assert cpus_of(state, "even") == "2-3"


def test_cpus_spread_over_numa_nodes(two_sockets: Guest) -> None:
    node = Node(two_sockets)
    node.configure(with_options('full-pcpus-only: "true", distribute-cpus-across-numa: "true"'))
    node.apply(pod("spread", container("app", SLEEP, cpu="12")))
    cpus = members(cpus_of(node.wait_running("spread"), "spread"))
    assert sorted(cpu // 8 for cpu in cpus) == [0] * 6 + [1] * 6


@pytest.mark.long
def test_cpus_spread_over_cores(two_sockets: Guest) -> None:
    node = Node(two_sockets)
    gates = "featureGates: {CPUManagerPolicyAlphaOptions: true}\n"
    node.configure(with_options('distribute-cpus-across-cores: "true"') + gates)
    node.apply(pod("spread", container("app", SLEEP, cpu="4")))
    cpus = members(cpus_of(node.wait_running("spread"), "spread"))
    assert len({cpu // 2 for cpu in cpus}) > 2, "packed, four CPUs are two cores"


@pytest.mark.long
def test_reserved_cpus_are_for_the_system_alone(two_sockets: Guest) -> None:
    node = Node(two_sockets)
    node.configure(with_options('strict-cpu-reservation: "true"'))
    node.apply(pod("shared", container("app", SLEEP)))
    node.wait_running("shared")
    (pid,) = node.pids(node.cgroup("shared", "app", qos="besteffort"))
    assert node.allowed(pid)[0] == "1-15"


def test_a_container_stays_within_one_cache(four_caches: Guest) -> None:
    node = Node(four_caches)
    node.configure(with_options('prefer-align-cpus-by-uncorecache: "true"'))
    node.apply(pod("cached", container("app", SLEEP, cpu="4")))
    cpus = cpus_of(node.wait_running("cached"), "cached")
    assert cpus == "4-7", "the default takes 2-5, of two caches"


@pytest.mark.long
def test_a_whole_socket_before_a_whole_node(four_nodes: Guest) -> None:
    node = Node(four_nodes)
    gates = "featureGates: {CPUManagerPolicyAlphaOptions: true}\ntopologyManagerPolicy: best-effort\n"
    config = with_options('align-by-socket: "true"') + gates
    node.configure(config)
    node.apply(pod("socket", container("app", SLEEP, cpu="4")))
    cpus = members(cpus_of(node.wait_running("socket"), "socket"))
    assert len({cpu // 4 for cpu in cpus}) == 1


ALPHA = "featureGates: {CPUManagerPolicyAlphaOptions: true}\n"


@pytest.mark.parametrize(
    ("options", "gates", "text"),
    [
        ('align-by-socket: "true"', ALPHA, "policy is incompatible with CPUManager align-by-socket policy option"),
        pytest.param('align-by-socket: "true"', "", "Alpha-level Options not enabled", marks=pytest.mark.long),
        pytest.param('full-pcpus-only: "yes"', "", 'parsing "yes": invalid syntax', marks=pytest.mark.long),
        pytest.param(
            'no-such-option: "true"', "", 'unknown CPU Manager Policy option: "no-such-option"', marks=pytest.mark.long
        ),
    ],
)
def test_impossible_options_stop_the_start_and_lose_nothing(
    two_sockets: Guest, options: str, gates: str, text: str
) -> None:
    node = Node(two_sockets)
    usual = node.guest.get(CONFIG)
    node.apply(pod("kept", container("app", SLEEP, cpu="2")))
    node.wait_running("kept")
    before = node.footprint()
    try:
        config = with_options(options) + gates + "topologyManagerPolicy: single-numa-node\n"
        node.guest.put(CONFIG, config)
        node.run("rm /var/lib/nodeagent/last_config.yaml")  # the start would go on with it
        done = node.run("nodeagent run", check=False)
        assert done.returncode == 78, done.stdout + done.stderr
        [refused] = [json.loads(line) for line in done.stderr.splitlines()]
        assert refused["event"] == "start_refused"
        assert text in refused["problem"]
        assert node.footprint() == before
    finally:
        node.guest.put(CONFIG, usual)


PLUGIN = """
import threading
from nodeagent.core.model.idset import CpuSet
class Highest:
    def select(self, question):
        if question.container == "late":
            threading.Event().wait()
        return CpuSet.from_ids(sorted(question.free)[-question.count:])
def make(options):
    return Highest()
"""
CHOSEN = """
cpuManagerPolicy: static
reservedSystemCPUs: "0"
cpuManagerPlugins:
  - name: in-guest-highest
"""


def test_a_cpu_plugin_chooses_and_one_that_is_too_late_refuses(four_nodes: Guest) -> None:
    node = Node(four_nodes)
    python = "/opt/nodeagent/bin/python"
    site = node.run(f"{python} -c 'import sysconfig; print(sysconfig.get_path(\"purelib\"))'").stdout.strip()
    about = f"{site}/in_guest_highest-1.dist-info"
    node.run(
        f"mkdir -p {about}\n"
        f"cat > {site}/in_guest_highest.py <<'END'\n{PLUGIN}END\n"
        f"printf 'Metadata-Version: 2.1\\nName: in-guest-highest\\nVersion: 1\\n' > {about}/METADATA\n"
        f"printf '[nodeagent.cpu_plugins]\\nin-guest-highest = in_guest_highest:make\\n' > {about}/entry_points.txt\n"
    )
    try:
        node.configure(CHOSEN)
        node.apply(pod("high", container("app", SLEEP, cpu="2", memory="32Mi")))
        state = node.wait_running("high")
        (pid,) = node.pids(node.cgroup("high", "app"))
        cpus, _ = node.allowed(pid)
        assert cpus == cpus_of(state, "high")
        online = members(node.run("cat /sys/devices/system/cpu/online").stdout.strip())
        assert members(cpus) == set(sorted(online)[-2:])
        node.apply(pod("slow", container("late", SLEEP, cpu="1", memory="32Mi")))
        reason, message = refusal(node.wait_refused("slow"), "slow")
        assert reason == "CPUPluginFailed"
        assert message.startswith("CPU plugin in-guest-highest, Select: it has not answered within 1 s")
        assert node.allowed(pid)[0] == cpus
    finally:
        node.run(f"rm -rf {about} {site}/in_guest_highest.py")
