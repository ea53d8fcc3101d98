"""The table of goals: each row is a piece of work, what it may take, and how it is measured."""

import compileall
import gzip
import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from h2.connection import H2Connection

from benchmarks import ROOT
from benchmarks.nodes import asking, crowd, fresh, large_node, node, scanned, texts, topology
from benchmarks.timing import Clock, Timing, elapsed_ms, spent_ms
from nodeagent.core.admission import managers as core
from nodeagent.core.admission.managers import Admitted, Managers, resume
from nodeagent.core.admission.state_invariants import violations
from nodeagent.core.host.settings import Cpus, Record, SettingKind, plan_settings
from nodeagent.core.model.device_pools import DevicePool, PoolDevice
from nodeagent.core.model.devices import Device, DeviceKind, PlacedDevices
from nodeagent.core.model.idset import CpuSet, NumaMask
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.promises import Promises
from nodeagent.core.model.state import NodeState
from nodeagent.core.model.topology import Topology
from nodeagent.core.resources.claims.selectors import forget_answers
from nodeagent.daemon.reports.pod_resources import PodResources
from nodeagent.edge.kernel.host_settings import HostSettingsFiles
from nodeagent.edge.kernel.sysfs import read_machine
from nodeagent.edge.transport.grpc_server import GrpcConnection
from nodeagent.formats.checkpoint.host_record import encode_record
from nodeagent.formats.checkpoint.node_state import StateEncoder, decode_state, encode_state, policies_of
from nodeagent.formats.kernel.host_files import format_value
from nodeagent.formats.kernel.sysfs import topology_of
from nodeagent.formats.scenario.scenario import Scenario, scenario_from_text
from nodeagent.formats.wire.grpc_messages import add_frame
from nodeagent.formats.wire.pod_resources import SERVICE
from nodeagent.views.simulate.scenario_replay import measure_adds
from tests.support import world
from tests.support.claims import NUMA, claiming, request, template
from tests.support.machine_tree import Cache, Machine
from tests.support.pods import app, pod


@dataclass(frozen=True)
class Row:
    """One figure: a time, a ratio, an amount or a count.

    Attributes:
        group: what kind of work it is.
        name: the work.
        measured: on this machine.
        calibrated: on the reference machine; all but times are the same on both, but for the noise.
        goal: on the reference machine.
        compared: the figure beside which it stands, in words: kubelet's as it was reported, or nodeagent's own before.
        unit: of the three numbers; a count has none.

    """

    group: str
    name: str
    measured: float
    calibrated: float
    goal: float | None = None
    compared: str = ""
    unit: str = "ms"


SHAPES: tuple[tuple[str, str, float], ...] = (
    ("0.08 ms", "as much", 0.08),
    ("0.68 ms", "a third", 0.68 / 3),
    ("0.54 ms", "a half", 0.54 / 2),
    ("0.58 ms", "a half", 0.58 / 2),
    ("0.99 ms", "a half", 0.99 / 2),
    ("2.6 ms", "a fifth", 2.6 / 5),
    ("1.9 ms", "a half", 1.9 / 2),
    ("8.7 ms", "a fifth", 8.7 / 5),
    ("2,976 ms", "a thousandth", 2.976),
)
"""Of tests/vectors/perf.jsonl.gz, in its order: kubelet's median per admission, and the goal."""

POLICIES = ("single-numa-node", "best-effort", "restricted")
BURST = 200
IRQS = 600


def timed(group: str, name: str, timing: Timing, goal: float | None = None, compared: str = "") -> Row:
    return Row(group, name, timing.ms, timing.calibrated_ms, goal, compared)


def grown(name: str, few: Timing, many: Timing, goal: float | None = None) -> Row:
    return Row("growth", name, many.ms / few.ms, many.calibrated_ms / few.calibrated_ms, goal, unit="×")


def rows(clock: Clock) -> Iterator[Row]:
    yield from shapes(clock)
    yield from many_nodes(clock)
    yield from devices(clock)
    yield from given_devices(clock)
    yield from claims(clock)
    yield from growth(clock)
    yield from restoration(clock)
    yield from encoding(clock)
    yield from discovery(clock)
    yield from interrupts(clock)
    yield from pod_resources(clock)
    yield from cold_start(clock)


