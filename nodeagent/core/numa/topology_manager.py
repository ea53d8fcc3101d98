"""The topology manager: its policy, scope and options from the configuration, and the decision whether a pod is admitted with its merged
hint.
"""

import enum
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.model.config import Placement
from nodeagent.core.model.go_text import quote_as_go
from nodeagent.core.model.policy_options import parse_boolean
from nodeagent.core.model.refusals import Reason, Refusal, StartRefused
from nodeagent.core.model.topology import Topology
from nodeagent.core.numa.hint_family import (
    MAX_STEPS,
    HintFamily,
    Hints,
    is_fine_with,
    merge_families,
    preferred_nodes,
)
from nodeagent.core.numa.hint_table import MAX_TABLED_NODES
from nodeagent.core.numa.hints import Comparison, Merged, MergeRules, SetRank, fitness, merge
from nodeagent.core.numa.node_search import Steps

_CLOSEST = "prefer-closest-numa-nodes"
_OPTIONS = "topologyManagerPolicyOptions"
_MAX_NODES = "max-allowable-numa-nodes"
_MOST_ALLOCATED = "prefer-most-allocated-numa-node"
_STRATEGY = "numa-allocation-strategy"
_WEIGHTS = "numa-score-weights"
_ALPHA_GATE = "TopologyManagerPolicyAlphaOptions"
OPTIONS = (_CLOSEST, _MAX_NODES, _STRATEGY, _WEIGHTS, _MOST_ALLOCATED)
_ALPHA_OPTIONS = (_STRATEGY, _WEIGHTS, _MOST_ALLOCATED)
_DEFAULT_MAX_NODES = 8
_MAX_WEIGHT = 100


class TopologyPolicy(enum.StrEnum):
    NONE = "none"
    BEST_EFFORT = "best-effort"
    RESTRICTED = "restricted"
    SINGLE_NUMA_NODE = "single-numa-node"


class Scope(enum.StrEnum):
    CONTAINER = "container"
    POD = "pod"


class Strategy(enum.StrEnum):
    """Values of `numa-allocation-strategy`, except for `none`."""

    LEAST_ALLOCATED = "least-allocated"
    MOST_ALLOCATED = "most-allocated"


