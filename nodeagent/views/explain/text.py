"""An explanation as text: the answer first, then what was missing and what would help, then the steps that led to it.

Adds words and layout to the document, no facts. Legible without colour; no line is longer than the width, as far as words allow.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from nodeagent.core.explain.pods_to_end import MOST_ALIKE
from nodeagent.views.explain.lacking import FEW_SETS, sets_text
from nodeagent.views.wording.columns import broken, table
from nodeagent.views.wording.runtime_pods import known_row
from nodeagent.views.wording.words import bytes_text, counted

Document = Mapping[str, Any]
WIDTH = 80
_INDENT = "  "
_MAX_NODES = "max-allowable-numa-nodes"
_SOURCES = {
    "hint": "on the NUMA nodes of the merged hint",
    "sockets": "on the sockets of the merged hint (align-by-socket)",
    "elsewhere": "on other NUMA nodes, as the hint's have no more",
    "anywhere": "anywhere",
    "pod": "out of the pod's own set",
}
_VERDICTS = {
    "wins": "wins",
    "several nodes": "loses: more than a single NUMA node",
    "more nodes": "loses: the winner has fewer nodes",
    "farther apart": "loses: as many nodes, farther apart (prefer-closest-numa-nodes)",
    "less allocated": "loses: less of it is allocated (prefer-most-allocated-numa-node)",
    "higher number": "loses: as good, but its numbers are higher",
    "other size": "loses: another number of nodes than all can be narrowed to",
}


def render_explanation(document: Document, width: int = WIDTH) -> str:
    """Print all pods, one after the other."""
    lines: list[str] = [*head(document, width)]
    for pod in document["pods"]:
        lines += ["", *_pod(pod, document["configuration"], width)]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def head(document: Document, width: int) -> Iterator[str]:
    """Describe the machine and the rules."""
    yield from machine_text(document["machine"], width)
    yield from _wrapped(f"rules    {rules_text(document['configuration'])}", width)


def machine_text(machine: Document, width: int) -> Iterator[str]:
    """Describe the machine."""
    yield from _wrapped(
        f"machine  {counted(machine['sockets'], 'socket')}, {counted(machine['numaNodes'], 'NUMA node')}, "
        f"{counted(machine['cpus'], 'CPU')} (reserved {machine['reserved'] or 'none'}): {machine['source']}",
        width,
    )


def rules_text(config: Document) -> str:
    """Describe what decides, in one line."""
    options = enabled(config["cpuManagerPolicyOptions"])
    given = config["topologyManagerPolicyOptions"]
    topology = enabled({name: value for name, value in given.items() if name != _MAX_NODES})
    topology += [f"{name}={value}" for name, value in given.items() if name == _MAX_NODES]
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
    plugins = [each["name"] for each in config.get("cpuManagerPlugins", ())]
    if plugins:
        parts.append(f"CPU plugins {', '.join(plugins)}")
    if config["errata"] != "fixed":
        parts.append(f"with the errata of {config['errata']}")
    return ", ".join(parts)


def enabled(options: Document) -> list[str]:
    """Name the options that are on, as Go reads booleans."""
    return [name for name, value in options.items() if value in ("1", "t", "T", "TRUE", "true", "True")]


def _pod(pod: Document, config: Document, width: int) -> Iterator[str]:
    if pod.get("resize"):
        yield from _resized(pod, width)
        return
    yield from _wrapped(f"pod {pod['namespace']}/{pod['name']} ({pod['qos']}): {pod['decision']}", width)
    if pod["reason"] is not None:
        yield from _wrapped(f"{_INDENT}{pod['reason']}: {pod['message']}", width)
    if pod["recorded"] is not None:
        yield f"{_INDENT}uid {pod['uid']}"
    for text in (*_asked_for(pod, config), *_recorded(pod), *pod["notes"]):
        yield from _wrapped(f"{_INDENT}{text}", width)
    if pod["known"]:
        yield ""
        yield "What is known of it (the container runtime isn't told requests)"
        yield from _indented(table([known_row(one) for one in pod["known"]], width - len(_INDENT)))
    if pod["containers"]:
        yield ""
        yield from _indented(table([container_text(c) for c in pod["containers"]], width - len(_INDENT)))
        if pod.get("claims"):
            from nodeagent.views.wording.claims import claim_text  # noqa: PLC0415 - few pods have claims

            for claim in pod["claims"]:
                yield from _wrapped(f"{_INDENT}claim {claim_text(claim)}", width)
        for closed in pod["closedToHost"]:
            yield from _wrapped(f"{_INDENT}{_closed_text(closed)}", width)
    if pod["why"]:
        yield ""
        yield "What is missing"
        for text in pod["why"]:
            yield from _wrapped(f"{_INDENT}{text}", width)
        yield ""
        yield "What would admit it (each of these has been tried)"
        for remedy in pod["remedies"]:
            yield from _wrapped(f"{_INDENT}* {remedy['text']}", width)
        if sum(1 for r in pod["remedies"] if r["change"] == "removal" and len(r["subject"]) == 1) == MOST_ALIKE:
            yield f"{_INDENT}of pods that hold equally much, at most {MOST_ALIKE} are named"
        if not pod["allTried"]:
            other = "there may be others, or smaller ones" if pod["remedies"] else "there may be a change that would"
            yield from _wrapped(f"{_INDENT}not everything was tried, as it would take too long: {other}", width)
        elif not pod["remedies"]:
            yield f"{_INDENT}no single change: no smaller request, no laxer rule, no other pod's end"
    if pod["steps"]:
        yield ""
        yield "Step by step"
        for number, step in enumerate(pod["steps"], start=1):
            yield from _step(number, step, config, width, pod["numaNode"])


def _resized(pod: Document, width: int) -> Iterator[str]:
    from nodeagent.views.explain.resizes import resize_lines  # noqa: PLC0415 - few explanations are of a resize

    is_fine = pod["decision"] == "admitted"
    what = "is resized while it runs" if is_fine else "is not resized"
    yield from _wrapped(f"pod {pod['namespace']}/{pod['name']} ({pod['qos']}): {what}", width)
    if not is_fine:
        yield from _wrapped(f"{_INDENT}{pod['reason']}: {pod['message']}", width)
    for text in (*pod["notes"], *resize_lines(pod["resize"], is_resized=is_fine)):
        yield from _wrapped(f"{_INDENT}{text}", width)
    if pod["containers"]:
        yield ""
        yield from _indented(table([container_text(c) for c in pod["containers"]], width - len(_INDENT)))


def _recorded(pod: Document) -> Iterator[str]:
    recorded = pod["recorded"]
    if recorded is None:
        return
    then = recorded["decision"]
    later = recorded["withoutLaterPods"]
    if recorded["reproduced"] is None:
        yield "The pod has ended, and has given back what it had: what follows is how it would be decided now."
    elif recorded["reproduced"]:
        without = f" without the {counted(len(later), 'pod')} that came later" if later else ""
        yield f"Decided again{without}, it comes out as it did: what follows is how."
    elif then == "admitted":
        yield (
            "Decided again on the node as it is now, it would come out differently: what was there then has changed since (pods have "
            "gone, or the configuration is another). It keeps what it has; what follows is how it would be decided now."
        )
    elif pod["decision"] == "admitted":
        name = f"{pod['namespace']}/{pod['name']}"
        yield f"It was refused: {recorded['reason']}: {recorded['message']}"
        yield f"By now it would be admitted: nodeagent retry {name}"
    else:
        yield f"It was refused for another reason: {recorded['reason']}: {recorded['message']}"


def _asked_for(pod: Document, config: Document) -> Iterator[str]:
    if pod["numaNode"] is not None:
        books = "" if config["memoryManagerPolicy"] == "Static" else " (not counted: memoryManagerPolicy is None)"
        yield f"it asks for NUMA node {pod['numaNode']}: for exclusive CPUs there, and memory from there alone{books}"
    if pod["coreClass"] is not None:
        yield f"it asks for {pod['coreClass']} cores: its exclusive CPUs are to be among them"
    if pod["near"]:
        ignored = (
            ""
            if config["topologyManagerPolicy"] != "none"
            else "; topologyManagerPolicy is none, so that decides nothing"
        )
        yield f"it asks to be near {', '.join(map(_near_text, pod['near']))}{ignored}"
    wish = pod["preferredCoreClass"]
    if wish is not None and wish["granted"] is not None:
        who = "exclusiveCoreClass prefers" if wish["isTheNodes"] else "it prefers"
        end = "all its exclusive CPUs are among them" if wish["granted"] else "these alone would not do, so all counted"
        yield f"{who} {wish['coreClass']} cores: {end}"


def _near_text(near: Document) -> str:
    if near["devices"] is None:
        return str(near["name"])
    if not near["devices"]:
        where = "there is none"
    elif not near["numaNodes"]:
        where = "of no known NUMA node: nothing is near it"
    else:
        where = f"NUMA {near['numaNodes']}"
    return f"{near['name']} ({where})"


def container_text(container: Document) -> list[str]:
    """Describe a container in cells: its name, its CPUs, where they and its memory are, why it shares."""
    level = {"container": "exclusive", "mixed": "exclusive", "pod": "the pod's", "host": "shared"}[
        container["isolation"]
    ]
    beside = " + shared pool" if container["isolation"] == "mixed" else ""
    memory = "" if container["memoryNodes"] is None else f"memory NUMA {container['memoryNodes']}"
    cores = " and ".join(container["coreClasses"])
    where = f"NUMA {container['numaNodes']}{cores and f', {cores}'}" if container["numaNodes"] else ""
    why = "" if container["whyShared"] is None else container["whyShared"]
    return [container["name"], f"{level} {container['cpus']}{beside}", where, memory, why]


def _closed_text(closed: Document) -> str:
    """Say what keeps the host's processes off a pod's exclusive CPUs."""
    cpus = f"CPUs {closed['cpus']} are closed to the host"
    if closed["means"] == "systemd":
        return f"{cpus} by systemd (AllowedCPUs), not by a partition: {closed['why']}"
    of = (
        "the pod's"
        if closed["partitionOf"] == "pod"
        else "each container's"
        if closed["containers"][1:]
        else "the container's"
    )
    otherwise = " (before kernel 6.7: by systemd's AllowedCPUs)" if closed["assumed"] else ""
    return f"{cpus} by a partition ({of}, kind {closed['kind']}): {closed['why']}{otherwise}"


def _step(number: int, step: Document, config: Document, width: int, node: int | None) -> Iterator[str]:
    who = "the pod" if step["container"] is None else f"container {step['container']}"
    rows: list[list[str]] = []
    match step["step"]:
        case "merge":
            title = f"{who}: on which NUMA nodes? {_merge_result(step, config)}"
            rows = _candidates(step)
        case "cpus":
            title = f"{who}: which CPUs? {step['cpus'] or 'refused'}"
        case "devices":
            title = f"{who}: which devices? {', '.join(map(device_text, step['devices'])) or 'refused'}"
        case "resource":
            title = f"{who}: which {step['resource']}? {step['given'] or 'refused'}"
        case _:
            title = f"{who}: whose memory? {_blocks(step)}"
    yield from _wrapped(f"{_INDENT}{number}. {title}", width)
    inner = _INDENT + "   "
    if step["step"] == "merge":
        yield from _answers(step, inner, width)
    if rows:
        yield from (f"{inner}{line}" for line in table(rows, width - len(inner)))
        if any(len(nodes) > FEW_SETS for nodes in _alike(step).values()):
            yield f"{inner}(-o json has each set by itself)"
        if step["silent"]:
            names = " and ".join(step["silent"])
            yield from _wrapped(
                f"{inner}no set has room for its {names}; the memory manager then says nothing here (as in kubelet), and decides when it "
                "allocates",
                width,
            )
    if step["step"] == "merge" and not step["allSets"]:
        yield f"{inner}of so many NUMA nodes not every set is listed"
    if step["step"] == "cpus":
        yield from _choices(step, enabled(config["cpuManagerPolicyOptions"]), inner, width, node)
    if step["step"] == "memory":
        yield from _taken(step, inner, width)


def device_text(device: Document) -> str:
    """Name a device, and say of which resource and near which NUMA nodes it is."""
    where = f", NUMA {device['numaNodes']}" if device["numaNodes"] else ""
    names = f" {' '.join(device['names'])}" if device["names"] else ""
    return f"{device['id']}{names} ({device['resource']}{where})"


def _merge_result(step: Document, config: Document) -> str:
    policy = config["topologyManagerPolicy"]
    if step["admitted"] and _is_open(step):
        return "any: nothing that it asks for is given by NUMA node"
    nodes = "any" if step["nodes"] is None else f"NUMA {step['nodes']}"
    if step["overruled"]:
        return f"{nodes}, which its CPUs prefer: preferCPUsNumaNode puts them before {' and '.join(step['overruled'])}"
    if step["admitted"]:
        how = "preferred by all" if step["preferred"] else f"not preferred by all, which {policy} accepts"
        return f"{nodes}, {how}"
    if step["nodes"] is None:
        return f"none: {policy} takes one that all prefer"
    return f"{nodes} is the best, but not preferred by all: {policy} refuses it"


def _is_open(step: Document) -> bool:
    """Whether no resource cares about the nodes."""
    return all(opinion == "any" for candidate in step["candidates"] for opinion in candidate["opinions"].values())


def _candidates(step: Document) -> list[list[str]]:
    candidates = step["candidates"]
    if not candidates or _is_open(step):
        return []
    rows = [["NUMA", *candidates[0]["opinions"], ""]]
    rows += [[sets_text(nodes), *cells] for cells, nodes in _alike(step).items()]
    return rows


def _alike(step: Document) -> dict[tuple[str, ...], list[str]]:
    """Return the sets that have the same result, by its description."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for candidate in step["candidates"]:
        cells = (*candidate["opinions"].values(), _verdict(candidate, step))
        alike.setdefault(cells, []).append(candidate["nodes"])
    return alike