def shapes(clock: Clock) -> Iterator[Row]:
    lines = gzip.decompress((ROOT / "tests" / "vectors" / "perf.jsonl.gz").read_bytes()).decode().splitlines()
    for line, (kubelet, _, goal) in zip(lines, SHAPES, strict=True):
        scenario = scenario_from_text(line, "perf.jsonl")

        def run(scenario: Scenario = scenario) -> list[float]:
            times: list[float] = []
            until = time.perf_counter() + 0.15
            while time.perf_counter() < until or len(times) < 20:
                times += [ns / 1e6 for ns in measure_adds(scenario, time.thread_time_ns)]
            return times

        yield timed("admission", scenario.id, clock.time_runs(run, 7), goal, kubelet)


def many_nodes(clock: Clock) -> Iterator[Row]:
    """CPUs, memory and two sizes of huge pages: four providers of hints."""
    requests = (("one node", "4", "8Gi"), ("CPUs of three, memory of one", "20", "8Gi"), ("four nodes", "26", "200Gi"))
    for nodes, goal, kubelet in ((8, 20, "21 minutes"), (34, 100, "never ends")):
        for policy in POLICIES:
            for words, cpus, memory in requests:
                of = node(topology(nodes * 8, nodes, pages=2), policy=policy, memory=True)
                one = asking("p", cpus, memory=memory, pages=2)
                yield timed(
                    "many NUMA nodes",
                    f"{nodes} nodes × 4 providers, {policy}, {words}",
                    clock.time(admission(of, core.initial(of), one), 9),
                    goal,
                    kubelet,
                )


def devices(clock: Clock) -> Iterator[Row]:
    """CPUs, memory, and two kinds of devices on every NUMA node, each of which has all sets of nodes as hints."""
    requests = (("one node", "4", "8Gi"), ("CPUs of three, memory of one", "20", "8Gi"), ("four nodes", "26", "200Gi"))
    for nodes, goal, kubelet in ((8, 20, "21 minutes"), (34, 100, "never ends")):
        machine = topology(nodes * 8, nodes)
        for policy in POLICIES:
            for words, cpus, memory in requests:
                of = node(machine, policy=policy, memory=True).knowing(cards(machine, everywhere=True))
                one = asking("p", cpus, memory=memory, near=("network", "nvme"))
                yield timed(
                    "devices on many NUMA nodes",
                    f"{nodes} nodes × 4 providers, two of them devices, {policy}, {words}",
                    clock.time(admission(of, core.initial(of), one), 9),
                    goal,
                    kubelet,
                )
            of = node(machine, policy=policy, memory=True).knowing(cards(machine, everywhere=False))
            one = asking("p", "4", memory="8Gi", near=("network", "nvme"))
            yield timed(
                "devices on many NUMA nodes",
                f"{nodes} nodes × 4 providers, two of them devices on different nodes, {policy}",
                clock.time(admission(of, core.initial(of), one), 9),
                goal,
                kubelet,
            )


def given_devices(clock: Clock) -> Iterator[Row]:
    """CPUs, memory, and two kinds of devices that are the pod's own: those that are free count, one of each or two.

    kubelet merges each hint with each of the other lists, at 0.13 µs a merge in its own shape with 8 nodes.
    """
    of_nodes = ((2, 0.5, "0.54 ms without devices"), (4, 3.4, "6.8 ms, computed"), (8, 20, "21 minutes"))
    for nodes, goal, kubelet in (*of_nodes, (34, 100, "never ends")):
        machine = topology(nodes * 8, nodes)
        for policy in POLICIES:
            # One node has one of each.
            for count in (1,) if policy == "single-numa-node" else (1, 2):
                of = node(machine, policy=policy, memory=True, gives=("network", "nvme"))
                of = of.knowing(cards(machine, everywhere=True))
                one = asking("p", "4", memory="8Gi", devices=("network", "nvme"), count=count)
                yield timed(
                    "devices of a pod's own on many NUMA nodes",
                    f"{nodes} nodes × 4 providers, two of them devices of its own, {policy}, {count} of each",
                    clock.time_runs(partial(repeated, admission(of, core.initial(of), one)), 7),
                    goal,
                    kubelet,
                )
    for nodes, goal, kubelet in of_nodes[1:]:
        yield near_several_nodes(clock, nodes, goal, kubelet)


