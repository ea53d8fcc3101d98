"""A job as a pod: one container that its owner enters, which gets what it asks for and no more. Knows no owner and no bounds."""

from collections.abc import Mapping

from nodeagent.core.model.pod import Pod, RestartPolicy
from nodeagent.formats.manifest.pod_manifest import checked_pod_from_document
from nodeagent.formats.manifest.pod_schema import CORE_CLASS, NEAR, NUMA_NODE

JOB_NAMESPACE = "jobs"
JOB_CONTAINER = "main"
GRACE_SECONDS = 10
"""For what a job's command leaves behind, between SIGTERM and SIGKILL."""


def job_pod(
    name: str,
    uid: str,
    amounts: Mapping[str, str],
    numa_node: str | None = None,
    core_class: str | None = None,
    near: str | None = None,
) -> Pod:
    """Return the pod.

    Args:
        name: of the pod, in the namespace of all jobs.
        uid: of the pod.
        amounts: its limits, which are its requests, too.
        numa_node: the number of the NUMA node on which it has to be. None: any.
        core_class: of which its exclusive CPUs have to be. None: any.
        near: the devices that it asks to be near. None: none.

    Raises:
        DocumentError: the API server would not accept such a pod.
    """
    asked = {NUMA_NODE: numa_node, CORE_CLASS: core_class, NEAR: near}
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
