"""Search for the devices that each request of a pod's claims may get, by selectors, counts, alternatives and attribute constraints.

A *way* is one combination of alternatives and attribute values in which all requests can get enough devices at once (bipartite matching).
Ways are tried in a fixed order: the alternatives as written, then the values of each constraint in ascending order. This module determines
the permitted devices of a way, and placing.py chooses among them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations, product

from msgspec import Struct

from nodeagent.core.model.claims import ClaimRequest, ClaimSpec, DeviceRequest
from nodeagent.core.resources.claims.inventory import ClaimableDevice, Value
from nodeagent.core.resources.claims.selectors import meets

MOST_TRIED = 4096
"""Maximum number of combinations of alternatives and attribute values that are tried for one pod."""

MOST_ASKED = 500_000
"""Maximum number of selector evaluations for one pod. This many take about ten seconds. On a node with many devices, 32 requests with 8
alternatives and 32 selectors each exceed this limit.
"""
MOST_LOOKS = 20_000_000
"""Budget for one pod: maximum number of times that a device is examined while devices are matched with requests. This many examinations
take about two seconds.
"""
_LOOKS_OF_VALUE = 8
"""Cost of reading an attribute of a device. It counts as this many examinations in the budget."""


class Wish(Struct, frozen=True):
    """One request of one of a pod's claims."""

    claim: str
    """Name of the claim as `namespace/name`."""
    name: str
    """Name by which the pod's containers refer to the claim."""
    spec: ClaimSpec
    request: ClaimRequest


class Allowed(Struct, frozen=True):
    """Devices that a request may get in one way to satisfy the claims, that is, with one combination of alternatives and
    attribute values.
    """

    wish: Wish
    way: DeviceRequest
    devices: tuple[ClaimableDevice, ...]
    count: int
    """Number of devices that the request needs."""

    @property
    def result_name(self) -> str:
        return f"{self.wish.request.name}/{self.way.name}" if self.way.name else self.wish.request.name


class NoWayError(Exception):
    """The pod's claims can't be satisfied, or no way was found within the limits of the search. The text names the claims and the
    reason.
    """


class Looks(Struct):
    """Remaining budget of device examinations for one pod. The search fails when the budget is used up."""

    left: int = MOST_LOOKS

    def take(self, count: int) -> None:
        """Use up a part of the budget.

        Raises:
            NoWayError: the budget is smaller than `count`.
        """
        self.left -= count
        if self.left < 0:
            raise NoWayError(
                "its claims can be met in more ways than are tried, and none of the ways that were tried fits"
            )


Free = Callable[[ClaimableDevice, DeviceRequest], bool]
"""Function that tells whether a request can get a device: the device is free, or has enough free capacity."""


def ways_to_meet(
    wishes: Sequence[Wish], devices: Sequence[ClaimableDevice], is_free: Free, looks: Looks | None = None
) -> Iterator[tuple[Allowed, ...]]:
    """Yield the ways to satisfy the claims. Each way lists the permitted devices of each request.

    Args:
        wishes: the requests.
        devices: all devices of the node.
        is_free: function that tells whether a device can be allocated.
        looks: the remaining budget of the pod. None means the full budget.

    Raises:
        SelectorError: a selector can't be evaluated for a device.
        NoWayError: there is no way, or a limit of the search was exceeded.
    """
    devices_by_way: dict[DeviceRequest, tuple[ClaimableDevice, ...]] = {}
    selector_count = sum(len(way.selectors) for way in {way for wish in wishes for way in wish.request.ways})
    if selector_count * len(devices) > MOST_ASKED:
        limit = MOST_ASKED // len(devices)
        raise NoWayError(
            f"its claims have {selector_count} selectors, more than the limit of {limit} on a node with {len(devices)} devices"
        )
    for wish in wishes:
        for way in wish.request.ways:
            if way not in devices_by_way:
                devices_by_way[way] = tuple(
                    device
                    for device in devices
                    if meets(device, way.selectors) and {key for key, _ in way.capacity} <= dict(device.capacity).keys()
                )
    looks = looks or Looks()
    each_way = [
        [
            Allowed(
                wish,
                way,
                tuple(device for device in devices_by_way[way] if is_free(device, way)),
                max(len(devices_by_way[way]), 1) if way.count is None else way.count,
            )
            for way in wish.request.ways
        ]
        for wish in wishes
    ]
    tried, found = 0, False
    for offered in product(*each_way):
        for groups in _narrow_devices([(each,) for each in offered], _list_constraints(offered), looks):
            tried += 1
            if tried > MOST_TRIED:
                raise NoWayError(f"the first {MOST_TRIED} ways to meet its claims were tried, and none of them fits")
            allowed = None if groups is None else tuple(each for group in groups for each in group)
            if allowed is not None and matching(allowed, looks=looks) is not None:
                found = True
                yield allowed
    if not found:
        raise NoWayError(_explain_no_way(wishes, devices_by_way, is_free))


