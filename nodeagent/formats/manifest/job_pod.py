"""A job as a pod with one container, which gets exactly the requested resources. The job's owner enters this container."""

from collections.abc import Mapping

from nodeagent.core.model.pod import MEMORY, Pod, RestartPolicy
from nodeagent.errors import NodeAgentError
from nodeagent.formats.manifest.pod_manifest import checked_pod_from_document
from nodeagent.formats.manifest.pod_notes import explain_tiny_memory
from nodeagent.formats.manifest.pod_schema import CORE_CLASS, NEAR, NUMA_NODE, QUIET
from nodeagent.formats.syntax.findings import DocumentError

JOB_NAMESPACE = "jobs"
JOB_CONTAINER = "main"
GRACE_SECONDS = 10
"""Time between SIGTERM and SIGKILL for processes that outlive a job's command."""
_OPTIONS = {
    "limits[cpu]": "--cpus",
    "limits[memory]": "--memory",
    "limits[hugepages-": "--hugepages-2Mi or --hugepages-1Gi",
    "limits[": "--device",
    "metadata.name": "--name",
    NUMA_NODE: "--numa",
    CORE_CLASS: "--core-class",
    NEAR: "--near",
    QUIET: "--quiet or a setting of its cores:",
}
"""Option of `nodeagent job` and `pin` by a part of the name of the pod's field. The first matching part counts."""


class PodOptionError(NodeAgentError):
    """The value of an option that describes a pod has the wrong form."""


def job_pod(
    name: str,
    uid: str,
    amounts: Mapping[str, str],
    numa_node: str | None = None,
    core_class: str | None = None,
    near: str | None = None,
    quiet: str | None = None,
) -> Pod:
    """Create the pod of a job.

    Args:
        name: the pod's name in the namespace of all jobs.
        uid: the pod's UID.
        amounts: the limits, also used as requests.
        numa_node: the number of the required NUMA node. None means any.
        core_class: the required class of the pod's exclusive CPUs. None means any.
        near: the devices whose NUMA nodes are preferred. None means no preference.
        quiet: the quiet profile and settings for the job's cores, as in the pod annotation. None means that the cores keep their settings.

    Raises:
        PodOptionError: the API server would not accept such a pod, an amount is 0, or the memory is too little for any process. The error
            names the option.
    """
    asked = {NUMA_NODE: numa_node, CORE_CLASS: core_class, NEAR: near, QUIET: quiet}
    annotations = {key: value for key, value in asked.items() if value is not None}
    document = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": JOB_NAMESPACE, "uid": uid, "annotations": annotations},
        "spec": {
            "restartPolicy": RestartPolicy.NEVER.value,
            "terminationGracePeriodSeconds": GRACE_SECONDS,
            "containers": [{"name": JOB_CONTAINER, "resources": {"limits": dict(amounts)}}],
        },
    }
    try:
        pod = checked_pod_from_document(document, "job")
    except DocumentError as err:
        found = err.findings[0]
        raise PodOptionError(f"{_find_option(found.field)} {found.message}", hint=_HINT) from err
    for resource, amount in pod.containers[0].resources.limits:
        if not amount.nano:
            raise PodOptionError(f"{_find_option(f'limits[{resource}]')} {amount} must be above 0", hint=_HINT)
        if resource == MEMORY and (why := explain_tiny_memory(amount, amounts[MEMORY])):
            raise PodOptionError(f"--memory {why}", hint=_HINT)
    return pod


_HINT = "`nodeagent job --help` describes the options"


def _find_option(field: str) -> str:
    return next((option for part, option in _OPTIONS.items() if part in field), field)
