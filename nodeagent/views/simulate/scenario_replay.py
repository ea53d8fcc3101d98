"""Replay of a scenario: applies the scenario's steps to the managers, and describes files, pods and metrics after each step.

The managers' files are kept in memory. The result depends only on the scenario.
"""

from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.admission import managers as core
from nodeagent.core.admission.managers import Admitted, Managers, Rejected
from nodeagent.core.admission.one_pod import DecidedAnew
from nodeagent.core.admission.records import Records, start_cpus, start_memory
from nodeagent.core.admission.what_if import WhatIf
from nodeagent.core.metrics.deltas import Series, apply_deltas
from nodeagent.core.metrics.manager_metrics import CPU_PER_NUMA, METRICS, TOPOLOGY_DURATION, MetricDeltas
from nodeagent.core.model.config import Errata
from nodeagent.core.model.errata import Erratum
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.pod import ContainerKind, Pod
from nodeagent.core.model.promises import Promises
from nodeagent.core.model.refusals import StartRefused
from nodeagent.core.resources.cpu.holdings import default_set
from nodeagent.core.resources.cpu.records import CpuRecord
from nodeagent.core.resources.devices.holdings import DeviceHoldings
from nodeagent.core.resources.devices.turnover import begin_start, end_pod, restore_devices
from nodeagent.core.resources.memory.holdings import memory_accounts
from nodeagent.core.resources.memory.records import MemoryRecord
from nodeagent.core.resources.resource import Allocated
from nodeagent.formats.checkpoint.cpu_checkpoint import decode_cpu_state, encode_cpu_state
from nodeagent.formats.checkpoint.memory_checkpoint import decode_memory_state, encode_memory_state
from nodeagent.formats.scenario.scenario import (
    AFTER,
    BEFORE,
    CPU_FILE,
    DEVICE_FILE,
    MEMORY_FILE,
    RUNNING_ALL,
    RUNNING_NONE,
    Document,
    Scenario,
    ScenarioStep,
    is_text_unique,
    memory_state_document,
    metrics_document,
    pods_document,
)
from nodeagent.views.simulate.scenario_devices import ScenarioDevices

_SHOWN_METRICS = frozenset(spec.name for spec in METRICS) - {CPU_PER_NUMA, TOPOLOGY_DURATION}
"""Names of the metrics that the result contains.

The gauge per NUMA node is left out, because kubelet sets it in random order. Durations are left out, because a scenario doesn't determine
them.
"""


class ReplayResult(Struct, frozen=True):
    """Result of a replayed scenario, and the node at its end."""

    result: Document
    end: WhatIf | None
    """Node after the last step. None means that the managers refused to start or restart."""


def replay(scenario: Scenario) -> Document:
    """Replay a scenario, and return the document of the result."""
    return Replay(scenario).run()


def replay_to_end(scenario: Scenario) -> ReplayResult:
    """Replay a scenario, and return the final node with the result."""
    running = Replay(scenario)
    result = running.run()
    refused = "startError" in result or any(step["op"] == "restart" and "error" in step for step in result["steps"])
    if refused or running.managers is None:
        return ReplayResult(result, None)
    return ReplayResult(result, WhatIf(running.managers, running.promises, running.pods))


class _StartRefusedError(Exception):
    """The managers refused to start. The result contains the steps before the refusal."""


class _File(Struct):
    """File of one manager: the text that was last written, and the manager's current state as text. The texts differ until the file is
    written again.
    """

    encode: Callable[[Managers, Promises], str]
    text: str | None
    encoded: str = ""

    def write_at_start(self, managers: Managers, promises: Promises, *, was_filled: bool) -> None:
        """Write the file when the manager starts, if it is missing, or if its state was empty and the manager has filled it in
        (`was_filled`).
        """
        self.encoded = self.encode(managers, promises)
        if self.text is None or was_filled:
            self.text = self.encoded

    def write_if_changed(self, managers: Managers, promises: Promises, attempted: Promises | None) -> None:
        """Write the file after a step that changed the manager's state, even if the refusal of a pod then restored the state
        (`attempted`).
        """
        before, self.encoded = self.encoded, self.encode(managers, promises)
        changed_back = attempted is not None and self.text != before and self.encode(managers, attempted) != before
        if self.encoded != before or changed_back:
            self.text = self.encoded


