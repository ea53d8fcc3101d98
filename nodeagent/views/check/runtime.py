"""Can a container runtime's containers be placed here (`nriSocket`)? One function per check; pure. Nothing where it isn't configured."""

from collections.abc import Iterator

from nodeagent.core.model.nri import MARGIN_MS
from nodeagent.formats.config.containerd_config import PLUGIN, NriConfig
from nodeagent.views.check.runtime_facts import PodsApiFacts, RuntimeFacts
from nodeagent.views.check.verdicts import CheckResult, Level, NodeFacts

_LEAST_MS = 1000
"""Of a plugin's timeout: a decision is on the disk before it is answered, and disks are slow at times."""
_TABLE = f'[plugins."{PLUGIN}"]'
_RESTART = "sudo systemctl restart containerd"


def checks(facts: NodeFacts) -> Iterator[CheckResult]:
    runtime = facts.runtime
    if facts.config is None or not facts.config.nri_socket or runtime is None:
        return
    yield _socket(facts.config.nri_socket, runtime)
    yield _config(facts.config.nri_socket, runtime, facts.config_file)
    yield _timeouts(runtime)
    if facts.config.kubelet_pods_socket:
        is_needed = facts.config.placement.topology_manager_scope == "pod"
        yield _pods_api(facts.config.kubelet_pods_socket, runtime.pods_api, is_needed=is_needed)


def _socket(path: str, runtime: RuntimeFacts) -> CheckResult:
    name = "nri"
    if runtime.found is not None:
        nri = ".".join(map(str, runtime.found.nri_version))
        why = f"{runtime.found.name} {runtime.found.version} at {path} takes plugins (NRI {nri} or later)"
        return CheckResult(name, Level.OK, why)
    if runtime.is_hidden:
        return CheckResult(name, Level.UNKNOWN, f"only root may ask {path}", "sudo nodeagent check")
    if not runtime.problem:
        return CheckResult(name, Level.UNKNOWN, f"what answers at {path} can only be found out on the node itself")
    return CheckResult(name, Level.FAILURE, runtime.problem, runtime.hint)


def _config(path: str, runtime: RuntimeFacts, config_file: str) -> CheckResult:
    name, config = "containerd", runtime.config
    if runtime.config_problem:
        why = f"what its configuration says of NRI is not known: {runtime.config_problem}"
        return CheckResult(name, Level.UNKNOWN, why, "sudo containerd config dump")
    if config is None:
        return CheckResult(name, Level.OK, "it has no configuration: NRI is off before containerd 2.0, and on since")
    if config.is_off is not None and config.is_off.value:
        why = f"{config.is_off.path} switches NRI off"
        where = f"in {_TABLE} of {config.is_off.path}, and {PLUGIN} not among disabled_plugins"
        return CheckResult(name, Level.FAILURE, why, f"disable = false {where}; then: {_RESTART}")
    if config.socket is not None and config.socket.value != path:
        why = f"its NRI socket is {config.socket.value} ({config.socket.path}), and nriSocket is {path}"
        return CheckResult(name, Level.FAILURE, why, f"nriSocket: {config.socket.value} in {config_file}")
    if config.is_off is None and runtime.found is None:
        why = "its configuration leaves NRI as it is: off before containerd 2.0, and on since"
        return CheckResult(name, Level.NOTE, why, f"before 2.0: disable = false in {_TABLE}; then: {_RESTART}")
    return CheckResult(name, Level.OK, "its configuration leaves NRI on")


def _timeouts(runtime: RuntimeFacts) -> CheckResult:
    name, config = "nri-timeouts", runtime.config or NriConfig()
    said = config.request_timeout_ms
    goes_by = None if runtime.found is None else runtime.found.request_timeout_ms
    waits = said.value if said is not None else goes_by
    if waits is None:
        return CheckResult(name, Level.UNKNOWN, "how long the runtime waits for an answer, only itself says")
    fix = (
        f'plugin_request_timeout = "2s" in {_TABLE} of {"containerd" if said is None else said.path}; then: {_RESTART}'
    )
    if waits <= MARGIN_MS:
        why = f"the runtime waits {_seconds(waits)} for an answer, and the agent keeps {_seconds(MARGIN_MS)} of that: nothing could start"
        return CheckResult(name, Level.FAILURE, why, fix)
    if goes_by is not None and waits < goes_by:
        why = (
            f"containerd's configuration says {_seconds(waits)}, and the agent goes by {_seconds(goes_by)}, as it was told no other: what "
            "is answered later starts unpinned"
        )
        return CheckResult(name, Level.WARNING, why, fix)
    if waits < _LEAST_MS:
        why = (
            f"the runtime waits {_seconds(waits)} for an answer: on a busy disk, containers are denied and tried again"
        )
        return CheckResult(name, Level.WARNING, why, fix)
    taken = config.registration_timeout_ms
    if taken is not None and taken.value < _LEAST_MS:
        why = f"the runtime waits {_seconds(taken.value)} for a plugin to register: on a busy node the agent may never be taken"
        fix = f'plugin_registration_timeout = "5s" in {_TABLE} of {taken.path}; then: {_RESTART}'
        return CheckResult(name, Level.WARNING, why, fix)
    why = f"the runtime waits {_seconds(waits)} for an answer, of which the agent keeps {_seconds(MARGIN_MS)}"
    return CheckResult(name, Level.OK, why)


def _pods_api(path: str, found: PodsApiFacts | None, *, is_needed: bool) -> CheckResult:
    name = "pods-api"
    if found is None:
        return CheckResult(name, Level.UNKNOWN, f"what answers at {path} can only be found out on the node itself")
    if found.is_hidden:
        return CheckResult(name, Level.UNKNOWN, f"only root may ask {path}", "sudo nodeagent check")
    if not found.problem:
        return CheckResult(name, Level.OK, f"kubelet's pods API at {path} says what the runtime isn't told")
    if not found.is_absent:
        return CheckResult(name, Level.WARNING, found.problem, found.hint)
    fix = "kubelet 1.37 or later, or annotations of the pods (docs/how-to/containerd.md)"
    if is_needed:
        why = f"there is no {path}: with topologyManagerScope pod, pods that don't state all in annotations are refused"
        return CheckResult(name, Level.WARNING, why, f"{fix}, or topologyManagerScope: container")
    why = f"there is no {path}: what only kubelet knows of a pod is estimated, such as a Burstable container's memory request"
    return CheckResult(name, Level.NOTE, why, fix)


def _seconds(milliseconds: int) -> str:
    return f"{milliseconds / 1000:g} s"
