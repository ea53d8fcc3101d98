"""Text of `nodeagent explain`, made from the document: the decision, the missing resources, the remedies, and the steps of the decision.

The text is readable without colour. No line is longer than the width, unless a single word is longer.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from nodeagent.core.explain.pods_to_end import MOST_ALIKE
from nodeagent.views.explain.lacking import FEW_SETS, format_node_sets
from nodeagent.views.holdings.claims import format_claim
from nodeagent.views.wording.columns import break_text, format_rows, format_table
from nodeagent.views.wording.refusal_advice import describe_retries
from nodeagent.views.wording.runtime_pods import format_known_amount
from nodeagent.views.wording.words import format_bytes, format_count

Document = Mapping[str, Any]
WIDTH = 80
_INDENT = "  "
_OPTIONS_WITH_VALUES = ("max-allowable-numa-nodes", "numa-allocation-strategy", "numa-score-weights")
_SOURCES = {
    "hint": "on the NUMA nodes of the merged hint",
    "sockets": "on the sockets of the merged hint (align-by-socket)",
    "elsewhere": "on other NUMA nodes, because those of the hint are used up",
    "anywhere": "anywhere",
    "pod": "from the pod's own set",
}
_ANSWERS = {
    "Filter": "leaves {cpus}",
    "PostFilter": "offers {cpus} instead, because the filters left too few",
    "Select": "selects {cpus}",
    "Score": "scores {cpus} with {score}",
}
"""Text for each answer of a CPU plugin, by the extension point at which the plugin was called."""
_VERDICT_WIDTH = 24
"""Minimum width, in characters, for a column of verdicts. If less space is left, each verdict gets a line of its own."""
_VERDICTS = {
    "wins": "wins",
    "several nodes": "loses: more than a single NUMA node",
    "more nodes": "loses: the winner has fewer nodes",
    "farther apart": "loses: as many nodes, farther apart (prefer-closest-numa-nodes)",
    "less allocated": "loses: less is allocated on it than on the winner",
    "more allocated": "loses: more is allocated on it than on the winner",
    "higher number": "loses: equal, but with higher numbers",
    "other size": "loses: has another number of nodes than the common hint",
}


def render_explanation(document: Document, width: int = WIDTH) -> str:
    """Format an explanation: the machine, the rules, then each pod."""
    lines: list[str] = [*format_head(document, width)]
    for pod in document["pods"]:
        lines += ["", *_format_pod(pod, document["configuration"], width)]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def format_head(document: Document, width: int) -> Iterator[str]:
    """Format the machine and the policies and options that affect decisions."""
    yield from format_machine(document["machine"], width)
    yield from break_text(f"rules    {format_rules(document['configuration'])}", width)


def format_machine(machine: Document, width: int) -> Iterator[str]:
    """Format the machine: its origin, CPUs and NUMA nodes."""
    yield from break_text(
        f"machine  {format_count(machine['sockets'], 'socket')}, {format_count(machine['numaNodes'], 'NUMA node')}, "
        f"{format_count(machine['cpus'], 'CPU')} (reserved {machine['reserved'] or 'none'}): {machine['source']}",
        width,
    )


def format_rules(config: Document) -> str:
    """Format the policies and options that affect decisions, in one line."""
    options = list_enabled(config["cpuManagerPolicyOptions"])
    given = config["topologyManagerPolicyOptions"]
    topology = list_enabled({name: value for name, value in given.items() if name not in _OPTIONS_WITH_VALUES})
    topology += [f"{name}={value}" for name, value in given.items() if name in _OPTIONS_WITH_VALUES]
    parts = [
        "cpu " + " ".join([config["cpuManagerPolicy"], *options]),
        "memory " + config["memoryManagerPolicy"],
        "topology " + " ".join([config["topologyManagerPolicy"], *topology]),
    ]
    if config["topologyManagerPolicy"] != "none":
        parts[-1] += f" per {config['topologyManagerScope']}"
    if config["isolatedCPUs"] != "ignore":
        parts.append(f"isolatedCPUs {config['isolatedCPUs']}")
    parts += [f"{name} {config[name]}" for name in ("exclusiveCoreClass", "sharedCoreClass") if config[name] != "any"]
    if config["preferCPUsNumaNode"]:
        parts.append("preferCPUsNumaNode")
    parts += [name for name in ("sameNumaNodes", "spreadHugePages") if config[name]]
    plugins = [each["name"] for each in config.get("cpuManagerPlugins", ())]
    if plugins:
        parts.append(f"CPU plugins {', '.join(plugins)}")
    if config["errata"] != "fixed":
        parts.append(f"with the errata of {config['errata']}")
    return ", ".join(parts)


def list_enabled(options: Document) -> list[str]:
    """Return the names of the enabled options. Booleans are recognized as in Go's strconv.ParseBool."""
    return [name for name, value in options.items() if value in ("1", "t", "T", "TRUE", "true", "True")]