class _Constraint(Struct, frozen=True):
    """Constraint that the chosen devices must all have the same value of an attribute, or must all have different values. `places` are the
    indices of the requests to which it applies.
    """

    attribute: str
    places: tuple[int, ...]
    is_distinct: bool


_Groups = list[tuple[Allowed, ...]]
"""Permitted devices of each request, by the index of the request. A request has either one group from which all its devices are taken, or a
separate group for each device that it needs.
"""


def _list_constraints(offered: Sequence[Allowed]) -> list[_Constraint]:
    found = []
    for name, spec in {each.wish.name: each.wish.spec for each in offered}.items():
        for constraint in spec.constraints:
            places = tuple(
                place
                for place, each in enumerate(offered)
                if each.wish.name == name and constraint.applies_to(each.wish.request.name, each.way.name)
            )
            if places:
                found.append(_Constraint(constraint.attribute, places, constraint.is_distinct))
    return found


def _narrow_devices(groups: _Groups, constraints: Sequence[_Constraint], looks: Looks) -> Iterator[_Groups | None]:
    """Yield the permitted devices that remain for each combination of attribute values that satisfies the constraints. None marks a
    combination with too few devices.
    """
    if any(len(each.devices) < each.count for group in groups for each in group):
        yield None
        return
    if not constraints:
        yield groups
        return
    constraint, *rest = constraints
    looks.take(_LOOKS_OF_VALUE * sum(len(each.devices) for place in constraint.places for each in groups[place]))
    for narrowed in (_assign_distinct_values if constraint.is_distinct else _match_values)(groups, constraint):
        if narrowed is None:
            yield None
        else:
            yield from _narrow_devices(narrowed, rest, looks)


def _match_values(groups: _Groups, constraint: _Constraint) -> Iterator[_Groups | None]:
    """For each attribute value that occurs in all of the constraint's requests, yield the permitted devices that have this value. None
    means that there is no such value.
    """
    common_values = None
    for place in constraint.places:
        for each in groups[place]:
            values = {value for device in each.devices for value in values_of(device, constraint.attribute)}
            common_values = values if common_values is None else common_values & values
    if not common_values:
        yield None
        return
    for value in sorted(common_values, key=_get_value_order):
        narrowed = list(groups)
        for place in constraint.places:
            narrowed[place] = tuple(
                _replace_devices(
                    each, tuple(d for d in each.devices if value in values_of(d, constraint.attribute)), each.count
                )
                for each in groups[place]
            )
        yield narrowed


def _assign_distinct_values(groups: _Groups, constraint: _Constraint) -> Iterator[_Groups | None]:
    """Yield the permitted devices for each assignment of attribute values in which all needed devices have different values. None marks an
    assignment that can't be completed.
    """
    parts = [(place, each) for place in constraint.places for each in groups[place]]
    for chosen in _list_distinct_assignments(parts, constraint.attribute, frozenset()):
        if chosen is None:
            yield None
            continue
        narrowed = list(groups)
        for place in constraint.places:
            narrowed[place] = tuple(each for other, each in chosen if other == place)
        yield narrowed


def _list_distinct_assignments(
    parts: Sequence[tuple[int, Allowed]], attribute: str, taken: frozenset[tuple[str, Value]]
) -> Iterator[list[tuple[int, Allowed]] | None]:
    """Yield every assignment of distinct attribute values to the needed devices. None marks an assignment that can't be completed, which
    also counts against the limit of tries.
    """
    if not parts:
        yield []
        return
    (place, each), *rest = parts
    devices_by_value: dict[tuple[str, Value], list[ClaimableDevice]] = {}
    for device in each.devices:
        found = device.attribute(attribute)
        value = (type(found).__name__, found) if found is not None else None
        if value is not None and value not in taken:
            devices_by_value.setdefault(value, []).append(device)
    if len(devices_by_value) < each.count:
        yield None
        return
    for values in combinations(sorted(devices_by_value, key=str), each.count):
        own = [(place, _replace_devices(each, tuple(devices_by_value[value]), 1)) for value in values]
        for others in _list_distinct_assignments(rest, attribute, taken | {*values}):
            yield None if others is None else [*own, *others]


def _replace_devices(each: Allowed, devices: tuple[ClaimableDevice, ...], count: int) -> Allowed:
    return Allowed(each.wish, each.way, devices, count)


def values_of(device: ClaimableDevice, attribute: str) -> set[tuple[str, Value]]:
    """Return the values of a device's attribute, each with the name of its type. The type keeps 1, "1" and true apart."""
    value = device.attribute(attribute)
    if value is None:
        return set()
    return {(type(one).__name__, one) for one in (value if isinstance(value, tuple) else (value,))}