def _verdict(candidate: Document, step: Document) -> str:
    names = candidate["becauseOf"]
    match candidate["verdict"]:
        case "no room":
            return f"loses: {names[0]} can't be had there" if len(names) == 1 else "loses: can't be had there"
        case "not preferred":
            return f"loses: not preferred by {names[0]}" if len(names) == 1 else "loses: not preferred"
        case "wins" if not step["admitted"]:
            return "best, and refused"
        case "wins" if "no" in candidate["opinions"].values() and not step["overruled"]:
            return "taken, though not all offer it: nothing else is left"
        case verdict:
            return _VERDICTS[verdict]


def _choice(choice: Document, options: Collection[str], node: int | None) -> str:
    isolated = "isolated " if choice["isolated"] else ""
    source = "sockets" if choice["source"] == "hint" and "align-by-socket" in options else choice["source"]
    slice_of = "" if choice["container"] is None else f"for {choice['container']}, "
    free = len_of(choice["available"])
    where = f"on NUMA {node}" if source == "anywhere" and node is not None else _SOURCES[source]
    return f"{slice_of}{choice['count']} of {free} {isolated}free {where}: {choice['available']}"


def len_of(cpus: str) -> int:
    """Count the CPUs of a list."""
    ranges = (part.partition("-") for part in cpus.split(",") if part)
    return sum(int(last or first) - int(first) + 1 for first, _, last in ranges)


