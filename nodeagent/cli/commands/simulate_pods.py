"""`nodeagent simulate -f`: decides on pods one after the other, finds how many copies of pods fit, or compares two configurations."""

import argparse
from collections.abc import Sequence

from msgspec.structs import replace

from nodeagent.cli.support.colour import text_width
from nodeagent.cli.support.configurations import load_config
from nodeagent.cli.support.documents import format_xml, render_document
from nodeagent.cli.support.exit_status import EXIT_REFUSED, EXIT_WRONG
from nodeagent.cli.support.node.devices import add_selected_devices
from nodeagent.cli.support.node.what_if import (
    WhatIfNode,
    create_empty_node,
    find_errata,
    read_what_if_machine,
    read_what_if_node,
)
from nodeagent.cli.support.pod_files import read_pods
from nodeagent.cli.support.progress import Progress
from nodeagent.core.admission.managers import Admitted, in_turn
from nodeagent.core.admission.resize import moves_instead, resized_by
from nodeagent.core.admission.what_if import Refused, keys_of
from nodeagent.core.explain.capacity_search import search_capacity
from nodeagent.core.explain.resizing import Resizing, resizing
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.refusals import NotResized
from nodeagent.errors import NodeAgentError
from nodeagent.views.simulate.pods import Simulation, describe_comparison, describe_run
from nodeagent.views.simulate.pods_text import render_comparison, render_run


class SimulateError(NodeAgentError):
    """There is no pod to decide on."""


def simulate_pods(options: argparse.Namespace) -> tuple[str, int]:
    """Simulate the decisions on the pods. Return the text of the outcome, and the exit status.

    Raises:
        NodeAgentError: manifests, machine or configuration can't be read, or there is no pod to decide on.
    """
    pods = () if options.manifests is None else read_pods(options.manifests)
    if options.compare is not None:
        return _compare_configurations(options, pods)
    node = _add_devices(read_what_if_node(options), pods, options)
    if options.capacity:
        with Progress("copies") as progress:
            capacity = search_capacity(node.what_if, pods, progress.step)
        found = Simulation(node.config, node.source, node.what_if, capacity.after, (), capacity, tuple(pods))
    else:
        found = _decide_all(node, node.source, pods, _find_replaced(node.what_if.pods, pods))
    document = describe_run(found, node.where)
    capacity = document["capacity"]
    is_refused = document["summary"]["refused"] if capacity is None else not capacity["copies"]
    if options.output == "svg":
        from nodeagent.tools.export.svg import render_svg
        from nodeagent.views.topology.cpu_owners import label_cpus

        end = found.after
        text = format_xml(render_svg(end.managers.topology, label_cpus(end.managers, end.promises, end.pods)))
    else:
        text = render_document(document, options.output, lambda run: render_run(run, text_width()))
    return text, EXIT_REFUSED if is_refused else 0


def _add_devices(node: WhatIfNode, pods: Sequence[Pod], options: argparse.Namespace) -> WhatIfNode:
    return replace(node, what_if=add_selected_devices(node.what_if, pods, options))


def _decide_all(node: WhatIfNode, source: str, pods: Sequence[Pod], ended: tuple[Pod, ...]) -> Simulation:
    what_if = node.what_if
    decisions: list[tuple[Pod, Admitted | Refused | NotResized]] = []
    resizes: list[Resizing] = []
    with Progress("pods", len(pods)) as progress:
        for pod in in_turn(what_if.managers, pods, lambda pod: pod):
            old = resized_by(node.state, pod)
            tried = None if old is None else resizing(what_if, old, pod, progress.tick)
            if tried is not None and not moves_instead(pod, tried.answer):
                what_if, answer = tried.after, tried.answer
                decisions.append((pod, answer if isinstance(answer, NotResized) else what_if.as_admitted(pod)))
                resizes.append(tried)
                progress.step()
                continue
            what_if = what_if.making_way(pod)
            decision = what_if.judge(pod)
            decisions.append((pod, decision))
            what_if = what_if.after(pod, decision)
            progress.step()
    stay = {one.new.full_name for one in resizes}
    ended = tuple(pod for pod in ended if pod.full_name not in stay)
    return Simulation(node.config, source, node.what_if, what_if, tuple(decisions), ended=ended, resizes=tuple(resizes))


def _find_replaced(existing: Sequence[Pod], pods: Sequence[Pod]) -> tuple[Pod, ...]:
    """Return the pods on the node that the given pods would replace, because they have the same names."""
    taken = frozenset[tuple[str, str]]().union(*map(keys_of, pods))
    return tuple(pod for pod in existing if not taken.isdisjoint(keys_of(pod)))


def _compare_configurations(options: argparse.Namespace, pods: Sequence[Pod]) -> tuple[str, int]:
    """Decide on all pods under each configuration, first on the existing and then on the given pods. Return the comparison as text, and the
    exit status.
    """
    configs = [load_config(path, absent_hint="name two files: --compare A.yaml B.yaml") for path in options.compare]
    machine = read_what_if_machine(options, otherwise=options.compare[0])
    ended = _find_replaced(machine.pods, pods)
    gone = {pod.uid for pod in ended}
    every = (*(pod for pod in machine.pods if pod.uid not in gone), *pods)
    if not every:
        raise SimulateError("there is no pod to decide on", hint="name manifests with --file")
    first, second = (
        _decide_all(
            _add_devices(create_empty_node(machine, config, path, find_errata(options)), every, options),
            path,
            every,
            ended,
        )
        for config, path in zip(configs, options.compare, strict=True)
    )
    document = describe_comparison(first, second, machine.where)
    text = render_document(document, options.output, lambda one: render_comparison(one, text_width()))
    return text, EXIT_WRONG if document["differing"] else 0