def _get_value_order(value: tuple[str, Value]) -> tuple[str, int, str]:
    kind, one = value
    return kind, one if isinstance(one, int) else 0, str(one)


def matching(
    allowed: Sequence[Allowed], taken: frozenset[str] = frozenset(), looks: Looks | None = None
) -> Mapping[str, int] | None:
    """Assign devices to all requests at once. Return the index of the request by device name. None means that there are too few devices.

    Requests for memory are left out, because several requests can share a memory device. The memory manager checks them when it allocates
    the memory.

    Raises:
        NoWayError: the search exceeds the budget of examined devices.
    """
    looks = looks or Looks()
    owner: dict[str, int] = {}
    looks.take(sum(len(each.devices) for each in allowed))
    names = [[one.name for one in each.devices if one.memory is None and one.name not in taken] for each in allowed]
    first_free = [0] * len(names)
    """Index of each request's first candidate that may still be free. Devices before it stay assigned until the end of this search."""

    def give(place: int) -> bool:
        """Assign one more device to the request at index `place`. If all its candidates are assigned, other requests may change to other
        devices.
        """
        moved: dict[int, tuple[int, str]] = {}
        """Planned reassignments. The key is the request that gives up a device. The value is the request that gets the device, and the
        device's name.
        """
        queue = [place]
        for request in queue:
            candidates = names[request]
            while first_free[request] < len(candidates) and candidates[first_free[request]] in owner:
                first_free[request] += 1
            if first_free[request] < len(candidates):
                taker, name = request, candidates[first_free[request]]
                owner[name] = taker
                # along the chain of moves, each request gets the device that the next request gives up
                while taker != place:
                    taker, name = moved[taker]
                    owner[name] = taker
                return True
            looks.take(len(candidates))
            for name in candidates:
                holder = owner[name]
                if holder != place and holder not in moved:
                    moved[holder] = request, name
                    queue.append(holder)
        return False

    for place, each in enumerate(allowed):
        if each.devices and each.devices[0].memory is not None:
            continue
        for _ in range(each.count):
            if not give(place):
                return None
    return owner


def _explain_no_way(
    wishes: Sequence[Wish], meeting: Mapping[DeviceRequest, tuple[ClaimableDevice, ...]], is_free: Free
) -> str:
    for wish in wishes:
        if not any(_has_enough_free(way, meeting[way], is_free) for way in wish.request.ways):
            return f"claim {wish.claim}, request {wish.request.name}: {_describe_shortage(wish.request.ways, meeting, is_free)}"
    for wish in wishes:
        for constraint in wish.spec.constraints:
            about = [
                _describe_values(one.request, constraint.attribute, meeting, is_free)
                for one in wishes
                if one.claim == wish.claim
                and any(constraint.applies_to(one.request.name, w.name) for w in one.request.ways)
            ]
            if about:
                what = f"too few free devices have the same {constraint.attribute}"
                if constraint.is_distinct:
                    what = f"too few free devices have different values of {constraint.attribute}"
                return f"claim {wish.claim}: {what}: {' and '.join(about)}"
    claims = ", ".join(dict.fromkeys(wish.claim for wish in wishes))
    return f"claim {claims}: its requests compete for the same devices, and together need more than are free"


def _describe_values(
    request: ClaimRequest,
    attribute: str,
    meeting: Mapping[DeviceRequest, tuple[ClaimableDevice, ...]],
    is_free: Free,
) -> str:
    way = request.ways[-1]
    free = [device for device in meeting[way] if is_free(device, way)]
    have = sum(1 for device in free if values_of(device, attribute))
    wanted = len(meeting[way]) if way.count is None else way.count
    without = "" if have == len(free) else f", and {len(free) - have} don't have it"
    return f"request {request.name} is for {wanted} of {len(free)}{without}"


def _has_enough_free(way: DeviceRequest, meeting: tuple[ClaimableDevice, ...], is_free: Free) -> bool:
    free = sum(1 for device in meeting if is_free(device, way))
    return 0 < len(meeting) == free if way.count is None else free >= way.count


def _describe_shortage(
    ways: tuple[DeviceRequest, ...], meeting: Mapping[DeviceRequest, tuple[ClaimableDevice, ...]], is_free: Free
) -> str:
    found = []
    for way in ways:
        candidates = meeting[way]
        free = sum(1 for device in candidates if is_free(device, way))
        wanted = f"all {len(candidates)}" if way.count is None else str(way.count)
        one = len(candidates) == 1
        what = "device meets its selectors" if one else "devices meet its selectors"
        has = "".join(f" and {'has' if one else 'have'} {key}" for key, _ in way.capacity)
        name = f"{way.name}: " if way.name else ""
        left = "with room for it" if way.capacity else "free"
        found.append(f"{name}{wanted} wanted, {len(candidates)} {what}{has}, {free} of them {left}")
    return "; ".join(found)
