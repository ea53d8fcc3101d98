"""Resizes of pods with init containers, sidecars and memory of their own, against a model that only counts: one NUMA node, no options."""

from collections import Counter
from random import Random

from hypothesis import settings
from msgspec import Struct

from nodeagent.core.admission.what_if import WhatIf
from nodeagent.core.explain.resizing import resizing
from nodeagent.core.model.config import ReservedMemory
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.pod import CPU, MEMORY, Container, ContainerKind, Pod
from nodeagent.core.model.refusals import OF_RESIZES, RESIZE_DEFERRED, NotResized
from nodeagent.core.model.state import PodEntry
from nodeagent.core.resources.cpu.holdings import CpuHoldings, default_set
from nodeagent.core.resources.memory.holdings import MemoryHoldings, memory_accounts
from tests.support.node_model import Agent, CrashError, Machine
from tests.support.pods import amounts, app, init, pod, sidecar
from tests.support.shares import share
from tests.support.world import SMALL, Node, node

GIB = 1 << 30
MOST_CPUS, MOST_GIB = 7, 7


def node_of(*, below: bool) -> Node:
    return node(
        SMALL,
        memory_manager_policy="Static",
        reserved_memory=(ReservedMemory(0, amounts(memory="1Gi")),),
        memory_reservation=amounts(memory="1Gi"),
        resize_below_admitted_cpus=below,
    )


class Asked(Struct, frozen=True):
    """What a container asks for."""

    kind: str
    """`init`, `side`, `app`, `again` (it restarts for other CPUs), `share` (half a CPU more, and none of its own)."""
    cpus: int
    gib: int


def made(name: str, asked: list[Asked]) -> Pod:
    return pod(name, *(container(f"{one.kind}{place}", one) for place, one in enumerate(asked)))


def container(name: str, asked: Asked) -> Container:
    memory = f"{asked.gib}Gi"
    match asked.kind:
        case "init":
            return init(name, cpu=str(asked.cpus), memory=memory)
        case "side":
            return sidecar(name, cpu=str(asked.cpus), memory=memory)
        case "share":
            return app(name, cpu=f"{asked.cpus}500m", memory=memory)
        case kind:
            return app(name, cpu=str(asked.cpus), memory=memory, restarts_for=("cpu",) if kind == "again" else ())


def shape(chance: Random) -> list[Asked]:
    kinds = ["init"] if chance.random() < 0.4 else []
    kinds += ["side"] if chance.random() < 0.3 else []
    kinds += ["init"] if chance.random() < 0.2 else []
    kinds += [chance.choice(("app", "app", "again", "share")) for _ in range(chance.choice((1, 1, 2)))]
    return [Asked(kind, chance.randint(1, 3), chance.randint(1, 3)) for kind in kinds]


def resized(one: Asked, chance: Random) -> Asked:
    least = 0 if one.kind == "share" else 1
    cpus, gib = max(least, one.cpus + chance.randint(-2, 2)), max(1, one.gib + chance.randint(-1, 1))
    return one if one.kind == "init" else Asked(one.kind, cpus, gib)


def milli(of: Container) -> int:
    amount = of.resources.requests.get(CPU)
    assert amount is not None
    return amount.milli()


def memory(of: Container) -> int:
    amount = of.resources.requests.get(MEMORY)
    assert amount is not None
    return amount.value()


def own_cpus(of: Container) -> int:
    whole, rest = divmod(milli(of), 1000)
    return 0 if rest else whole


