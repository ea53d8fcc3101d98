"""The order of cgroup writes: whatever was there before, no prefix of a plan gives an exclusive CPU a second user."""

import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace

from nodeagent.core.cgroups.write_order import EnableControllers, MakeCgroup, RemoveCgroup, SetAttribute, diff
from nodeagent.core.model.cgroup import (
    Attribute,
    ByteLimit,
    CpuMax,
    DesiredCgroup,
    ObservedCgroup,
    cpu_quota,
    cpu_shares,
    cpu_weight,
)
from nodeagent.core.model.cgroup_layout import is_pinned
from nodeagent.core.model.idset import CpuSet

ALL = CpuSet.parse("0-7")
NONE = CpuSet()
CONTROLLERS = frozenset({"cpuset", "cpu", "memory"})


def seen(path: str, cpus: CpuSet, *, populated: bool = True, frozen: bool = False, extra: tuple = ()) -> ObservedCgroup:
    return ObservedCgroup(
        path=path,
        controllers=CONTROLLERS,
        subtree_control=CONTROLLERS,
        attributes=((Attribute.CPUSET_CPUS, cpus), (Attribute.FREEZE, frozen), *extra),
        cpus_effective=cpus or ALL,
        mems_effective=None,
        is_populated=populated,
        is_frozen=frozen,
    )


def leaf(path: str, cpus: CpuSet, *, exclusive: bool = False, pool: CpuSet = NONE) -> DesiredCgroup:
    """A container; `pool`: what it shares beside its own CPUs."""
    everything = cpus | pool
    return DesiredCgroup(
        path,
        attributes=((Attribute.CPUSET_CPUS, everything),) if everything else (),
        exclusive_cpus=cpus if exclusive else NONE,
        is_starved=not everything,
        is_leaf=True,
    )


def replay(there: dict[str, ObservedCgroup], change) -> dict[str, ObservedCgroup]:
    """What the kernel does with one change, as far as CPUs are concerned."""
    match change:
        case MakeCgroup(path):
            return {**there, path: seen(path, CpuSet(), populated=False)}
        case SetAttribute(path, Attribute.CPUSET_CPUS, value):
            assert value, "an empty cpuset would grant the parent's"
            old = there[path]
            others = tuple(item for item in old.attributes if item[0] is not Attribute.CPUSET_CPUS)
            return {
                **there,
                path: replace(old, attributes=((Attribute.CPUSET_CPUS, value), *others), cpus_effective=value),
            }
        case SetAttribute(path, Attribute.FREEZE, value):
            others = tuple(item for item in there[path].attributes if item[0] is not Attribute.FREEZE)
            return {
                **there,
                path: replace(there[path], attributes=((Attribute.FREEZE, value), *others), is_frozen=value),
            }
        case RemoveCgroup(path):
            return {p: s for p, s in there.items() if p != path}
    return there


CPUS = st.integers(0, 255).map(CpuSet)


@st.composite
def situations(draw):
    """Containers that are there with any cpusets, and desired ones whose exclusive sets are disjoint from all others."""
    names = draw(st.lists(st.sampled_from("abcdef"), unique=True, min_size=1))
    free, desired_by_path = ALL, []
    for name in names:
        kind = draw(st.sampled_from(["exclusive", "mixed", "shared", "gone"]))
        if kind in {"exclusive", "mixed"}:
            own = draw(CPUS) & free
            free = free - own
            if own:
                desired_by_path.append((name, own, kind == "mixed"))
        elif kind == "shared":
            desired_by_path.append((name, NONE, True))
    desired = [DesiredCgroup("", CONTROLLERS)] + [
        leaf(n, own, exclusive=bool(own), pool=free if with_pool else NONE) for n, own, with_pool in desired_by_path
    ]
    there = {"": seen("", CpuSet())}
    for name in draw(st.lists(st.sampled_from("abcdef"), unique=True)):
        is_desired = any(n == name for n, *_ in desired_by_path)
        there[name] = seen(name, draw(CPUS), populated=is_desired and draw(st.booleans()), frozen=draw(st.booleans()))
    return there, desired


@given(situations())
def test_no_prefix_gives_a_granted_cpu_a_second_user(situation):
    there, desired = situation
    exclusive = {w.path: w.exclusive_cpus for w in desired if w.is_exclusive}
    granted: set[str] = set()
    for change in diff(desired, there).changes:
        there = replay(there, change)
        if isinstance(change, SetAttribute) and change.grants:
            granted.add(change.path)
        for path in granted:
            for other, state in there.items():
                if other not in {"", path} and state.is_populated and not state.is_frozen:
                    assert state.cpus_effective is not None
                    assert state.cpus_effective.isdisjoint(exclusive[path]), (
                        f"{other} may run on {path}'s CPUs after {change}"
                    )