def _choices(step: Document, options: Collection[str], inner: str, width: int, node: int | None) -> Iterator[str]:
    if step["reused"]:
        yield from _wrapped(f"{inner}{step['reused']}: what the pod's init containers had before", width)
    yield from _answers(step, inner, width)
    for choice in step["choices"]:
        yield from _wrapped(f"{inner}{_choice(choice, options, node)}", width)
        rows = [[group["cpus"], _rule(group, options)] for group in choice["groups"]]
        yield from (f"{inner}{_INDENT}{line}" for line in table(rows, width - len(inner) - len(_INDENT)))


def _answers(step: Document, inner: str, width: int) -> Iterator[str]:
    answers = [[f"{each['plugin']}, {each['point']}", _answer_text(each)] for each in step.get("answers", ())]
    yield from (f"{inner}{line}" for line in table(answers, width - len(inner)) if answers)


def _answer_text(answer: Document) -> str:
    """Say what a CPU plugin has answered."""
    cpus, score = answer["cpus"] or "nothing", answer["score"]
    match answer["point"]:
        case "Filter":
            return f"leaves {cpus}"
        case "PostFilter":
            return f"gives {cpus} instead, as the filters left too little"
        case "Select":
            return f"selects {cpus}"
        case _:
            return f"scores {cpus} with {score}"


