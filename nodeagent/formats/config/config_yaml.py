"""Configuration text → Config, or all of its errors at once. KubeletConfiguration's field names and the agent's own.

Knows nothing about the machine.
"""

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from ipaddress import ip_address

from msgspec.structs import replace

from nodeagent.core.admission.managers import misconfigured
from nodeagent.core.admission.node_capacity import reservation
from nodeagent.core.model.config import (
    ANY_CLASS,
    CORE_CLASS_CHOICES,
    CPU_MANAGER_POLICIES,
    DEFAULT_GATES,
    DEPENDENT_GATES,
    GATES_OF_A_STAGE,
    HOST_ISOLATION,
    INTERRUPT_ISOLATION,
    LIMITED_SWAP,
    MEMORY_MANAGER_POLICIES,
    SWAP_BEHAVIORS,
    TOPOLOGY_MANAGER_POLICIES,
    TOPOLOGY_MANAGER_SCOPES,
    Config,
    Errata,
    JobBounds,
    Placement,
)
from nodeagent.core.model.pod import CPU, HUGEPAGES_PREFIX, MEMORY, Resources
from nodeagent.core.model.quantity import Quantity, QuantitySyntaxError
from nodeagent.core.model.refusals import StartRefused
from nodeagent.core.numa.topology_manager import options_without_effect
from nodeagent.formats.config import config_schema
from nodeagent.formats.config.placement_fields import PlacementReader
from nodeagent.formats.syntax.bind_address import MAX_UNIX_PATH_BYTES, BindAddressError, TcpAddress, parse_bind_address
from nodeagent.formats.syntax.documents import read_documents
from nodeagent.formats.syntax.durations import DurationSyntaxError, parse_duration_ns
from nodeagent.formats.syntax.fields import Fields, nearest
from nodeagent.formats.syntax.findings import DocumentError, Finding, Findings
from nodeagent.formats.syntax.quantity_words import no_quantity
from nodeagent.formats.syntax.tree import MapNode, TreeNode, line_at

_HINT = "correct these lines, then start or reload again; examples/config.yaml (`nodeagent --help` says where) has every field of our own"
_KUBELET_KIND = ("kubelet.config.k8s.io/v1beta1", "KubeletConfiguration")
_OWN_KIND = "NodeAgentConfiguration"
_LOCKED_GATES = frozenset({"CPUManagerPolicyOptions", "TopologyManagerPolicyOptions"})
"""Kubelet's gates that are always on and would change what the agent does."""
_OUR_GATES = frozenset({*DEFAULT_GATES, *GATES_OF_A_STAGE, *_LOCKED_GATES})
_OPTIONS = ("cpuManagerPolicyOptions", "topologyManagerPolicyOptions")
"""Everything that the managers judge without a machine is worded here, except these."""
_MAX_INT32 = 2**31 - 1
Judge = Callable[[Config], Iterable[StartRefused]]


def parse_config(content: bytes, source: str) -> Config:
    """Read a configuration.

    Args:
        content: YAML or JSON, one document; empty text is the default configuration.
        source: the file's name, for findings.

    Raises:
        DocumentError: with every finding.
    """
    config, findings = judged_config(content, source)
    if findings:
        raise DocumentError(findings, hint=_HINT)
    assert config is not None
    return config


def judged_config(
    content: bytes, source: str, judge: Judge = lambda _: ()
) -> tuple[Config | None, tuple[Finding, ...]]:
    """Read a configuration, valid or not.

    Args:
        content: as for `parse_config`.
        source: as for `parse_config`.
        judge: returns further errors, for instance on a machine. It is called even if there are findings already.

    Returns:
        What could be read, with defaults for what couldn't; None: nothing. And every finding.
    """
    findings = Findings(source)
    documents = read_documents(content, findings)
    if documents is None:
        return None, findings.all()
    root: TreeNode = documents[0] if documents else MapNode()
    if len(documents) > 1:
        findings.add(documents[1].line, "", "", "a configuration is one document: a second one starts here")
    if not isinstance(root, MapNode):
        findings.add(root.line, "", "", "must be an object of fields")
        return None, findings.all()
    config = _ConfigReader(Fields(root, "", findings), findings).read()
    wrong = _wrong_fields(findings)
    options = [refused for refused in misconfigured(config.placement) if refused.about in _OPTIONS]
    for refused in (*options, *judge(config)):
        if wrong.isdisjoint(refused.rests_on):
            _add_refused(findings, root, refused)
    return config, findings.all()