@st.composite
def units(draw):
    """Units of systemd's, running or not, beside containers: anywhere at first."""
    free, desired, there = ALL, [DesiredCgroup("", CONTROLLERS)], {"": seen("", CpuSet())}
    names = draw(st.lists(st.sampled_from(["a", "b", *(f"units/podu{n}/{n}.service" for n in range(4))]), unique=True))
    owned = {}
    for name in names:
        own = draw(st.one_of(st.just(NONE), CPUS)) & free
        own = own if own != free else NONE
        free = free - own
        owned[name] = own
    for name, own in owned.items():
        wanted = leaf(name, own or free, exclusive=bool(own))
        desired.append(replace(wanted, meanwhile=free) if is_pinned(name) else wanted)
        there[name] = seen(name, draw(CPUS) or ALL, populated=draw(st.booleans()))
    return there, desired


@given(units())
def test_a_unit_has_its_cpus_for_itself_from_the_moment_when_it_has_no_others(situation):
    """It starts whenever somebody wants, and nobody asks the agent then. What leaves others' CPUs may have no more than its own left."""
    there, desired = situation
    wants = {want.path: want for want in desired if is_pinned(want.path) and want.is_exclusive}
    before = {path: there[path].cpus_effective for path in wants}
    left = {}
    for path, want in wants.items():
        left[path] = before[path]
        for other in desired:
            left[path] -= NONE if other is want else other.exclusive_cpus
    for change in diff(desired, there).changes:
        there = replay(there, change)
        for path, want in wants.items():
            if there[path].cpus_effective != want.cpus() or left[path] == want.cpus():
                continue
            for other, state in there.items():
                if other in {"", path} or not (state.is_populated or is_pinned(other)) or state.is_frozen:
                    continue
                assert state.cpus_effective.isdisjoint(want.cpus()), f"{other} may run on {path}'s CPUs after {change}"


@given(units())
def test_units_are_told_what_they_should_have(situation):
    there, desired = situation
    for change in diff(desired, there).changes:
        there = replay(there, change)
    assert diff(desired, there).changes == ()


@given(situations())
def test_a_plan_carried_out_leaves_nothing_to_do(situation):
    there, desired = situation
    for change in diff(desired, there).changes:
        there = replay(there, change)
    assert diff(desired, there).changes == ()


@given(situations())
def test_every_departure_comes_before_the_grant_that_needs_it(situation):
    there, desired = situation
    changes = diff(desired, there).changes
    for i, change in enumerate(changes):
        if isinstance(change, SetAttribute) and change.grants:
            for later in changes[i + 1 :]:
                assert not isinstance(later, SetAttribute) or later.vacates.isdisjoint(change.grants)


def test_shared_containers_leave_before_an_exclusive_one_enters():
    there = {"": seen("", CpuSet()), "shared": seen("shared", ALL)}
    desired = [
        DesiredCgroup("", CONTROLLERS),
        leaf("exclusive", CpuSet.parse("2-3"), exclusive=True),
        leaf("shared", CpuSet.parse("0-1,4-7")),
    ]
    changes = diff(desired, there).changes
    assert [(type(c).__name__, c.path) for c in changes] == [
        ("MakeCgroup", "exclusive"),
        ("SetAttribute", "shared"),
        ("SetAttribute", "exclusive"),
    ]
    assert changes[1].vacates == CpuSet.parse("2-3")
    assert changes[2].grants == CpuSet.parse("2-3")


def test_a_mixed_container_leaves_the_pool_s_cpu_before_its_new_owner_enters_and_keeps_its_own():
    there = {"": seen("", CpuSet()), "mixed": seen("mixed", ALL)}
    desired = [
        DesiredCgroup("", CONTROLLERS),
        leaf("exclusive", CpuSet.parse("4"), exclusive=True),
        leaf("mixed", CpuSet.parse("2-3"), exclusive=True, pool=CpuSet.parse("0-1,5-7")),
    ]
    written = [c for c in diff(desired, there).changes if isinstance(c, SetAttribute)]
    assert [(c.path, c.value, c.vacates, c.grants) for c in written] == [
        ("mixed", CpuSet.parse("0-3,5-7"), CpuSet.parse("4"), NONE),
        ("exclusive", CpuSet.parse("4"), NONE, CpuSet.parse("4")),
    ]