class Replay:
    """Replay in progress, with the managers' files, the metrics and the running pods."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.cpu_file = _File(encode_cpu_file, scenario.file(CPU_FILE))
        self.memory_file = _File(encode_memory_file, scenario.file(MEMORY_FILE))
        self.managers: Managers | None = None
        self.promises = Promises()
        self.pods: tuple[Pod, ...] = ()
        self.totals: dict[Series, int] = {}
        self.is_swept = False
        text = scenario.file(DEVICE_FILE)
        self.devices = ScenarioDevices(scenario, text) if scenario.plugins is not None or text is not None else None
        """Devices and their plugins. None means that the scenario doesn't mention devices."""

    def run(self) -> Document:
        result: Document = {"id": self.scenario.id, "reservedCPUs": "", "steps": []}
        try:
            managers = self.begin()
        except _StartRefusedError as err:
            return {**result, "startError": str(err), **self.describe_files()}
        result |= {"reservedCPUs": str(managers.reserved), **self.describe_files()}
        for step in self.scenario.steps:
            shown = self.replay_step(self.managers or managers, step)
            result["steps"].append(shown)
            if step.op == "restart" and "error" in shown:
                break
        return result

    def begin(self) -> Managers:
        """Start the managers for the first time. If the scenario has devices, let the plugins register."""
        managers = self.start()
        if self.devices is None:
            return managers
        if managers.reproduces(Erratum.REFUSED_PODS_HOLD_DEVICES):
            for uid, held in self.promises.pods:
                self.promises = end_pod(self.promises, uid, held.of(DeviceHoldings))
        self.devices.begin(self.promises)
        return self.learn_pools(managers, self.devices)

    def learn_pools(self, managers: Managers, devices: ScenarioDevices) -> Managers:
        """Return the managers, updated with the devices that kubelet knows now."""
        managers = managers.knowing(None, devices.pools, has_devices=True)
        self.managers = replace(managers, providers=replace(managers.providers, observer=self._note_allocation))
        return self.managers

    def _note_allocation(self, event: Allocated | DecidedAnew) -> None:
        if self.devices is not None and isinstance(event, Allocated) and event.resource == "devices":
            self.devices.note_allocation(event.container, event.after, is_refused=event.refusal is not None)

    def start(self) -> Managers:
        managers = self.managers or core.build(self.scenario.topology, self.scenario.placement)
        if isinstance(managers, StartRefused):
            raise _StartRefusedError(managers.message)
        self.managers = managers
        self.totals = {}
        records = decode_files(managers, self.scenario, self.cpu_file.text, self.memory_file.text)
        promises = start_cpus(managers, records)
        if isinstance(promises, StartRefused):
            raise _StartRefusedError(promises.message)
        cpu = records.cpu
        self.cpu_file.write_at_start(
            managers,
            promises,
            was_filled=isinstance(cpu, CpuRecord) and CpuSet.parse(cpu.default) != default_set(promises),
        )
        self.add_deltas(core.started_deltas(managers, promises))
        self.set_gauges(managers, promises)
        promises = start_memory(managers, promises, records)
        if isinstance(promises, StartRefused):
            raise _StartRefusedError(promises.message)
        memory = records.memory
        was_filled = isinstance(memory, MemoryRecord) and not memory.machine and bool(memory_accounts(promises))
        self.memory_file.write_at_start(managers, promises, was_filled=was_filled)
        self.promises = promises if self.devices is None else restore_devices(promises, self.devices.load())
        self.is_swept = False
        return managers

    def add_deltas(self, deltas: MetricDeltas) -> None:
        apply_deltas(self.totals, deltas)

    def set_gauges(self, managers: Managers, promises: Promises) -> None:
        """Set the gauges from the state, as the agent does. If `Erratum.GAUGES_DRIFT` is reproduced, leave the gauges unchanged, because
        kubelet changes them only together with its counters.
        """
        if not managers.reproduces(Erratum.GAUGES_DRIFT):
            self.totals.update(core.gauges(managers, promises))

    def describe_files(self) -> Document:
        """Return the managers' files and the metrics as they are now."""
        memory = memory_state_document(self.memory_file.text)
        document: Document = {
            "cpuManagerState": self.cpu_file.text or "",
            "memoryManagerState": memory,
            "metrics": metrics_document(self.totals, _SHOWN_METRICS),
        }
        if memory is not None and is_text_unique(memory):
            document["memoryManagerStateText"] = self.memory_file.text
        if self.devices is not None:
            document |= self.devices.describe_file()
        return document

    def replay_step(self, managers: Managers, step: ScenarioStep) -> Document:
        shown: Document = {"op": step.op, "admitted": True, "reason": "", "message": ""}
        attempted: Promises | None = None
        match step.op:
            case "add":
                assert step.pod is not None
                if self.is_active(step.pod.uid):
                    shown |= {"admitted": False, "error": "a pod with this UID is active: removePod ends it"}
                else:
                    decision = self.admit_pod(managers, step.pod)
                    if isinstance(decision, Rejected):
                        attempted = decision.attempted
                        shown |= {"admitted": False, "reason": decision.reason.value, "message": decision.message}
            case "restart":
                try:
                    shown |= self.restart(step)
                except _StartRefusedError as err:
                    return {**shown, "admitted": False, "error": str(err), "pods": None, **self.describe_files()}
            case "deviceHealth" | "deviceList" | "pluginGone" | "pluginBack" | "nodeStatus":
                if self.devices is None:
                    shown |= {"error": "the scenario has no devices"}
                else:
                    shown |= self.devices.follow(step, self.promises)
                    self.learn_pools(managers, self.devices)
            case _:
                pod = next((pod for pod in self.pods if pod.uid == step.pod_uid), None)
                if pod is None:
                    # Removing a container of a pod that doesn't exist is not an error.
                    shown |= {} if step.op == "removeContainer" else {"error": "no such active pod"}
                else:
                    self.change_containers(managers, step, pod)
        self.set_gauges(managers, self.promises)
        self.cpu_file.write_if_changed(managers, self.promises, attempted)
        self.memory_file.write_if_changed(managers, self.promises, attempted)
        if self.devices is not None:
            if not managers.reproduces(Erratum.REFUSED_PODS_HOLD_DEVICES):
                self.devices.write(self.promises)
            calls = self.devices.take_calls()
            shown |= {"pluginCalls": calls} if step.op in {"add", "restart"} else {}
        pods = pods_document(managers, self.promises, self.pods, has_devices=self.devices is not None)
        return {**shown, "pods": pods, **self.describe_files()}

    def admit_pod(self, managers: Managers, pod: Pod) -> Admitted | Rejected:
        if not self.is_swept:
            # After kubelet starts with existing checkpoint files, its first call for any pod releases the allocations of pods that aren't
            # running.
            self.promises, deltas = core.sweep(managers, self.promises, (*self.pods, pod))
            self.add_deltas(deltas)
            self.is_swept = True
        decision = core.admit(managers, self.promises, pod)
        self.promises = decision.promises
        self.add_deltas(decision.deltas)
        if isinstance(decision, Rejected) and not managers.quirks:
            # The checkpoint files may contain an allocation for the refused pod. It is released, because no other pod could get it
            # otherwise.
            self.promises, deltas = core.remove_pod(managers, self.promises, pod.uid)
            self.add_deltas(deltas)
        if isinstance(decision, Admitted):
            self.pods = (*self.pods, pod)
        return decision

    def is_active(self, uid: str) -> bool:
        return any(pod.uid == uid for pod in self.pods)

    def change_containers(self, managers: Managers, step: ScenarioStep, pod: Pod) -> None:
        """Start or remove the containers that the step names, and update the allocations."""
        deltas: MetricDeltas = ()
        if step.op == "removePod":
            self.promises, deltas = core.remove_pod(managers, self.promises, pod.uid)
            self.pods = tuple(other for other in self.pods if other is not pod)
        elif step.op == "removeContainer":
            assert step.container is not None
            self.promises, deltas = core.remove_container(managers, self.promises, pod.uid, step.container)
        else:
            for container in pod.containers:
                if step.container in (None, container.name):
                    self.promises = core.start_container(managers, self.promises, pod, container.name)
        self.add_deltas(deltas)

    def restart(self, step: ScenarioStep) -> Document:
        devices = self.devices
        connected = frozenset[str]() if devices is None else devices.stop()
        managers = self.start()
        if devices is not None:
            if managers.reproduces(Erratum.DEVICES_REFUSED_AT_A_START):
                self.promises = begin_start(self.promises, list_running(step, self.pods))
            devices.return_plugins(step, connected, BEFORE, self.promises)
            managers = self.learn_pools(managers, devices)
        readmitted = core.readmit(managers, self.promises, self.pods)
        self.promises = readmitted.promises
        if devices is not None:
            devices.return_plugins(step, connected, AFTER, self.promises)
            self.learn_pools(managers, devices)
        self.add_deltas(readmitted.deltas)
        results = dict(readmitted.results)
        self.pods = tuple(pod for pod in self.pods if isinstance(results[pod.uid], Admitted))
        listed = []
        for uid, result in readmitted.results:
            refusal = ("", "") if isinstance(result, Admitted) else (result.reason.value, result.message)
            is_admitted = isinstance(result, Admitted)
            listed.append({"podUID": uid, "admitted": is_admitted, "reason": refusal[0], "message": refusal[1]})
        return {"readmitted": listed} if listed else {}