def known_fields() -> frozenset[str]:
    """Return the names of the top-level fields that mean something here: what documentation must have."""
    findings = Findings("")
    fields = Fields(MapNode(), "", findings)
    _ConfigReader(fields, findings).read()
    return frozenset(fields.known) - set(config_schema.KUBELET_UNUSED)


def _wrong_fields(findings: Findings) -> frozenset[str]:
    """Return the document's top-level fields that have a finding in or below them."""
    return frozenset(re.split(r"[.\[]", path)[0] for path in findings.fields())


def _add_refused(findings: Findings, root: MapNode, refused: StartRefused) -> None:
    field, entry = refused.about, refused.entry
    given = next((name for name in (field, *refused.rests_on) if root.get(name) is not None), None)
    line = None if given is None else line_at(root, (given,) if entry is None or given != field else (given, entry))
    findings.add(
        line, field if entry is None else f"{field}[{entry}]", "", refused.allowed or refused.message, refused.text
    )


class _ConfigReader:
    def __init__(self, fields: Fields, findings: Findings) -> None:
        self._fields = fields
        self._findings = findings
        self._reported: list[str] = []
        self._notes: list[str] = []

    def read(self) -> Config:
        fields, default = self._fields, Config()
        is_kubelets = self._kind()
        if fields.has("errata"):
            reason = "is for nodeagent simulate only: the daemon never reproduces kubelet's bugs"
            fields.report("errata", reason, fields.string("errata"))
        system, kube = self._reserved("systemReserved"), self._reserved("kubeReserved")
        eviction_bytes, eviction_percent = self._eviction()
        reader = PlacementReader(fields)
        listed = reader.reserved_system_cpus()
        if listed:
            # kubelet: the list replaces the amounts (cmd/kubelet/app/server.go).
            system = Resources.of({**dict(system), CPU: Quantity.of(len(listed))})
            kube = Resources(tuple(item for item in kube if item[0] != CPU))
        amounts = Config(
            system_reserved=system,
            kube_reserved=kube,
            eviction_memory_bytes=eviction_bytes,
            eviction_memory_percent=eviction_percent,
        )
        placement = self._placement(reader, amounts)
        quota_period_us = self._quota_period(placement, default)
        config = replace(
            amounts,
            placement=placement,
            cpu_manager_reconcile_period_ms=self._period(
                "cpuManagerReconcilePeriod", default.cpu_manager_reconcile_period_ms
            ),
            file_check_frequency_ms=self._period("fileCheckFrequency", default.file_check_frequency_ms),
            host_isolation=fields.one_of("hostIsolation", HOST_ISOLATION) or default.host_isolation,
            host_core_class=self._host_core_class(default.host_core_class),
            interrupt_isolation=fields.one_of("interruptIsolation", INTERRUPT_ISOLATION) or default.interrupt_isolation,
            cpu_cfs_quota=self._flag("cpuCFSQuota", default.cpu_cfs_quota),
            cpu_cfs_quota_period_us=quota_period_us,
            swap_behavior=self._swap_behavior(default.swap_behavior),
            static_pod_path=self._manifests(default.static_pod_path),
            state_directory=self._path("stateDirectory") or default.state_directory,
            runtime_directory=self._path("runtimeDirectory") or default.runtime_directory,
            cgroup_root=self._cgroup_root(is_kubelets=is_kubelets),
            launcher_socket=self._socket("launcherSocket") or default.launcher_socket,
            log_directory=self._path("logDirectory") or default.log_directory,
            metrics_bind_address=self._metrics_address(default.metrics_bind_address),
            metrics_aliases=self._flag("metricsAliases", default.metrics_aliases),
            pod_resources_socket=self._socket("podResourcesSocket") or default.pod_resources_socket,
            device_plugin_socket=self._socket("devicePluginSocket") or default.device_plugin_socket,
            nri_socket=self._socket("nriSocket") or default.nri_socket,
            kubelet_pods_socket=self._kubelet_pods(default.kubelet_pods_socket),
            check_allocatable=self._flag("checkAllocatable", default.check_allocatable),
            max_pods=fields.integer("maxPods", 0, _MAX_INT32) or default.max_pods,
            pods_per_core=fields.integer("podsPerCore", 0, _MAX_INT32) or 0,
            jobs=self._jobs(),
            state_recovery=fields.one_of("stateRecovery", ("recover", "strict")) or default.state_recovery,
        )
        self._check_cgroups(placement)
        self._check_directories(config)
        self._reported.extend(fields.unused(config_schema.KUBELET_UNUSED))
        fields.close()
        # Fields are read in the order that suits the parser; people get them in the file's order.
        given = {name: index for index, name in enumerate(fields.present())}
        reported = sorted(self._reported, key=lambda name: (given.get(name.partition("[")[0], 0), name))
        return replace(config, reported_fields=tuple(reported), notes=tuple(self._notes))

    def _kind(self) -> bool:
        """Whether the document says that it is kubelet's."""
        version, kind = self._fields.string("apiVersion"), self._fields.string("kind")
        if kind not in {None, _KUBELET_KIND[1], _OWN_KIND}:
            self._fields.report("kind", f"must be {_KUBELET_KIND[1]} or {_OWN_KIND}, or absent", kind)
        if kind == _KUBELET_KIND[1] and version not in {None, _KUBELET_KIND[0]}:
            self._fields.report("apiVersion", f"must be {_KUBELET_KIND[0]}", version)
        return kind == _KUBELET_KIND[1]

    def _jobs(self) -> JobBounds | None:
        fields = self._fields.object("jobs")
        if fields is None:
            return None
        group, most = fields.string("group"), fields.integer("maxPerUser", 1, _MAX_INT32)
        bounds = {key: fields.quantity(key) for key in ("maxCPUs", "maxMemory")}
        if not group:
            fields.report("group", "is required: the name of the group whose members may run jobs", group)
        for key, bound in bounds.items():
            if bound is not None and bound.nano <= 0:
                fields.report(key, f"must be more than 0; leave it out for no bound: {bound}")
        fields.close()
        if most is None:
            most = JobBounds("").max_per_user
        return JobBounds(group or "", bounds["maxCPUs"], bounds["maxMemory"], most)

    def _flag(self, key: str, default: bool) -> bool:
        value = self._fields.boolean(key)
        return default if value is None else value

    def _reserved(self, key: str) -> Resources:
        amounts = self._fields.quantities(key)
        for name, amount in amounts:
            if name not in config_schema.RESERVABLE:
                self._fields.report(
                    key, f'cannot reserve "{name}" resource, only {", ".join(config_schema.RESERVABLE)}'
                )
            elif amount.nano < 0:
                self._fields.report(key, f'resource quantity for "{name}" cannot be negative: {amount}')
        return amounts

    def _eviction(self) -> tuple[int | None, str | None]:
        """The hard threshold `memory.available`: as bytes, or as a percentage."""
        given = dict(self._fields.string_map("evictionHard"))
        merge = self._fields.boolean("mergeDefaultEvictionSettings")
        for name in given:
            if name not in config_schema.EVICTION_SIGNALS:
                allowed = f"must be one of {', '.join(config_schema.EVICTION_SIGNALS)}"
                self._fields.report("evictionHard", allowed, name, f"unknown eviction signal {name}, {allowed}")
            elif name != "memory.available":
                self._reported.append(f"evictionHard[{name}]")
        text = given.get("memory.available")
        if text is None:
            # Naming any signal drops the defaults of the others, unless they should be merged in (kubelet).
            return (None if given and not merge else Config().eviction_memory_bytes), None
        if text.endswith("%"):
            return None, self._percentage(text)
        return self._threshold(text), None

    def _percentage(self, text: str) -> str | None:
        number = text.removesuffix("%")
        whole, point, fraction = number.partition(".")
        digits = whole + fraction
        if not (digits.isascii() and digits.isdigit() and len(digits) <= 18) or (point and not fraction):
            self._fields.report("evictionHard", "memory.available must be an amount or a percentage such as 5%", text)
            return None
        # Scaled to 18 places to compare exactly; 0% and 100% switch the threshold off (parseThresholdStatement).
        scaled = int(whole or "0") * 10**18 + int(fraction.ljust(18, "0"))
        if scaled > 100 * 10**18:
            self._fields.report(
                "evictionHard", f"eviction percentage threshold memory.available must be <= 100%: {text}"
            )
        return None if text in {"0%", "100%"} else number

    def _threshold(self, text: str) -> int | None:
        try:
            amount = Quantity.parse(text)
        except QuantitySyntaxError:
            self._fields.report("evictionHard", no_quantity(text), text)
            return None
        if amount.nano < 0:
            self._fields.report("evictionHard", f"eviction threshold memory.available must be positive: {text}")
        return amount.value()

    def _placement(self, reader: PlacementReader, amounts: Config) -> Placement:
        """Read what affects decisions; `amounts` has the reservations. A threshold in percent counts once the machine is known."""
        reserved = reservation(amounts, memory_bytes=0)
        cpu = reserved.get(CPU)
        placement = reader.placement(
            reserved_cpu_milli=None if cpu is None else cpu.milli(),
            memory_reservation=Resources(tuple(item for item in reserved if item[0] == MEMORY)),
            errata=Errata.FIXED,
        )
        self._check_policies(placement)
        self._check_reserved_memory(placement)
        for option, needed in options_without_effect(placement):
            self._notes.append(f"topologyManagerPolicyOptions[{option}] has no effect here: it needs {needed}")
        if placement.prefer_cpus_numa_node and placement.topology_manager_policy not in {"best-effort", "restricted"}:
            self._notes.append(
                "preferCPUsNumaNode has no effect here: it needs topologyManagerPolicy: best-effort or restricted"
            )
        return replace(placement, feature_gates=self._gates(dict(placement.feature_gates)))

    def _gates(self, given: Mapping[str, bool]) -> tuple[tuple[str, bool], ...]:
        """Return those that change what the agent does; kubelet has many that don't."""
        gates: dict[str, bool] = {}
        for stage, names in GATES_OF_A_STAGE.items():
            gates |= {name: given[stage] for name in names if stage in given}
        for name, value in given.items():
            if name in DEFAULT_GATES:
                gates[name] = value
            elif name in _LOCKED_GATES and not value:
                self._fields.report(
                    "featureGates", f"cannot set feature gate {name} to false, feature is locked to true"
                )
            elif name not in _OUR_GATES and _is_misspelt(name):
                self._fields.report("featureGates", f"unknown feature gate{nearest(name, _OUR_GATES)}", name)
            elif name not in GATES_OF_A_STAGE:
                self._reported.append(f"featureGates[{name}]")
        for name, needed in DEPENDENT_GATES.items():
            if gates.get(name, DEFAULT_GATES[name]) and not gates.get(needed, DEFAULT_GATES[needed]):
                self._fields.report(
                    "featureGates", f"{name} is on and needs {needed}, which is off: turn both on, or both off"
                )
        return tuple(gates.items())

    def _check_policies(self, placement: Placement) -> None:
        """Judge names of policies in kubelet's words; options are judged by the managers, which know what excludes what."""
        cpu, memory = placement.cpu_manager_policy, placement.memory_manager_policy
        if cpu not in CPU_MANAGER_POLICIES:
            allowed = "must be none or static"
            self._fields.report("cpuManagerPolicy", allowed, cpu, f'unknown policy: "{cpu}", {allowed}')
        if memory not in MEMORY_MANAGER_POLICIES:
            allowed = "must be None or Static"
            self._fields.report("memoryManagerPolicy", allowed, memory, f'unknown policy: "{memory}", {allowed}')
        policy, scope = placement.topology_manager_policy, placement.topology_manager_scope
        if policy not in TOPOLOGY_MANAGER_POLICIES:
            self._fields.report(
                "topologyManagerPolicy", f"must be one of {', '.join(TOPOLOGY_MANAGER_POLICIES)}", policy
            )
        if scope not in TOPOLOGY_MANAGER_SCOPES:
            self._fields.report("topologyManagerScope", "must be container or pod", scope)
        amounts = {"reservedSystemCPUs", "systemReserved[cpu]", "kubeReserved[cpu]"}
        is_reserved = placement.reserved_system_cpus or placement.reserved_cpu_milli is not None
        if cpu == "static" and not is_reserved and amounts.isdisjoint(self._findings.fields()):
            reason = "static needs reserved CPUs: give reservedSystemCPUs, or cpu in systemReserved or kubeReserved"
            self._fields.report("cpuManagerPolicy", reason)

    def _check_reserved_memory(self, placement: Placement) -> None:
        seen: set[tuple[int, str]] = set()
        for entry in placement.reserved_memory:
            for name, amount in entry.limits:
                where = f'NUMA node {entry.numa_node} and resource "{name}"'
                if name != MEMORY and not name.startswith(HUGEPAGES_PREFIX):
                    reason = (
                        f'invalid configuration: the limit type "{name}" for NUMA node {entry.numa_node} is not supported, '
                        "only [memory hugepages-<HugePageSize>] is accepted"
                    )
                    self._fields.report("reservedMemory", reason)
                if amount.nano <= 0:
                    self._fields.report(
                        "reservedMemory", f"invalid configuration: reserved memory may not be zero for {where}"
                    )
                if (entry.numa_node, name) in seen:
                    reason = f"invalid configuration: the reserved memory has a duplicate value for {where}"
                    self._fields.report("reservedMemory", reason)
                seen.add((entry.numa_node, name))

    def _duration_ns(self, key: str) -> int | None:
        text = self._fields.string(key, wanted="a duration such as 10s or 1m30s")
        if text is None:
            return None
        try:
            return parse_duration_ns(text)
        except DurationSyntaxError:
            self._fields.report(key, "must be a duration such as 10s or 1m30s", text)
            return None

    def _host_core_class(self, default: str) -> str:
        fields = self._fields
        name = fields.one_of("hostCoreClass", CORE_CLASS_CHOICES) or default
        if name != ANY_CLASS and (fields.string("hostIsolation") or "none") == "none":
            fields.report("hostCoreClass", "needs hostIsolation: partition", name)
        return name

    def _swap_behavior(self, default: str) -> str:
        fields = self._fields.object("memorySwap")
        if fields is None:
            return default
        behavior = fields.one_of("swapBehavior", SWAP_BEHAVIORS) or default
        if behavior == LIMITED_SWAP:
            # kubelet: pods of files are critical (types.IsCriticalPod), and get no swap (GetContainerSwapBehavior).
            self._notes.append(
                "memorySwap.swapBehavior: LimitedSwap means NoSwap here: kubelet gives no swap to pods of manifest files"
            )
        fields.close()
        return behavior

    def _period(self, key: str, default_ms: int) -> int:
        period_ns = self._duration_ns(key)
        # Zero means the default, as in kubelet.
        if not period_ns:
            return default_ms
        if not 100_000_000 <= period_ns <= 86_400_000_000_000:
            self._fields.report(key, "must be between 100ms and 24h", self._fields.string(key))
        return period_ns // 1_000_000

    def _quota_period(self, placement: Placement, default: Config) -> int:
        key = "cpuCFSQuotaPeriod"
        period_ns = self._duration_ns(key)
        if period_ns is None:
            return default.cpu_cfs_quota_period_us
        text = self._fields.string(key)
        if not 1_000_000 <= period_ns <= 1_000_000_000:
            self._fields.report(key, "must be between 1ms and 1sec, inclusive", text)
        elif period_ns != 100_000_000 and not placement.gate("CustomCPUCFSQuotaPeriod"):
            self._fields.report(key, "other than 100ms requires feature gate CustomCPUCFSQuotaPeriod", text)
        return period_ns // 1_000

    def _path(self, key: str) -> str | None:
        text = self._fields.string(key)
        if not text:
            return None
        parts = text.rstrip("/").split("/")
        if not text.startswith("/") or len(text.encode()) > 4095 or {".", "..", ""} & set(parts[1:]) or text == "/":
            self._fields.report(key, "must be an absolute path without . and .. in it, and not /", text)
            return None
        return text.rstrip("/")

    def _socket(self, key: str) -> str | None:
        path = self._path(key)
        if path is not None and len(path.encode()) > MAX_UNIX_PATH_BYTES:
            self._fields.report(
                key, f"must be at most {MAX_UNIX_PATH_BYTES} bytes long: it is a socket's address", path
            )
        return path

    def _kubelet_pods(self, default: str) -> str:
        key = "kubeletPodsSocket"
        if self._fields.has(key) and self._fields.string(key) == "":
            return ""
        return self._socket(key) or default

    def _manifests(self, default: str) -> str:
        kubelets, own = self._path("staticPodPath"), self._path("manifestDirectory")
        if kubelets is not None and own is not None and kubelets != own:
            self._fields.report("manifestDirectory", "is the same as staticPodPath: give one of them", own)
        return own or kubelets or default

    def _cgroup_root(self, *, is_kubelets: bool) -> str | None:
        key = "cgroupRoot"
        text = self._fields.string(key)
        # kubelet's is the name of a cgroup, ours its directory: from a kubelet file only a directory is used.
        if is_kubelets and text and not text.startswith("/sys/fs/cgroup/"):
            self._reported.append(key)
            return None
        return self._path(key)

    def _metrics_address(self, default: str) -> str:
        key = "metricsBindAddress"
        text = self._fields.string(key)
        if text is None:
            return default
        if text:
            try:
                address = parse_bind_address(text)
            except BindAddressError as err:
                self._fields.report(key, f"{err}, or empty for no metrics")
                return default
            if isinstance(address, TcpAddress) and not _is_loopback(address.host):
                self._notes.append(
                    f"{key} {text} is not a loopback address: everyone who reaches it can read the metrics"
                )
        return text

    def _check_cgroups(self, placement: Placement) -> None:
        cgroups = [key for key in ("systemReservedCgroup", "kubeReservedCgroup") if self._fields.string(key)]
        self._reported.extend(cgroups)
        if cgroups and placement.reserved_system_cpus:
            self._fields.report("reservedSystemCPUs", f"must not be given together with {' and '.join(cgroups)}")
        if self._fields.boolean("cgroupsPerQOS") is False:
            self._fields.report(
                "cgroupsPerQOS", "must be true: pods are always grouped by their QoS class", value=False
            )

    def _check_directories(self, config: Config) -> None:
        taken: dict[str, str] = {}
        rows = (
            ("stateDirectory", config.state_directory),
            ("runtimeDirectory", config.runtime_directory),
            ("manifestDirectory", config.static_pod_path),
            ("logDirectory", config.log_directory),
        )
        for key, path in rows:
            other = taken.setdefault(path, key)
            if other != key:
                self._fields.report(key, f"must be another directory than {other}", path)


def _is_misspelt(name: str) -> bool:
    """Kubelet has gates that don't matter to the agent; one that resembles ours is probably a typo, not one of them."""
    return bool(difflib.get_close_matches(name.casefold(), [gate.casefold() for gate in _OUR_GATES], n=1, cutoff=0.9))


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