def test_a_mixed_container_leaves_a_cpu_of_the_pool_that_is_offline_too():
    """Otherwise it would be on it as soon as it is back, and by then it may be another's."""
    there = {"": seen("", CpuSet()), "mixed": replace(seen("mixed", ALL), cpus_effective=CpuSet.parse("0-6"))}
    want = leaf("mixed", CpuSet.parse("2-3"), exclusive=True, pool=CpuSet.parse("0-1,4-6"))
    (change,) = diff([DesiredCgroup("", CONTROLLERS), want], there).changes
    assert (change.path, change.value, change.grants) == ("mixed", CpuSet.parse("0-6"), NONE)


def test_a_container_without_any_cpu_left_is_frozen_first_and_thawed_last():
    there = {"": seen("", CpuSet()), "shared": seen("shared", ALL)}
    taken = [DesiredCgroup("", CONTROLLERS), leaf("exclusive", ALL, exclusive=True), leaf("shared", CpuSet())]
    changes = diff(taken, there).changes
    assert [(c.path, c.attribute) for c in changes if isinstance(c, SetAttribute)] == [
        ("shared", Attribute.FREEZE),
        ("exclusive", Attribute.CPUSET_CPUS),
    ]
    for change in changes:
        there = replay(there, change)
    back = [DesiredCgroup("", CONTROLLERS), leaf("shared", CpuSet.parse("4-7"))]
    back_changes = [(c.path, c.attribute) for c in diff(back, there).changes if isinstance(c, SetAttribute)]
    assert back_changes == [("shared", Attribute.CPUSET_CPUS), ("shared", Attribute.FREEZE)]


def test_pods_cgroups_bound_their_containers_once_nothing_is_left_to_be_driven_about():
    there = {
        "": seen("", CpuSet()),
        "poda": seen("poda", CpuSet()),
        "poda/moved": seen("poda/moved", CpuSet.parse("2")),
        "poda/shared": seen("poda/shared", CpuSet.parse("0-1,4-7")),
    }
    want = DesiredCgroup("poda", CONTROLLERS, ((Attribute.CPUSET_CPUS, CpuSet.parse("0-1,3")),))
    desired = [
        DesiredCgroup("", CONTROLLERS),
        want,
        leaf("poda/moved", CpuSet.parse("3"), exclusive=True),
        leaf("poda/shared", CpuSet.parse("0-1")),
    ]
    changes = [c for c in diff(desired, there).changes if isinstance(c, SetAttribute)]
    assert [(c.path, c.attribute) for c in changes] == [
        ("poda/moved", Attribute.FREEZE),
        ("poda", Attribute.CPUSET_CPUS),
        ("poda/shared", Attribute.CPUSET_CPUS),
        ("poda/moved", Attribute.CPUSET_CPUS),
        ("poda/moved", Attribute.FREEZE),
    ]
    assert changes[1].vacates == CpuSet.parse("2,4-7")


POD_A = DesiredCgroup("poda", CONTROLLERS, ((Attribute.CPUSET_CPUS, CpuSet.parse("0-3")),))


def steps(desired, there) -> list[tuple]:
    written = [
        c for c in diff([DesiredCgroup("", CONTROLLERS), *desired], there).changes if isinstance(c, SetAttribute)
    ]
    return [(c.path, str(c.value), str(c.vacates), str(c.grants)) for c in written]


def test_a_container_that_shrinks_names_no_cpu_that_its_pods_cgroup_does_not():
    there = {
        "": seen("", NONE),
        "poda": seen("poda", CpuSet.parse("0-5")),
        "poda/x": seen("poda/x", CpuSet.parse("2-5")),
    }
    shrinks = [POD_A, leaf("poda/x", CpuSet.parse("2-3"), exclusive=True)]
    assert steps(shrinks, there) == [("poda/x", "2-3", "4-5", ""), ("poda", "0-3", "4-5", "")]


def test_names_of_cpus_that_only_its_pods_cgroup_keeps_it_from_are_taken_away():
    there = {
        "": seen("", NONE),
        "poda": seen("poda", CpuSet.parse("0-3")),
        "poda/x": replace(seen("poda/x", CpuSet.parse("2-5")), cpus_effective=CpuSet.parse("2-3")),
    }
    assert steps([POD_A, leaf("poda/x", CpuSet.parse("2-3"), exclusive=True)], there) == [("poda/x", "2-3", "4-5", "")]


