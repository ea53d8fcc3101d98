"""What an operator can do about a refused pod, by reason. Texts only; the decision, its reason and its message are kubelet's."""

from nodeagent.core.model.refusals import (
    INVALID_ANNOTATIONS,
    INVALID_NAME,
    POD_NOT_KNOWN,
    RELEASED,
    RESIZE_DEFERRED,
    RESIZE_INFEASIBLE,
    STATE_NOT_SAVED,
    UID_TAKEN,
    UNIT_TAKEN,
)

_AFTERWARDS = "`nodeagent explain {pod}` says what would do; then: nodeagent retry {pod}"
_ADVICE = {
    "OutOfcpu": "end a pod, or request less cpu: `nodeagent inspect` shows what is taken",
    "OutOfmemory": "end a pod, or request less memory: `nodeagent inspect` shows what is taken",
    "OutOfpods": "end a pod, or raise maxPods in the configuration: `nodeagent inspect` lists the pods",
    "TopologyAffinityError": (
        "no set of NUMA nodes suits the topology manager's policy: request fewer CPUs or less memory, end a pod that holds part of "
        "the nodes it needs (`nodeagent topology` shows who owns what), or choose a laxer topologyManagerPolicy"
    ),
    "SMTAlignmentError": (
        "with full-pcpus-only a container needs whole cores: request a multiple of the threads per core, or end a pod that "
        "holds part of the cores left (`nodeagent topology`)"
    ),
    "EmptyPodSharedPoolError": (
        "the pod's containers with CPUs of their own leave none for its other containers: raise the pod's cpu, or let fewer "
        "containers have whole CPUs (`nodeagent inspect {pod}` shows which have)"
    ),
    "UnexpectedAdmissionError": (
        "the message says which resource was short: request less of it, or end a pod that holds it (`nodeagent topology`, "
        "`nodeagent inspect`)"
    ),
    "CoreClassUnavailable": (
        "let the pod prefer such cores (`nodeagent.io/preferred-core-class`) instead of requiring them, let it request whole CPUs, or run "
        "it where such cores are (`nodeagent topology` shows them)"
    ),
    "DeviceUnavailable": (
        "name a device that there is in `nodeagent.io/near` (`nodeagent topology --devices` shows them), or plug it in and load its "
        "driver, and decide again"
    ),
    "ResourceClaimUnavailable": (
        "the message says which request finds too few free devices: change the claim or the pod (`nodeagent topology -o resourceslice` "
        "shows what there is), or end a pod that has them, and decide again"
    ),
    "CPUPluginFailed": (
        "correct or update the CPU plugin that the message names, or take it out of cpuManagerPlugins and reload; one that was too late "
        "is asked again after `systemctl restart nodeagent`"
    ),
    "CPUPluginRefused": "the message has the plugin's reason: do as it says, or take it out of cpuManagerPlugins and reload",
    "DevicePluginsSlow": "find out in its log why the device plugin that the message names answers so late, or restart it",
    UNIT_TAKEN: "end the other pod (`nodeagent unpin UNIT`, or delete its manifest)",
    RELEASED: "to bring it back, while its manifest exists",
    INVALID_ANNOTATIONS: "correct the pod's annotations, which the message names, and make the pod again",
    POD_NOT_KNOWN: "have kubelet say it (kubeletPodsSocket), or annotate the pod with its containers, requests and limits, or set "
    "topologyManagerScope: container",
    INVALID_NAME: "make the pod with names as Kubernetes has them: the message says which (`crictl pods`)",
    RESIZE_INFEASIBLE: "undo the resize, or make the pod again with its new amounts: delete it and apply it (one of Kubernetes': "
    "`kubectl replace --force`)",
    RESIZE_DEFERRED: "end a pod that holds what is missing, or ask for less: it is tried again by itself whenever something changes",
    UID_TAKEN: "give the manifest with that UID another one",
    STATE_NOT_SAVED: "fix what the message says about the state file: the agent retries every second",
}
ADVISED = frozenset(_ADVICE)
"""Reasons that have advice of their own; of other resources than these there is general advice."""


def next_step(reason: str, pod: str) -> str:
    """Return what to do so that the pod can be admitted.

    Args:
        reason: of the refusal.
        pod: its namespace/name.
    """
    if reason == STATE_NOT_SAVED:
        return _ADVICE[reason]
    if reason == RESIZE_DEFERRED:
        return f"{_ADVICE[reason]} (`nodeagent topology` shows who has what)"
    if reason == RELEASED:
        return f"{_ADVICE[reason]}: nodeagent retry {pod}"
    resource = reason.removeprefix("OutOf")
    default = (
        f"request less {resource}, or give the node more of it (`nodeagent topology -o json` shows what it has)"
        if resource != reason
        else "change the manifest"
    )
    return f"{_ADVICE.get(reason, default)}; {_AFTERWARDS}".format(pod=pod)