def _rule(group: Document, options: Collection[str]) -> str:
    share = ""
    if group["shareOf"] is not None:
        share = f", NUMA {group['shareOf']}'s {'part of the remainder' if group['remainder'] else 'equal share'}"
    if group["rule"] == "plugin":
        return f"selected by the CPU plugin {group['plugin']}"
    rule = _RULES[group["rule"]]
    if group["rule"] == "whole core" and "full-pcpus-only" in options:
        rule += " (full-pcpus-only gives nothing else)"
    if group["rule"] == "single CPU" and "distribute-cpus-across-cores" in options:
        rule = "single CPUs, one after the other (distribute-cpus-across-cores)"
    return f"{rule}{share}"


_RULES = {
    "whole socket": "whole sockets",
    "whole NUMA node": "whole NUMA nodes",
    "whole uncore cache": "whole uncore caches (prefer-align-cpus-by-uncorecache)",
    "same uncore cache": "of one uncore cache (prefer-align-cpus-by-uncorecache)",
    "whole core": "whole cores",
    "single CPU": "single CPUs, of the cores with fewest free first",
}


def _blocks(step: Document) -> str:
    if step["refused"]:
        return "refused"
    return ", ".join(f"{bytes_text(b['bytes'])} of {b['resource']} on NUMA {b['nodes']}" for b in step["blocks"])


def _taken(step: Document, inner: str, width: int) -> Iterator[str]:
    nodes = {b["nodes"] for b in step["blocks"]}
    if step["hint"] is None:
        yield f"{inner}no hint: the fewest NUMA nodes with room, the lowest of them"
    elif nodes == {step["hint"]}:
        yield f"{inner}as the merged hint says"
    elif not step["refused"]:
        yield f"{inner}more than the hint ({step['hint']}): it has too little, or belongs to a group"
    for taken in step["taken"]:
        yield from _wrapped(
            f"{inner}NUMA {taken['node']} gives {bytes_text(taken['bytes'])} of {taken['resource']}", width
        )
    given = sum(b["bytes"] for b in step["blocks"])
    new = sum(t["bytes"] for t in step["taken"])
    if given > new:
        yield f"{inner}{bytes_text(given - new)} of it the pod's init containers had before"


def _wrapped(text: str, width: int) -> Iterator[str]:
    yield from broken(text, width)


def _indented(lines: list[str]) -> Iterator[str]:
    return (f"{_INDENT}{line}" for line in lines)