def test_who_gets_back_what_it_still_names_waits_for_those_who_are_there():
    there = {
        "": seen("", NONE),
        "poda": seen("poda", CpuSet.parse("0-2")),
        "poda/x": replace(seen("poda/x", CpuSet.parse("2-3")), cpus_effective=CpuSet.parse("2")),
        "s": seen("s", CpuSet.parse("0-1,3-7")),
    }
    desired = [
        POD_A,
        leaf("poda/x", CpuSet.parse("2-3"), exclusive=True),
        leaf("s", CpuSet.parse("0-1,4-7")),
    ]
    assert steps(desired, there) == [
        ("poda/x", "2", "", ""),
        ("poda", "0-3", "", ""),
        ("s", "0-1,4-7", "3", ""),
        ("poda/x", "2-3", "", "2-3"),
    ]


def test_its_own_cpus_that_are_offline_stay_named_and_no_others():
    pod = replace(POD_A, attributes=((Attribute.CPUSET_CPUS, ALL),))
    there = {
        "": seen("", NONE),
        "poda": replace(seen("poda", ALL), cpus_effective=CpuSet.parse("0-3")),
        "poda/x": replace(seen("poda/x", CpuSet.parse("2-3,5-6")), cpus_effective=CpuSet.parse("2-3")),
    }
    want = leaf("poda/x", CpuSet.parse("2-3"), exclusive=True)
    assert steps([pod, replace(want, offline_cpus=CpuSet.parse("5-6"))], there) == []
    assert steps([pod, replace(want, offline_cpus=CpuSet.parse("5"))], there) == [("poda/x", "2-3", "6", "")]


def falling_back(want: DesiredCgroup, text: str) -> DesiredCgroup:
    return replace(want, attributes=(*want.attributes, (Attribute.FALLBACK_CPUS, CpuSet.parse(text))))


def test_processes_may_fall_back_on_less_before_others_come_and_on_more_when_they_have_left():
    def there(path: str, cpus: str, fallback: str) -> ObservedCgroup:
        return seen(path, CpuSet.parse(cpus), extra=((Attribute.FALLBACK_CPUS, CpuSet.parse(fallback)),))

    observed = {"": seen("", NONE), "s": there("s", "0-1,6-7", "0-1,6-7"), "x": there("x", "2-5", "0,2-5")}
    desired = [
        DesiredCgroup("", CONTROLLERS),
        falling_back(leaf("s", CpuSet.parse("0-1,4-5")), "0-1,4-5"),
        falling_back(leaf("x", CpuSet.parse("2-3,6"), exclusive=True), "0,2-3,6"),
    ]
    written = [c for c in diff(desired, observed).changes if isinstance(c, SetAttribute)]
    assert [(c.path, c.attribute, str(c.value), str(c.vacates)) for c in written] == [
        ("x", Attribute.CPUSET_CPUS, "2-3", "4-5"),
        ("x", Attribute.FALLBACK_CPUS, "0,2-3", "4-5"),
        ("s", Attribute.FALLBACK_CPUS, "0-1", "6-7"),
        ("s", Attribute.CPUSET_CPUS, "0-1,4-5", "6-7"),
        ("x", Attribute.CPUSET_CPUS, "2-3,6", ""),
        ("s", Attribute.FALLBACK_CPUS, "0-1,4-5", ""),
        ("x", Attribute.FALLBACK_CPUS, "0,2-3,6", ""),
    ]


def test_processes_without_anything_left_to_fall_back_on_get_it_at_once():
    there = seen("s", CpuSet.parse("0-1"), extra=((Attribute.FALLBACK_CPUS, CpuSet.parse("0-1")),))
    want = falling_back(leaf("s", CpuSet.parse("2-3")), "2-3")
    changes = diff([DesiredCgroup("", CONTROLLERS), want], {"": seen("", NONE), "s": there}).changes
    assert [(c.attribute, c.value) for c in changes] == [
        (Attribute.FALLBACK_CPUS, CpuSet.parse("2-3")),
        (Attribute.CPUSET_CPUS, CpuSet.parse("2-3")),
    ]


def test_processes_of_no_pod_keep_their_cpus_from_being_granted():
    there = {"": seen("", CpuSet()), "podx": seen("podx", ALL), "podx/c": seen("podx/c", CpuSet.parse("5"))}
    plan = diff([DesiredCgroup("", CONTROLLERS)], there)
    assert plan.orphans == ("podx/c",)
    assert plan.occupied == CpuSet.parse("5")
    assert plan.changes == ()


def test_empty_leftovers_go_children_first():
    there = {
        "": seen("", CpuSet()),
        "podx": seen("podx", ALL, populated=False),
        "podx/c": seen("podx/c", ALL, populated=False),
    }
    assert diff([DesiredCgroup("", CONTROLLERS)], there).changes == (RemoveCgroup("podx/c"), RemoveCgroup("podx"))