class TopologyManager(Struct, frozen=True):
    policy: TopologyPolicy
    scope: Scope
    rules: MergeRules
    prefer_most_allocated: bool = False
    """Whether the node with the larger allocated share is chosen if there are several single nodes to choose from
    (`prefer-most-allocated-numa-node`).
    """
    strategy: Strategy | None = None
    """Strategy that chooses, by scores, among sets of nodes that are otherwise equally good. None means that the set with the lower node
    IDs is chosen.
    """
    score_weights: tuple[tuple[str, int], ...] = ()
    """Weights of scores, by the resource name of a list of hints. A list that isn't named here has the weight 1."""
    prefer_cpus_node: bool = False
    """Whether the CPUs' preferred NUMA node wins if no node is preferred by CPUs, devices and all other resources together
    (`preferCPUsNumaNode`).
    """
    same_nodes: bool = False
    """Whether the merged hint may be replaced by a set of nodes on each of which both CPUs and memory can be allocated
    (`sameNumaNodes`).
    """
    spread_pages: bool = False
    """Whether a container with huge pages gets its memory spread over NUMA nodes in proportion to its CPUs (`spreadHugePages`)."""

    @property
    def is_strict(self) -> bool:
        """Return whether running containers must stay on the NUMA nodes of their hints."""
        return self.policy in {TopologyPolicy.RESTRICTED, TopologyPolicy.SINGLE_NUMA_NODE}

    @property
    def stays(self) -> str:
        """Return the end of an error message, which explains why a running container can't leave its NUMA nodes."""
        return (
            f": a running pod can't leave its NUMA nodes (topologyManagerPolicy {self.policy.value}); "
            "to let the topology manager choose again, end the pod and start it again"
        )

    def merge(self, hints: Sequence[Hints], compare: Comparison, rank_set: SetRank | None = None) -> Merged:
        """Merge hints by the policy and its options.

        Args:
            hints: the hints of each resource, as a list or as a `HintFamily`.
            compare: function that returns which of two single nodes the resources prefer.
            rank_set: function that ranks otherwise equally good sets of nodes by the allocation strategy. On machines with too many nodes
                for lists of all sets, it only ranks single nodes.
        """
        lists = [each for each in hints if not isinstance(each, HintFamily)]
        if len(lists) < len(hints):
            every = self.rules.default_mask
            if self.rules.single_node:
                lists = [each.single_nodes() if isinstance(each, HintFamily) else each for each in hints]
            elif every.bit_count() <= MAX_TABLED_NODES:
                nodes = tuple(node for node in range(every.bit_length()) if every >> node & 1)
                lists = [each.list_hints(nodes) if isinstance(each, HintFamily) else each for each in hints]
            else:
                if rank_set is not None:
                    single = replace(self.rules, single_node=True)
                    lists = [each.single_nodes() if isinstance(each, HintFamily) else each for each in hints]
                    merged = merge(single, lists, rank_set=rank_set)
                    if merged.preferred and merged.mask is not None:
                        return merged
                return merge_families(self.rules, hints, Steps(MAX_STEPS))
        return merge(self.rules, lists, compare if self.prefer_most_allocated else None, rank_set)

    def despite_devices(
        self, devices: Sequence[Hints], cpus: Hints, rest: Sequence[Hints], rank_set: SetRank | None = None
    ) -> Merged | None:
        """Return a hint to use instead of a merged hint that isn't preferred, because the devices don't agree with the CPUs
        (`preferCPUsNumaNode`). None means that there is no such hint.

        The hint is a single node that the CPUs prefer, and that all resources except devices prefer or accept. Of several such nodes, the
        node near most devices is chosen. Of equally good nodes, the one that a merge would choose is chosen.

        Args:
            devices: the hints of each device.
            cpus: the CPU manager's hints.
            rest: all other hints.
            rank_set: function that ranks equally good nodes by the allocation strategy.
        """
        if not self.prefer_cpus_node:
            return None
        candidates = [
            mask
            for mask in preferred_nodes(cpus)
            if mask & self.rules.default_mask and all(is_fine_with(each, mask) for each in rest)
        ]
        fit = fitness(self.rules, rank_set)
        best = min(
            candidates, key=lambda mask: (-sum(is_fine_with(each, mask) for each in devices), fit(mask)), default=None
        )
        return None if best is None else Merged(best, preferred=True)

    def admits(self, merged: Merged) -> bool:
        return self.policy is TopologyPolicy.BEST_EFFORT or merged.preferred


class _Options(Struct, frozen=True):
    prefer_closest: bool = False
    max_nodes: int | None = _DEFAULT_MAX_NODES
    """Value of `max-allowable-numa-nodes`. None means that the configured text is not a valid number."""
    prefer_most_allocated: bool = False
    strategy: Strategy | None = None
    score_weights: tuple[tuple[str, int], ...] = ()


def build_topology_manager(topology: Topology, placement: Placement) -> TopologyManager | tuple[StartRefused, ...]:
    """Build the topology manager from the configuration. If the configuration is invalid or doesn't suit the machine, return the errors,
    worded as by kubelet.
    """
    default_mask = topology.node_ids.bits
    if placement.topology_manager_policy == TopologyPolicy.NONE:
        # Under policy none, scope and options are ignored.
        rules = MergeRules(default_mask, single_node=False)
        return TopologyManager(TopologyPolicy.NONE, Scope.CONTAINER, rules, spread_pages=placement.spread_huge_pages)
    options, wrong = judge_topology_options(placement)
    refused = list(wrong)
    if options.prefer_closest and any(node.distances is None for node in topology.numa):
        refused.append(
            StartRefused(
                "cannot discover NUMA topology: error getting NUMA distances from cadvisor", _OPTIONS, entry=_CLOSEST
            )
        )
    if options.max_nodes is not None and len(topology.numa) > options.max_nodes:
        refused.append(
            StartRefused(
                f"unsupported on machines with more than {options.max_nodes} NUMA Nodes",
                _OPTIONS,
                entry=_MAX_NODES,
                rests_on=("topologyManagerPolicy",),
                allowed=f"{_MAX_NODES} must be at least {len(topology.numa)} here",
            )
        )
    refused += judge_policy_and_scope(placement)
    if refused:
        return tuple(refused)
    policy, scope = TopologyPolicy(placement.topology_manager_policy), Scope(placement.topology_manager_scope)
    single_node = policy is TopologyPolicy.SINGLE_NUMA_NODE
    distances = None
    if options.prefer_closest:
        ids = [node.id for node in topology.numa]
        distances = {node.id: dict(zip(ids, node.distances or (), strict=False)) for node in topology.numa}
    rules = MergeRules(default_mask, single_node=single_node, distances=distances)
    return TopologyManager(
        policy,
        scope,
        rules,
        prefer_most_allocated=options.prefer_most_allocated and single_node,
        strategy=options.strategy,
        score_weights=options.score_weights,
        prefer_cpus_node=placement.prefer_cpus_numa_node and not single_node,
        same_nodes=placement.same_numa_nodes and not single_node,
        spread_pages=placement.spread_huge_pages and not single_node,
    )


