"""Search for the smallest changes that would admit a refused pod: smaller requests, other settings in the configuration, or the end of
other pods.

Each change is confirmed by a trial decision that admits the pod. views/ contains the texts for users.
"""

from collections.abc import Callable, Iterator

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.admission.managers import Admitted
from nodeagent.core.admission.node_capacity import Insufficient
from nodeagent.core.admission.units import UnitTaken
from nodeagent.core.admission.what_if import WhatIf
from nodeagent.core.explain.pods_to_end import pods_to_end
from nodeagent.core.explain.remedy import Attempts, Remedy, RequestChange
from nodeagent.core.explain.smaller_claims import smaller_claims
from nodeagent.core.explain.smaller_requests import smaller_requests
from nodeagent.core.model.config import Placement
from nodeagent.core.model.idset import NumaSet
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.refusals import StartRefused

_LAXER_POLICIES = ("single-numa-node", "restricted", "best-effort", "none")
BUDGETS = {
    RequestChange.REQUEST: 400,
    RequestChange.CLAIM: 60,
    RequestChange.NODE: 60,
    RequestChange.CORE_CLASS: 4,
    RequestChange.DEVICES: 8,
    RequestChange.CONFIGURATION: 60,
    RequestChange.REMOVAL: 440,
}
"""Maximum number of trial decisions per refusal, by kind of change. Each kind has its own maximum, so that a kind that needs many trials
leaves enough for the others.
"""
MAX_ATTEMPTS = sum(BUDGETS.values())


class Remedies(Struct, frozen=True):
    """Result of a search for changes that would admit a pod."""

    found: tuple[Remedy, ...] = ()
    all_tried: bool = True
    """Whether all changes were tried. If not, there may be other or smaller changes."""


def remedies(what_if: WhatIf, pod: Pod, tried: Callable[[], None] = lambda: None) -> Remedies:
    """Search for changes that admit the pod. Changes of the manifest come first. If several changes of one kind are returned, they are
    equally small.

    Args:
        what_if: the node on which the pod is refused.
        pod: the pod, with defaults filled in.
        tried: function that is called after each trial decision, for instance to show progress.
    """
    kinds = {
        RequestChange.REQUEST: smaller_requests,
        RequestChange.CLAIM: smaller_claims,
        RequestChange.NODE: _try_other_nodes,
        RequestChange.CORE_CLASS: _try_other_classes,
        RequestChange.DEVICES: _try_fewer_near_devices,
        RequestChange.CONFIGURATION: _try_configurations,
        RequestChange.REMOVAL: pods_to_end,
    }
    found: list[Remedy] = []
    all_tried = True
    refusal = what_if.judge(pod)
    assert not isinstance(refusal, Admitted), "an admitted pod needs no change"
    if isinstance(refusal, UnitTaken):
        return _end_unit_holders(what_if, pod, tried)
    for change, search in kinds.items():
        attempts = Attempts(what_if, pod, refusal, tried, BUDGETS[change])
        found += search(attempts)
        all_tried = all_tried and not attempts.cut_short
    return Remedies(tuple(found), all_tried)


def _end_unit_holders(what_if: WhatIf, pod: Pod, tried: Callable[[], None]) -> Remedies:
    """Try to end the pods that pin the same systemd units as the refused pod. In this case, no other change can help."""
    holders = [other for other in (*what_if.pods, *what_if.idle) if what_if.unit_keys(other) & what_if.unit_keys(pod)]
    decision = what_if.without(frozenset(other.uid for other in holders)).judge(pod)
    tried()
    is_enough = isinstance(decision, Admitted)
    names = tuple(sorted(other.full_name for other in holders))
    return Remedies((Remedy(RequestChange.REMOVAL, names),) if is_enough else ())


def _try_other_nodes(attempts: Attempts) -> Iterator[Remedy]:
    """Try to require each other NUMA node instead of the required one, and then no NUMA node."""
    asked = attempts.pod.numa_node
    if asked is None:
        return
    nodes = sorted(attempts.what_if.managers.topology.node_ids - NumaSet.of(asked))
    for node in (*nodes, None):
        if attempts.admits(replace(attempts.pod, numa_node=node)):
            yield Remedy(RequestChange.NODE, (), (), str(asked), "" if node is None else str(node))
            return


