"""Parser of a configuration with the fields of KubeletConfiguration and of the agent. All errors are reported at once.

The parser doesn't need to know the machine.
"""

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from ipaddress import ip_address

from msgspec.structs import replace

from nodeagent.core.admission.managers import find_misconfigurations
from nodeagent.core.admission.node_capacity import reservation
from nodeagent.core.admission.node_setup import find_impossible
from nodeagent.core.model.config import (
    ANY_CLASS,
    CORE_CLASS_CHOICES,
    CPU_MANAGER_POLICIES,
    DEFAULT_GATES,
    GATES_OF_A_STAGE,
    HOST_ISOLATION,
    INTERRUPT_ISOLATION,
    LIMITED_SWAP,
    MEMORY_MANAGER_POLICIES,
    RETRY_REFUSED,
    SWAP_BEHAVIORS,
    TOPOLOGY_MANAGER_POLICIES,
    TOPOLOGY_MANAGER_SCOPES,
    Config,
    Errata,
    JobBounds,
    JobShare,
    Placement,
)
from nodeagent.core.model.pod import CPU, HUGEPAGES_PREFIX, MEMORY, Resources
from nodeagent.core.model.quantity import Quantity, QuantitySyntaxError
from nodeagent.core.model.quiet import Profile
from nodeagent.core.model.refusals import StartRefused
from nodeagent.core.numa.topology_manager import options_without_effect
from nodeagent.formats.config import config_schema
from nodeagent.formats.config.configuration_sources import AGENT_KIND, KUBELET_KIND, OWN_KINDS, read_configuration
from nodeagent.formats.config.placement_fields import PlacementReader
from nodeagent.formats.syntax.bind_address import MAX_UNIX_PATH_BYTES, BindAddressError, TcpAddress, parse_bind_address
from nodeagent.formats.syntax.durations import DurationSyntaxError, parse_duration_ns
from nodeagent.formats.syntax.fields import Fields, suggest_nearest
from nodeagent.formats.syntax.findings import DocumentError, Finding, Findings
from nodeagent.formats.syntax.quantity_words import explain_no_quantity
from nodeagent.formats.syntax.quiet_settings import PROFILE_NAME, PROFILE_RULE, read_process_settings, read_settings
from nodeagent.formats.syntax.tree import MapNode, line_at

_HINT = "fix these lines, then start or reload again; examples/config.yaml (see `nodeagent --help`) has every field of the agent"
_KUBELET_VERSION = "kubelet.config.k8s.io/v1beta1"
_LOCKED_GATES = frozenset({"CPUManagerPolicyOptions", "TopologyManagerPolicyOptions"})
"""Feature gates of kubelet that are locked to true and affect the agent."""
_EFFECTIVE_GATES = frozenset({*DEFAULT_GATES, *GATES_OF_A_STAGE, *_LOCKED_GATES})
_GATE_OF_POLICY = {
    "CPUManager": ("cpuManagerPolicy", "none"),
    "MemoryManager": ("memoryManagerPolicy", "None"),
    "TopologyManager": ("topologyManagerPolicy", "none"),
}
"""Feature gates of older kubelets that switch a manager on or off, each with the field of the manager's policy and the field's default."""
_JUDGED_BY_MANAGERS = ("cpuManagerPolicyOptions", "topologyManagerPolicyOptions", "featureGates")
"""Fields whose values the CPU, memory and topology managers check. This module checks all other fields."""
_MAX_TASKS = 2**22
"""The kernel's limit on process IDs (PID_MAX_LIMIT)."""
_MAX_INT32 = 2**31 - 1
_MAX_PROFILES = 32
_MAX_SHARES = 32
"""Maximum number of configured shares of users and groups. The agent searches the shares one by one for each job request."""
_MAX_WEIGHT = 10_000
Judge = Callable[[Config], Iterable[StartRefused]]


def parse_config(content: bytes, source: str) -> Config:
    """Parse a configuration. It is either one document in YAML or JSON, or a part of another file that has kubelet's fields or flags. An
    empty text means the default configuration. `source` is the file name for error messages.

    Raises:
        DocumentError: the configuration is invalid. The error contains all findings.
    """
    config, findings = judge_config(content, source)
    if findings:
        raise DocumentError(findings, hint=_HINT)
    assert config is not None
    return config