def repeated(work: Callable[[], object]) -> list[float]:
    return [spent_ms(work) for _ in range(20)]


def near_several_nodes(clock: Clock, nodes: int, goal: float, kubelet: str) -> Row:
    """CPUs, memory, and two device plugins, each of whose devices is near two nodes."""
    pools = tuple(
        DevicePool(
            f"x.com/{kind}", tuple(PoolDevice(f"d{n}", NumaMask(1 << n | 1 << (n + 1) % nodes)) for n in range(nodes))
        )
        for kind in ("network", "nvme")
    )
    of = node(topology(nodes * 8, nodes), policy="restricted", memory=True).knowing(None, pools)
    one = asking("p", "4", memory="8Gi", devices=("network", "nvme"), count=2)
    return timed(
        "devices of a pod's own on many NUMA nodes",
        f"{nodes} nodes × 4 providers, two of them device plugins with devices near two nodes each, restricted, 2 of each",
        clock.time_runs(partial(repeated, admission(of, core.initial(of), one)), 7),
        goal,
        kubelet,
    )


def claims(clock: Clock) -> Iterator[Row]:
    """A claim for CPUs and a card of one NUMA node: CEL is asked about each CPU, or, of pods that come together, only for the first."""
    for cpus, nodes, goal in ((128, 2, 50), (512, 8, 200)):
        machine = topology(cpus, nodes)
        of = node(machine, policy="restricted", memory=True).knowing(cards(machine, everywhere=True))
        nic = request("nic", "nodeagent.io", 'device.attributes["nodeagent.io"].kind == "network"')
        own = template(request("cpus", "dra.cpu", 'device.attributes["dra.cpu"].coreID > 0', count=8), nic, match=NUMA)
        again = admission(of, core.initial(of), claiming("p", "8", own, memory="8Gi"))

        def first(again: Callable[[], object] = again) -> object:
            forget_answers()
            return again()

        for words, run in (("the first of its kind", first), ("another one like it", again)):
            yield timed(
                "claims",
                f"{cpus} CPUs, {nodes} nodes: a claim for eight CPUs and a card of one node, {words}",
                clock.time(run, 9),
                goal,
            )


def cards(of: Topology, *, everywhere: bool) -> PlacedDevices:
    """A network card and a disk on each node; or one of each, on the last two."""
    ids = sorted(of.node_ids)
    found = [(DeviceKind.NETWORK, each) for each in (ids if everywhere else ids[-1:])]
    found += [(DeviceKind.NVME, each) for each in (ids if everywhere else ids[-2:-1])]
    named = (
        Device(f"0000:{number:02x}:00.0", kind, class_code=0, numa_node=each)
        for number, (kind, each) in enumerate(found)
    )
    return PlacedDevices.of(tuple(named), of)


def admission(of: Managers, promises: Promises, one: Pod) -> Callable[[], object]:
    return lambda: texts(of, core.admit(of, promises, one).promises)


def growth(clock: Clock) -> Iterator[Row]:
    """What an admission costs with 1,000 pods present, as a multiple of what it costs with 10; over 200 admissions."""
    for memory in (False, True):
        words = "CPUs and memory" if memory else "CPUs"
        few, many = clock.time_each([burst(memory=memory, present=present) for present in (10, 1000)], 15)
        name = f"1,000 pods present / 10: {BURST} pods in one turn, with all three files; {words}"
        yield grown(name, few, many, 1.5)
        few, many = clock.time_each([one_by_one(memory=memory, present=present) for present in (10, 1000)], 7)
        yield grown(f"1,000 pods present / 10: one pod at a time, with both kubelet texts; {words}", few, many)