def affinity_refusal(scope: Scope, *, is_managed_pod: bool) -> Refusal:
    """Return the refusal of a pod whose merged hint the policy doesn't admit."""
    if not is_managed_pod:
        return Refusal(Reason.TOPOLOGY_AFFINITY, "Resources cannot be allocated with Topology locality")
    detail = (
        "failed admission under pod-scope topology manager"
        if scope is Scope.POD
        else "failed admission with a container-level topology manager"
    )
    # kubelet's message says "Pod Scope" in container scope, too.
    return Refusal(Reason.TOPOLOGY_AFFINITY, f"Pod Scope pod with pod-level resources {detail}")


def judge_policy_and_scope(placement: Placement) -> tuple[StartRefused, ...]:
    """Return the errors in the names of the policy and the scope. Under policy `none`, the scope isn't checked."""
    policy, scope = placement.topology_manager_policy, placement.topology_manager_scope
    refused = []
    if policy not in tuple(TopologyPolicy):
        refused.append(StartRefused(f'unknown policy: "{policy}"', "topologyManagerPolicy"))
    if policy != TopologyPolicy.NONE and scope not in tuple(Scope):
        refused.append(StartRefused(f'unknown scope: "{scope}"', "topologyManagerScope"))
    return tuple(refused)


def judge_topology_options(placement: Placement) -> tuple[_Options, tuple[StartRefused, ...]]:
    """Check the configured options, as far as this is possible without a machine. Under policy `none`, the options aren't checked.

    Returns:
        The valid options, and the errors of the others in kubelet's order.
    """
    if placement.topology_manager_policy == TopologyPolicy.NONE:
        return _Options(), ()
    booleans: dict[str, bool] = {}
    max_nodes: int | None = _DEFAULT_MAX_NODES
    strategy: Strategy | None = None
    weights: tuple[tuple[str, int], ...] = ()
    refused: list[StartRefused] = []
    for option, text in sorted(placement.topology_manager_policy_options):
        if option not in OPTIONS:
            refused.append(
                StartRefused(
                    f"unknown Topology Manager Policy option: {quote_as_go(option)}",
                    _OPTIONS,
                    entry=option,
                    allowed=f"must be one of {', '.join(OPTIONS)}",
                )
            )
            continue
        if option in _ALPHA_OPTIONS and not placement.gate(_ALPHA_GATE):
            refused.append(
                StartRefused(
                    f'Topology Manager Policy Alpha-level Options not enabled, but option "{option}" provided',
                    _OPTIONS,
                    entry=option,
                    rests_on=("featureGates",),
                    allowed=f"needs {_ALPHA_GATE}: true in featureGates",
                )
            )
        if option == _MAX_NODES:
            number = _parse_max_nodes(text)
            max_nodes = None if isinstance(number, StartRefused) else number
            refused += [number] if isinstance(number, StartRefused) else []
        elif option == _STRATEGY:
            chosen = _parse_strategy(text)
            strategy = None if isinstance(chosen, StartRefused) else chosen
            refused += [chosen] if isinstance(chosen, StartRefused) else []
        elif option == _WEIGHTS:
            parsed = _parse_weights(text)
            weights = () if isinstance(parsed, StartRefused) else parsed
            refused += [parsed] if isinstance(parsed, StartRefused) else []
        else:
            value = parse_boolean(option, text, _OPTIONS)
            if isinstance(value, StartRefused):
                refused.append(value)
            else:
                booleans[option] = value
    prefers_most = booleans.get(_MOST_ALLOCATED, False)
    if strategy is not None and prefers_most:
        refused.append(
            StartRefused(
                f"{_STRATEGY} and {_MOST_ALLOCATED} exclude each other: both choose between the same NUMA nodes",
                _OPTIONS,
                entry=_MOST_ALLOCATED,
                allowed=f"keep {_STRATEGY} only",
            )
        )
    options = _Options(booleans.get(_CLOSEST, False), max_nodes, prefers_most, strategy, weights)
    return options, tuple(refused)


