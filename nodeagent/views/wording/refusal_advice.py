"""Advice, for an operator, on what to do about a refused pod. The advice depends on the reason of the refusal."""

import re
from collections.abc import Iterable

from nodeagent.core.model.refusals import (
    INVALID_ANNOTATIONS,
    INVALID_NAME,
    NEEDED_LATER,
    OF_QUEUE,
    POD_NOT_KNOWN,
    RELEASED,
    RESERVATION_OVER,
    RESIZE_DEFERRED,
    RESIZE_INFEASIBLE,
    STATE_NOT_SAVED,
    UID_TAKEN,
    UNIT_TAKEN,
    WAITS_FOR_JOBS,
    WAITS_FOR_RESERVATION,
    WAITS_FOR_ROOM,
)
from nodeagent.core.model.waiting import Retry

_RETRY_ADVICE = "`nodeagent explain {pod}` lists changes that would admit it; then: nodeagent retry {pod}"
_ADVICE = {
    "OutOfcpu": "end a pod, or request less cpu: `nodeagent inspect` shows what is taken",
    "OutOfmemory": "end a pod, or request less memory: `nodeagent inspect` shows what is taken",
    "OutOfpods": "end a pod, or raise maxPods in the configuration: `nodeagent inspect` lists the pods",
    "TopologyAffinityError": (
        "no set of NUMA nodes satisfies the topology manager's policy: request fewer CPUs or less memory, end a pod that holds part of "
        "the nodes it needs (`nodeagent topology` shows the owners), or choose a laxer topologyManagerPolicy"
    ),
    "SMTAlignmentError": (
        "with full-pcpus-only a container needs whole cores, and too few are free: request fewer, or end a pod that holds some "
        "(`nodeagent topology`)"
    ),
    "EmptyPodSharedPoolError": (
        "the pod's containers with exclusive CPUs leave none for its other containers: raise the pod's cpu, or let fewer "
        "containers have exclusive CPUs (`nodeagent inspect {pod}` shows them)"
    ),
    "UnexpectedAdmissionError": (
        "the message says which resource was short: request less of it, or end a pod that holds it (`nodeagent topology`, "
        "`nodeagent inspect`)"
    ),
    "CoreClassUnavailable": (
        "let the pod prefer such cores (`nodeagent.io/preferred-core-class`) instead of requiring them, request whole CPUs, or run "
        "it on a node with such cores (`nodeagent topology` shows them)"
    ),
    "DeviceUnavailable": (
        "name an existing device in `nodeagent.io/near` (`nodeagent topology --devices` lists them), or plug it in and load its "
        "driver, then retry"
    ),
    "ResourceClaimUnavailable": (
        "the message names the request with too few free devices: change the claim or the pod (`nodeagent topology -o resourceslice` "
        "lists the devices), or end a pod that holds them, then retry"
    ),
    "CPUPluginFailed": (
        "fix or update the CPU plugin named in the message, or remove it from cpuManagerPlugins and reload; a plugin that was too slow "
        "is asked again after `systemctl restart nodeagent`"
    ),
    "CPUPluginRefused": "the message has the plugin's reason: follow it, or remove the plugin from cpuManagerPlugins and reload",
    "DevicePluginsSlow": "the log of the device plugin named in the message may show why it is slow; or restart the plugin",
    WAITS_FOR_ROOM: "`nodeagent queue` shows when it starts; to start it earlier, end a pod that holds what the message names",
    WAITS_FOR_RESERVATION: "give the job a time limit (--max-time) with which it ends before the reservation begins (`nodeagent queue`), "
    "or cancel the reservation (`nodeagent reserve --cancel RESERVATION`)",
    RESERVATION_OVER: "make another reservation (`nodeagent reserve`), and ask again",
    WAITS_FOR_JOBS: "`nodeagent queue` shows when it starts; to start it earlier, end the jobs before it, or a pod that holds what the "
    "first waiting job lacks",
    UNIT_TAKEN: "end the other pod (`nodeagent unpin UNIT`, or delete its manifest)",
    RELEASED: "to start it again while its manifest exists",
    INVALID_ANNOTATIONS: "fix the pod's annotations named in the message, and create the pod again",
    POD_NOT_KNOWN: "let kubelet report the pod (kubeletPodsSocket), annotate the pod with its containers, requests and limits, or set "
    "topologyManagerScope: container",
    INVALID_NAME: "create the pod with valid Kubernetes names instead of those in the message (`crictl pods`)",
    RESIZE_INFEASIBLE: "undo the resize, or delete the pod and apply it again with its new amounts (for a Kubernetes pod: "
    "`kubectl replace --force`)",
    RESIZE_DEFERRED: "end a pod that holds the missing resource, or request less; the resize is retried automatically after every change",
    UID_TAKEN: "give the manifest another UID (metadata.uid): the container is decided on again when its runtime asks again",
    STATE_NOT_SAVED: "fix what the message says about the state file: the agent retries every second",
}
_UNALIGNED = "not multiple cpus per core"
"""Part of the message with which kubelet refuses a number of CPUs that whole cores can't provide, however many cores are free."""
_UNALIGNED_ADVICE = (
    "with full-pcpus-only a container needs whole cores: request a number of CPUs that whole cores have (`nodeagent topology` shows the "
    "cores); it doesn't help to end other pods"
)
_OF_NODE = re.compile(r"requested: (\d+), used: \d+, capacity: (\d+)$")
"""End of the message with which kubelet refuses a pod because the whole node has too little of a resource."""
ADVISED_REASONS = frozenset(_ADVICE)
"""Reasons that have their own advice. For other reasons, such as `OutOfhugepages-2Mi`, general advice names the resource."""


