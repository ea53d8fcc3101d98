"""Answers to the runtime: whatever fails of them, no CPU gets a second owner; and a container begins only where it is alone."""

from typing import Any

import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace

from nodeagent.core.domains.runtime.answers import (
    BlockedContainer,
    Occupant,
    Response,
    WantedPlacement,
    build_response,
    check_start,
)
from nodeagent.core.model.cgroup import Attribute, CpuMax, DesiredCgroup
from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.core.model.nri import Answer, Denial, NriResources, Update

PERIOD_US = 100_000


def cpus(text: str) -> CpuSet:
    return CpuSet.parse(text)


def shared(name: str, has: str, wants: str, **more: Any) -> Occupant:
    return Occupant(name, cpus(has), WantedPlacement(cpus(wants)), name, NriResources(cpus=cpus(has)), **more)


def alone(name: str, has: str, wants: str) -> Occupant:
    return replace(shared(name, has, wants), wanted=WantedPlacement(cpus(wants), exclusive_cpus=cpus(wants)))


def sets(found: Response) -> list[tuple[str, str]]:
    return [(update.container_id, str(update.resources.cpus)) for update in found.answer.updates]


def test_siblings_leave_in_the_answer_that_creates_who_comes() -> None:
    made = WantedPlacement(cpus("2-3"), NumaSet.of(0), CpuMax(None, PERIOD_US), cpus("2-3"))
    asked = NriResources(cpu_shares=2048, cpu_quota_us=200_000, cpu_period_us=PERIOD_US, memory_limit_bytes=2**30)
    found = build_response([shared("b", "0-3", "0-1"), shared("a", "0-3", "0-1")], created=(made, asked))
    assert found == Response(
        Answer(
            NriResources(cpus=cpus("2-3"), mems=NumaSet.of(0), cpu_quota_us=-1, cpu_period_us=PERIOD_US),
            (Update("a", NriResources(cpus=cpus("0-1"))), Update("b", NriResources(cpus=cpus("0-1")))),
        )
    )


def test_nothing_differs_nothing_is_said() -> None:
    wanted = WantedPlacement(cpus("0-1"), NumaSet.of(0), CpuMax(50_000, PERIOD_US))
    has = NriResources(cpus=cpus("0-1"), mems=NumaSet.of(0), cpu_quota_us=50_000, cpu_period_us=PERIOD_US)
    one = Occupant("a", cpus("0-1"), wanted, "a", has)
    assert build_response([one], created=(wanted, has)) == Response(Answer())


def test_all_is_said_of_the_container_that_its_runtime_is_updating() -> None:
    wanted = WantedPlacement(cpus("0-1"), NumaSet.of(0), CpuMax(None, PERIOD_US))
    has = NriResources(cpus=cpus("0-1"), mems=NumaSet.of(0), cpu_period_us=PERIOD_US)
    one = Occupant("a", cpus("0-1"), wanted, "a", has)
    told = NriResources(cpus=cpus("0-1"), mems=NumaSet.of(0), cpu_quota_us=-1, cpu_period_us=PERIOD_US)
    assert build_response([one], updated="a") == Response(Answer(updates=(Update("a", told),)))


def test_who_leaves_is_before_who_comes() -> None:
    found = build_response([shared("a", "0", "0-1"), shared("z", "0-3", "0-1"), shared("m", "0,4", "0-1")])
    assert sets(found) == [("z", "0-1"), ("a", "0-1"), ("m", "0-1")]


def test_nobody_gets_what_another_is_still_to_leave() -> None:
    found = build_response([alone("a", "2-3", "2"), shared("b", "0-1", "0-1,3")])
    assert sets(found) == [("a", "2")]
    assert found.waiting == (BlockedContainer("b", cpus("3"), ("a",)),)
    assert sets(build_response([alone("a", "2", "2"), shared("b", "0-1", "0-1,3")])) == [("b", "0-1,3")]


def test_two_on_each_others_cpus_do_not_wait_for_each_other_for_ever() -> None:
    has = {"a": cpus("2-3"), "b": cpus("4-5"), "c": cpus("6")}
    wants = {"a": cpus("4-5"), "b": cpus("6"), "c": cpus("2-3")}
    pool = cpus("0-1")

    def there() -> list[Occupant]:
        return [alone(name, str(has[name]), str(wants[name])) for name in has]

    assert sets(build_response(there())) == []
    for _ in range(5):
        for name, now in sets(build_response(there(), pool=pool)):
            has[name] = cpus(now)
            others = (has[other] for other in has if other != name)
            assert has[name] <= pool or all(has[name].isdisjoint(other) for other in others)
    assert has == wants