class Counted:
    """What the agent has promised, counted once more."""

    def __init__(self, agent: Agent, *, below: bool) -> None:
        self.promises = agent.state.promises
        self.below = below
        self.holding = [entry for entry in agent.state.entries if entry.holds]
        self.owners: dict[int, str] = {}
        self.bytes = 0
        for entry in self.holding:
            self._count(entry)
        table = memory_accounts(self.promises)[0].table("memory")
        assert table is not None
        assert table.reserved == self.bytes

    def _count(self, entry: PodEntry) -> None:
        held = self.promises.of_pod(entry.pod.uid)
        running: Counter[int] = Counter()
        for one in entry.pod.containers:
            own = held.of(CpuHoldings).own_set(one.name) or CpuSet()
            assert len(own) == own_cpus(one), f"{one.name} of {entry.pod.name} has {own}"
            assert (held.of(CpuHoldings).remaining_first_set(one.name) or CpuSet()) <= own
            for cpu in own:
                assert self.owners.setdefault(cpu, entry.pod.uid) == entry.pod.uid, f"two pods have CPU {cpu}"
            blocks = held.of(MemoryHoldings).blocks(one.name) or ()
            self.bytes += sum(block.size_bytes for block in blocks)
            if one.kind is not ContainerKind.INIT:
                running.update(own)
                assert sum(block.size_bytes for block in blocks) == memory(one)
        assert max(running.values(), default=0) <= 1, f"two containers of {entry.pod.name} have one CPU"

    def could_be(self, entry: PodEntry, new: Pod) -> bool:
        """Whether a pod with nothing but apps could have other amounts: others are as they are."""
        pairs = list(zip(entry.pod.containers, new.containers, strict=True))
        held = self.promises.of_pod(entry.pod.uid)
        if any(bool(own_cpus(was)) != bool(own_cpus(now)) for was, now in pairs):
            return False
        if not self.below and any(
            own_cpus(now) < len(held.of(CpuHoldings).remaining_first_set(now.name) or ()) for _, now in pairs
        ):
            return False
        others = [one.pod for one in self.holding if one is not entry]
        if sum(map(_peak_milli, [*others, new])) > 1000 * MOST_CPUS:
            return False
        more = sum(own_cpus(now) - own_cpus(was) for was, now in pairs)
        more_bytes = sum(memory(now) - memory(was) for was, now in pairs)
        return more <= MOST_CPUS - len(self.owners) and more_bytes <= MOST_GIB * GIB - self.bytes


def _peak_milli(of: Pod) -> int:
    """What a pod asks the node for."""
    beside = peak = 0
    for one in of.containers:
        if one.kind is ContainerKind.INIT:
            peak = max(peak, beside + milli(one))
        else:
            beside += milli(one)
    return max(peak, beside)


def judge(agent: Agent, of: Node, wanted: dict[str, Pod], *, below: bool) -> int:
    """Return how many resizes wait or were refused, each of them rightly."""
    counted, refused = Counted(agent, below=below), 0
    node_now = WhatIf.of(of.managers, agent.state.promises, agent.state.holding_pods(), of.allocatable)
    for entry in counted.holding:
        change = entry.refused_change
        if change is None:
            assert entry.deleting_since_ms is not None or entry.pod == wanted[entry.pod.name]
        elif change.refusal.reason in OF_RESIZES:
            refused += 1
            if all(one.kind is ContainerKind.APP for one in entry.pod.containers):
                assert not counted.could_be(entry, change.pod), change.refusal
            if change.refusal.reason == RESIZE_DEFERRED:
                answer = resizing(node_now, entry.pod, change.pod).answer
                assert isinstance(answer, NotResized)
                assert answer.message == change.refusal.message
    return refused


def lives(agent: Agent, chance: Random) -> None:
    """Let an agent settle, which may die once, and its successor."""
    agent.dies_at = agent.effects + chance.randint(0, 25) if chance.random() < 0.3 else None
    try:
        agent.settle()
    except CrashError:
        agent.restart()
        agent.check()
        agent.settle()
    agent.dies_at = None


def let_init_containers_end(machine: Machine, agent: Agent) -> None:
    while ended := [run for run in machine.running() if "/init" in machine.path_of(run)]:
        for run in ended:
            machine.exit(run, 0)
        agent.settle()


def test_amounts_are_exact_and_what_waits_could_not_be() -> None:
    """Ten lives of a node, and with --hypothesis-profile=search two hundred."""
    assert sum(_live(Random(seed)) for seed in share(range(max(10, settings.default.max_examples // 10))))


def _live(chance: Random) -> int:
    """Return how many refusals were judged."""
    below = chance.random() < 0.5
    of = node_of(below=below)
    machine = Machine(of)
    agent, asked, refused = Agent(machine), dict[str, list[Asked]](), 0
    for _ in range(30):
        machine.now_ms += 1000
        for _ in range(chance.choice((1, 1, 2, 3))):
            roll = chance.random()
            if not asked or (roll < 0.25 and len(asked) < 4):
                asked[chance.choice("abcdefgh")] = shape(chance)
            elif roll < 0.35:
                asked.pop(chance.choice(sorted(asked)))
            else:
                name = chance.choice(sorted(asked))
                asked[name] = [resized(one, chance) for one in asked[name]]
        wanted = {name: made(name, asked[name]) for name in sorted(asked, key=lambda _: chance.random())}
        agent.want(*wanted.values())
        lives(agent, chance)
        if chance.random() < 0.6:
            let_init_containers_end(machine, agent)
        refused += judge(agent, of, wanted, below=below)
        agent.restart()
        agent.settle()
        judge(agent, of, wanted, below=below)
    agent.want()
    agent.settle()
    assert agent.state.entries == ()
    assert default_set(agent.state.promises) == CpuSet.parse("0-7")
    return refused