def _format_pod(pod: Document, config: Document, width: int) -> Iterator[str]:
    if pod.get("resize"):
        yield from _format_resize(pod, width)
        return
    yield from break_text(f"pod {pod['namespace']}/{pod['name']} ({pod['qos']}): {pod['decision']}", width)
    if pod["reason"] is not None:
        yield from break_text(f"{_INDENT}{pod['reason']}: {pod['message']}", width)
    if pod["recorded"] is not None:
        yield f"{_INDENT}uid {pod['uid']}"
    for text in (*_format_requirements(pod, config), *_format_recorded(pod), *pod["notes"]):
        yield from break_text(f"{_INDENT}{text}", width)
    if pod["known"]:
        yield ""
        yield "Known amounts (the container runtime doesn't get requests)"
        yield from _indent(format_table([format_known_amount(one) for one in pod["known"]], width - len(_INDENT)))
    if pod["containers"]:
        yield ""
        yield from _indent(format_table([format_container(c) for c in pod["containers"]], width - len(_INDENT)))
        if pod.get("claims"):
            for claim in pod["claims"]:
                yield from break_text(f"{_INDENT}claim {format_claim(claim)}", width)
        for closed in pod["closedToHost"]:
            yield from break_text(f"{_INDENT}{_format_isolation(closed)}", width)
    if pod["why"]:
        yield ""
        yield "What is missing"
        for text in pod["why"]:
            yield from break_text(f"{_INDENT}{text}", width)
        yield ""
        yield "What would admit it (each of these has been tried)"
        for remedy in pod["remedies"]:
            yield from break_text(f"{_INDENT}* {remedy['text']}", width)
        if sum(1 for r in pod["remedies"] if r["change"] == "removal" and len(r["subject"]) == 1) == MOST_ALIKE:
            yield f"{_INDENT}of pods with equal allocations, at most {MOST_ALIKE} are listed"
        if not pod["allTried"]:
            other = "there may be others, or smaller ones" if pod["remedies"] else "another change may admit it"
            yield from break_text(f"{_INDENT}not everything was tried, to save time: {other}", width)
        elif not pod["remedies"]:
            smaller = "a smaller request (for exclusive CPUs, a smaller whole number of them)"
            none = f"no single change: neither {smaller}, nor another rule, nor the end of another pod"
            yield from break_text(f"{_INDENT}{none}", width)
    if pod["steps"]:
        yield ""
        yield "Step by step"
        for number, step in enumerate(pod["steps"], start=1):
            yield from _format_step(number, step, config, width, pod["numaNode"])


def _format_resize(pod: Document, width: int) -> Iterator[str]:
    from nodeagent.views.explain.resizes import format_resize  # noqa: PLC0415 - few explanations are of a resize

    is_fine = pod["decision"] == "admitted"
    what = "is resized while it runs" if is_fine else "is not resized"
    yield from break_text(f"pod {pod['namespace']}/{pod['name']} ({pod['qos']}): {what}", width)
    if not is_fine:
        yield from break_text(f"{_INDENT}{pod['reason']}: {pod['message']}", width)
    for text in (*pod["notes"], *format_resize(pod["resize"], is_resized=is_fine)):
        yield from break_text(f"{_INDENT}{text}", width)
    if pod["containers"]:
        yield ""
        yield from _indent(format_table([format_container(c) for c in pod["containers"]], width - len(_INDENT)))


