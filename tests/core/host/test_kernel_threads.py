"""Kernel threads leave exclusive CPUs and are as before in the end, whatever the kernel does with them by itself (D28).

Its rules are those of 6.12, each seen on it: where CPUs go and come, and partitions begin and end.
"""

from collections.abc import Mapping

import pytest
from hypothesis import example, given, strategies as st

from nodeagent.core.host.settings import Change, Cpus, Facts, HostPlan, Record, Setting, SettingKind, plan_settings
from nodeagent.core.model.idset import CpuMask, CpuSet

ALL = CpuSet.parse("0-7")
NODES = (CpuSet.parse("0-3"), CpuSet.parse("4-7"))
NOBODY = CpuSet()
IRQ = "irq/9-acpi"


def cpus(text: str) -> CpuSet:
    return CpuSet.parse(text)


class Thread:
    """What the kernel keeps of one.

    Args:
        allowed: where it may run.
        node: that it works for. None: for no one.
    """

    def __init__(self, allowed: CpuSet, node: CpuSet | None = None) -> None:
        self.allowed, self.node = allowed, node
        self.asked: CpuSet | None = None
        """What somebody has written, while the kernel remembers that."""
        self.is_to_follow = True
        """It goes to its interrupt's CPU when that comes."""


class Kernel:
    """Two nodes of four CPUs.

    Args:
        threads: by name.
        has_partitions: otherwise what is written is not remembered either (before 6.2), and CPUs that are offline are left out of it.
    """

    def __init__(self, threads: Mapping[str, Thread], *, has_partitions: bool = True) -> None:
        self.threads = dict(threads)
        self.has_partitions = has_partitions
        self.offline = self.partition = NOBODY
        self.comes_to = cpus("2")
        """CPU of the interrupt that the thread `irq` handles."""

    @property
    def online(self) -> CpuSet:
        return ALL - self.offline

    @property
    def hidden(self) -> CpuSet:
        return self.offline | self.partition

    def shown(self, name: str) -> CpuSet:
        return self.threads[name].allowed - self.offline

    def written(self, name: str, value: CpuSet) -> bool:
        """sched_setaffinity: whether the kernel takes it."""
        thread, left = self.threads[name], value - self.partition
        if not left & self.online:
            return False
        if self.has_partitions:
            thread.allowed, thread.asked = left, value
        else:
            thread.allowed, thread.asked = left & self.online, None
        return True

    def _gives(self, thread: Thread, value: CpuSet) -> None:
        """set_cpus_allowed_ptr: what was asked for counts if anything is left of it, and nothing is done if that is offline."""
        given = value & thread.asked if thread.asked is not None and value & thread.asked else value
        if given & self.online:
            thread.allowed = given

    def parts(self, partition: CpuSet) -> None:
        """A partition begins, changes or ends: the same for all others."""
        self.partition = partition
        for thread in self.threads.values():
            self._gives(thread, ALL - partition)

    def plug(self, cpu: int, *, is_online: bool) -> None:
        """When one comes, threads that work for a node get the node's."""
        self.offline = self.offline - CpuSet.of(cpu) if is_online else self.offline | CpuSet.of(cpu)
        for thread in self.threads.values() if is_online else ():
            if thread.node is not None and thread.node & self.online:
                self._gives(thread, thread.node & self.online)

    def wakes(self, name: str) -> bool:
        """The thread is to run: without an online CPU it may run anywhere from now on, and what was asked for is forgotten."""
        thread = self.threads[name]
        is_lost = not self.shown(name)
        if is_lost:
            thread.allowed, thread.asked = ALL, None
        return is_lost

    def moves(self, cpu: int) -> None:
        """Somebody moves the interrupt."""
        if cpu in self.online:
            self.comes_to, self.threads[IRQ].is_to_follow = CpuSet.of(cpu), True

    def interrupts(self) -> None:
        """It comes, and its thread follows if it was moved, or comes for the first time."""
        thread = self.threads[IRQ]
        if thread.is_to_follow:
            self._gives(thread, self.comes_to)
        thread.is_to_follow = False