def test_controllers_are_enabled_from_the_top_down():
    bare = replace(seen("", CpuSet()), subtree_control=frozenset({"cpu"}))
    changes = diff(
        [DesiredCgroup("", CONTROLLERS), DesiredCgroup("podx", CONTROLLERS), leaf("podx/c", ALL)], {"": bare}
    ).changes
    assert changes[:4] == (
        EnableControllers("", ("cpuset", "memory")),
        MakeCgroup("podx"),
        EnableControllers("podx", ("cpu", "cpuset", "memory")),
        MakeCgroup("podx/c"),
    )


@pytest.mark.parametrize(
    ("milli", "weight"),
    [
        (0, 1),
        (1, 1),
        (2, 1),
        (100, 17),
        (500, 59),
        (1000, 100),
        (2000, 174),
        (4000, 303),
        (64_000, 3023),
        (10**9, 10_000),
    ],
)
def test_cpu_weight_follows_the_request(milli, weight):
    assert cpu_weight(cpu_shares(milli)) == weight


def test_cpu_weight_is_monotonic_and_meets_its_bounds():
    weights = [cpu_weight(shares) for shares in range(2, 262_145, 7)]
    assert weights == sorted(weights)
    assert (cpu_weight(2), cpu_weight(1024), cpu_weight(262_144)) == (1, 100, 10_000)


@pytest.mark.parametrize(
    ("milli", "period", "expected"),
    [
        (1500, 100_000, CpuMax(150_000, 100_000)),
        (1, 100_000, CpuMax(1_000, 100_000)),
        (0, 100_000, CpuMax(None, 100_000)),
        (500, 5_000, CpuMax(2_500, 5_000)),
    ],
)
def test_quota_follows_the_limit(milli, period, expected):
    assert cpu_quota(milli, period) == expected


def test_a_limit_is_written_only_when_it_differs():
    limit = (Attribute.MEMORY_MAX, ByteLimit(4096))
    want = DesiredCgroup("c", attributes=((Attribute.CPUSET_CPUS, ALL), limit), is_leaf=True)
    there = {"": seen("", CpuSet()), "c": seen("c", ALL, extra=(limit,))}
    assert diff([DesiredCgroup("", CONTROLLERS), want], there).changes == ()
    raised = replace(want, attributes=((Attribute.CPUSET_CPUS, ALL), (Attribute.MEMORY_MAX, ByteLimit(8192))))
    assert diff([DesiredCgroup("", CONTROLLERS), raised], there).changes == (
        SetAttribute("c", Attribute.MEMORY_MAX, ByteLimit(8192), ByteLimit(4096)),
    )


MIB = 1 << 20
PERIOD = 100_000


def limited(path: str, memory: int | None, quota: int | None, *, is_leaf: bool = True) -> DesiredCgroup:
    """A cgroup with limits: of memory in MiB, of CPU time in ms per period."""
    limit = ByteLimit(None if memory is None else memory * MIB)
    time = CpuMax(None if quota is None else quota * 1000, PERIOD)
    return DesiredCgroup(path, attributes=((Attribute.MEMORY_MAX, limit), (Attribute.CPU_MAX, time)), is_leaf=is_leaf)


def pod_of(*containers: int | None) -> list[DesiredCgroup]:
    """Containers with so much memory, and time, each."""
    known = [amount for amount in containers if amount is not None]
    whole = sum(known) if len(known) == len(containers) else None
    leaves = [limited(f"poda/{n}", amount, amount) for n, amount in enumerate(containers)]
    return [limited("poda", whole, whole, is_leaf=False), *leaves]


AMOUNTS = st.integers(1, 9) | st.none()


@given(st.lists(st.tuples(AMOUNTS, AMOUNTS), min_size=1, max_size=3))
def test_a_pods_limit_is_never_below_those_of_its_containers(amounts):
    before, after = (pod_of(*each) for each in zip(*amounts, strict=True))
    there = {"": seen("", CpuSet())} | {want.path: seen(want.path, ALL, extra=want.attributes) for want in before}
    held = {(want.path, attribute): value for want in before for attribute, value in want.attributes}
    for change in diff([DesiredCgroup("", CONTROLLERS), *after], there).changes:
        assert change.before != change.value
        held[change.path, change.attribute] = change.value
        sums = {}
        for attribute, of in ((Attribute.MEMORY_MAX, "limit_bytes"), (Attribute.CPU_MAX, "quota_us")):
            limits = {path: getattr(value, of) for (path, what), value in held.items() if what is attribute}
            sums[attribute] = limits.pop("poda"), list(limits.values())
        for whole, parts in sums.values():
            assert whole is None or (None not in parts and whole >= sum(parts)), f"after {change}"
    assert held == {(want.path, attribute): value for want in after for attribute, value in want.attributes}