def _format_recorded(pod: Document) -> Iterator[str]:
    recorded = pod["recorded"]
    if recorded is None:
        return
    then = recorded["decision"]
    later = recorded["withoutLaterPods"]
    if recorded["reproduced"] is None:
        yield "The pod has ended, and its resources are free again. The following decision is for the node as it is now."
    elif recorded["reproduced"]:
        without = f" without the {format_count(len(later), 'pod')} that came later" if later else ""
        yield f"Decided again{without}, the result is the same. The following steps led to it."
    elif then == "admitted":
        yield (
            "Decided again on the node as it is now, the result would differ, because the node has changed since (pods have "
            "ended, or the configuration was changed). The pod keeps its resources. The following decision is for the node as it is now."
        )
    elif pod["decision"] == "admitted":
        name = f"{pod['namespace']}/{pod['name']}"
        yield f"It was refused: {recorded['reason']}: {recorded['message']}"
        yield f"Now it would be admitted: nodeagent retry {name}"
    else:
        yield f"It was refused for another reason: {recorded['reason']}: {recorded['message']}"
    if recorded["retries"]:
        yield describe_retries(recorded["retries"])


def _format_requirements(pod: Document, config: Document) -> Iterator[str]:
    if pod["numaNode"] is not None:
        books = (
            "" if config["memoryManagerPolicy"] == "Static" else " (memory isn't managed: memoryManagerPolicy is None)"
        )
        yield f"it requires NUMA node {pod['numaNode']} for its exclusive CPUs and all its memory{books}"
    if pod["coreClass"] is not None:
        yield f"it requires {pod['coreClass']} cores for its exclusive CPUs"
    devices = []
    for near in pod["near"]:
        where = ""
        if near["devices"] is not None:
            where = " (its NUMA node is unknown, so nothing is near it)"
            if near["numaNodes"]:
                where = f" (NUMA {near['numaNodes']})"
            elif not near["devices"]:
                where = " (no such device)"
        devices.append(f"{near['name']}{where}")
    if devices:
        has_effect = config["topologyManagerPolicy"] != "none"
        ignored = "" if has_effect else "; without effect, because topologyManagerPolicy is none"
        yield f"it prefers to be near {', '.join(devices)}{ignored}"
    wish = pod["preferredCoreClass"]
    if wish is not None and wish["granted"] is not None:
        by = "exclusiveCoreClass prefers" if wish["isTheNodes"] else "it prefers"
        result = "these weren't enough, so all cores counted"
        if wish["granted"]:
            result = "all its exclusive CPUs are among them"
        yield f"{by} {wish['coreClass']} cores: {result}"


def format_container(container: Document) -> list[str]:
    """Format a container as the cells of a table row: name, CPUs, NUMA nodes of the CPUs, NUMA nodes of the memory, reason
    for shared CPUs.
    """
    level = {"container": "exclusive", "mixed": "exclusive", "pod": "the pod's", "host": "shared"}[
        container["isolation"]
    ]
    pool = " + shared pool" if container["isolation"] == "mixed" else ""
    memory = "" if container["memoryNodes"] is None else f"memory NUMA {container['memoryNodes']}"
    cores = " and ".join(container["coreClasses"])
    where = f"NUMA {container['numaNodes']}{cores and f', {cores}'}" if container["numaNodes"] else ""
    why = "" if container["whyShared"] is None else container["whyShared"]
    return [container["name"], f"{level} {container['cpus']}{pool}", where, memory, why]


def _format_isolation(closed: Document) -> str:
    """Describe how host processes are kept off a pod's exclusive CPUs: by a partition or by a systemd setting."""
    cpus = f"CPUs {closed['cpus']} are closed to the host"
    if closed["means"] == "systemd":
        return f"{cpus} by systemd (AllowedCPUs), not by a partition: {closed['why']}"
    owner = "the pod's"
    if closed["partitionOf"] == "container":
        owner = "each container's" if len(closed["containers"]) > 1 else "the container's"
    otherwise = " (before kernel 6.7: by systemd's AllowedCPUs)" if closed["assumed"] else ""
    return f"{cpus} by a partition ({owner}, kind {closed['kind']}): {closed['why']}{otherwise}"