def judge_config(
    content: bytes, source: str, judge: Judge = find_impossible
) -> tuple[Config | None, tuple[Finding, ...]]:
    """Parse a configuration that may be invalid. `judge` returns further errors, by default values that are impossible on every machine. It
    is called even if the parser has already found errors.

    Returns:
        The configuration, and every finding. Unreadable fields of the configuration have their defaults. None means that nothing of the
        configuration is readable.
    """
    findings = Findings(source)
    found = read_configuration(content, findings)
    if found is None:
        return None, findings.all()
    root = found.root
    if not isinstance(root, MapNode):
        findings.add(root.line, "", "", "must be an object of fields")
        return None, findings.all()
    config = _ConfigReader(Fields(root, "", findings), findings).read()
    config = replace(config, notes=(*found.notes, *config.notes))
    wrong = {re.split(r"[.\[]", path)[0] for path in findings.fields()}
    judged = [one for one in find_misconfigurations(config.placement) if one.about in _JUDGED_BY_MANAGERS]
    for refused in (*judged, *judge(config)):
        if wrong.isdisjoint(refused.rests_on):
            field, entry = refused.about, refused.entry
            given = next((name for name in (field, *refused.rests_on) if root.get(name) is not None), None)
            line = None
            if given is not None:
                line = line_at(root, (given,) if entry is None or given != field else (given, entry))
            path = field if entry is None else f"{field}[{entry}]"
            findings.add(line, path, "", refused.allowed or refused.message, refused.text)
    return config, findings.all()


def known_fields() -> frozenset[str]:
    """Return the names of the top-level fields that have an effect. All of them must be documented."""
    findings = Findings("")
    fields = Fields(MapNode(), "", findings)
    _ConfigReader(fields, findings).read()
    return frozenset(fields.known) - set(config_schema.KUBELET_UNUSED)


