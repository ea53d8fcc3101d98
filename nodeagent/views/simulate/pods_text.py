"""Text of a simulation: the placement of admitted pods, the refused pods, and the remaining resources of each NUMA node."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from nodeagent.views.explain.resizes import format_resize
from nodeagent.views.explain.text import (
    count_cpus,
    format_container,
    format_device,
    format_head,
    format_machine,
    format_rules,
)
from nodeagent.views.holdings.claims import format_claim
from nodeagent.views.wording.columns import break_text, format_table
from nodeagent.views.wording.words import format_count, format_readable_share

Document = Mapping[str, Any]
WIDTH = 80
_MAX_ENDED = 8


def render_run(document: Document, width: int = WIDTH) -> str:
    """Format the document of one simulation."""
    lines = [*format_head(document, width), ""]
    capacity = document["capacity"]
    if capacity is None:
        lines += _format_pods(document, width)
    elif capacity["complete"]:
        verb, reason = "fits" if capacity["copies"] == 1 else "fit", f"{capacity['reason']}: {capacity['message']}"
        lines += break_text(f"{capacity['copies']} more {verb} of: {' + '.join(capacity['of'])}", width)
        lines += break_text(f"the next, {capacity['pod']}, is refused: {reason}", width)
    else:
        lines += break_text(
            f"{capacity['copies']} or more fit of: {' + '.join(capacity['of'])} (no more were tried)", width
        )
    lines += ["", *format_remaining(document, width)]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def render_comparison(document: Document, width: int = WIDTH) -> str:
    """Format two simulations side by side. Pods that are decided differently are marked with *."""
    one, other = document["sides"]
    rows = [
        ["", one["configuration"]["file"], other["configuration"]["file"]],
        ["rules", format_rules(one["configuration"]), format_rules(other["configuration"])],
        ["reserved", one["reserved"] or "none", other["reserved"] or "none"],
        ["admitted", _format_share(one), _format_share(other)],
        ["free CPUs", str(one["summary"]["freeCpus"]), str(other["summary"]["freeCpus"])],
        ["  on one node at most", str(one["summary"]["largestFreeNode"]), str(other["summary"]["largestFreeNode"])],
        ["split CPUs", _format_split(one), _format_split(other)],
        ["", "", ""],
    ]
    differing = set(document["differing"])
    for a, b in zip(one["pods"], other["pods"], strict=True):
        name = f"{a['namespace']}/{a['name']}"
        mark = "* " if name in differing and not a["replaced"] else ""
        outcomes = [_format_decision(pod) for pod in (a, b)]
        rows.append([f"{mark}{name}", *(f"replaced: {text}" if a["replaced"] else text for text in outcomes)])
    verdict = (
        f"{format_count(len(differing), 'pod')} of {_count_remaining_pods(one)}, marked with *, "
        f"{'is' if len(differing) == 1 else 'are'} decided differently."
        if differing
        else "Both make the same decision on every pod."
    )
    lines = [
        *format_machine(document["machine"], width),
        "",
        *format_table(rows, width),
        "",
        *break_text(verdict, width),
    ]
    lines += _format_replaced_pods(one, width)
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _format_share(side: Document) -> str:
    return f"{side['summary']['admitted']} of {_count_remaining_pods(side)}"


def _count_remaining_pods(side: Document) -> int:
    """Count the simulated pods that no later simulated pod replaces."""
    return len(side["pods"]) - int(side["summary"]["replaced"])


def _format_split(side: Document) -> str:
    cpus = ",".join(node["splitCpus"] for node in side["nodes"] if node["splitCpus"])
    return f"{count_cpus(cpus)} ({cpus})" if cpus else "none"


def _format_decision(pod: Document) -> str:
    if pod["decision"] == "refused":
        return f"refused: {pod['reason']}"
    return "; ".join(map(format_placed, pod["containers"]))


def format_placed(container: Document) -> str:
    """Format the CPUs and memory nodes of a container in a few words."""
    if container["isolation"] == "host":
        return f"{container['name']} shared"
    return " ".join(part for part in format_container(container)[:4] if part)


def _format_pods(document: Document, width: int) -> Iterator[str]:
    summary = document["summary"]
    existing = summary["before"] - len(document["ended"])
    parts = [
        f"{format_count(summary['admitted'], 'pod')} admitted",
        f"{summary['refused']} refused",
        *([f"{summary['replaced']} replaced"] if summary["replaced"] else []),
        *([f"{format_count(existing, 'pod')} already on the node"] if existing else []),
    ]
    yield from break_text(", ".join(parts), width)
    yield from _format_replaced_pods(document, width)
    staying = [pod for pod in document["pods"] if not pod["replaced"]]
    placed = list(format_placements(((f"{p['namespace']}/{p['name']}", p["containers"]) for p in staying), width))
    if placed:
        yield ""
        yield from placed
    with_more = [pod for pod in staying if pod.get("devices") or pod.get("claims") or pod.get("further")]
    if with_more:
        yield ""
        yield "Devices and claims"
    for pod in with_more:
        for text in _format_devices(pod):
            yield from break_text(f"  {pod['namespace']}/{pod['name']}{text}", width)
    resized = [pod for pod in staying if pod.get("resize") and pod["decision"] == "admitted"]
    if resized:
        yield ""
        yield "Resized while they run"
    for pod in resized:
        for text in format_resize(pod["resize"], is_resized=True):
            yield from break_text(f"  {pod['namespace']}/{pod['name']}: {text}", width)
    refused = [pod for pod in staying if pod["decision"] == "refused"]
    if refused:
        yield ""
        yield "Refused (see nodeagent explain)"
    for pod in refused:
        yield from break_text(f"  {pod['namespace']}/{pod['name']}: {pod['reason']}: {pod['message']}", width)
        for text in format_resize(pod["resize"], is_resized=False) if pod.get("resize") else ():
            yield from break_text(f"    {text}", width)
    replaced = [pod for pod in document["pods"] if pod["replaced"]]
    if replaced:
        yield ""
        yield "Replaced (a later pod of the same name ends it, as with a changed manifest)"
    for pod in replaced:
        yield from break_text(f"  {pod['namespace']}/{pod['name']}: {_format_decision(pod)}", width)


def _format_devices(pod: Document) -> Iterator[str]:
    """Yield the devices and claims of each container of a pod, as text."""
    claims = pod.get("claims", ())
    own = {claim["claim"] for claim in claims}
    devices: dict[str, list[str]] = {}
    for device in pod.get("devices", ()):
        if device["resource"] not in own:
            devices.setdefault(device["container"], []).append(format_device(device))
    for name, found in devices.items():
        yield f", container {name}: {', '.join(found)}"
    for name, further in pod.get("further", {}).items():
        yield f", container {name}: {', '.join(f'{resource} {said}' for resource, said in further.items())}"
    if claims:
        for claim in claims:
            yield f", claim {format_claim(claim)}"


def _format_replaced_pods(side: Document, width: int) -> Iterator[str]:
    """Name the pods on the node that are assumed to end, because simulated pods replace them. Yield nothing if there are none."""
    names = side["ended"]
    if names:
        more = [f"and {len(names) - _MAX_ENDED} more (-o json has all)"] if len(names) > _MAX_ENDED else []
        verb = "already exists and is" if len(names) == 1 else "already exist and are"
        shown = ", ".join([*names[:_MAX_ENDED], *more])
        yield from break_text(f"{shown} {verb} assumed ended, as with a changed manifest", width)


def format_placements(pods: Iterable[tuple[str, Iterable[Document]]], width: int) -> Iterator[str]:
    """Format a table with the containers of each pod. The result is empty if no container has a placement."""
    rows = [["POD", "CONTAINER", "CPUS", "WHERE", "MEMORY"]]
    for pod, containers in pods:
        name = pod
        for container in containers:
            rows.append([name, *format_container(container)[:4]])
            name = ""
    if len(rows) > 1:
        yield from format_table(rows, width)


def format_remaining(document: Document, width: int) -> Iterator[str]:
    """Format the remaining resources of each NUMA node. If CPUs and memory don't fit into the width side by side, memory has a table of its
    own.
    """
    has_caches = any(node["caches"] for node in document["nodes"])
    rows = [["NUMA", "CPUS", "FREE", "WHOLE CORES", "SPLIT", *(["CACHES"] if has_caches else [])]]
    resources = sorted(
        {n for node in document["nodes"] for n, amount in node["memory"].items() if amount["allocatable"]}
    )
    amounts = [["NUMA", *(f"{resource.upper()} FREE" for resource in resources)]]
    for node in document["nodes"]:
        number = str(node["node"])
        rows.append(
            [
                number,
                str(count_cpus(node["cpus"])),
                str(node["freeCount"]),
                str(node["wholeCores"]),
                f"{count_cpus(node['splitCpus'])} ({node['fragmentationPercent']}%)",
                *([f"{node['wholeCaches']} of {node['caches']}"] if has_caches else []),
            ]
        )
        own = [node["memory"].get(name, {"free": 0, "allocatable": 0}) for name in resources]
        shares = (format_readable_share(a["free"], a["allocatable"]) if a["allocatable"] else "none" for a in own)
        amounts.append([number, *shares])
    table = format_table([[*cpus, *memory[1:]] for cpus, memory in zip(rows, amounts, strict=True)], None)
    rest = []
    if max(map(len, table)) > width and resources:
        table, rest = format_table(rows, width), ["", *format_table(amounts, width)]
    yield "Free for exclusive use (SPLIT: free CPUs of partly used cores)"
    yield from table
    summary = document["summary"]
    yield from break_text(
        f"{format_count(summary['freeCpus'], 'CPU')} in total, at most {summary['largestFreeNode']} on one NUMA node",
        width,
    )
    yield from rest