def _format_step(number: int, step: Document, config: Document, width: int, node: int | None) -> Iterator[str]:
    owner = "the pod" if step["container"] is None else f"container {step['container']}"
    rows: list[list[str]] = []
    match step["step"]:
        case "merge":
            title = f"{owner}: which NUMA nodes? {_format_merge_result(step, config)}"
            if step["candidates"] and not _has_no_preference(step):
                rows = [["NUMA", *step["candidates"][0]["opinions"], ""]]
                rows += [[format_node_sets(nodes), *cells] for cells, nodes in _group_equal_sets(step).items()]
        case "cpus":
            title = f"{owner}: which CPUs? {step['cpus'] or 'refused'}"
        case "devices":
            title = f"{owner}: which devices? {', '.join(map(format_device, step['devices'])) or 'refused'}"
        case "resource":
            title = f"{owner}: which {step['resource']}? {step['given'] or 'refused'}"
        case _:
            blocks = [f"{format_bytes(b['bytes'])} of {b['resource']} on NUMA {b['nodes']}" for b in step["blocks"]]
            title = f"{owner}: memory of which NUMA nodes? {'refused' if step['refused'] else ', '.join(blocks)}"
    yield from break_text(f"{_INDENT}{number}. {title}", width)
    inner = _INDENT + "   "
    if step["step"] == "merge":
        yield from _format_answers(step, inner, width)
    if rows:
        yield from (f"{inner}{line}" for line in _format_candidates(rows, width - len(inner)))
        if any(len(nodes) > FEW_SETS for nodes in _group_equal_sets(step).values()):
            yield f"{inner}(-o json lists every set)"
        if step["silent"]:
            names = " and ".join(step["silent"])
            yield from break_text(
                f"{inner}no set has enough free {names}. As in kubelet, the memory manager then gives no hint and decides only at the "
                "allocation",
                width,
            )
    if step["step"] == "merge" and not step["allSets"]:
        yield f"{inner}not all sets of so many NUMA nodes are listed"
    if step["step"] == "cpus":
        options = list_enabled(config["cpuManagerPolicyOptions"]) + ["sameNumaNodes"] * config["sameNumaNodes"]
        yield from _format_choices(step, options, inner, width, node)
    if step["step"] == "memory":
        yield from _format_taken(step, inner, width)


def format_device(device: Document) -> str:
    """Format a device with its resource and NUMA nodes."""
    where = f", NUMA {device['numaNodes']}" if device["numaNodes"] else ""
    names = f" {' '.join(device['names'])}" if device["names"] else ""
    return f"{device['id']}{names} ({device['resource']}{where})"


def _format_merge_result(step: Document, config: Document) -> str:
    policy = config["topologyManagerPolicy"]
    if step["admitted"] and _has_no_preference(step):
        return "any: none of its resources depends on NUMA nodes"
    nodes = "any" if step["nodes"] is None else f"NUMA {step['nodes']}"
    if step["overruled"]:
        return f"{nodes}, which its CPUs prefer; preferCPUsNumaNode puts them before {' and '.join(step['overruled'])}"
    if step["insteadOf"] is not None:
        return f"{nodes}, where CPUs and memory both have room; sameNumaNodes takes it instead of {step['insteadOf']}"
    if step["admitted"]:
        how = "preferred by all" if step["preferred"] else f"not preferred by all, which {policy} accepts"
        return f"{nodes}, {how}"
    if step["nodes"] is None:
        return f"none: {policy} needs a set that all prefer"
    return f"{nodes} is the best, but not preferred by all: {policy} refuses it"


def _has_no_preference(step: Document) -> bool:
    """Return whether every set of NUMA nodes suits every resource equally well."""
    return all(opinion == "any" for candidate in step["candidates"] for opinion in candidate["opinions"].values())