class _ConfigReader:
    def __init__(self, fields: Fields, findings: Findings) -> None:
        self._fields = fields
        self._report = fields.report
        self._findings = findings
        self._reported: list[str] = []
        self._notes: list[str] = []

    def read(self) -> Config:
        fields, default = self._fields, Config()
        is_kubelets = self._read_kind()
        if fields.has("errata"):
            reason = "is for nodeagent simulate only: the daemon never reproduces kubelet's bugs"
            fields.report("errata", reason, fields.string("errata"))
        system, kube = self._read_reserved("systemReserved"), self._read_reserved("kubeReserved")
        eviction_bytes, eviction_percent = self._read_eviction()
        reader = PlacementReader(fields)
        listed = reader.reserved_system_cpus()
        if listed:
            # In kubelet, reservedSystemCPUs replaces the reserved amounts of CPU (cmd/kubelet/app/server.go).
            system = Resources.of({**dict(system), CPU: Quantity.of(len(listed))})
            kube = Resources(tuple(item for item in kube if item[0] != CPU))
        amounts = Config(
            system_reserved=system,
            kube_reserved=kube,
            eviction_memory_bytes=eviction_bytes,
            eviction_memory_percent=eviction_percent,
        )
        placement = self._read_placement(reader, amounts)
        tasks = fields.integer("podPidsLimit", -1, _MAX_TASKS)
        quota_period_us = self._read_quota_period(placement, default)
        config = replace(
            amounts,
            placement=placement,
            cpu_manager_reconcile_period_ms=self._read_period(
                "cpuManagerReconcilePeriod", default.cpu_manager_reconcile_period_ms
            ),
            file_check_frequency_ms=self._read_period("fileCheckFrequency", default.file_check_frequency_ms),
            full_check_period_ms=self._read_period("fullCheckPeriod", default.full_check_period_ms),
            host_isolation=fields.one_of("hostIsolation", HOST_ISOLATION) or default.host_isolation,
            host_core_class=self._read_host_core_class(default.host_core_class),
            interrupt_isolation=fields.one_of("interruptIsolation", INTERRUPT_ISOLATION) or default.interrupt_isolation,
            cpu_cfs_quota=self._read_flag("cpuCFSQuota", default.cpu_cfs_quota),
            cpu_cfs_quota_period_us=quota_period_us,
            swap_behavior=self._read_swap_behavior(default.swap_behavior),
            static_pod_path=self._read_manifest_directory(default.static_pod_path),
            state_directory=self._read_path("stateDirectory") or default.state_directory,
            runtime_directory=self._read_path("runtimeDirectory") or default.runtime_directory,
            cgroup_root=self._read_cgroup_root(is_kubelets=is_kubelets),
            launcher_socket=self._read_socket("launcherSocket") or default.launcher_socket,
            log_directory=self._read_path("logDirectory") or default.log_directory,
            metrics_bind_address=self._read_metrics_address(default.metrics_bind_address),
            metrics_aliases=self._read_flag("metricsAliases", default.metrics_aliases),
            metrics_containers=self._read_flag("metricsContainers", default.metrics_containers),
            pod_resources_socket=self._read_socket("podResourcesSocket") or default.pod_resources_socket,
            device_plugin_socket=self._read_socket("devicePluginSocket") or default.device_plugin_socket,
            nri_socket=self._read_socket("nriSocket") or default.nri_socket,
            kubelet_pods_socket=""
            if self._fields.string("kubeletPodsSocket") == ""
            else self._read_socket("kubeletPodsSocket") or default.kubelet_pods_socket,
            check_allocatable=self._read_flag("checkAllocatable", default.check_allocatable),
            retry_refused=fields.one_of("retryRefused", RETRY_REFUSED) or default.retry_refused,
            max_pods=fields.integer("maxPods", 0, _MAX_INT32) or default.max_pods,
            pod_pids_limit=default.pod_pids_limit if tasks is None else tasks,
            pods_per_core=fields.integer("podsPerCore", 0, _MAX_INT32) or 0,
            jobs=self._read_jobs(),
            run_thresholds=_read_run_thresholds(fields),
            profiles=self._read_profiles(default.profiles),
            machine_wide_boost=self._read_flag("machineWideBoost", default.machine_wide_boost),
            state_recovery=fields.one_of("stateRecovery", ("recover", "strict")) or default.state_recovery,
        )
        self._check_cgroups(placement)
        self._check_directories(config)
        self._reported.extend(fields.unused(config_schema.KUBELET_UNUSED))
        fields.close()
        # The parser reads fields in its own order, so the names are sorted by their order in the file.
        given = {name: index for index, name in enumerate(fields.present())}
        reported = sorted(self._reported, key=lambda name: (given.get(name.partition("[")[0], 0), name))
        return replace(config, reported_fields=tuple(reported), notes=tuple(self._notes))

    def _read_kind(self) -> bool:
        """Read the document's kind. Return whether the kind is KubeletConfiguration."""
        version, kind = self._fields.string("apiVersion"), self._fields.string("kind")
        if kind not in {None, *OWN_KINDS}:
            self._report("kind", f"must be {KUBELET_KIND} or {AGENT_KIND}, or absent", kind)
        if kind == KUBELET_KIND and version not in {None, _KUBELET_VERSION}:
            self._report("apiVersion", f"must be {_KUBELET_VERSION}", version)
        return kind == KUBELET_KIND

    def _read_jobs(self) -> JobBounds | None:
        fields = self._fields.object("jobs")
        if fields is None:
            return None
        group, of_all = fields.string("group"), _read_job_share(fields)
        if not group:
            fields.report("group", "is required: the name of the group whose members may run jobs", group)
        shares = []
        for item in fields.objects("shares"):
            user, members = item.string("user") or "", item.string("group") or ""
            if user and members:
                item.report(
                    "group", "must be left out, as user is set: each share is one user's or one group's", members
                )
            elif not (user or members):
                item.report("user", "is required, or else group: each share is one user's or one group's", user)
            shares.append(replace(_read_job_share(item), user=user, group=members))
            item.close()
        if len(shares) > _MAX_SHARES:
            fields.report("shares", f"must have at most {_MAX_SHARES} items", len(shares))
        fields.close()
        return replace(JobBounds(group or "").apply_share(of_all), shares=tuple(shares))

    def _read_profiles(self, shipped: tuple[tuple[str, Profile], ...]) -> tuple[tuple[str, Profile], ...]:
        """Read the profiles. A profile replaces the shipped profile with the same name."""
        listed = self._fields.object("profiles", keyed=True)
        if listed is None:
            return shipped
        found = dict(shipped)
        for name in listed.present()[:_MAX_PROFILES]:
            fields = listed.object(name)
            if not PROFILE_NAME.fullmatch(name):
                listed.report(name, PROFILE_RULE, name)
            if fields is not None:
                found[name] = Profile(
                    read_settings(fields), read_process_settings(fields), _read_run_thresholds(fields)
                )
                fields.close()
        if len(listed.present()) > _MAX_PROFILES:
            self._report("profiles", f"has more than {_MAX_PROFILES} entries")
        return tuple(sorted(found.items()))

    def _read_flag(self, key: str, default: bool) -> bool:
        value = self._fields.boolean(key)
        return default if value is None else value

    def _read_reserved(self, key: str) -> Resources:
        amounts = self._fields.quantities(key)
        for name, amount in amounts:
            if name not in config_schema.RESERVABLE:
                self._report(key, f'cannot reserve "{name}" resource, only {", ".join(config_schema.RESERVABLE)}')
            elif amount.nano < 0:
                self._report(key, f'resource quantity for "{name}" cannot be negative: {amount}')
        return amounts

    def _read_eviction(self) -> tuple[int | None, str | None]:
        """Read the hard eviction threshold `memory.available` as bytes or as a percentage."""
        given = dict(self._fields.string_map("evictionHard"))
        merge = self._fields.boolean("mergeDefaultEvictionSettings")
        for name in given:
            if name not in config_schema.EVICTION_SIGNALS:
                allowed = f"must be one of {', '.join(config_schema.EVICTION_SIGNALS)}"
                self._report("evictionHard", allowed, name, f"unknown eviction signal {name}, {allowed}")
            elif name != "memory.available":
                self._reported.append(f"evictionHard[{name}]")
        text = given.get("memory.available")
        if text is None:
            # In kubelet, if one signal is set, the others lose their defaults unless they are merged.
            return (None if given and not merge else Config().eviction_memory_bytes), None
        if text.endswith("%"):
            return None, self._read_percentage(text)
        try:
            amount = Quantity.parse(text)
        except QuantitySyntaxError:
            self._report("evictionHard", explain_no_quantity(text), text)
            return None, None
        if amount.nano < 0:
            self._report("evictionHard", f"eviction threshold memory.available must be positive: {text}")
        return amount.value(), None

    def _read_percentage(self, text: str) -> str | None:
        number = text.removesuffix("%")
        whole, point, fraction = number.partition(".")
        digits = whole + fraction
        if not (digits.isascii() and digits.isdigit() and len(digits) <= 18) or (point and not fraction):
            self._report("evictionHard", "memory.available must be an amount or a percentage such as 5%", text)
            return None
        # The number is scaled to 18 decimal places, to compare exactly. 0% and 100% switch the threshold off (parseThresholdStatement).
        scaled = int(whole or "0") * 10**18 + int(fraction.ljust(18, "0"))
        if scaled > 100 * 10**18:
            self._report("evictionHard", f"eviction percentage threshold memory.available must be <= 100%: {text}")
        return None if text in {"0%", "100%"} else number

    def _read_placement(self, reader: PlacementReader, amounts: Config) -> Placement:
        """Read the fields that affect placement. `amounts` contains the reserved amounts, but not an eviction threshold in percent, which
        needs the machine's memory size and is added later.
        """
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
        # fields that prefer some NUMA nodes, but have no effect under these policies
        managers = {
            "cpuManagerPolicy: static": placement.has_static_cpus,
            "memoryManagerPolicy: Static": placement.memory_manager_policy == "Static",
        }
        several = {
            "topologyManagerPolicy: best-effort or restricted": placement.topology_manager_policy
            in {"best-effort", "restricted"}
        }
        for name, is_on, needs in (
            ("sameNumaNodes", placement.same_numa_nodes, managers | several),
            ("spreadHugePages", placement.spread_huge_pages, managers),
        ):
            unmet = [need for need, is_met in needs.items() if not is_met]
            if is_on and unmet:
                self._notes.append(f"{name} has no effect here: it needs {', and '.join(unmet)}")
        given = dict(placement.feature_gates)
        for gate, (field, unset) in _GATE_OF_POLICY.items():
            policy = self._fields.string(field) or unset
            if given.get(gate) is False and policy != unset:
                reason = f"{gate} is off, and {field}: {policy} needs it: remove the gate, or write {field}: {unset}"
                self._report("featureGates", reason)
        return replace(placement, feature_gates=self._read_gates(given))

    def _read_gates(self, given: Mapping[str, bool]) -> tuple[tuple[str, bool], ...]:
        """Return the feature gates that affect the agent. Most of kubelet's gates have no effect here."""
        gates: dict[str, bool] = {}
        for stage, names in GATES_OF_A_STAGE.items():
            gates |= {name: given[stage] for name in names if stage in given}
        for name, value in given.items():
            if name in DEFAULT_GATES:
                gates[name] = value
            elif name in _LOCKED_GATES and not value:
                self._report("featureGates", f"cannot set feature gate {name} to false, feature is locked to true")
            elif name not in _EFFECTIVE_GATES and difflib.get_close_matches(
                name.casefold(), [gate.casefold() for gate in _EFFECTIVE_GATES], n=1, cutoff=0.9
            ):
                # The name is probably a misspelled gate of the agent, not one of kubelet's other gates.
                self._report("featureGates", f"unknown feature gate{suggest_nearest(name, _EFFECTIVE_GATES)}", name)
            elif name not in GATES_OF_A_STAGE:
                self._reported.append(f"featureGates[{name}]")
        return tuple(gates.items())

    def _check_policies(self, placement: Placement) -> None:
        """Check that the names of policies are known, and report errors in kubelet's words. The managers check the policies' options."""
        cpu, memory = placement.cpu_manager_policy, placement.memory_manager_policy
        if cpu not in CPU_MANAGER_POLICIES:
            allowed = "must be none or static"
            self._report("cpuManagerPolicy", allowed, cpu, f'unknown policy: "{cpu}", {allowed}')
        if memory not in MEMORY_MANAGER_POLICIES:
            allowed = "must be None or Static"
            self._report("memoryManagerPolicy", allowed, memory, f'unknown policy: "{memory}", {allowed}')
        policy, scope = placement.topology_manager_policy, placement.topology_manager_scope
        if policy not in TOPOLOGY_MANAGER_POLICIES:
            self._report("topologyManagerPolicy", f"must be one of {', '.join(TOPOLOGY_MANAGER_POLICIES)}", policy)
        if scope not in TOPOLOGY_MANAGER_SCOPES:
            self._report("topologyManagerScope", "must be container or pod", scope)
        amounts = {"reservedSystemCPUs", "systemReserved[cpu]", "kubeReserved[cpu]"}
        is_reserved = placement.reserved_system_cpus or placement.reserved_cpu_milli is not None
        if cpu == "static" and not is_reserved and amounts.isdisjoint(self._findings.fields()):
            reason = "static needs reserved CPUs: set reservedSystemCPUs, or cpu in systemReserved or kubeReserved"
            self._report("cpuManagerPolicy", reason)

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
                    self._report("reservedMemory", reason)
                if amount.nano <= 0:
                    self._report(
                        "reservedMemory", f"invalid configuration: reserved memory may not be zero for {where}"
                    )
                if (entry.numa_node, name) in seen:
                    reason = f"invalid configuration: the reserved memory has a duplicate value for {where}"
                    self._report("reservedMemory", reason)
                seen.add((entry.numa_node, name))

    def _read_duration_ns(self, key: str) -> int | None:
        text = self._fields.string(key, wanted="a duration such as 10s or 1m30s")
        if text is None:
            return None
        try:
            return parse_duration_ns(text)
        except DurationSyntaxError:
            self._report(key, "must be a duration such as 10s or 1m30s", text)
            return None

    def _read_host_core_class(self, default: str) -> str:
        fields = self._fields
        name = fields.one_of("hostCoreClass", CORE_CLASS_CHOICES) or default
        if name != ANY_CLASS and (fields.string("hostIsolation") or "none") == "none":
            fields.report("hostCoreClass", "needs hostIsolation: partition", name)
        return name

    def _read_swap_behavior(self, default: str) -> str:
        fields = self._fields.object("memorySwap")
        if fields is None:
            return default
        behavior = fields.one_of("swapBehavior", SWAP_BEHAVIORS) or default
        if behavior == LIMITED_SWAP:
            # In kubelet, pods from files are critical (types.IsCriticalPod) and get no swap (GetContainerSwapBehavior).
            self._notes.append(
                "memorySwap.swapBehavior: LimitedSwap means NoSwap here: kubelet gives no swap to pods of manifest files"
            )
        fields.close()
        return behavior

    def _read_period(self, key: str, default_ms: int) -> int:
        period_ns = self._read_duration_ns(key)
        # Zero means the default, as in kubelet.
        if not period_ns:
            return default_ms
        if not 100_000_000 <= period_ns <= 86_400_000_000_000:
            self._report(key, "must be between 100ms and 24h", self._fields.string(key))
        return period_ns // 1_000_000

    def _read_quota_period(self, placement: Placement, default: Config) -> int:
        key = "cpuCFSQuotaPeriod"
        period_ns = self._read_duration_ns(key)
        if period_ns is None:
            return default.cpu_cfs_quota_period_us
        text = self._fields.string(key)
        if not 1_000_000 <= period_ns <= 1_000_000_000:
            self._report(key, "must be between 1ms and 1sec, inclusive", text)
        elif period_ns != 100_000_000 and not placement.gate("CustomCPUCFSQuotaPeriod"):
            self._report(key, "other than 100ms requires feature gate CustomCPUCFSQuotaPeriod", text)
        return period_ns // 1_000

    def _read_path(self, key: str) -> str | None:
        text = self._fields.string(key)
        if not text:
            return None
        parts = text.rstrip("/").split("/")
        if not text.startswith("/") or len(text.encode()) > 4095 or {".", "..", ""} & set(parts[1:]) or text == "/":
            self._report(key, "must be an absolute path other than / and without . or ..", text)
            return None
        return text.rstrip("/")

    def _read_socket(self, key: str) -> str | None:
        path = self._read_path(key)
        if path is not None and len(path.encode()) > MAX_UNIX_PATH_BYTES:
            self._report(
                key, f"must be at most {MAX_UNIX_PATH_BYTES} bytes long, because it is a socket's address", path
            )
        return path

    def _read_manifest_directory(self, default: str) -> str:
        kubelets, own = self._read_path("staticPodPath"), self._read_path("manifestDirectory")
        if kubelets is not None and own is not None and kubelets != own:
            self._report("manifestDirectory", "has the same meaning as staticPodPath: set only one of them", own)
        return own or kubelets or default

    def _read_cgroup_root(self, *, is_kubelets: bool) -> str | None:
        text = self._fields.string("cgroupRoot")
        # In kubelet, this field is the name of a cgroup; for the agent, it is a directory. So in kubelet's configuration file, the field
        # only has an effect if it names a directory.
        if is_kubelets and text and not text.startswith("/sys/fs/cgroup/"):
            self._reported.append("cgroupRoot")
            return None
        return self._read_path("cgroupRoot")

    def _read_metrics_address(self, default: str) -> str:
        key = "metricsBindAddress"
        text = self._fields.string(key)
        if text is None:
            return default
        if text:
            try:
                address = parse_bind_address(text)
            except BindAddressError as err:
                self._report(key, f"{err}, or empty for no metrics")
                return default
            if isinstance(address, TcpAddress) and not _is_loopback(address.host):
                self._notes.append(
                    f"{key} {text} is not a loopback address: everyone who can reach it can read the metrics"
                )
        return text

    def _check_cgroups(self, placement: Placement) -> None:
        cgroups = [key for key in ("systemReservedCgroup", "kubeReservedCgroup") if self._fields.string(key)]
        self._reported.extend(cgroups)
        if cgroups and placement.reserved_system_cpus:
            self._report("reservedSystemCPUs", f"must not be given together with {' and '.join(cgroups)}")
        if self._fields.boolean("cgroupsPerQOS") is False:
            self._report("cgroupsPerQOS", "must be true: pods are always grouped by their QoS class", value=False)

    def _check_directories(self, config: Config) -> None:
        key_by_path: dict[str, str] = {}
        for key, path in (
            ("stateDirectory", config.state_directory),
            ("runtimeDirectory", config.runtime_directory),
            ("manifestDirectory", config.static_pod_path),
            ("logDirectory", config.log_directory),
        ):
            if (other := key_by_path.setdefault(path, key)) != key:
                self._report(key, f"must differ from {other}", path)


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _read_job_share(fields: Fields) -> JobShare:
    """Read the weight of a user or group, and the limits for the user's jobs."""
    bounds = {key: fields.quantity(key) for key in ("maxCPUs", "maxMemory")}
    for key, bound in bounds.items():
        if bound is not None and bound.nano <= 0:
            fields.report(key, f"must be more than 0 (omit it for no limit): {bound}")
    return JobShare(
        weight=fields.integer("weight", 1, _MAX_WEIGHT),
        max_cpus=bounds["maxCPUs"],
        max_memory=bounds["maxMemory"],
        max_per_user=fields.integer("maxPerUser", 1, _MAX_INT32),
        max_reservations=fields.integer("maxReservations", 0, _MAX_INT32),
    )


def _read_run_thresholds(fields: Fields) -> tuple[tuple[str, int], ...]:
    """Read the thresholds at which a run of a command counts as disturbed, for a node or a profile."""
    given = fields.object("runThresholds")
    if given is None:
        return ()
    from nodeagent.core.certificate.disturbances import THRESHOLDS  # noqa: PLC0415 - few nodes change them

    found = {name: given.integer(name, 0, _MAX_INT32) for name in sorted(THRESHOLDS)}
    given.close()
    return tuple((name, most) for name, most in found.items() if most is not None)