class Node:
    """The kernel, and the agent's looks at it."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.wanted = {name: thread.allowed for name, thread in kernel.threads.items()}
        """What each is to be in the end."""
        self.record: Record = {}
        self.alone = NOBODY
        self._was_hidden = NOBODY
        self.begin_in_between: tuple = ()
        """What happens between the look at the machine's CPUs and that at the threads."""

    def keep(self, alone: CpuSet, *, dies_after: int | None = None, unpartitioned: CpuSet = NOBODY) -> HostPlan:
        """A turn. A new process of the agent follows where this one dies."""
        kernel = self.kernel
        self.alone, closed = alone, alone - unpartitioned if kernel.has_partitions else NOBODY
        seen = kernel.hidden
        self.happens(*self.begin_in_between)
        shown = {Setting(SettingKind.THREAD, name): thread.allowed for name, thread in kernel.threads.items()}
        planned = plan_settings(
            self.record,
            shown,
            to_avoid={SettingKind.THREAD: alone} if alone else {},
            cpus=Cpus(
                ALL, kernel.online - alone, kernel.hidden, kernel.offline, closed, seen | self._was_hidden, NODES
            ),
            facts={
                Setting(SettingKind.THREAD, IRQ): Facts(
                    interrupt=Setting(SettingKind.IRQ, "9"), follows=kernel.comes_to
                )
            },
        )
        self._was_hidden = kernel.hidden | closed
        self.record = planned.record
        failed = set()
        for count, (thread, value) in enumerate(planned.writes.items()):
            if count == dies_after:
                self._was_hidden = NOBODY
                return planned
            if not kernel.written(thread.name, value):
                failed.add(thread)
        self.record = planned.after(failed)
        if kernel.partition != closed and kernel.online - closed:
            kernel.parts(closed)
        return planned

    def happens(self, *steps: tuple) -> None:
        for step in steps:
            match step:
                case "offline", cpu if self.kernel.online - CpuSet.of(cpu) - self.kernel.partition:
                    self.kernel.plug(cpu, is_online=False)
                case "online", cpu:
                    self.kernel.plug(cpu, is_online=True)
                case "wakes", name:
                    is_lost = self.kernel.wakes(name)
                    if (
                        is_lost and not self.record and self.kernel.threads[name].node is None
                    ):  # as it would be without an agent
                        self.wanted[name] = ALL
                case "moves", cpu:
                    self.kernel.moves(cpu)
                case "interrupts", _:
                    self.kernel.interrupts()
                case "ends", _ if self.kernel.has_partitions:
                    self.kernel.parts(NOBODY)
                case "comes", name:
                    self.kernel.threads.setdefault(name, Thread(ALL))
                    self.wanted[name] = ALL

    def rest(self) -> None:
        """All pods go, all CPUs are there."""
        for cpu in sorted(self.kernel.offline):
            self.kernel.plug(cpu, is_online=True)
        for _ in range(3):
            assert not self.keep(NOBODY).changed_by_others

    def now(self) -> dict[str, str]:
        return {name: str(thread.allowed) for name, thread in self.kernel.threads.items()}


def node_with(**allowed: str) -> Node:
    return Node(Kernel({name: Thread(cpus(text)) for name, text in allowed.items()}))


def test_while_a_partition_is_there_they_are_off_it_and_afterwards_where_they_were() -> None:
    node = node_with(rcu="0-7", kswapd0="0-3", kswapd1="4-7", own="6")
    before = node.now()
    node.keep(cpus("5-7"))
    assert node.now() == {"rcu": "0-4", "kswapd0": "0-3", "kswapd1": "4", "own": "0-4"}
    assert not node.keep(cpus("5-7")).writes
    node.keep(cpus("4-7"))
    assert node.now() == {"rcu": "0-3", "kswapd0": "0-3", "kswapd1": "0-3", "own": "0-3"}
    node.kernel.parts(NOBODY)
    assert node.now() == before, "the kernel does that, be the agent there or not"
    node.rest()
    assert (node.now(), node.record) == (before, {})
    assert not node.keep(NOBODY).writes