def burst(*, memory: bool, present: int) -> Callable[[], list[float]]:
    """What the daemon does between reading and fsync: decide on all pods, check, encode the truth, then kubelet's files."""
    of = large_node(memory=memory)
    pods = [pod(f"p{number * 7919 % 1201:04}", app("c", "1")) for number in range(present + BURST)]
    state = scanned(of, world.empty_state(of), pods[:present]).state
    policies = policies_of(of.config.placement)

    def run() -> list[float]:
        # an agent that has these pods, and has just looked at them
        encoder, before = StateEncoder(), scanned(of, fresh(state), pods[:present]).state
        assert not violations(of.managers, before)
        encoder.encode(before, policies)
        texts(of.managers, before.promises)
        begin = time.thread_time_ns()
        after = scanned(of, before, pods).state
        broken = violations(of.managers, after)
        encoder.encode(after, policies)
        texts(of.managers, after.promises)
        spent_ms = (time.thread_time_ns() - begin) / 1e6
        assert not broken
        assert len(after.holding_pods()) == present + BURST
        return [spent_ms]

    return run


def one_by_one(*, memory: bool, present: int) -> Callable[[], list[float]]:
    of = node(topology(1280, 4), policy="best-effort" if memory else "none", memory=memory)
    before = crowd(of, present)
    pods = [asking(f"p{number * 37 % BURST:03}", "1") for number in range(BURST)]

    def run() -> list[float]:
        promises, spent_ns = before, 0
        for one in pods:
            begin = time.thread_time_ns()
            decision = core.admit(of, promises, one)
            texts(of, decision.promises)
            spent_ns += time.thread_time_ns() - begin
            assert isinstance(decision, Admitted)
            promises = decision.promises
        return [spent_ns / BURST / 1e6]

    return run


def restoration(clock: Clock) -> Iterator[Row]:
    for memory in (False, True):
        of = large_node(memory=memory)
        pods = [pod(f"p{number:04}", app("c", "1")) for number in range(1000)]
        state = scanned(of, world.empty_state(of), pods).state
        content = encode_state(state, policies_of(of.config.placement))

        def restore(of: world.Node = of, content: bytes = content, pods: Sequence[Pod] = pods) -> None:
            saved = decode_state(content).state
            assert not violations(of.managers, saved)
            promises = resume(of.managers, saved.promises)
            assert isinstance(promises, Promises)
            texts(of.managers, promises)
            assert scanned(of, saved, pods).state == saved

        words = "CPUs and memory" if memory else "CPUs"
        yield timed(
            "restoration",
            f"restoring 1,000 pods: read, check, both kubelet texts, one turn; {words}",
            clock.time(restore, 11),
            500,
        )


def encoding(clock: Clock) -> Iterator[Row]:
    """Of a state about which nothing is remembered."""
    for present in (10, 100, 1000):
        of = large_node(memory=True)
        policies = policies_of(of.config.placement)
        pods = [pod(f"p{number:04}", app("c", "1")) for number in range(present)]
        state = scanned(of, world.empty_state(of), pods).state

        def kubelets(of: world.Node = of, state: NodeState = state) -> list[float]:
            promises = fresh(state).promises
            return [spent_ms(lambda: texts(of.managers, promises))]

        def truth(policies: Mapping[str, str] = policies, state: NodeState = state) -> list[float]:
            again = fresh(state)
            return [spent_ms(lambda: encode_state(again, policies))]

        yield timed("encoding", f"encoding both kubelet texts of {present:,} pods", clock.time_runs(kubelets, 9))
        yield timed("encoding", f"encoding nodeagent_state of {present:,} pods", clock.time_runs(truth, 9))