def _try_other_classes(attempts: Attempts) -> Iterator[Remedy]:
    """Try to prefer the required class of cores instead, and try to require each other class."""
    asked = attempts.pod.core_class
    if asked is None:
        return
    if attempts.admits(replace(attempts.pod, core_class=None, preferred_core_class=asked)):
        yield Remedy(RequestChange.CORE_CLASS, (), (), asked, "")
    for other in attempts.what_if.managers.topology.core_classes:
        if other != asked and attempts.admits(replace(attempts.pod, core_class=other)):
            yield Remedy(RequestChange.CORE_CLASS, (), (), asked, other)


def _try_fewer_near_devices(attempts: Attempts) -> Iterator[Remedy]:
    """Try to remove one device from the pod's `near` annotations. If no removal of a single device admits the pod, try to remove all
    devices.
    """
    names = attempts.pod.near
    found: list[tuple[str, ...]] = [(name,) for name in names if attempts.admits(_remove_near(attempts.pod, (name,)))]
    if not found and len(names) > 1 and attempts.admits(_remove_near(attempts.pod, names)):
        found = [names]
    yield from (Remedy(RequestChange.DEVICES, each) for each in found)


def _remove_near(pod: Pod, names: tuple[str, ...]) -> Pod:
    kept = (replace(one, near=tuple(name for name in one.near if name not in names)) for one in pod.containers)
    return replace(pod, containers=tuple(kept))


def _try_configurations(attempts: Attempts) -> Iterator[Remedy]:
    placement = attempts.what_if.managers.placement
    tried = False
    for field, before, after, changed in _list_laxer_placements(placement, attempts.pod):
        if field == "topologyManagerPolicy" and tried:
            continue
        other = attempts.what_if.under(changed)
        if not isinstance(other, StartRefused) and attempts.admits(what_if=other):
            tried = tried or field == "topologyManagerPolicy"
            yield Remedy(RequestChange.CONFIGURATION, (field,), (), before, after)
    short = attempts.refusal
    if isinstance(short, Insufficient) and short.resource == "pods" and attempts.what_if.allocatable is not None:
        allocatable, wanted = attempts.what_if.allocatable, short.used + 1
        narrow = [bound for bound in allocatable.bounds if bound[1] * bound[2] < wanted]
        if len(narrow) == 1:  # a remedy is only offered if changing a single field is sufficient
            ((name, most, times),) = narrow
            fewest = -(-wanted // times)
            pods = min((fewest if field == name else value) * each for field, value, each in allocatable.bounds)
            if attempts.admits(what_if=replace(attempts.what_if, allocatable=replace(allocatable, pods=pods))):
                yield Remedy(RequestChange.CONFIGURATION, (name,), (), str(most), str(fewest))


def _list_laxer_placements(placement: Placement, pod: Pod) -> Iterator[tuple[str, str, str, Placement]]:
    """Yield configurations that may admit the pod, the strictest first, as (field, present value, new value, resulting configuration)."""
    policy = placement.topology_manager_policy
    for laxer in _LAXER_POLICIES[_LAXER_POLICIES.index(policy) + 1 :] if policy in _LAXER_POLICIES else ():
        yield "topologyManagerPolicy", policy, laxer, replace(placement, topology_manager_policy=laxer)
    if policy != "none":
        scope = placement.topology_manager_scope
        other = "pod" if scope == "container" else "container"
        yield "topologyManagerScope", scope, other, replace(placement, topology_manager_scope=other)
    if pod.near and policy == "restricted" and not placement.prefer_cpus_numa_node:
        yield "preferCPUsNumaNode", "false", "true", replace(placement, prefer_cpus_numa_node=True)
    options = placement.cpu_manager_policy_options
    for name, value in options:
        left = tuple(item for item in options if item[0] != name)
        yield f"cpuManagerPolicyOptions.{name}", value, "", replace(placement, cpu_manager_policy_options=left)
    if placement.isolated_cpus == "only":
        yield "isolatedCPUs", "only", "prefer", replace(placement, isolated_cpus="prefer")
    if placement.memory_manager_policy == "Static":
        yield (
            "memoryManagerPolicy",
            "Static",
            "None",
            replace(placement, memory_manager_policy="None", reserved_memory=()),
        )