def test_who_has_to_go_goes_to_the_pool_whoever_else_is_still_there() -> None:
    """A unit of systemd's waits in the pool for the container's CPUs, and the container is on what the unit is to get."""
    unit = replace(alone("a unit", "0-1", "2-3"), id="")
    found = build_response([unit, alone("a", "2-3", "0-1,4")], pool=cpus("0-1,5"))
    assert sets(found) == [("a", "4")], "of its own it can have one"
    elsewhere = replace(alone("a unit", "0-1,4", "2-3"), id="")
    found = build_response([elsewhere, alone("a", "2-3", "4")], pool=cpus("0-1"))
    assert sets(found) == [("a", "0-1")], "nobody is alone there"


def test_who_can_come_only_in_part_comes_in_part() -> None:
    found = build_response([alone("a", "2-3", "2"), shared("b", "0", "0-1,3")])
    assert sets(found) == [("a", "2"), ("b", "0-1")]


def test_an_empty_cpuset_is_never_said() -> None:
    found = build_response([shared("a", "0-3", "")])
    assert found == Response(Answer(), (BlockedContainer("a", CpuSet()),))


def test_of_others_nothing_is_asked_but_they_are_waited_for() -> None:
    """A pod of the agent's own domain, and a container that nothing has been decided on."""
    own = replace(shared("own", "2-3", "2"), id="")
    unknown = Occupant("unknown", cpus("4"), None, "unknown")
    found = build_response([own, unknown, shared("b", "0", "0,3-4")])
    assert sets(found) == []
    assert found.waiting == (BlockedContainer("b", cpus("3-4"), ("own", "unknown")),)


@pytest.mark.parametrize(
    ("limit", "has", "said"),
    [
        (CpuMax(None, PERIOD_US), NriResources(), (None, None)),
        (CpuMax(None, PERIOD_US), NriResources(cpu_quota_us=0), (None, None)),
        (CpuMax(None, PERIOD_US), NriResources(cpu_quota_us=-1, cpu_period_us=PERIOD_US), (None, None)),
        (CpuMax(None, PERIOD_US), NriResources(cpu_quota_us=50_000, cpu_period_us=PERIOD_US), (-1, PERIOD_US)),
        (CpuMax(50_000, PERIOD_US), NriResources(), (50_000, PERIOD_US)),
        (CpuMax(50_000, PERIOD_US), NriResources(cpu_quota_us=50_000, cpu_period_us=10_000), (50_000, PERIOD_US)),
        (CpuMax(50_000, PERIOD_US), NriResources(cpu_quota_us=50_000, cpu_period_us=PERIOD_US), (None, None)),
        (None, NriResources(cpu_quota_us=50_000, cpu_period_us=PERIOD_US), (None, None)),
    ],
)
def test_quotas(limit: CpuMax | None, has: NriResources, said: tuple[int | None, int | None]) -> None:
    found = build_response(
        [], created=(WantedPlacement(cpus("0"), cpu_max=limit), replace(has, cpus=cpus("0")))
    ).answer.adjustment
    assert said == ((None, None) if found is None else (found.cpu_quota_us, found.cpu_period_us))


def test_what_a_cgroup_should_hold_is_wanted() -> None:
    attributes = (
        (Attribute.CPUSET_CPUS, cpus("2-3")),
        (Attribute.CPUSET_MEMS, NumaSet.of(1)),
        (Attribute.CPU_MAX, CpuMax(None, PERIOD_US)),
        (Attribute.MEMORY_OOM_GROUP, True),
    )
    cgroup = DesiredCgroup("pod1/a", attributes=attributes, exclusive_cpus=cpus("2-3"))
    wanted = WantedPlacement(cpus("2-3"), NumaSet.of(1), CpuMax(None, PERIOD_US), cpus("2-3"))
    assert WantedPlacement.of(cgroup) == wanted
    assert WantedPlacement.of(replace(cgroup, is_starved=True)).cpus == CpuSet()


# The start

STARTING = Occupant(
    "pod default/db, container server", cpus("2-3"), WantedPlacement(cpus("2-3"), exclusive_cpus=cpus("2-3"))
)


def reason(found: Denial | None) -> str:
    assert found is not None
    return found.reason


def test_a_container_that_is_alone_begins() -> None:
    assert check_start(STARTING, [shared("a", "0-1", "0-1"), shared("ended", "", "0-1")]) is None


def test_a_shared_container_begins_beside_others() -> None:
    assert check_start(shared("a", "0-1", "0-1"), [shared("b", "0-3", "0-1"), alone("c", "2", "2")]) is None


def test_who_has_not_left_is_named() -> None:
    found = reason(check_start(STARTING, [shared("b", "0-3", "0-1"), shared("a", "3", "0"), shared("c", "0", "0")]))
    assert found == (
        "pod default/db, container server would share its exclusive CPUs 2-3 with a (3), b (2-3), which may still run there; "
        "see `nodeagent inspect`; the kubelet tries again"
    )


