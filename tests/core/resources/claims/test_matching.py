"""Which devices each request may have: equal to trying every choice of devices one by one."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations
from time import process_time

import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace

from nodeagent.core.model.claims import ClaimRequest, ClaimSpec, DeviceRequest, MatchAttribute
from nodeagent.core.resources.claims.inventory import ClaimableDevice
from nodeagent.core.resources.claims.matching import (
    MOST_TRIED,
    Allowed,
    Looks,
    NoWayError,
    Wish,
    matching,
    ways_to_meet,
)

COLOURS = ("blue", "red", None)


def device(number: int, colour: str | None, size: int) -> ClaimableDevice:
    attributes = (("x/colour", colour), ("x/size", size)) if colour else (("x/size", size),)
    return ClaimableDevice("x", f"d{number}", attributes, address=f"a{number}")


devices_st = st.lists(st.tuples(st.sampled_from(COLOURS), st.integers(0, 2)), max_size=6).map(
    lambda rows: tuple(device(number, *row) for number, row in enumerate(rows))
)
selector_st = st.sampled_from(["true", 'device.attributes["x"].size > 0', 'has(device.attributes["x"].colour)'])
way_st = st.builds(
    DeviceRequest,
    st.just(""),
    st.just("x"),
    selector_st.map(lambda one: (one,)),
    st.one_of(st.none(), st.integers(1, 3)),
)


@st.composite
def specs(draw: st.DrawFn) -> ClaimSpec:
    requests = []
    for number in range(draw(st.integers(1, 3))):
        ways = draw(st.lists(way_st, min_size=1, max_size=2))
        named = ways if len(ways) == 1 else [_named(way, f"w{place}") for place, way in enumerate(ways)]
        requests.append(ClaimRequest(f"r{number}", tuple(named)))
    names = [request.name for request in requests]
    constraints = draw(
        st.lists(
            st.builds(
                MatchAttribute,
                st.sampled_from(["x/colour", "x/size"]),
                st.lists(st.sampled_from(names), unique=True).map(tuple),
                st.booleans(),
            ),
            max_size=2,
        )
    )
    return ClaimSpec(tuple(requests), tuple(constraints))


def _named(way: DeviceRequest, name: str) -> DeviceRequest:
    return DeviceRequest(name, way.device_class, way.selectors, way.count)


def _meets(one: ClaimableDevice, way: DeviceRequest) -> bool:
    size, colour = one.attribute("x/size"), one.attribute("x/colour")
    assert isinstance(size, int)
    return {"true": True, 'device.attributes["x"].size > 0': size > 0}.get(way.selectors[0], colour is not None)


def _choices(
    spec: ClaimSpec, there: Sequence[ClaimableDevice], free: frozenset[str]
) -> Iterator[list[tuple[str, str, ClaimableDevice]]]:
    """Every allocation that there is, device by device: (request, way, device)."""

    def choose(rest: Sequence[ClaimRequest], taken: frozenset[str]) -> Iterator[list[tuple[str, str, ClaimableDevice]]]:
        if not rest:
            yield []
            return
        for way in rest[0].ways:
            meeting = [one for one in there if _meets(one, way)]
            usable = [one for one in meeting if one.name in free and one.name not in taken]
            count = max(len(meeting), 1) if way.count is None else way.count
            for some in combinations(usable, count):
                for others in choose(rest[1:], taken | {one.name for one in some}):
                    yield [*((rest[0].name, way.name, one) for one in some), *others]

    for choice in choose(spec.requests, frozenset()):
        if all(_holds(c, choice) for c in spec.constraints):
            yield choice


def _holds(constraint: MatchAttribute, choice: list[tuple[str, str, ClaimableDevice]]) -> bool:
    about = [one for name, _, one in choice if not constraint.requests or name in constraint.requests]
    values = [one.attribute(constraint.attribute) for one in about]
    return None not in values and (not values or len({*values}) == (len(values) if constraint.is_distinct else 1))


@given(specs(), devices_st, st.data())
def test_there_is_a_way_if_and_only_if_there_is_a_choice(
    spec: ClaimSpec, there: tuple[ClaimableDevice, ...], data: st.DataObject
) -> None:
    taken = (
        frozenset(data.draw(st.lists(st.sampled_from(there), unique_by=lambda one: one.name))) if there else frozenset()
    )
    free = frozenset(one.name for one in there) - {one.name for one in taken}
    wishes = [Wish("default/c", "c", spec, request) for request in spec.requests]
    found, said = [], ""
    try:
        found += ways_to_meet(wishes, there, lambda one, _: one.name in free)
    except NoWayError as err:
        said = str(err)
    assert ("claim default/c" in said) is not bool(found)
    choices = list(_choices(spec, there, free))
    assert bool(found) is bool(choices)
    for allowed in found:
        owners = matching(allowed)
        assert owners is not None
        given_out = sorted(
            (allowed[place].wish.request.name, allowed[place].way.name, name) for name, place in owners.items()
        )
        assert given_out in [sorted((request, way, one.name) for request, way, one in choice) for choice in choices]
    # Whatever a choice has, some way allows: none is left out.
    for choice in choices:
        assert any(_is_within(choice, allowed) for allowed in found)


def _is_within(choice: list[tuple[str, str, ClaimableDevice]], allowed: Sequence[Allowed]) -> bool:
    """Whether its devices can be dealt out to what is allowed, each to one that has it."""
    names = [{one.name for one in each.devices} for each in allowed for _ in range(each.count)]
    asking = [(each.wish.request.name, each.way.name) for each in allowed for _ in range(each.count)]

    def dealt(rest: list[tuple[str, str, ClaimableDevice]], left: frozenset[int]) -> bool:
        if not rest:
            return not left
        (request, way, one), *others = rest
        return any(
            asking[place] == (request, way) and one.name in names[place] and dealt(others, left - {place})
            for place in left
        )

    return dealt(choice, frozenset(range(len(names))))


def test_one_and_the_text_one_and_true_are_three_values() -> None:
    there = (
        ClaimableDevice("x", "a", (("x/id", 1),)),
        ClaimableDevice("x", "b", (("x/id", "1"),)),
        ClaimableDevice("x", "c", (("x/id", True),)),
    )
    spec = ClaimSpec((ClaimRequest("r", (DeviceRequest("", "x", ("true",), 2),)),), (MatchAttribute("x/id"),))
    with pytest.raises(NoWayError, match="too few free devices have the same x/id: request r is for 2 of 3"):
        list(ways_to_meet([Wish("n/c", "c", spec, spec.requests[0])], there, lambda _one, _way: True))
    three = ClaimSpec(
        (ClaimRequest("r", (DeviceRequest("", "x", ("true",), 3),)),), (MatchAttribute("x/id", is_distinct=True),)
    )
    assert list(ways_to_meet([Wish("n/c", "c", three, three.requests[0])], there, lambda _one, _way: True))


def test_several_values_match_by_any_of_them() -> None:
    there = (
        ClaimableDevice("x", "cpu", (("x/root", ("a", "b")),)),
        ClaimableDevice("x", "card", (("x/root", "b"),)),
    )
    request = ClaimRequest("r", (DeviceRequest("", "x", ("true",), 2),))
    spec = ClaimSpec((request,), (MatchAttribute("x/root"),))
    (allowed,) = ways_to_meet([Wish("n/c", "c", spec, request)], there, lambda _one, _way: True)
    assert matching(allowed) is not None


def test_looking_ends() -> None:
    """Twelve constraints over two values each, none of which can be met together."""
    there = tuple(
        ClaimableDevice("x", f"d{number}", tuple((f"x/a{bit}", number >> bit & 1) for bit in range(13)))
        for number in range(64)
    )
    requests = tuple(ClaimRequest(f"r{number}", (DeviceRequest("", "x", ("true",), 33),)) for number in range(13))
    constraints = tuple(MatchAttribute(f"x/a{number}", (f"r{number}",)) for number in range(13))
    spec = ClaimSpec(requests, constraints)
    with pytest.raises(NoWayError):
        list(ways_to_meet([Wish("n/c", "c", spec, each) for each in requests], there, lambda _one, _way: True))
    assert MOST_TRIED < 2**13


def test_alternatives_for_more_than_there_is_are_looked_at_quickly() -> None:
    """Four requests for a quarter of all devices, and one more: 4096 ways, none of which is enough."""
    there = tuple(ClaimableDevice("x", f"d{number}", ()) for number in range(1023))
    ways = tuple(DeviceRequest(f"w{number}", "x", ("true",), 256) for number in range(8))
    wishes = [Wish("n/c", "c", ClaimSpec(()), ClaimRequest(f"r{number}", ways)) for number in range(4)]
    started = process_time()
    with pytest.raises(NoWayError):
        list(ways_to_meet(wishes, there, lambda _one, _way: True))
    spec = ClaimSpec((), (MatchAttribute("x/absent"),))
    with pytest.raises(NoWayError):
        list(ways_to_meet([replace(wish, spec=spec) for wish in wishes], there, lambda _one, _way: True))
    assert process_time() - started < 20


def test_matching_ends() -> None:
    """32 requests for 32 each of 1024 devices: those that come later may have fewer of them."""
    there = tuple(ClaimableDevice("x", f"d{number}", ()) for number in range(1024))
    way = DeviceRequest("", "x", ("true",), 32)
    wish = Wish("n/c", "c", ClaimSpec(()), ClaimRequest("r", (way,)))
    wide = [Allowed(wish, way, there[: 1024 - number], 32) for number in range(32)]
    looks = Looks(1_000_000)
    assert matching(wide, looks=looks) is not None
    left = looks.left
    assert 0 < left < 1_000_000
    looks.left = 1000
    with pytest.raises(NoWayError, match="in more ways than are tried"):
        matching(wide, looks=looks)


def test_looking_ends_where_no_value_is_common() -> None:
    """Eight alternatives of each of 32 requests, which are 8^32 ways, and none of them leaves a value to look at."""
    there = tuple(ClaimableDevice("x", f"d{number}", (("x/id", number),)) for number in range(64))
    ways = tuple(DeviceRequest(f"w{number}", "x", ("true",)) for number in range(8))
    requests = tuple(ClaimRequest(f"r{number}", ways) for number in range(32))
    spec = ClaimSpec(requests, (MatchAttribute("x/absent"),))
    with pytest.raises(NoWayError, match="in more ways than are tried"):
        list(ways_to_meet([Wish("n/c", "c", spec, each) for each in requests], there, lambda _one, _way: True))


def test_looking_for_values_of_their_own_ends() -> None:
    """Two requests for 13 of the same 24 values each: whatever the first has, 11 are left for the second."""
    there = tuple(ClaimableDevice("x", f"d{number}", (("x/id", number % 24),)) for number in range(240))
    requests = tuple(ClaimRequest(f"r{number}", (DeviceRequest("", "x", ("true",), 13),)) for number in range(2))
    spec = ClaimSpec(requests, (MatchAttribute("x/id", is_distinct=True),))
    with pytest.raises(NoWayError, match="ways to meet its claims were tried"):
        list(ways_to_meet([Wish("n/c", "c", spec, each) for each in requests], there, lambda _one, _way: True))


def test_asking_ends() -> None:
    """What one claim may hold at most: 8192 selectors, each another one."""
    there = tuple(ClaimableDevice("x", f"d{number}", (("x/id", number),)) for number in range(64))
    numbers = iter(range(32 * 8 * 32))
    requests = tuple(
        ClaimRequest(
            f"r{place}",
            tuple(DeviceRequest(f"w{way}", "x", tuple(f"{next(numbers)} >= 0" for _ in range(32))) for way in range(8)),
        )
        for place in range(32)
    )
    wishes = [Wish("n/c", "c", ClaimSpec(requests), each) for each in requests]
    with pytest.raises(
        NoWayError, match="its claims have 8192 selectors, more than the limit of 7812 on a node with 64 devices"
    ):
        list(ways_to_meet(wishes, there, lambda _one, _way: True))


def test_what_is_for_nearly_every_cpu_of_a_large_machine_is_matched_at_once() -> None:
    """One request for 1500 of 2048 CPUs, and one for 500 that the first one would take."""
    there = tuple(ClaimableDevice("x", f"d{number}", ()) for number in range(2048))
    few, many = (DeviceRequest("", "x", ("true",), count) for count in (500, 1500))
    wishes = [Wish("n/c", "c", ClaimSpec(()), ClaimRequest("r", (way,))) for way in (many, few)]
    started = process_time()
    owners = matching([Allowed(wishes[0], many, there, 1500), Allowed(wishes[1], few, there[:500], 500)])
    assert process_time() - started < 5, "a walk over all CPUs for each of them, and not for each pair"
    assert owners is not None
    assert Counter(owners.values()) == {0: 1500, 1: 500}
    assert {name for name, place in owners.items() if place == 1} == {one.name for one in there[:500]}