def options_without_effect(placement: Placement) -> tuple[tuple[str, str], ...]:
    """Return the enabled options that can't change any decision, each with the setting that it needs (KEP-6007)."""
    configured = dict(placement.topology_manager_policy_options)
    policy = placement.topology_manager_policy
    is_static = placement.cpu_manager_policy == "static" or placement.memory_manager_policy == "Static"
    chooses = configured.get(_STRATEGY) in tuple(Strategy)
    found = []
    if parse_boolean(_MOST_ALLOCATED, configured.get(_MOST_ALLOCATED, "false"), _OPTIONS) is True:
        needs = [f"topologyManagerPolicy: {TopologyPolicy.SINGLE_NUMA_NODE}"]
        needs = [] if policy == TopologyPolicy.SINGLE_NUMA_NODE else needs
        needs += [] if is_static else ["cpuManagerPolicy: static or memoryManagerPolicy: Static"]
        found.append((_MOST_ALLOCATED, needs))
    if chooses and policy == TopologyPolicy.NONE:
        found.append((_STRATEGY, ["a topologyManagerPolicy other than none"]))
    if _WEIGHTS in configured and not chooses:
        found.append((_WEIGHTS, [f"{_STRATEGY}: {' or '.join(Strategy)}"]))
    return tuple((option, ", and ".join(needs)) for option, needs in found if needs)


def _parse_strategy(text: str) -> Strategy | StartRefused | None:
    values = ("least-allocated", "most-allocated", "none")
    if text in ("", "none"):
        return None
    if text in tuple(Strategy):
        return Strategy(text)
    listed = " ".join(map(quote_as_go, values))
    return StartRefused(
        f'bad value for option "{_STRATEGY}": {quote_as_go(text)} must be one of [{listed}]',
        _OPTIONS,
        entry=_STRATEGY,
        plain=f"{_STRATEGY} must be {', '.join(values[:-1])} or {values[-1]}, not {quote_as_go(text)}",
    )


def _parse_weights(text: str) -> tuple[tuple[str, int], ...] | StartRefused:
    weights: dict[str, int] = {}
    for pair in text.split(",") if text else ():
        name, _, number = pair.partition("=")
        is_number = number.isascii() and number.isdigit() and len(number) <= len(str(_MAX_WEIGHT))
        if not name or name in weights or not is_number or int(number) > _MAX_WEIGHT:
            reason = f"{_WEIGHTS} must be resource=weight pairs with commas in between, as in cpu=3,memory=1"
            bounds = f"each resource once, each weight a whole number from 0 to {_MAX_WEIGHT}"
            return StartRefused(f"{reason} ({bounds}), not {quote_as_go(pair)}", _OPTIONS, entry=_WEIGHTS)
        weights[name] = int(number)
    return tuple(weights.items())


def _parse_max_nodes(text: str) -> int | StartRefused:
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not (digits.isascii() and digits.isdigit()):
        why = f"strconv.Atoi: parsing {quote_as_go(text)}: invalid syntax"
    elif len(digits.lstrip("0")) > 19 or not -(2**63) <= int(text) < 2**63:
        why = f"strconv.Atoi: parsing {quote_as_go(text)}: value out of range"
    elif int(text) < _DEFAULT_MAX_NODES:
        return StartRefused(
            f'the minimum value of "{_MAX_NODES}" should not be less than {_DEFAULT_MAX_NODES}',
            _OPTIONS,
            entry=_MAX_NODES,
        )
    else:
        return int(text)
    return StartRefused(
        f'unable to convert policy option to integer "{_MAX_NODES}": {why}',
        _OPTIONS,
        entry=_MAX_NODES,
        allowed=f"must be a whole number of at least {_DEFAULT_MAX_NODES}",
        plain=f"{_MAX_NODES} must be a whole number of at least {_DEFAULT_MAX_NODES}, not {quote_as_go(text)}",
    )