def list_running(step: ScenarioStep, pods: tuple[Pod, ...]) -> tuple[tuple[str, str], ...]:
    """List the containers that keep running while kubelet restarts, as pairs of pod UID and container name."""
    if not isinstance(step.running, str):
        return step.running
    if step.running == RUNNING_NONE:
        return ()
    return tuple(
        (pod.uid, container.name)
        for pod in pods
        for container in pod.containers
        if step.running == RUNNING_ALL or container.kind is not ContainerKind.INIT
    )


def encode_cpu_file(managers: Managers, promises: Promises) -> str:
    """Encode the CPU manager's state in the format of kubelet's file cpu_manager_state."""
    gates = managers.rules.gates
    return encode_cpu_state(managers.placement.cpu_manager_policy, promises, pod_level=gates.pod_level_managers)


def encode_memory_file(managers: Managers, promises: Promises) -> str:
    """Encode the memory manager's state in the format of kubelet's file memory_manager_state."""
    gates = managers.rules.gates
    return encode_memory_state(managers.placement.memory_manager_policy, promises, pod_level=gates.pod_level_managers)


def decode_files(managers: Managers, scenario: Scenario, cpu: str | None, memory: str | None) -> Records:
    """Decode the texts of cpu_manager_state and memory_manager_state in the formats of the configured kubelet version."""
    pod_level = managers.rules.gates.pod_level_managers
    newer = managers.placement.errata is not Errata.KUBELET_1_36
    initial = dict(scenario.initial_containers)
    return Records(
        cpu=None if cpu is None else decode_cpu_state(cpu, pod_level=pod_level, initial=initial, newer=newer),
        memory=None if memory is None else decode_memory_state(memory, pod_level=pod_level, newer=newer),
    )


def measure_adds(scenario: Scenario, clock_ns: Callable[[], int]) -> list[int]:
    """Replay a scenario, and return how many nanoseconds each `add` took, including the decision and the encoding of both files.

    Args:
        scenario: the scenario.
        clock_ns: function that returns the current time. It is passed in because views have no clock.
    """
    running = Replay(scenario)
    times = []
    try:
        managers = running.begin()
        for step in scenario.steps:
            if step.op == "add" and step.pod is not None and not running.is_active(step.pod.uid):
                begin = clock_ns()
                running.admit_pod(managers, step.pod)
                encode_cpu_file(managers, running.promises)
                encode_memory_file(managers, running.promises)
                times.append(clock_ns() - begin)
            else:
                running.replay_step(managers, step)
    except _StartRefusedError:
        pass
    return times
