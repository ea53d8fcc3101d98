"""Text of `nodeagent inspect`, made from the document: the node, then the pods, and finally everything that needs attention.

The text is readable without colour. No line is longer than the width.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from nodeagent.core.model.refusals import RESIZE_DEFERRED, RESIZE_INFEASIBLE
from nodeagent.views.holdings.claims import format_claim
from nodeagent.views.wording.columns import break_text, format_rows, format_table
from nodeagent.views.wording.words import (
    format_age,
    format_bytes,
    format_count,
    format_isolation,
    format_places,
    format_quota,
    format_state,
    is_closed_to_host,
    list_remarks,
)

Document = Mapping[str, Any]
WIDTH = 80
_MAX_PROCESSES = 12
_SHORT_LISTING = 8
_MAX_NOTICEABLE = 30
_NO_VALUE = "-"
_RESIZE_LABELS = {RESIZE_DEFERRED: "resize deferred", RESIZE_INFEASIBLE: "resize infeasible"}
"""Labels for refused resizes, by the reason of the refusal."""
_RED, _YELLOW = "1;91", "1;93"
_ATTENTION = re.compile(
    r"(?P<red>\b(?:Refused|CrashLoopBackOff|Failed|OOMKilled|StartError|NOT AS ALLOCATED|is NOT running)\b"
    r"|^(?:PROBLEMS|DIFFERENCES|PROCESSES IN CGROUPS)\b[^\n]*)"
    r"|(?P<yellow>\b(?:Starved|Unknown)\b|(?<=[ ])(?:degraded|starved)(?=[:,]))",
    re.MULTILINE,
)
"""Pattern for the words to colour. Each word contains a capital letter or needs a certain context, so that the pattern never matches the
name of a pod or container.
"""


def render(
    document: Document,
    width: int = WIDTH,
    name_user: Callable[[int], str] = str,
    format_time: Callable[[int], str] = str,
) -> str:
    """Format the node, a few lines for each pod, the reservations, and everything that needs attention.

    Args:
        document: the result of `inspect_node`.
        width: number of columns.
        name_user: function that returns the name of a user ID.
        format_time: function that formats a time, given in milliseconds since the epoch.
    """
    reservations = []
    if document["node"]["reservations"]:
        from nodeagent.views.wording.reservations import render_reservations  # noqa: PLC0415 - few nodes have any

        shown = document["node"]["reservations"], document["atMs"], width
        reservations = ["", *render_reservations(*shown, name_user, format_time).splitlines()]
    node, pods = _format_node(document, width), _format_pods(document, width)
    return _join_lines([*node, "", *pods, *reservations, *_format_attention(document, width)])


def add_colours(text: str) -> str:
    """Colour words that need attention, such as refusals and repeated failures. Only colour codes are inserted, so columns stay aligned on
    a terminal.
    """
    return _ATTENTION.sub(lambda found: f"\x1b[{_RED if found['red'] else _YELLOW}m{found[0]}\x1b[0m", text)


def render_in_full(document: Document, width: int = WIDTH) -> str:
    """Format everything that the document says about its pods. The text is long, so it is meant for a few pods."""
    lines: list[str] = []
    for pod in document["pods"]:
        lines += [*_format_pod_in_full(pod, document, width), ""]
    return _join_lines([*lines[:-1], *_format_attention(document, width)])


def render_wide(document: Document) -> str:
    """Format one line per container, however long, so that users can search and sort the lines."""
    rows: list[tuple[str, ...]] = [_WIDE_HEADING]
    for pod in document["pods"]:
        # Columns are separated by exactly two blanks, and no other text has two blanks, so that `awk -F '  +'` splits the columns.
        rows += [tuple(" ".join(cell.split()) or _NO_VALUE for cell in row) for row in _format_wide_rows(pod, document)]
    listing = format_table(rows, None) if len(rows) > 1 else [_format_no_pods(document)]
    return _join_lines([*_format_node(document, None), "", *listing, *_format_attention(document, None)])


def format_health(document: Document) -> str:
    """Format the verdict in one line, with the counts of everything that needs attention."""
    summary, agent = document["summary"], document["node"]["agent"]
    words = {
        "problems": ("problem", "problems"),
        "refused": ("refused pod", "refused pods"),
        "crashLoops": ("crash-looping container", "crash-looping containers"),
        "degraded": ("degraded container", "degraded containers"),
        "starved": ("starved container", "starved containers"),
        "differences": ("difference", "differences"),
        "orphans": ("cgroup without a pod", "cgroups without a pod"),
    }
    found = [format_count(summary[name], *word) for name, word in words.items() if summary[name]]
    if not agent["live"]:
        found.insert(0, "no agent is known to run" if document["node"]["copied"] else "the agent is not running")
    elif not agent["ready"]:
        found.insert(0, "the last sync is not finished")
    return f"NOT healthy: {', '.join(found)}" if found else "healthy"


def _join_lines(lines: list[str]) -> str:
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _format_node(document: Document, width: int | None) -> list[str]:
    node, summary = document["node"], document["summary"]
    cpus, millicores = node["cpus"], node["cpus"]["sharedMillicores"]
    offline = f", offline {cpus['offline']}" if cpus["offline"] else ""
    isolated = f", isolated {cpus['isolated']}" if cpus["isolated"] else ""
    phases = ", ".join(f"{count} {phase}" for phase, count in summary["byPhase"].items())
    machine = f"{format_count(node['sockets'], 'socket')}, {format_count(node['numaNodes'], 'NUMA node')}"
    classes = ", ".join(f"{name} {cores}" for name, cores in node["coreClasses"].items())
    policies = node["policies"]
    allocatable = f"{cpus['availableCount'] or 'none'} of them can be allocated exclusively"
    # with a core class in sharedCoreClass, CPUs outside of the shared pool can be allocated exclusively, too
    if policies["sharedCoreClass"] in node["coreClasses"]:
        allocatable = f"can be allocated exclusively: {cpus['available'] or 'none'}"
    cpu_options = ",".join(f"{k}={v}" for k, v in policies["cpuManagerPolicyOptions"].items())
    cpu = f"{policies['cpuManagerPolicy']}{f' ({cpu_options})' if cpu_options else ''}"
    topology = policies["topologyManagerPolicy"]
    scope = "" if topology == "none" else f" per {policies['topologyManagerScope']}"
    rows = [
        ("node", f"{format_count(cpus['onlineCount'], 'CPU')} ({cpus['online']}){offline}{isolated}, {machine}"),
        *([("cores", classes)] if len(node["coreClasses"]) > 1 else []),
        ("reserved", _format_set(cpus["reserved"], cpus["reservedCount"])),
        ("shared", _format_set(cpus["shared"], millicores // 1000, f", {millicores}m; {allocatable}")),
        ("exclusive", _format_set(cpus["exclusive"], cpus["exclusiveCount"])),
        (
            "policies",
            f"CPU manager {cpu}, topology manager {topology}{scope}, memory manager {policies['memoryManagerPolicy']}",
        ),
        ("agent", _format_agent(node)),
        ("cgroups", node["cgroupRoot"] or "location unknown"),
        ("pods", f"{summary['pods']}" + (f": {phases}" if phases else "")),
    ]
    return format_table(rows, width)


def _format_agent(node: Document) -> str:
    """Describe whether the agent runs. For a copy of a node, describe whether the agent ran when the copy was made."""
    agent = node["agent"]
    if not agent["known"]:
        return "the capture has no agent"
    if node["copied"]:
        when = f" of {node['copiedAt']}" if node["copiedAt"] else ""
        unready = "" if agent["ready"] else ", but could not finish its last sync"
        return (
            f"this is a copy{when}; it ran then{unready}"
            if agent["live"]
            else f"this is a copy of its saved state{when}"
        )
    if not agent["live"]:
        return "is NOT running: this is its saved state; start it with systemctl start nodeagent"
    return "runs" if agent["ready"] else "runs, but could not finish its last sync (see the problems below)"


def _format_set(cpus: str, count: int, more: str = "") -> str:
    return f"{cpus} ({format_count(count, 'CPU')}{more})" if cpus else "none"


def _format_no_pods(document: Document) -> str:
    is_usable = document["node"]["agent"]["known"] and not document["node"]["copied"]
    return "no pods: put a manifest into the agent's manifest directory" if is_usable else "no pods"


def _format_pods(document: Document, width: int) -> list[str]:
    pods = document["pods"]
    if not pods:
        return [_format_no_pods(document)]
    heading = ("POD / CONTAINER", "STATE", "RESTARTS", "CPUS", "MEMS", "QUOTA")
    # The rows of all containers are formatted together, so that their columns are aligned.
    laid = iter(format_rows([heading, *(_format_row(c, document) for pod in pods for c in pod["containers"])], width))
    lines = next(laid)
    for pod in pods:
        lines = lines + _format_pod(pod, document, width)
        for container in pod["containers"]:
            lines += next(laid)
            for note in (format_isolation(container), *list_remarks(container, document["atMs"])):
                lines += break_text(f"    {note}", width) if note else []
    return lines


def _format_row(container: Document, document: Document) -> tuple[str, ...]:
    kind = "" if container["kind"] == "app" else f" ({container['kind']})"
    is_unseen = document["node"]["copied"] and document["differences"] is None
    values = container["effective"] or {}
    if is_unseen and not values:  # the allocation is shown instead, because the kernel's values are unknown
        cpus, mems = container["promised"]["cpus"], container["promised"]["mems"]
        shared = None if container["isolation"] is None else "shared"
        values = {
            "cpus": f"{cpus}{' + shared' if container['isolation'] == 'mixed' else ''}" if cpus else shared,
            "mems": mems,
        }
    return (
        f"  {container['name']}{kind}",
        format_state(container, document["atMs"]),
        str(container["restarts"]),
        "frozen" if values.get("frozen") else values.get("cpus") or _format_former_cpus(container),
        values.get("mems") or _NO_VALUE,
        format_quota(values.get("quota")),
    )


def _format_former_cpus(container: Document) -> str:
    """Format the CPUs that a finished container had. Other containers may have these CPUs now."""
    return _NO_VALUE if container["hadCPUs"] is None else f"had {container['hadCPUs']}"


def _format_pod(pod: Document, document: Document, width: int) -> list[str]:
    name = f"{pod['namespace']}/{pod['name']}"
    title = f"{name}  {_format_phase(pod, document['atMs'])}, {pod['qos']}, {pod['source']}"
    lines = break_text(title, width)
    if pod["podCpus"] is not None:
        lines += break_text(f"    the pod's own CPUs: {pod['podCpus']}", width)
    if pod["refusal"] is not None:
        lines += break_text(f"    {pod['refusal']['reason']}: {pod['refusal']['message']}", width)
        lines += break_text(f"    next: {pod['refusal']['nextStep']}", width)
    if pod["refusedChange"] is not None:
        change = pod["refusedChange"]
        lines += break_text(
            f"    {_RESIZE_LABELS.get(change['reason'], 'changed manifest refused')}: {_format_reason(change)}", width
        )
        lines += break_text(f"    requested: {_format_amounts(change)}", width) if change["amounts"] else []
        lines += break_text(f"    next: {change['nextStep']}", width)
    return lines


def _format_amounts(change: Document) -> str:
    by_owner: dict[str, list[str]] = {}
    for one in change["amounts"]:
        owner = "the pod as a whole" if one["container"] is None else one["container"]
        amounts = f"{one['resource']} {one['before'] or 'not set'} → {one['after'] or 'not set'}"
        by_owner.setdefault(owner, []).append(amounts)
    return "; ".join(f"{owner}: {', '.join(amounts)}" for owner, amounts in by_owner.items())


def _format_reason(change: Document) -> str:
    return str(change["message"]) if change["reason"] in _RESIZE_LABELS else f"{change['reason']}: {change['message']}"


def _format_phase(pod: Document, at_ms: int) -> str:
    starved = " (Starved)" if pod["starved"] else ""
    if pod["deletingSinceMs"] is not None:
        return f"{pod['phase']} since {format_age(at_ms - pod['deletingSinceMs'])}{starved}"
    return f"{pod['phase']}{starved}"


def _format_attention(document: Document, width: int | None) -> list[str]:
    """List everything that needs attention, with advice: pods, host processes, problems, the results of a recovery, cgroups without a pod,
    and differences.
    """
    problems = document["node"]["problems"]
    sections = [
        *_format_noticeable_pods(document, width),
        *_format_host_processes(document, width),
        *(
            []
            if not problems
            else ["PROBLEMS", *(line for text in problems for line in break_text(f"  {text}", width)), ""]
        ),
        *_format_recovery(document, width),
        *_format_orphans(document, width),
        *_format_differences(document, width),
    ]
    return ["", *sections]


def _format_noticeable_pods(document: Document, width: int | None) -> Iterator[str]:
    """List the pods that need attention. Yield nothing if there are only a few pods, among which users find them easily."""
    if len(document["pods"]) <= _SHORT_LISTING:
        return
    found = []
    for pod in document["pods"]:
        name = f"{pod['namespace']}/{pod['name']}"
        if pod["refusal"] is not None:
            found.append(f"{name}: {pod['phase']}, {pod['refusal']['reason']}")
        elif pod["phase"] == "Failed":
            found.append(f"{name}: Failed")
        for container in pod["containers"]:
            reason = container["state"]["reason"]
            if reason in {"CrashLoopBackOff", "Starved"} or container["degraded"]:
                why = format_state(container, document["atMs"]) if reason else "degraded"
                found.append(f"{name} {container['name']}: {why}, {format_count(container['restarts'], 'restart')}")
    if not found:
        return
    yield f"PODS THAT NEED ATTENTION: {len(found)}"
    for line in found[:_MAX_NOTICEABLE]:
        yield from break_text(f"  {line}", width)
    if len(found) > _MAX_NOTICEABLE:
        yield f"  and {len(found) - _MAX_NOTICEABLE} more"
    yield ""


def _format_differences(document: Document, width: int | None) -> Iterator[str]:
    found, is_known = document["differences"], document["node"]["agent"]["known"]
    if found is None and is_known and document["node"]["copied"]:
        why = "the copy has no cgroups, so nothing was compared: CPUS and MEMS show the allocations"
        yield from break_text(f"cgroups: {why}", width)
        return
    if found is None:
        step = "Start the pods' unit: systemctl start nodeagent-pods; or run as root"
        why = (
            f"not readable, so nothing was compared. {step}"
            if is_known
            else "the capture has no cgroups to compare with"
        )
        yield from break_text(f"cgroups: {why}", width)
        return
    if not found:
        other = "other " if document["orphans"] else ""
        yield from break_text(f"no {other}difference between the allocations and the cgroups", width)
        return
    yield f"DIFFERENCES between allocated and actual: {len(found)}"
    for difference in found:
        where = " ".join(filter(None, (difference["pod"], difference["container"]))) or "the pods' cgroup"
        actual = "missing" if difference["found"] is None else f"'{difference['found']}'"
        file = difference["file"]
        what = (
            f"{file} is {actual}, should be '{difference['promised']}'"
            if file
            else f"{actual}, should be: {difference['promised']}"
        )
        yield from break_text(f"  {where}: {what}", width)
    if document["node"]["copied"]:
        return
    if document["node"]["agent"]["live"]:
        yield from break_text(
            "  the agent corrects them at its next reconcile; if they return, another program writes these files", width
        )
    else:
        yield from break_text("  the agent corrects them once it runs: systemctl start nodeagent", width)


def _format_orphans(document: Document, width: int | None) -> Iterator[str]:
    if not document["orphans"]:
        return
    yield "PROCESSES IN CGROUPS WITHOUT A POD"
    for orphan in document["orphans"]:
        devices = f" and has {', '.join(orphan['devices'])}" if orphan["devices"] else ""
        may = f"may run on CPUs {orphan['cpus']}" if orphan["cpus"] else "has processes"
        yield from break_text(f"  {orphan['cgroup']} {may}{devices}; to end them:", width)
        # A line break at any other place would change the effect of the command.
        for part in orphan["nextStep"].replace(" && ", " &&\n").splitlines():
            yield from break_text(f"    {part}", width)
    yield ""


def _format_recovery(document: Document, width: int | None) -> Iterator[str]:
    recovery = document["node"]["recovery"]
    if recovery is None:
        return
    yield "RECOVERED when the agent started"
    for problem in recovery["problems"]:
        yield from break_text(f"  {problem}", width)
    for path in recovery["setAside"]:
        yield from break_text(f"  set aside: {path}", width)
    if recovery["adopted"]:
        yield from break_text(f"  recognised from running processes: {', '.join(recovery['adopted'])}", width)
    for found in recovery["differences"]:
        where = " ".join(filter(None, (found["pod"], found["container"])))
        yield from break_text(
            f"  {where}: {found['resource']} {found['before']}, now {found['after']}: {found['why']}", width
        )
    for refused in recovery["refused"]:
        yield from break_text(f"  {refused['pod']}: refused: {refused['message']}", width)
    if not recovery["differences"] and not recovery["refused"]:
        yield "  no allocation of a running pod has changed"
    yield ""


def _format_host_processes(document: Document, width: int | None) -> Iterator[str]:
    host = document["hostProcesses"]
    if host is None or not (
        host["processes"] or host["kernelThreads"]["count"] or host["hidden"] or host["interrupts"]
    ):
        return
    processes, threads = host["processes"], host["kernelThreads"]["count"]
    names = [f"{p['name']} ({p['pid']})" for p in processes[:_MAX_PROCESSES]]
    if len(processes) > _MAX_PROCESSES:
        names.append(f"{len(processes) - _MAX_PROCESSES} more")
    if threads:
        names.append(format_count(threads, "kernel thread"))
    if host["hidden"]:
        names.append(f"{format_count(host['hidden'], 'process', 'processes')} that only root may see")
    if names:
        yield "HOST PROCESSES that may run on exclusive CPUs (shown only)"
        yield from break_text(f"  {', '.join(names)}", width)
    bound = [f"{i['name']} (CPU {i['cpus']})" for i in host["interrupts"] if i["bound"]]
    others = len(host["interrupts"]) - len(bound)
    if len(bound) > _MAX_PROCESSES:
        bound[_MAX_PROCESSES:] = [f"{len(bound) - _MAX_PROCESSES} more"]
    # the configuration determines whether the list contains interrupts that other CPUs may be able to handle
    words = [f"{others} that other CPUs may be able to handle"] if others else []
    words += [f"bound by the kernel: {', '.join(bound)}"] if bound else []
    if words:
        yield "INTERRUPTS that exclusive CPUs may get (for advice: nodeagent check)"
        yield from break_text(f"  {'; '.join(words)}", width)
    yield ""


def _format_pod_in_full(pod: Document, document: Document, width: int) -> list[str]:
    at_ms, effective = document["atMs"], pod["effective"]
    rows = [
        ("pod", f"{pod['namespace']}/{pod['name']}"),
        ("phase", _format_phase(pod, at_ms)),
        ("uid", pod["uid"]),
        ("qos", pod["qos"]),
        ("manifest", f"{pod['source']}, decided {format_age(at_ms - pod['decidedAtMs'])} ago"),
    ]
    if pod["refusal"] is not None:
        refusal = pod["refusal"]
        rows += [(pod["phase"].lower(), f"{refusal['reason']}: {refusal['message']}"), ("next", refusal["nextStep"])]
    if pod["refusedChange"] is not None:
        change = pod["refusedChange"]
        rows.append((_RESIZE_LABELS.get(change["reason"], "change refused"), _format_reason(change)))
        rows += [("requested", _format_amounts(change))] if change["amounts"] else []
        rows.append(("next", change["nextStep"]))
    if pod["coreClass"] is not None:
        rows.append(("requires", f"{pod['coreClass']} cores"))
    if pod["preferredCoreClass"] is not None:
        rows.append(("prefers", f"{pod['preferredCoreClass']} cores"))
    if pod["podCpus"] is not None:
        rows.append(("own CPUs", pod["podCpus"]))
    if pod.get("claims"):
        rows += [("claim", format_claim(claim)) for claim in pod["claims"]]
    if pod["cgroup"] is not None:
        values = "" if effective is None else f": {_format_limits(effective)}"
        rows.append(("cgroup", f"{pod['cgroup']}{values}"))
    if pod["estimates"]:
        from nodeagent.views.wording.runtime_pods import format_estimate  # noqa: PLC0415 - most nodes have no container runtime

        rows += [("estimate", format_estimate(one)) for one in pod["estimates"]]
    lines = format_table(rows, width)
    for container in pod["containers"]:
        lines += ["", *format_table(_format_container(container, at_ms), width)]
    return lines


def _format_limits(there: Document) -> str:
    quota = there["quota"]
    return ", ".join(
        (
            f"weight {_NO_VALUE if there['weight'] is None else there['weight']}",
            f"quota {format_quota(quota)}" + (f" ({quota['cpuMax']})" if quota else ""),
            "no memory limit" if there["memoryMaxBytes"] is None else f"memory {format_bytes(there['memoryMaxBytes'])}",
        )
    )


def _format_device(device: Document) -> str:
    names = f" {' '.join(device['names'])}" if device["names"] else ""
    where = f", NUMA {device['numaNodes']}" if device["numaNodes"] else ""
    gone = "; it is missing or unhealthy" if device["isThere"] is False else ""
    what = f"claim {device['claim']}" if device.get("claim") else device["resource"]
    return f"{device['id']}{names} ({what}{where}){gone}"


def _format_container(container: Document, at_ms: int) -> list[tuple[str, str]]:
    promised, there = container["promised"], container["effective"]
    cpus = f"CPUs {promised['cpus']}" if promised["cpus"] else "the shared pool"
    pid, count = container["pid"], container["processes"]
    processes = "" if count is None else format_count(count, "process", "processes")
    if pid is not None:
        processes = f"{pid}, {processes} in total" if processes else str(pid)
    classes = f" on {' and '.join(container['coreClasses'])} cores" if container["coreClasses"] else ""
    if container["hadCPUs"] is not None:
        cpus = f"none: had CPUs {container['hadCPUs']} until its pod finished"
    mems = "" if promised["mems"] is None else f", memory from NUMA {promised['mems']}"
    rows = [
        ("container", f"{container['name']} ({container['kind']})"),
        *([] if container["unit"] is None else [("unit", container["unit"])]),
        *([("near", ", ".join(container["near"]))] if container["near"] else []),
        *(("device", _format_device(device)) for device in container["devices"]),
        *container.get("further", {}).items(),
        ("state", f"{format_state(container, at_ms)}, {format_count(container['restarts'], 'restart')}"),
        ("process", processes or "unknown"),
        *([("settings", _format_settings(container))] if container["settings"] else []),
        ("allocated", f"{cpus}{classes}{mems}"),
    ]
    if there is not None:
        rows += [
            (
                "effective",
                f"CPUs {there['cpus'] or _NO_VALUE}{' (frozen)' if there['frozen'] else ''}, memory from NUMA {there['mems'] or _NO_VALUE}",
            ),
            ("where", format_places(container["places"]) or _NO_VALUE),
            ("limits", _format_limits(there) if container["unit"] is None else "from the unit's own settings"),
        ]
    if container["isolation"] is not None:
        alone = "no other container has its CPUs while it runs"
        if container["isolation"] == "mixed":
            alone = f"no other container has CPUs {container['promised']['cpus']}; its other CPUs are those of the shared pool"
        why = container["whyShared"] or alone
        by = (
            "systemd's AllowedCPUs" if container["closedToHost"] == "systemd" else f"partition {container['partition']}"
        )
        closed = f"; closed to the host ({by})" if is_closed_to_host(container) else ""
        rows.append(("isolation", f"{container['isolation']}: {why}{closed}"))
    rows.append(("cgroup", container["cgroup"]))
    return [*rows, *(("note", remark) for remark in list_remarks(container, at_ms))]


def _format_settings(container: Document) -> str:
    return ", ".join(f"{name}={str(value).lower()}" for name, value in container["settings"].items())


_WIDE_HEADING = (
    "POD", "QOS", "PHASE", "CONTAINER", "KIND", "STATE", "RESTARTS", "OOM", "PID", "ISOLATION", "ALLOCATED", "CPUS", "MEMS",
    "QUOTA", "WEIGHT", "MEMORY", "WHERE", "NOTES",
)  # fmt: skip


def _format_wide_rows(pod: Document, document: Document) -> Iterator[tuple[str, ...]]:
    at_ms = document["atMs"]
    first = (f"{pod['namespace']}/{pod['name']}", pod["qos"], _format_phase(pod, at_ms))
    if pod["refusal"] is not None:
        refusal = f"{pod['refusal']['reason']}: {pod['refusal']['message']}"
        yield (*first, *[_NO_VALUE] * (len(_WIDE_HEADING) - 4), refusal)
    for container in pod["containers"]:
        there = container["effective"] or {}
        shared = [] if container["whyShared"] is None else [f"shared: {container['whyShared']}"]
        yield (
            *first,
            container["name"],
            container["kind"],
            format_state(container, at_ms),
            str(container["restarts"]),
            str(container["oomKills"]),
            _NO_VALUE if container["pid"] is None else str(container["pid"]),
            container["isolation"] or _NO_VALUE,
            container["promised"]["cpus"] or (_NO_VALUE if container["isolation"] is None else "pool"),
            there.get("cpus") or _format_former_cpus(container),
            there.get("mems") or _NO_VALUE,
            format_quota(there.get("quota")),
            _NO_VALUE if there.get("weight") is None else str(there["weight"]),
            format_bytes(there.get("memoryMaxBytes")) if there else _NO_VALUE,
            format_places(container["places"]) or _NO_VALUE,
            "; ".join([*shared, *list_remarks(container, at_ms)]) or _NO_VALUE,
        )
