"""Check of a changed configuration before a running agent applies it: it must fit the allocations, and some fields can change only with a
restart.
"""

from msgspec.structs import replace

from nodeagent.core.admission.managers import initial, resume
from nodeagent.core.admission.node_rules import KnownNode
from nodeagent.core.admission.node_setup import NodeSetup
from nodeagent.core.admission.state_invariants import violations
from nodeagent.core.model.config import Config
from nodeagent.core.model.promises import Promises
from nodeagent.core.model.refusals import StartRefused
from nodeagent.core.model.state import NodeState
from nodeagent.daemon.start.startup import StartError
from nodeagent.formats.checkpoint.node_state import policies_of

_FIXED = (
    "state_directory",
    "runtime_directory",
    "cgroup_root",
    "launcher_socket",
    "metrics_bind_address",
    "pod_resources_socket",
    "device_plugin_socket",
    "nri_socket",
    "kubelet_pods_socket",
    "static_pod_path",
)


def check_takeover(before: KnownNode, state: NodeState, after: NodeSetup) -> None:
    """Check that the running agent can apply a changed configuration.

    Raises:
        StartError: the allocations don't fit the configuration, or a field changes that needs a restart.
    """
    changed = [name for name in _FIXED if getattr(after.config, name) != getattr(before.config, name)]
    if _find_job_group(before.config) != _find_job_group(after.config):
        changed.append("jobs.group")
    if changed:
        raise StartError(
            f"changed fields need a restart: {', '.join(changed)}",
            hint="systemctl restart nodeagent (pods are not affected)",
        )
    old, new = policies_of(before.config.placement), policies_of(after.config.placement)
    if old != new and state.promises.pods:
        broken: tuple[str, ...] = (f"the policies change from {old} to {new}",)
    else:
        promises = adapt_promises(after, state.promises)
        broken = (
            (promises.message,)
            if isinstance(promises, StartRefused)
            else tuple(v.text for v in violations(after.managers, replace(state, promises=promises)))
        )
    if broken:
        raise StartError(
            f"the present allocations do not fit the new configuration: {'; '.join(broken)}",
            hint="`systemctl restart nodeagent` applies the configuration as far as possible, and reports the rest "
            "(stateRecovery: recover); or drain the node: remove all manifests, and wait until `nodeagent inspect` shows no pods",
        )


def _find_job_group(config: Config) -> str | None:
    return None if config.jobs is None else config.jobs.group


def adapt_promises(node: NodeSetup, promises: Promises) -> Promises | StartRefused:
    """Adapt the promises to a changed machine or configuration. Without any pods, return the node's initial promises."""
    return resume(node.managers, promises) if promises.pods else initial(node.managers, promises.unrecovered)