def discovery(clock: Clock) -> Iterator[Row]:
    yield timed("discovery", "discovery of this machine", clock.time(lambda: topology_of(read_machine("/"))))
    half = 256
    cores = tuple(f"{core},{core + half}" for core in range(half))
    spans = [(node * half // 34, (node + 1) * half // 34 - 1) for node in range(34)]
    nodes = tuple((number, f"{a}-{b},{a + half}-{b + half}") for number, (a, b) in enumerate(spans))
    caches = tuple(Cache(3, 3, cpus, number) for number, cpus in nodes)
    tree = Machine(cores, (f"0-{half - 1},{half}-{2 * half - 1}",), nodes, caches)
    with tempfile.TemporaryDirectory() as directory:
        root = str(tree.grow(Path(directory)))
        yield timed(
            "discovery",
            "discovery of 512 CPUs on 34 NUMA nodes, from a copied tree",
            clock.time(lambda: topology_of(read_machine(root))),
        )


def interrupts(clock: Clock) -> Iterator[Row]:
    """All interrupts of a large machine leave two CPUs. Plain files stand for the kernel's."""
    with tempfile.TemporaryDirectory() as directory:
        for number in range(IRQS):
            affinity = Path(directory, f"proc/irq/{number}/smp_affinity_list")
            affinity.parent.mkdir(parents=True)
            affinity.write_text("0-511\n")
            affinity.with_name("node").write_text("0\n")
            Path(directory, f"sys/kernel/irq/{number}").mkdir(parents=True)
        files = HostSettingsFiles(directory)
        kinds, all_cpus = {SettingKind.IRQ}, CpuSet.parse("0-511")
        record: Record = {}
        sets = itertools.cycle((CpuSet.parse("2-3"), CpuSet.parse("4-5")))

        def look() -> None:
            found = files.read(kinds)
            plan_settings({}, found, to_avoid={}, cpus=Cpus(all_cpus, all_cpus), facts=files.read_facts(found))

        def move() -> None:
            nonlocal record
            own = next(sets)
            found, cpus = files.read(kinds), Cpus(all_cpus, all_cpus - own)
            planned = plan_settings(
                record, found, to_avoid={SettingKind.IRQ: own}, cpus=cpus, facts=files.read_facts(found)
            )
            encode_record("boot", planned.record)
            files.write(
                [(files.path(setting), format_value(setting, value)) for setting, value in planned.writes.items()]
            )
            record = planned.after(frozenset())
            encode_record("boot", record)
            assert len(planned.writes) == IRQS

        yield timed("host", f"look at {IRQS} interrupts", clock.time(look, 9))
        yield timed("host", f"move {IRQS} interrupts off two of 512 CPUs", clock.time(move, 9), 300)


def pod_resources(clock: Clock) -> Iterator[Row]:
    """From a client's first byte to the answer's last, with a view that was published just now."""
    present = 500
    of = large_node(memory=True)
    pods = [pod(f"p{number:04}", app("c", "1")) for number in range(present)]
    state = scanned(of, world.empty_state(of), pods).state
    client = H2Connection()
    client.initiate_connection()
    client.send_headers(
        1,
        [
            (":method", "POST"),
            (":scheme", "http"),
            (":authority", "localhost"),
            (":path", f"/{SERVICE}/List"),
            ("content-type", "application/grpc"),
        ],
    )
    client.send_data(1, add_frame(b""), end_stream=True)
    request = client.data_to_send()

    def answer() -> int:
        view: Any = SimpleNamespace(state=state)
        connection = GrpcConnection(PodResources(lambda: view, {}).methods(), lambda _: None)
        connection.receive(request)
        return sum(map(len, iter(connection.take_output, b"")))

    assert answer() > 40 * present
    yield timed("PodResources", f"a List of {present} pods", clock.time(answer, 11), 20)


def cold_start(clock: Clock) -> Iterator[Row]:
    """A new process each time, as a shell starts it. `inspect` finds no agent here and says so."""
    command = str(Path(sys.executable).with_name("nodeagent"))
    compileall.compile_dir(ROOT / "nodeagent", quiet=1)  # as pip does when it installs the package
    with tempfile.TemporaryDirectory() as directory:
        missing = str(Path(directory) / "agent.sock")
        for words in (["--help"], ["inspect", "--socket", missing]):
            shown = " ".join(words[:1])

            def start(words: Sequence[str] = words) -> None:
                subprocess.run(
                    [command, *words],
                    capture_output=True,
                    check=False,
                    env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
                )

            def run(start: Callable[[], object] = start) -> list[float]:
                return [elapsed_ms(start)]

            yield timed("cold start", f"cold start: nodeagent {shown}", clock.time_runs(run, 9), 150.0)
