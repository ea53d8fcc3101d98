"""A job as a pod with one container, which gets exactly the requested resources. The job's owner enters this container."""

from collections.abc import Mapping

from nodeagent.core.model.pod import Pod, RestartPolicy
from nodeagent.formats.manifest.pod_manifest import checked_pod_from_document
from nodeagent.formats.manifest.pod_schema import CORE_CLASS, NEAR, NUMA_NODE, QUIET

JOB_NAMESPACE = "jobs"
JOB_CONTAINER = "main"
GRACE_SECONDS = 10
"""Time between SIGTERM and SIGKILL for processes that outlive a job's command."""


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
        quiet: which cores get the settings of quiet cores. None means none.

    Raises:
        DocumentError: the API server would not accept such a pod.
    """
    asked = {NUMA_NODE: numa_node, CORE_CLASS: core_class, NEAR: near, QUIET: quiet}
    annotations = {key: value for key, value in asked.items() if value is not None}
    return checked_pod_from_document(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": JOB_NAMESPACE, "uid": uid, "annotations": annotations},
            "spec": {
                "restartPolicy": RestartPolicy.NEVER.value,
                "terminationGracePeriodSeconds": GRACE_SECONDS,
                "containers": [{"name": JOB_CONTAINER, "resources": {"limits": dict(amounts)}}],
            },
        },
        "job",
    )