def test_what_is_offline_while_it_is_written_is_given_back_when_it_has_come() -> None:
    node = node_with(free="0-7", reclaims="4-7")
    node.kernel.has_partitions = False
    node.keep(cpus("1"))
    node.happens(("offline", 6))
    node.keep(cpus("1-2"))
    assert node.now() == {"free": "0,3-5,7", "reclaims": "4-7"}
    node.happens(("online", 6))
    other = Node(node.kernel)
    other.wanted, other.record = node.wanted, node.record
    assert not other.keep(cpus("1-2")).changed_by_others, "another process of the agent doesn't know which were offline"
    assert node.now()["free"] == "0,3-7"
    other.happens(("offline", 6))
    other.keep(NOBODY)
    assert not other.keep(NOBODY).writes, "there is no more to be had"
    assert other.record, "it has yet to get one back"
    other.rest()
    assert other.now() == {"free": "0-7", "reclaims": "4-7"}


def test_one_that_may_run_anywhere_need_not_be_written() -> None:
    node = node_with(rcu="0-7")
    assert not node.keep(cpus("3")).writes
    assert not node.keep(cpus("2-3")).writes


def test_what_is_in_no_partition_they_are_driven_off() -> None:
    node = node_with(rcu="0-7", kswapd1="4-7", own="6")
    before = node.now()
    node.keep(cpus("5-7"), unpartitioned=cpus("5-7"))
    assert node.now() == {"rcu": "0-4", "kswapd1": "4", "own": "0-4"}
    node.rest()
    assert (node.now(), node.record) == (before, {})


def test_one_that_comes_later_comes_to_all_cpus_and_is_driven_off() -> None:
    node = node_with(rcu="0-7")
    node.keep(cpus("3"))
    node.happens(("comes", "new"))
    node.keep(cpus("3"))
    assert node.now() == {"rcu": "0-2,4-7", "new": "0-2,4-7"}
    node.rest()
    assert node.now() == {"rcu": "0-7", "new": "0-7"}


def test_they_are_left_alone_where_no_cpu_is_to_be() -> None:
    rcu = Setting(SettingKind.THREAD, "rcu")
    there = Cpus(ALL, ALL, hidden=cpus("3"), offline=cpus("3"))
    assert not plan_settings({}, {rcu: cpus("0-2")}, to_avoid={}, cpus=there).writes


@pytest.mark.parametrize("theirs", ["0", "1,4"])
def test_what_others_give_one_is_theirs(theirs: str) -> None:
    node = node_with(rcu="0-7")
    node.keep(cpus("3"))
    node.kernel.written("rcu", cpus(theirs))
    assert node.keep(cpus("3")).changed_by_others == {Setting(SettingKind.THREAD, "rcu"): cpus(theirs)}
    node.rest()
    assert (node.now(), node.record) == ({"rcu": theirs}, {})


@pytest.mark.parametrize("has_partitions", [True, False])
def test_what_a_crash_leaves_is_nobody_elses(has_partitions: bool) -> None:
    kernel = Kernel({"kswapd1": Thread(NODES[1])}, has_partitions=has_partitions)
    node = Node(kernel)
    for alone in ("5", "7", "4-7", "7"):
        assert not node.keep(cpus(alone), dies_after=0).changed_by_others
    node.keep(cpus("7"))
    for _ in range(2):
        assert not node.keep(NOBODY, dies_after=0).changed_by_others
    node.rest()
    assert (node.now(), node.record) == ({"kswapd1": "4-7"}, {})


@pytest.mark.parametrize("interrupt_moves", [True, False])
def test_one_that_handles_an_interrupt_follows_it(*, interrupt_moves: bool) -> None:
    node = node_with(**{IRQ: "0-7"})
    kernel = node.kernel
    kernel.interrupts()
    assert node.now() == {IRQ: "2"}
    node.keep(cpus("2"))
    assert node.now() == {IRQ: "0-1,3-7"}
    if interrupt_moves:
        kernel.moves(5)
        node.keep(cpus("2"))
        assert node.now() == {IRQ: "5"}
        kernel.interrupts()
    assert not node.keep(cpus("2")).writes
    node.rest()
    assert (node.now(), node.record) == ({IRQ: "5" if interrupt_moves else "2"}, {})


def test_one_whose_interrupt_has_never_come_may_run_anywhere_again() -> None:
    node = node_with(**{IRQ: "0-7"})
    node.keep(cpus("2"))
    node.kernel.moves(5)
    node.keep(cpus("2"))
    node.rest()
    assert (node.now(), node.record) == ({IRQ: "0-7"}, {})


