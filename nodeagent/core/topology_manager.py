"""The topology manager's configuration: policy, scope and options, and whether a merged hint admits. Knows no managers."""

import enum

from msgspec import Struct

from nodeagent.core.config import Placement
from nodeagent.core.cpu_options import parse_boolean
from nodeagent.core.go_text import go_quoted
from nodeagent.core.hint_family import MAX_STEPS, HintFamily, Hints, merge_families
from nodeagent.core.hints import Comparison, Merged, MergeRules, merge
from nodeagent.core.node_search import Steps
from nodeagent.core.refusals import Reason, Refusal, StartRefused
from nodeagent.core.topology import Topology

_CLOSEST = "prefer-closest-numa-nodes"
_OPTIONS = "topologyManagerPolicyOptions"
_MAX_NODES = "max-allowable-numa-nodes"
_MOST_ALLOCATED = "prefer-most-allocated-numa-node"
_DEFAULT_MAX_NODES = 8


class TopologyPolicy(enum.StrEnum):
    NONE = "none"
    BEST_EFFORT = "best-effort"
    RESTRICTED = "restricted"
    SINGLE_NUMA_NODE = "single-numa-node"


class Scope(enum.StrEnum):
    CONTAINER = "container"
    POD = "pod"


class TopologyManager(Struct, frozen=True):
    policy: TopologyPolicy
    scope: Scope
    rules: MergeRules
    prefer_most_allocated: bool = False
    """Between two single nodes, take the one that the managers have given more of already."""

    def merge(self, hints: list[Hints], compare: Comparison) -> Merged:
        lists = [each for each in hints if not isinstance(each, HintFamily)]
        if len(lists) < len(hints):
            if not self.rules.single_node:
                return merge_families(self.rules, hints, Steps(MAX_STEPS))
            lists = [each.single_nodes() if isinstance(each, HintFamily) else each for each in hints]
        return merge(self.rules, lists, compare if self.prefer_most_allocated else None)

    def admits(self, merged: Merged) -> bool:
        return self.policy is TopologyPolicy.BEST_EFFORT or merged.preferred


class _Options(Struct, frozen=True):
    prefer_closest: bool = False
    max_nodes: int = _DEFAULT_MAX_NODES
    prefer_most_allocated: bool = False


def build_topology_manager(topology: Topology, placement: Placement) -> TopologyManager | StartRefused:
    """Judge the configuration of the topology manager; the texts are kubelet's."""
    default_mask = topology.node_ids.bits
    if placement.topology_manager_policy == TopologyPolicy.NONE:
        # Scope and options are not looked at.
        return TopologyManager(TopologyPolicy.NONE, Scope.CONTAINER, MergeRules(default_mask, single_node=False))
    options = _parse_options(placement)
    if isinstance(options, StartRefused):
        return options
    if options.prefer_closest and any(node.distances is None for node in topology.numa):
        return StartRefused("cannot discover NUMA topology: error getting NUMA distances from cadvisor", _OPTIONS)
    if len(topology.numa) > options.max_nodes:
        return StartRefused(f"unsupported on machines with more than {options.max_nodes} NUMA Nodes", _OPTIONS)
    try:
        policy = TopologyPolicy(placement.topology_manager_policy)
    except ValueError:
        return StartRefused(f'unknown policy: "{placement.topology_manager_policy}"', "topologyManagerPolicy")
    try:
        scope = Scope(placement.topology_manager_scope)
    except ValueError:
        return StartRefused(f'unknown scope: "{placement.topology_manager_scope}"', "topologyManagerScope")
    single_node = policy is TopologyPolicy.SINGLE_NUMA_NODE
    distances = None
    if options.prefer_closest:
        ids = [node.id for node in topology.numa]
        distances = {node.id: dict(zip(ids, node.distances or (), strict=False)) for node in topology.numa}
    rules = MergeRules(default_mask, single_node=single_node, distances=distances)
    return TopologyManager(policy, scope, rules, prefer_most_allocated=options.prefer_most_allocated and single_node)


def affinity_refusal(scope: Scope, *, is_managed_pod: bool) -> Refusal:
    """Word the refusal of a merge that admits nothing."""
    if not is_managed_pod:
        return Refusal(Reason.TOPOLOGY_AFFINITY, "Resources cannot be allocated with Topology locality")
    detail = (
        "failed admission under pod-scope topology manager"
        if scope is Scope.POD
        else "failed admission with a container-level topology manager"
    )
    # The words "Pod Scope" stand there in container scope too.
    return Refusal(Reason.TOPOLOGY_AFFINITY, f"Pod Scope pod with pod-level resources {detail}")


def _parse_options(placement: Placement) -> _Options | StartRefused:
    booleans: dict[str, bool] = {}
    max_nodes = _DEFAULT_MAX_NODES
    for option, text in sorted(placement.topology_manager_policy_options):
        if option not in (_CLOSEST, _MAX_NODES, _MOST_ALLOCATED):
            return StartRefused(f"unknown Topology Manager Policy option: {go_quoted(option)}", _OPTIONS)
        if option == _MOST_ALLOCATED and not placement.gate("TopologyManagerPolicyAlphaOptions"):
            return StartRefused(
                f'Topology Manager Policy Alpha-level Options not enabled, but option "{option}" provided', _OPTIONS
            )
        if option == _MAX_NODES:
            number = _parse_max_nodes(text)
            if isinstance(number, StartRefused):
                return number
            max_nodes = number
        else:
            value = parse_boolean(option, text, _OPTIONS)
            if isinstance(value, StartRefused):
                return value
            booleans[option] = value
    return _Options(booleans.get(_CLOSEST, False), max_nodes, booleans.get(_MOST_ALLOCATED, False))


def _parse_max_nodes(text: str) -> int | StartRefused:
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not (digits.isascii() and digits.isdigit()):
        why = f"strconv.Atoi: parsing {go_quoted(text)}: invalid syntax"
    elif len(digits.lstrip("0")) > 19 or not -(2**63) <= int(text) < 2**63:
        why = f"strconv.Atoi: parsing {go_quoted(text)}: value out of range"
    elif int(text) < _DEFAULT_MAX_NODES:
        return StartRefused(
            f'the minimum value of "{_MAX_NODES}" should not be less than {_DEFAULT_MAX_NODES}', _OPTIONS
        )
    else:
        return int(text)
    return StartRefused(f'unable to convert policy option to integer "{_MAX_NODES}": {why}', _OPTIONS)
