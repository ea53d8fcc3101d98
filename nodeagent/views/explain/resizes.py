"""Explanation of a resize. The document has the fields that every explanation has, and also the changes that the resize makes."""

from collections.abc import Mapping
from typing import Any

from nodeagent.core.admission.node_rules import container_reports
from nodeagent.core.explain.resizing import Resizing
from nodeagent.core.model.pod import Pod, qos_class
from nodeagent.core.model.refusals import NotResized
from nodeagent.views.explain.document import Document, describe_placed_containers
from nodeagent.views.holdings.by_resource import resized_fields


def describe_resize(one: Resizing, notes: tuple[str, ...] = ()) -> Document:
    """Describe a resize: the new resources of the pod, or the reason why its resources stay unchanged."""
    pod, answer = one.new, one.answer
    refusal = answer if isinstance(answer, NotResized) else None
    node = one.after
    managers, promises = node.managers, node.promises
    containers: list[Document] = []
    if refusal is None:
        containers = describe_placed_containers(managers, pod, container_reports(managers, promises, pod), promises)
    return {
        "allTried": one.all_tried,
        "closedToHost": [],
        "containers": containers,
        "coreClass": pod.core_class,
        "decision": "admitted" if refusal is None else "refused",
        "known": [],
        "message": None if refusal is None else refusal.message,
        "name": pod.name,
        "namespace": pod.namespace,
        "near": [],
        "nodes": [],
        "notes": list(notes),
        "numaNode": pod.numa_node,
        "preferredCoreClass": None,
        "qos": qos_class(pod, pod_level_resources=managers.placement.gate("PodLevelResources")).value,
        "reason": None if refusal is None else refusal.reason,
        "recorded": None,
        "remedies": [],
        "resize": describe_resize_changes(one),
        "steps": [],
        "uid": pod.uid,
        "why": [],
    }


def describe_resize_changes(one: Resizing) -> Document:
    """Describe the changes of a resize, and list each pod whose end would let the resize be admitted."""
    answer, promises, uid = one.answer, one.after.promises, one.new.uid
    return {
        "allTried": one.all_tried,
        "changes": [
            {"name": now.name} | resized_fields(one.before.promises.of_pod(uid), was, promises.of_pod(uid), now)
            for was, now in zip(one.old.containers, one.new.containers, strict=True)
            if was.resources != now.resources
        ],
        "freeing": list(one.freeing),
        "isDeferred": isinstance(answer, NotResized) and answer.is_deferred,
        "whole": _format_pod_level(one.new, one.old),
        "wholeBefore": _format_pod_level(one.old, one.new),
    }


def _format_pod_level(pod: Pod, other: Pod) -> str | None:
    """Format the pod-level resources of `pod` that differ from those of `other`: the limits, or the requests if only the requests differ.
    None means that nothing differs, or that one pod has no pod-level resources.
    """
    mine, theirs = pod.resources, other.resources
    if mine is None or theirs is None or mine == theirs:
        return None
    are_limits = mine.limits and mine.limits != theirs.limits
    return ", ".join(f"{name} {amount}" for name, amount in (mine.limits if are_limits else mine.requests))


def format_refused_resize(one: Resizing, *, is_final: bool) -> list[str]:
    """Describe the result of trying a refused resize again: that it would succeed now, or why it is refused and which pods would have to
    end.

    Args:
        one: the new trial.
        is_final: whether the agent tries the resize again only if a user asks for it (`nodeagent retry`).
    """
    answer, by_hand = one.answer, f"`nodeagent retry {one.new.full_name}` tries it again"
    if not isinstance(answer, NotResized):
        could = f"it would succeed now ({by_hand}):" if is_final else "it would succeed now:"
        return [could, *format_resize(describe_resize_changes(one), is_resized=True)]
    lines = format_resize(describe_resize_changes(one), is_resized=False)
    if is_final and answer.is_deferred:
        lines[0] = f"the pod keeps running unchanged; {by_hand}"
    return [f"tried again now: {answer.reason}: {answer.message}", *lines]


def format_resize(resize: Mapping[str, Any], *, is_resized: bool) -> list[str]:
    """Format a resize. If the pod is resized, format each container's new resources. Otherwise, format what must happen before the resize
    can succeed.
    """
    if is_resized:
        lines = [f"the pod as a whole: {resize['wholeBefore']} → {resize['whole']}"] if resize["whole"] else []
        for change in resize["changes"]:
            parts = [
                f"{name} {change[before]} → {change[after]}"
                for name, before, after in (("CPUs", "cpusBefore", "cpus"), ("memory", "memoryBefore", "memory"))
                if change[before] != change[after]
            ]
            lines.append(f"{change['name']}: {', '.join(parts) or 'other amounts, on the same CPUs'}")
        return lines
    if not resize["isDeferred"]:
        return ["the pod keeps running unchanged"]
    lines = ["the pod keeps running unchanged; the resize is retried before new pods in each sync"]
    if resize["freeing"]:
        lines.append(f"the resize will succeed once one of these pods ends: {', '.join(resize['freeing'])}")
    elif resize["allTried"]:
        lines.append("the end of a single pod isn't enough for it")
    return lines