_RETRIES = {
    Retry.MANIFEST: "its manifest changes",
    Retry.REQUEST: "`nodeagent retry` requests it",
    Retry.ROOM: "other pods release resources",
    Retry.RESOURCE: "a device plugin reports devices that it requests",
    Retry.DISK: "the state can be saved",
    Retry.PLUGIN: "the device plugin answers",
    Retry.OWNER: "the container runtime again requests the creation of a container of the pod",
    Retry.QUEUE: "the jobs before it start or end",
    Retry.RESERVATION: "a reservation begins, ends or is cancelled",
}


def describe_retries(retries: Iterable[str]) -> str:
    """Format a sentence that names the events after which a request is tried again. `retries` contains values of `Retry`."""
    return f"It is tried again when {' or '.join(_RETRIES[Retry(event)] for event in retries)}."


def advise_next_step(reason: str, pod: str, message: str = "") -> str:
    """Return advice on how to get the pod admitted.

    Args:
        reason: the reason of the refusal.
        pod: the pod's namespace/name.
        message: the message of the refusal.
    """
    if reason == WAITS_FOR_RESERVATION and message and not message.endswith(NEEDED_LATER):
        return (
            "`nodeagent queue` lists the reservations with their times and jobs, and shows when the waiting jobs start"
        )
    if reason in {STATE_NOT_SAVED, UID_TAKEN, RESERVATION_OVER, *OF_QUEUE}:
        return _ADVICE[reason]
    if reason == RESIZE_DEFERRED:
        return f"{_ADVICE[reason]} (`nodeagent topology` shows the owners)"
    if reason == RELEASED:
        return f"{_ADVICE[reason]}: nodeagent retry {pod}"
    resource = reason.removeprefix("OutOf")
    default = (
        f"request less {resource}, or add more to the node (`nodeagent topology -o json` shows the current amounts)"
        if resource != reason
        else "change the manifest"
    )
    amounts = _OF_NODE.search(message) if reason in {"OutOfcpu", "OutOfmemory"} else None
    if amounts is not None and int(amounts[1]) > int(amounts[2]):  # the request exceeds the capacity of an empty node
        advice = default
    else:
        advice = _UNALIGNED_ADVICE if _UNALIGNED in message else _ADVICE.get(reason, default)
    return f"{advice}; {_RETRY_ADVICE}".format(pod=pod)