def test_of_many_that_have_not_left_five_are_named() -> None:
    found = reason(check_start(STARTING, [shared(f"c{n}", "0-3", "0-1") for n in range(9)]))
    assert "c4 (2-3) and 4 more, which may" in found


def test_a_container_of_the_same_pod_that_may_stay_stays() -> None:
    """CPUs of a pod's own pool, and those that an init container hands on, are in what the other should have."""
    assert check_start(STARTING, [shared("of the same pod", "2-3", "2-3")]) is None


def test_a_rival_in_the_way_is_named_though_it_may_stay() -> None:
    old, ended = alone("old", "2-3", "2-3"), alone("ended", "", "2-3")
    assert check_start(STARTING, [old, ended]) is None
    assert "with old (2-3)" in reason(check_start(STARTING, [old, ended], ("old", "ended")))
    assert check_start(STARTING, [ended], ("old", "ended")) is None


def test_an_undecided_container_in_the_way_is_named() -> None:
    assert "with x (2-3)" in reason(check_start(STARTING, [Occupant("x", cpus("0-3"), None)]))


@pytest.mark.parametrize(
    ("starting", "text"),
    [
        (
            replace(STARTING, effective=cpus("0-3")),
            "server may run on CPUs 0-3, but CPUs 2-3 are allocated to it: the runtime did not get the answer",
        ),
        (replace(STARTING, effective=CpuSet()), "server is in no cgroup that can be read, but CPUs 2-3 are allocated"),
        (replace(STARTING, wanted=None), "server was not decided on before it was created: see `nodeagent inspect`"),
        (
            replace(STARTING, wanted=WantedPlacement(CpuSet())),
            "server has no CPU left to run on: see `nodeagent inspect`",
        ),
    ],
)
def test_a_container_that_is_not_where_it_should_be_does_not_begin(starting: Occupant, text: str) -> None:
    assert text in reason(check_start(starting, []))


# Nobody gets a second owner


@st.composite
def changes_of_placement(draw: Any) -> tuple[dict[str, WantedPlacement], dict[str, WantedPlacement]]:
    """Two placements of the same containers: exclusive CPUs are nobody else's, everybody else has the rest."""
    names = draw(st.lists(st.sampled_from("abcdef"), min_size=2, unique=True))
    made = []
    for _ in range(2):
        owners = [draw(st.sampled_from([None, None, *names])) for _ in range(8)]
        pool = CpuSet.from_ids(cpu for cpu, owner in enumerate(owners) if owner is None) or cpus("8")
        own = {name: CpuSet.from_ids(cpu for cpu, owner in enumerate(owners) if owner == name) for name in names}
        made.append({name: WantedPlacement(own[name] or pool, exclusive_cpus=own[name]) for name in names})
    return made[0], made[1]


@given(changes_of_placement(), st.data())
def test_no_change_gives_a_cpu_that_somebody_else_has_alone_or_will(
    placements: tuple[dict[str, WantedPlacement], dict[str, WantedPlacement]], data: st.DataObject
) -> None:
    """Any change may fail; what is asked for next follows from what is seen then."""
    before, after = placements
    there = {name: wanted.cpus for name, wanted in before.items()}
    is_alone = {name: wanted.exclusive_cpus for name, wanted in before.items()}
    for _ in range(2 * len(there)):
        seen = [
            Occupant(n, there[n], after[n], n, NriResources(cpus=there[n]))
            for n in data.draw(st.permutations(sorted(there)))
        ]
        for update in build_response(seen).answer.updates:
            name, now = update.container_id, update.resources.cpus
            assert now, "an empty set is all CPUs"
            if data.draw(st.integers(0, 4)) == 0:
                continue  # it fails, and the runtime only logs it
            gained = now - there[name]
            for other, held in there.items():
                if other != name:
                    to_be_alone = (is_alone[other] - after[other].cpus) | after[name].exclusive_cpus
                    assert gained.isdisjoint(held & to_be_alone)
            there[name] = now


@given(changes_of_placement())
def test_all_is_as_it_should_be_in_the_end_unless_two_wait_for_each_other(
    placements: tuple[dict[str, WantedPlacement], dict[str, WantedPlacement]],
) -> None:
    before, after = placements
    there = {name: wanted.cpus for name, wanted in before.items()}
    while True:
        found = build_response([Occupant(n, there[n], after[n], n, NriResources(cpus=there[n])) for n in there])
        if not found.answer.updates:
            break
        there |= {u.container_id: u.resources.cpus for u in found.answer.updates if u.resources.cpus}
    waiting = {one.id: set(one.others) for one in found.waiting}
    assert {name for name, wanted in after.items() if there[name] != wanted.cpus} == set(waiting)
    assert all(others & set(waiting) for others in waiting.values()), (
        "somebody waits for one that has all it should have"
    )
