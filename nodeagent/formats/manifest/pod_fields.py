"""Reader of a v1 Pod object into a Pod with the API server's defaults, and formatter of a Pod as a v1 Pod.

Reports wrong types and unknown or refused fields. The rules for values are in formats/manifest/pod_rules.py.
"""

import json
from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.model.claims import ClaimSpec, ContainerClaim, PodClaim
from nodeagent.core.model.digest import sha256_hex
from nodeagent.core.model.pod import (
    CPU,
    MEMORY,
    Container,
    ContainerKind,
    Pod,
    QosClass,
    ResourceRequirements,
    Resources,
    RestartPolicy,
    is_own_annotation,
)
from nodeagent.core.model.pod_resources import with_container_defaults, with_pod_level_defaults
from nodeagent.core.model.quiet import ProcessSettings, QuietRequest
from nodeagent.formats.manifest import pod_schema
from nodeagent.formats.manifest.pod_annotations import (
    read_core_class,
    read_exclusive_cpu_count,
    read_gives_back,
    read_interrupts,
    read_is_isolated,
    read_near,
    read_numa_node,
    read_unit,
)
from nodeagent.formats.syntax.fields import Fields, suggest_nearest
from nodeagent.formats.syntax.quiet_settings import format_request, read_request

MAX_INT64 = 2**63 - 1
MAX_GRACE_SECONDS = 7 * 24 * 3600
"""Longest termination grace period, in seconds. The API server sets no limit, but a pod keeps its CPUs during this period, so an unlimited
period would block draining.
"""
_MAX_ID = 2**31 - 1
"""Largest user and group ID that the API server accepts (IsValidUserID)."""
_OF_CONTAINERS = (pod_schema.EXCLUSIVE_CPUS, pod_schema.INTERRUPTS, pod_schema.NEAR_OF, pod_schema.UNIT)
"""Kinds of annotations whose keys contain a container's name."""
_OF_PODS = (*pod_schema.OF_PODS, pod_schema.QUIET, pod_schema.WHILE_INACTIVE)
"""Annotations of the pod as a whole."""
_RESTART_CONTAINER = "RestartContainer"
_RESTART_POLICIES = tuple(policy.value for policy in RestartPolicy)


class DecodedPod(Struct, frozen=True):
    pod: Pod
    unused_fields: tuple[str, ...]
    """Paths of the fields that are set but have no effect here."""
    not_run: tuple[str, ...] = ()
    """Paths of the fields that prevent the agent from running the pod, because it doesn't support them."""


class _PodIdentity(Struct, frozen=True):
    """User and group from a `securityContext`."""

    user: int | None = None
    group: int | None = None
    non_root: bool = False


