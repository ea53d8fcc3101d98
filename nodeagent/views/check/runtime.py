"""Checks of the container runtime that `nriSocket` connects to. Each check is one function without I/O.

Nothing is checked if no runtime is configured.
"""

from collections.abc import Iterator

from nodeagent.core.model.nri import MARGIN_MS
from nodeagent.formats.config.containerd_config import PLUGIN, NriConfig
from nodeagent.views.check.runtime_facts import PodsApiFacts, RuntimeFacts
from nodeagent.views.check.verdicts import CheckResult, Level, NodeFacts

_MIN_TIMEOUT_MS = 1000
"""Shortest acceptable time, in milliseconds, that the runtime waits for a plugin's answer. The agent saves each decision to disk before it
answers, and disks are sometimes slow.
"""
_CONFIG_TABLE = f'[plugins."{PLUGIN}"]'
_RESTART_COMMAND = "sudo systemctl restart containerd"


def check_runtime(facts: NodeFacts) -> Iterator[CheckResult]:
    runtime = facts.runtime
    if facts.config is None or not facts.config.nri_socket or runtime is None:
        return
    yield _check_socket(facts.config.nri_socket, runtime)
    yield _check_config(facts.config.nri_socket, runtime, facts.config_file)
    yield _check_timeouts(runtime)
    if facts.config.kubelet_pods_socket:
        is_needed = facts.config.placement.topology_manager_scope == "pod"
        yield _check_pods_api(facts.config.kubelet_pods_socket, runtime.pods_api, is_needed=is_needed)


def _check_socket(path: str, runtime: RuntimeFacts) -> CheckResult:
    name = "nri"
    if runtime.found is not None:
        nri = ".".join(map(str, runtime.found.nri_version))
        why = f"{runtime.found.name} {runtime.found.version} at {path} accepts plugins (NRI {nri} or later)"
        return CheckResult(name, Level.OK, why)
    if runtime.is_hidden:
        return CheckResult(name, Level.UNKNOWN, f"only root may use {path}", "sudo nodeagent check")
    if not runtime.problem:
        return CheckResult(name, Level.UNKNOWN, f"{path} can only be checked on the node itself")
    return CheckResult(name, Level.FAILURE, runtime.problem, runtime.hint)


def _check_config(path: str, runtime: RuntimeFacts, config_file: str) -> CheckResult:
    name, config = "containerd", runtime.config
    if runtime.config_problem:
        why = f"its NRI settings are unknown: {runtime.config_problem}"
        return CheckResult(name, Level.UNKNOWN, why, "sudo containerd config dump")
    if config is None:
        return CheckResult(
            name, Level.OK, "it has no configuration, so NRI is off before containerd 2.0 and on since then"
        )
    if config.is_off is not None and config.is_off.value:
        why = f"{config.is_off.path} turns NRI off"
        where = f"in {_CONFIG_TABLE} of {config.is_off.path}, and {PLUGIN} not among disabled_plugins"
        return CheckResult(name, Level.FAILURE, why, f"disable = false {where}; then: {_RESTART_COMMAND}")
    if config.socket is not None and config.socket.value != path:
        why = f"its NRI socket is {config.socket.value} ({config.socket.path}), but nriSocket is {path}"
        return CheckResult(name, Level.FAILURE, why, f"nriSocket: {config.socket.value} in {config_file}")
    if config.is_off is None and runtime.found is None:
        why = "its configuration doesn't set NRI, which is off before containerd 2.0 and on since then"
        return CheckResult(
            name, Level.NOTE, why, f"before 2.0: disable = false in {_CONFIG_TABLE}; then: {_RESTART_COMMAND}"
        )
    return CheckResult(name, Level.OK, "its configuration leaves NRI on")


def _check_timeouts(runtime: RuntimeFacts) -> CheckResult:
    name, config = "nri-timeouts", runtime.config or NriConfig()
    said = config.request_timeout_ms
    goes_by = None if runtime.found is None else runtime.found.request_timeout_ms
    waits = said.value if said is not None else goes_by
    if waits is None:
        return CheckResult(name, Level.UNKNOWN, "the runtime's time limit for answers is unknown")
    fix = f'plugin_request_timeout = "2s" in {_CONFIG_TABLE} of {"containerd" if said is None else said.path}; then: {_RESTART_COMMAND}'
    if waits <= MARGIN_MS:
        why = (
            f"the runtime waits {_format_seconds(waits)} for an answer, and the agent's margin is {_format_seconds(MARGIN_MS)}, "
            "so no container could start"
        )
        return CheckResult(name, Level.FAILURE, why, fix)
    if goes_by is not None and waits < goes_by:
        why = (
            f"containerd's configuration sets {_format_seconds(waits)}, but the agent assumes {_format_seconds(goes_by)}, "
            "the reported value: a container with a later answer starts unpinned"
        )
        return CheckResult(name, Level.WARNING, why, fix)
    if waits < _MIN_TIMEOUT_MS:
        why = f"the runtime waits {_format_seconds(waits)} for an answer: with a busy disk, containers are denied and retried"
        return CheckResult(name, Level.WARNING, why, fix)
    taken = config.registration_timeout_ms
    if taken is not None and taken.value < _MIN_TIMEOUT_MS:
        why = f"the runtime waits {_format_seconds(taken.value)} for a plugin to register: on a busy node, the agent may never be accepted"
        fix = f'plugin_registration_timeout = "5s" in {_CONFIG_TABLE} of {taken.path}; then: {_RESTART_COMMAND}'
        return CheckResult(name, Level.WARNING, why, fix)
    why = f"the runtime waits {_format_seconds(waits)} for an answer, of which {_format_seconds(MARGIN_MS)} are the agent's margin"
    return CheckResult(name, Level.OK, why)


def _check_pods_api(path: str, found: PodsApiFacts | None, *, is_needed: bool) -> CheckResult:
    name = "pods-api"
    if found is None:
        return CheckResult(name, Level.UNKNOWN, f"{path} can only be checked on the node itself")
    if found.is_hidden:
        return CheckResult(name, Level.UNKNOWN, f"only root may use {path}", "sudo nodeagent check")
    if not found.problem:
        return CheckResult(
            name, Level.OK, f"kubelet's pods API at {path} provides the data that the runtime doesn't get"
        )
    if not found.is_absent:
        return CheckResult(name, Level.WARNING, found.problem, found.hint)
    fix = "kubelet 1.37 or later, or annotations of the pods (docs/how-to/containerd.md)"
    if is_needed:
        why = f"there is no {path}: with topologyManagerScope pod, pods without complete annotations are refused"
        return CheckResult(name, Level.WARNING, why, f"{fix}, or topologyManagerScope: container")
    why = f"there is no {path}: data that only kubelet has is estimated, such as a Burstable container's memory request"
    return CheckResult(name, Level.NOTE, why, fix)


def _format_seconds(milliseconds: int) -> str:
    return f"{milliseconds / 1000:g} s"