def test_one_whose_interrupt_a_container_has_claimed_follows_it_there() -> None:
    thread, irq = Setting(SettingKind.THREAD, IRQ), Setting(SettingKind.IRQ, "9")
    planned = plan_settings(
        {thread: Change(NOBODY, (cpus("2"),))},
        {thread: cpus("5")},
        to_avoid={SettingKind.THREAD: cpus("5")},
        cpus=Cpus(ALL, ALL - cpus("5"), nodes=NODES),
        requested={irq: cpus("5")},
        facts={thread: Facts(interrupt=irq, follows=cpus("5"))},
    )
    assert planned.writes == {thread: cpus("5")}
    assert not planned.changed_by_others


def threads(own: CpuSet) -> dict[str, Thread]:
    """One of each sort: anywhere, of a node and moved when CPUs come, of a node, where somebody wants it, and an interrupt's."""
    return {
        "rcu": Thread(ALL),
        "kcompactd1": Thread(NODES[1], NODES[1]),
        "kswapd1": Thread(NODES[1]),
        "own": Thread(own),
        IRQ: Thread(ALL),
    }


NAMES = ("rcu", "kcompactd1", "kswapd1", "own", IRQ)
SETS = st.integers(0, 254).map(lambda bits: CpuSet(CpuMask(bits)))
EVENTS = st.one_of(
    st.tuples(st.just("offline"), st.integers(1, 7)),
    st.tuples(st.just("online"), st.integers(1, 7)),
    st.tuples(st.just("wakes"), st.sampled_from(NAMES)),
    st.tuples(st.just("ends"), st.none()),
    st.tuples(st.just("moves"), st.integers(0, 7)),
    st.tuples(st.just("interrupts"), st.none()),
    st.tuples(st.just("comes"), st.just("new")),
)
TURNS = st.tuples(
    st.just("keep"),
    st.fixed_dictionaries(
        {"alone": SETS, "unpartitioned": SETS | st.just(NOBODY), "dies_after": st.none() | st.integers(0, 3)}
    ),
    st.lists(EVENTS, max_size=2),
)


@example(
    own=cpus("0"),
    has_partitions=False,
    steps=[
        ("interrupts", None),
        ("keep", {"alone": NOBODY, "unpartitioned": NOBODY, "dies_after": None}, []),
        ("moves", 0),
    ],
)
@given(
    st.integers(1, 255).map(lambda bits: CpuSet(CpuMask(bits))), st.booleans(), st.lists(EVENTS | TURNS, max_size=12)
)
@example(
    NODES[1],
    True,
    [  # seen in a guest: it has forgotten what was written for it, and has its node's CPUs again when one looks
        ("keep", {"alone": cpus("5-7"), "unpartitioned": NOBODY, "dies_after": None}, []),
        ("offline", 4),
        ("wakes", "kcompactd1"),
        ("online", 4),
        ("keep", {"alone": cpus("1,5-7"), "unpartitioned": NOBODY, "dies_after": None}, []),
    ],
)
def test_in_the_end_each_may_run_where_it_could(own: CpuSet, has_partitions: bool, steps: list[tuple]) -> None:
    kernel = Kernel(threads(own), has_partitions=has_partitions)
    node = Node(kernel)
    node.keep(cpus("1"))
    for step in steps:
        match step:
            case "keep", how, between:
                node.begin_in_between = tuple(between)
                node.keep(**how)
                node.begin_in_between = ()
                if kernel.online - node.alone:
                    for _ in range(2):  # one that has a partition end, and the next
                        node.keep(node.alone, unpartitioned=how["unpartitioned"])
                    assert all(not kernel.shown(name) & node.alone for name in kernel.threads)
                    again = node.keep(node.alone, unpartitioned=how["unpartitioned"])
                    assert not again.writes
                    assert again.record == node.record
            case _:
                node.happens(step)
    node.rest()
    # of an interrupt that came for the first time before a partition changed nothing tells; one that was moved takes its thread along
    # when it comes, wherever that is
    follower, wanted = kernel.threads.pop(IRQ), node.wanted.pop(IRQ)
    assert follower.is_to_follow or follower.allowed in {wanted, kernel.comes_to}
    assert node.now() == {name: str(allowed) for name, allowed in node.wanted.items()}
    assert node.record == {}