class PodReader:
    """Reader of one pod."""

    def __init__(self, *, strict: bool, typed: bool = True, is_run: bool = True) -> None:
        """Choose the strictness of the reader.

        Args:
            strict: whether unknown fields are errors. Otherwise, as for scenarios and the agent's own state, unused fields are ignored.
            typed: whether apiVersion and kind are required. Items of a PodList may lack both fields.
            is_run: whether fields that prevent the agent from running the pod are errors. Otherwise these fields are only listed.
        """
        self._strict = strict
        self._typed = typed
        self._is_run = is_run
        self._unused: list[str] = []
        self._not_run: list[str] = []

    def read(self, document: Fields) -> DecodedPod:
        for key, value in (("apiVersion", "v1"), ("kind", "Pod")):
            document.one_of(key, (value,))
            if self._strict and self._typed and not document.has(key):
                document.report(key, f"is required: {value}")
        metadata = document.object("metadata")
        spec = document.object("spec")
        given_qos, claimed = self._read_status(document)
        self._close(document)
        annotations = metadata.object("annotations", keyed=True) if metadata else None
        uid = namespace = name = ""
        if metadata is None:
            document.report("metadata", "is required, with a name")
        else:
            uid, namespace, name = (metadata.string(key) or "" for key in ("uid", "namespace", "name"))
            self._close(metadata, pod_schema.METADATA_UNUSED, pod_schema.METADATA_SILENT)
        pod = Pod(uid=uid, namespace=namespace or "default", name=name, containers=(), given_qos=given_qos)
        if spec is None:
            document.report("spec", "is required, with containers")
        else:
            pod = self._read_spec(spec, pod)
        if claimed:
            claims = tuple(replace(claim, spec=claimed.get(claim.name)) for claim in pod.claims)
            pod = replace(pod, claims=claims)
        if annotations is not None:
            pod = self._read_annotations(annotations, pod)
        pod = with_container_defaults(pod)
        if self._strict:
            # Pods of scenarios already have the defaults of containers, and their pod-level resources stay unchanged.
            pod = with_pod_level_defaults(pod)
            if pod.resources is not None:
                # Amounts are rounded as in the state file, or else the saved pod would differ from its manifest, and would be ended.
                requests, limits = (
                    Resources.of({name: amount.as_stored() for name, amount in amounts})
                    for amounts in (pod.resources.requests, pod.resources.limits)
                )
                pod = replace(pod, resources=ResourceRequirements(requests, limits))
        pod = pod if pod.uid else replace(pod, uid=derive_uid(pod))
        return DecodedPod(pod, tuple(self._unused), tuple(self._not_run))

    def _refuse(self, fields: Fields, reasons: Mapping[str, str]) -> None:
        if self._is_run:
            fields.refuse(reasons)
        else:
            self._not_run.extend(fields.unused(reasons))

    def _read_status(self, document: Fields) -> tuple[QosClass | None, dict[str, ClaimSpec]]:
        """Return the QoS class, and the specs of the claims by their names in the pod."""
        # The API server drops the status of a new pod. In scenarios and in the agent's own state, the status has the QoS class and the
        # claims' specs.
        if self._strict:
            self._unused.extend(document.unused(("status",)))
            return None, {}
        status = document.object("status")
        text = status.one_of("qosClass", tuple(qos.value for qos in QosClass)) if status else None
        claims = {}
        for item in status.objects("resourceClaimStatuses") if status else ():
            devices = item.object("devices")
            if devices is not None:
                from nodeagent.formats.manifest.claim_documents import read_devices  # noqa: PLC0415 - few pods have claims

                claims[item.string("name") or ""] = read_devices(devices)
        return QosClass(text) if text else None, claims

    def _close(self, fields: Fields, unused: tuple[str, ...] = (), silent: tuple[str, ...] = ()) -> None:
        if self._strict:
            fields.unused(silent)
            self._unused.extend(fields.unused(unused))
            fields.close()

    def _read_annotations(self, annotations: Fields, pod: Pod) -> Pod:
        counts: dict[str, int | None] = {}
        devices: dict[str, tuple[str, ...]] = {}
        units: dict[str, str] = {}
        near: dict[str, tuple[str, ...]] = {}
        names = tuple(container.name for container in pod.containers)
        is_isolated, numa_node = read_is_isolated(annotations), read_numa_node(annotations)
        core_class, preferred_core_class = read_core_class(annotations)
        near_all = read_near(annotations)
        for key in annotations.present():
            if key in _OF_PODS or not is_own_annotation(key):
                continue
            kind, _, name = key.partition("/")
            if kind not in _OF_CONTAINERS:
                of_containers = ", ".join(f"{known}/<container>" for known in _OF_CONTAINERS)
                known = f"{of_containers}, {', '.join(_OF_PODS[:-1])} or {_OF_PODS[-1]}"
                annotations.report(key, f"is not an annotation of this agent: use {known}, or remove it")
            elif name not in names:
                meant = suggest_nearest(name, names)
                annotations.report(key, f"must name a container of this pod after the slash{meant}")
            elif kind == pod_schema.INTERRUPTS:
                devices[name] = read_interrupts(annotations, key)
            elif kind == pod_schema.NEAR_OF:
                near[name] = read_near(annotations, key)
            elif kind == pod_schema.UNIT:
                units[name] = read_unit(annotations, key)
            else:
                counts[name] = read_exclusive_cpu_count(annotations, key)
        quiet, process = read_request(annotations, pod_schema.QUIET)
        if process != ProcessSettings() and not any(container.is_launched for container in pod.containers):
            annotations.report(
                pod_schema.QUIET,
                "must not have settings of the process: no container of this pod has a command, which the agent would start",
            )
        return replace(
            pod,
            is_isolated=is_isolated,
            numa_node=numa_node,
            quiet=quiet,
            process=process,
            gives_back=read_gives_back(annotations),
            core_class=core_class,
            preferred_core_class=preferred_core_class,
            containers=tuple(
                replace(
                    c,
                    exclusive_cpus=counts.get(c.name),
                    interrupts=devices.get(c.name, ()),
                    near=near.get(c.name, near_all),
                    unit=units.get(c.name, ""),
                )
                for c in pod.containers
            ),
        )

    def _read_spec(self, spec: Fields, pod: Pod) -> Pod:
        identity = self._read_identity(spec, pod_schema.POD_SECURITY_UNUSED, _PodIdentity())
        policy = spec.one_of("restartPolicy", _RESTART_POLICIES)
        grace = spec.integer("terminationGracePeriodSeconds", 0, MAX_GRACE_SECONDS if self._is_run else MAX_INT64)
        resources = spec.object("resources")
        if resources is not None and self._strict:
            resources.refuse(pod_schema.RESOURCES_REFUSED)
        inits = tuple(self._read_container(item, identity, init=True) for item in spec.objects("initContainers"))
        apps = tuple(self._read_container(item, identity, init=False) for item in spec.objects("containers"))
        overhead = self._read_amounts(spec, "overhead")
        claims = tuple(self._read_claim(item) for item in spec.objects("resourceClaims"))
        if self._strict:
            self._refuse(spec, pod_schema.SPEC_REFUSED)
        self._close(spec, pod_schema.SPEC_UNUSED)
        return replace(
            pod,
            containers=inits + apps,
            resources=None if resources is None else self._read_requirements(resources),
            overhead=overhead,
            claims=claims,
            restart_policy=RestartPolicy(policy or "Always"),
            termination_grace_seconds=30 if grace is None else grace,
        )

    def _read_claim(self, fields: Fields) -> PodClaim:
        keys = ("name", "resourceClaimName", "resourceClaimTemplateName")
        name, claim, template = (fields.string(key) or "" for key in keys)
        self._close(fields)
        return PodClaim(name, claim, template)

    def _read_container_claim(self, fields: Fields) -> ContainerClaim:
        claim = ContainerClaim(fields.string("name") or "", fields.string("request") or "")
        self._close(fields)
        return claim

    def _read_resize_policy(self, fields: Fields) -> str | None:
        """Return the resource of a `resizePolicy` entry if a resize restarts the container. Otherwise return None."""
        name = fields.one_of("resourceName", (CPU, MEMORY))
        policy = fields.one_of("restartPolicy", ("NotRequired", _RESTART_CONTAINER))
        self._close(fields, ())
        return name if policy == _RESTART_CONTAINER else None

    def _read_container(self, fields: Fields, pod_identity: _PodIdentity, *, init: bool) -> Container:
        identity = self._read_identity(fields, pod_schema.CONTAINER_SECURITY_UNUSED, pod_identity)
        policy = fields.one_of("restartPolicy", _RESTART_POLICIES)
        resources = fields.object("resources")
        variables = []
        for item in fields.objects("env", secret=True):
            variables.append((item.string("name", secret=True) or "", item.string("value", secret=True) or ""))
            if self._strict:
                self._refuse(item, pod_schema.ENV_REFUSED)
            self._close(item)
        container = Container(
            name=fields.string("name") or "",
            kind=ContainerKind.APP,
            claims=tuple(self._read_container_claim(item) for item in resources.objects("claims")) if resources else (),
            resources=ResourceRequirements() if resources is None else self._read_requirements(resources),
            command=fields.strings("command", secret=True),
            args=fields.strings("args", secret=True),
            env=tuple(variables),
            working_dir=fields.string("workingDir") or None,
            run_as_user=identity.user,
            run_as_group=identity.group,
            restart_policy=RestartPolicy(policy) if policy else None,
            restarts_for=tuple(
                sorted({name for name in map(self._read_resize_policy, fields.objects("resizePolicy")) if name})
            ),
        )
        if self._strict:
            self._refuse(fields, pod_schema.CONTAINER_REFUSED)
            if self._is_run and identity.non_root and identity.user in {None, 0} and container.command:
                reason = "runAsNonRoot needs a runAsUser other than 0: the process would run as root"
                fields.report("securityContext", reason)
        self._close(fields, pod_schema.CONTAINER_UNUSED)
        if not init:
            return container
        sidecar = container.restart_policy is RestartPolicy.ALWAYS
        return replace(container, kind=ContainerKind.SIDECAR if sidecar else ContainerKind.INIT)

    def _read_identity(self, owner: Fields, unused: tuple[str, ...], inherited: _PodIdentity) -> _PodIdentity:
        context = owner.object("securityContext")
        if context is None:
            return inherited
        user = context.integer("runAsUser", 0, _MAX_ID)
        group = context.integer("runAsGroup", 0, _MAX_ID)
        non_root = context.boolean("runAsNonRoot")
        self._close(context, unused)
        return _PodIdentity(
            user=inherited.user if user is None else user,
            group=inherited.group if group is None else group,
            non_root=inherited.non_root if non_root is None else non_root,
        )

    def _read_requirements(self, fields: Fields) -> ResourceRequirements:
        requirements = ResourceRequirements(
            requests=self._read_amounts(fields, "requests"), limits=self._read_amounts(fields, "limits")
        )
        self._close(fields)
        return requirements

    def _read_amounts(self, owner: Fields, key: str) -> Resources:
        # The API server rounds every amount up to thousandths (SetDefaults_ResourceList). It also rewrites amounts in canonical form, so
        # that `1.5Gi` becomes `1536Mi`. In files of static pods and in scenarios, amounts keep their form.
        amounts = {name: amount.rounded_up_to_milli() for name, amount in owner.quantities(key)}
        if self._strict:
            self._unused.extend(f"{owner.at(key)}[{name}]" for name in amounts if name in pod_schema.RESOURCES_UNUSED)
            amounts = {
                name: amount.as_stored() for name, amount in amounts.items() if name not in pod_schema.RESOURCES_UNUSED
            }
        return Resources.of(amounts)