def _group_equal_sets(step: Document) -> dict[tuple[str, ...], list[str]]:
    """Group the sets of NUMA nodes with the same cells in the table (the resources' opinions and the verdict), so that they share a row."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for candidate in step["candidates"]:
        cells = (*candidate["opinions"].values(), _format_verdict(candidate, step))
        alike.setdefault(cells, []).append(candidate["nodes"])
    return alike


def _format_candidates(rows: list[list[str]], width: int) -> Iterator[str]:
    """Format the table of the candidate sets of NUMA nodes. If too little width is left for the column of verdicts, each verdict gets a
    line of its own.
    """
    opinions = [row[:-1] for row in rows]
    if max(map(len, format_table(opinions, None))) + _VERDICT_WIDTH <= width:
        yield from format_table(rows, width)
        return
    for row, lines in zip(rows, format_rows(opinions, width), strict=True):
        yield from lines
        yield from break_text(f"{_INDENT}{row[-1]}", width) if row[-1] else ()


def _format_verdict(candidate: Document, step: Document) -> str:
    names = candidate["becauseOf"]
    match candidate["verdict"]:
        case "no room":
            return f"loses: not enough {names[0]}" if len(names) == 1 else "loses: not enough of its resources"
        case "not preferred":
            return f"loses: not preferred by {names[0]}" if len(names) == 1 else "loses: not preferred"
        case "wins" if not step["admitted"]:
            return "best, but refused"
        case "wins" if "no" in candidate["opinions"].values() and not step["overruled"]:
            return "chosen although not all offer it, because no other set is left"
        case verdict:
            return _VERDICTS[verdict]


def count_cpus(cpus: str) -> int:
    """Count the CPUs in a list such as `0-3,8`."""
    ranges = (part.partition("-") for part in cpus.split(",") if part)
    return sum(int(last or first) - int(first) + 1 for first, _, last in ranges)


def _format_choices(
    step: Document, options: Collection[str], inner: str, width: int, node: int | None
) -> Iterator[str]:
    if step["reused"]:
        yield from break_text(f"{inner}{step['reused']}: reused from the pod's init containers", width)
    yield from _format_answers(step, inner, width)
    for choice in step["choices"]:
        source = "sockets" if choice["source"] == "hint" and "align-by-socket" in options else choice["source"]
        where = f"on NUMA {node}" if source == "anywhere" and node is not None else _SOURCES[source]
        part = "" if choice["container"] is None else f"for {choice['container']}, "
        free = f"{count_cpus(choice['available'])} {'isolated ' if choice['isolated'] else ''}free {where}"
        yield from break_text(f"{inner}{part}{choice['count']} of {free}: {choice['available']}", width)
        rows = [[group["cpus"], _format_rule(group, options)] for group in choice["groups"]]
        yield from (f"{inner}{_INDENT}{line}" for line in format_table(rows, width - len(inner) - len(_INDENT)))


def _format_answers(step: Document, inner: str, width: int) -> Iterator[str]:
    """Format the answers of the CPU plugins, one per line."""
    rows = []
    for answer in step.get("answers", ()):
        text = _ANSWERS[answer["point"]].format(cpus=answer["cpus"] or "nothing", score=answer["score"])
        rows.append([f"{answer['plugin']}, {answer['point']}", text])
    yield from (f"{inner}{line}" for line in format_table(rows, width - len(inner)))


def _format_rule(group: Document, options: Collection[str]) -> str:
    share = ""
    if group["shareOf"] is not None:
        share = f", NUMA {group['shareOf']}'s {'part of the remainder' if group['remainder'] else 'share'}"
        if "sameNumaNodes" in options and "distribute-cpus-across-numa" not in options:
            share += ", because the memory is there, too (sameNumaNodes)"
    if group["rule"] == "plugin":
        return f"selected by the CPU plugin {group['plugin']}"
    rule = _RULES[group["rule"]]
    if group["rule"] == "whole core" and "full-pcpus-only" in options:
        rule += " (the only choice with full-pcpus-only)"
    if group["rule"] == "single CPU" and "distribute-cpus-across-cores" in options:
        rule = "single CPUs, one after the other (distribute-cpus-across-cores)"
    return f"{rule}{share}"


_RULES = {
    "whole socket": "whole sockets",
    "whole NUMA node": "whole NUMA nodes",
    "whole uncore cache": "whole uncore caches (prefer-align-cpus-by-uncorecache)",
    "same uncore cache": "of one uncore cache (prefer-align-cpus-by-uncorecache)",
    "whole core": "whole cores",
    "single CPU": "single CPUs, from cores with the fewest free CPUs first",
}


def _format_taken(step: Document, inner: str, width: int) -> Iterator[str]:
    nodes = {b["nodes"] for b in step["blocks"]}
    if step["spread"]:
        yield f"{inner}on the NUMA nodes of its CPUs, in proportion to them (spreadHugePages)"
    elif step["hint"] is None:
        yield f"{inner}no hint: the fewest NUMA nodes with enough memory, lowest numbers first"
    elif nodes == {step["hint"]}:
        yield f"{inner}following the merged hint"
    elif not step["refused"]:
        yield f"{inner}more nodes than the hint ({step['hint']}), which has too little memory or belongs to a group"
    for taken in step["taken"]:
        yield from break_text(
            f"{inner}NUMA {taken['node']} gives {format_bytes(taken['bytes'])} of {taken['resource']}", width
        )
    given = sum(b["bytes"] for b in step["blocks"])
    new = sum(t["bytes"] for t in step["taken"])
    if given > new:
        yield f"{inner}{format_bytes(given - new)} of it reused from the pod's init containers"


def _indent(lines: list[str]) -> Iterator[str]:
    return (f"{_INDENT}{line}" for line in lines)