def derive_uid(pod: Pod) -> str:
    """Return a UID for a pod without a UID, namely a hash of all effective fields.

    Resource amounts are left out, because a pod with changed amounts is the same pod after a resize.
    """
    unsized = tuple(replace(container, resources=ResourceRequirements()) for container in pod.containers)
    as_a_whole = None if pod.resources is None else ResourceRequirements()
    document = pod_to_document(replace(pod, uid="", containers=unsized, resources=as_a_whole))
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return sha256_hex(text.encode("utf-8", "surrogatepass"))[:32]


def pod_to_document(pod: Pod) -> dict[str, object]:
    """Format a pod as a v1 Pod of plain values. Equal pods have equal documents, and `pod_from_document` restores an equal pod."""
    spec: dict[str, object] = {
        "containers": [_format_container(c) for c in pod.apps()],
        "restartPolicy": pod.restart_policy.value,
        "terminationGracePeriodSeconds": pod.termination_grace_seconds,
    }
    inits = [_format_container(c) for c in pod.inits()]
    if inits:
        spec["initContainers"] = inits
    if pod.resources is not None:
        spec["resources"] = _format_requirements(pod.resources)
    if pod.overhead:
        spec["overhead"] = _format_amounts(pod.overhead)
    if pod.claims:
        spec["resourceClaims"] = [
            {"name": claim.name}
            | ({"resourceClaimName": claim.claim} if claim.claim else {"resourceClaimTemplateName": claim.template})
            for claim in pod.claims
        ]
    metadata: dict[str, object] = {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid}
    counts = {c.name: c.exclusive_cpus for c in pod.containers if c.exclusive_cpus is not None}
    annotations = {f"{pod_schema.EXCLUSIVE_CPUS}/{name}": str(count) for name, count in counts.items()}
    annotations |= {
        f"{pod_schema.INTERRUPTS}/{c.name}": ", ".join(c.interrupts) for c in pod.containers if c.interrupts
    }
    annotations |= {f"{pod_schema.NEAR_OF}/{c.name}": ", ".join(c.near) for c in pod.containers if c.near}
    annotations |= {f"{pod_schema.UNIT}/{c.name}": c.unit for c in pod.containers if c.unit}
    annotations |= {pod_schema.PARTITION: pod_schema.ISOLATED} if pod.is_isolated else {}
    annotations |= {pod_schema.WHILE_INACTIVE: pod_schema.GIVE_BACK} if pod.gives_back else {}
    if pod.quiet is not None or pod.process != ProcessSettings():
        annotations[pod_schema.QUIET] = format_request(pod.quiet or QuietRequest(), pod.process)
    annotations |= {} if pod.numa_node is None else {pod_schema.NUMA_NODE: str(pod.numa_node)}
    classes = {pod_schema.CORE_CLASS: pod.core_class, pod_schema.PREFERRED_CORE_CLASS: pod.preferred_core_class}
    annotations |= {key: name for key, name in classes.items() if name is not None}
    if annotations:
        metadata["annotations"] = annotations
    document: dict[str, object] = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    status: dict[str, object] = {} if pod.given_qos is None else {"qosClass": pod.given_qos.value}
    if any(claim.spec is not None for claim in pod.claims):
        from nodeagent.formats.manifest.claim_documents import devices_document  # noqa: PLC0415 - few pods have claims

        # The entries have the form of Kubernetes' claim statuses, with the requests of each claim added.
        status["resourceClaimStatuses"] = [
            {
                "name": claim.name,
                "resourceClaimName": claim.claim_name(pod.name),
                "devices": devices_document(claim.spec),
            }
            for claim in pod.claims
            if claim.spec is not None
        ]
    if status:
        document["status"] = status
    return document


def _format_container(container: Container) -> dict[str, object]:
    document: dict[str, object] = {"name": container.name}
    if container.resources != ResourceRequirements() or container.claims:
        document["resources"] = _format_requirements(container.resources)
    if container.claims:
        claims = [{"name": use.name} | ({"request": use.request} if use.request else {}) for use in container.claims]
        document["resources"] = {**_format_requirements(container.resources), "claims": claims}
    if container.command:
        document["command"] = list(container.command)
    if container.args:
        document["args"] = list(container.args)
    if container.env:
        document["env"] = [{"name": name, "value": value} for name, value in container.env]
    if container.working_dir is not None:
        document["workingDir"] = container.working_dir
    identity = {"runAsUser": container.run_as_user, "runAsGroup": container.run_as_group}
    if any(number is not None for number in identity.values()):
        document["securityContext"] = {key: number for key, number in identity.items() if number is not None}
    if container.restart_policy is not None:
        document["restartPolicy"] = container.restart_policy.value
    if container.restarts_for:
        document["resizePolicy"] = [
            {"resourceName": name, "restartPolicy": _RESTART_CONTAINER} for name in container.restarts_for
        ]
    return document


def _format_requirements(requirements: ResourceRequirements) -> dict[str, object]:
    return {
        "requests": _format_amounts(requirements.requests),
        "limits": _format_amounts(requirements.limits),
    }


def _format_amounts(resources: Resources) -> dict[str, object]:
    return {name: str(amount) for name, amount in resources}
