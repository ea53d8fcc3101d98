"""Reader and formatter of ResourceClaim, ResourceClaimTemplate and DeviceClass documents (resource.k8s.io/v1). The requests in them are
added to the pods that refer to the documents.
"""

from collections import Counter
from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.model.claims import (
    CARD_DRIVER,
    CPU_DRIVER,
    MEMORY_DRIVER,
    ClaimRequest,
    ClaimSpec,
    DeviceRequest,
    MatchAttribute,
    PodClaim,
)
from nodeagent.core.model.pod import Pod
from nodeagent.formats.manifest.pod_rules import LABEL_RULE, SUBDOMAIN_RULE, is_label, is_subdomain
from nodeagent.formats.manifest.pod_schema import CLAIM, CLASS, TEMPLATE
from nodeagent.formats.syntax.fields import Fields
from nodeagent.formats.syntax.findings import shown

API_VERSION = "resource.k8s.io/v1"
BUILT_IN = (CPU_DRIVER, MEMORY_DRIVER, CARD_DRIVER)
"""Device classes that exist without a document. Each class selects all devices of the driver with the same name."""
MOST_REQUESTS = MOST_CONSTRAINTS = MOST_SELECTORS = 32
"""Maximum numbers of requests, constraints and selectors, as in the API server (DeviceRequestsMaxSize, DeviceConstraintsMaxSize and
DeviceSelectorsMaxSize).
"""
MOST_WAYS = 8
"""Maximum number of alternatives (`firstAvailable`) of a request, as in the API server (FirstAvailableDeviceRequestMaxSize)."""
MOST_DEVICES = 4096
"""Maximum number of devices of a request. The API server allows 32 for each claim (AllocationResultsMaxSize), which is less than the number
of CPUs of a socket.
"""
_METADATA = ("labels", "annotations", "uid", "generateName", "creationTimestamp", "resourceVersion", "generation")
_METADATA_UNUSED = (*_METADATA, "managedFields", "ownerReferences", "finalizers", "selfLink")
_EXACT, _ALL = "ExactCount", "All"
_MATCH, _DISTINCT = "matchAttribute", "distinctAttribute"
_REFUSED = {"adminAccess": "adminAccess is not supported: `nodeagent inspect` shows devices that other pods hold"}
_EXTENDED = {
    "extendedResourceName": "extendedResourceName is not supported: name such devices in the configuration (devices)"
}


class ClaimDocument(Struct, frozen=True):
    """A parsed ResourceClaim, ResourceClaimTemplate or DeviceClass."""

    kind: str
    """One of CLAIM_KINDS."""
    name: str
    """`namespace/name`, or the name alone for a class, which has no namespace."""
    spec: ClaimSpec = ClaimSpec(())
    """Spec of a claim or template. Selectors of its device classes aren't included."""
    selectors: tuple[str, ...] = ()
    """Selectors of a device class."""
    line: int | None = None
    is_whole: bool = True
    """Whether the document is free of errors. An invalid document has no effect, but a later document with the same name has no effect,
    either.
    """


def read_claim_document(document: Fields, kind: str) -> ClaimDocument:
    """Read a document of the given kind. Errors become findings."""
    document.one_of("apiVersion", (API_VERSION,))
    if not document.has("apiVersion"):
        document.report("apiVersion", f"is required: {API_VERSION}")
    document.one_of("kind", (kind,))
    name = _read_name(document, kind)
    spec = document.object("spec")
    document.unused(("status",))
    document.close()
    if spec is None:
        document.report("spec", "is required")
        return ClaimDocument(kind, name)
    if kind == CLASS:
        selectors = _read_selectors(spec)
        spec.refuse(_EXTENDED)
        spec.unused(("config",))
        spec.close()
        return ClaimDocument(kind, name, selectors=selectors, line=document.line)
    inner = spec
    if kind == TEMPLATE:
        metadata = spec.object("metadata")
        if metadata is not None:
            metadata.unused(_METADATA_UNUSED)
            metadata.close()
        of_claim = spec.object("spec")
        spec.close()
        if of_claim is None:
            spec.report("spec", "is required: the spec of the claims")
            return ClaimDocument(kind, name)
        inner = of_claim
    devices = inner.object("devices")
    inner.close()
    if devices is None:
        inner.report("devices", "is required, with requests")
        return ClaimDocument(kind, name)
    return ClaimDocument(kind, name, read_devices(devices), line=document.line)


def _read_name(document: Fields, kind: str) -> str:
    metadata = document.object("metadata")
    if metadata is None:
        document.report("metadata", "is required, with a name")
        return ""
    name, namespace = metadata.string("name") or "", metadata.string("namespace")
    metadata.unused(_METADATA_UNUSED)
    metadata.close()
    if not is_subdomain(name):
        metadata.report("name", SUBDOMAIN_RULE, name)
    if namespace is not None and (kind == CLASS or not is_label(namespace)):
        metadata.report("namespace", "a DeviceClass has no namespace" if kind == CLASS else LABEL_RULE, namespace)
    return name if kind == CLASS else f"{namespace or 'default'}/{name}"


def read_devices(devices: Fields) -> ClaimSpec:
    """Read `spec.devices` of a claim."""
    requests = tuple(_read_request(each) for each in devices.objects("requests"))
    devices.unused(("config",))
    if not requests:
        devices.report("requests", "needs at least one request")
    _check_count(devices, "requests", len(requests), MOST_REQUESTS)
    names = [request.name for request in requests]
    _check_names_differ(devices, "requests", names)
    known = {*names, *(f"{each.name}/{way.name}" for each in requests for way in each.ways if way.name)}
    constraints = tuple(_read_constraint(each, known) for each in devices.objects("constraints"))
    _check_count(devices, "constraints", len(constraints), MOST_CONSTRAINTS)
    devices.close()
    return ClaimSpec(requests, constraints)


def _check_count(fields: Fields, key: str, count: int, max_count: int) -> None:
    if count > max_count:
        fields.report(key, f"may be at most {max_count}", count)


def _check_names_differ(fields: Fields, key: str, names: list[str]) -> None:
    for name in sorted(name for name, count in Counter(names).items() if name and count > 1):
        fields.report(key, "two requests have the same name", name)


def _read_request(fields: Fields) -> ClaimRequest:
    name = fields.string("name") or ""
    if not is_label(name):
        fields.report("name", LABEL_RULE, name)
    exactly, first = fields.object("exactly"), fields.objects("firstAvailable")
    fields.close()
    if (exactly is None) is not bool(first):
        fields.report("exactly", "exactly one of this field and firstAvailable is required")
        return ClaimRequest(name, ())
    if exactly is not None:
        return ClaimRequest(name, (_read_device_request(exactly, is_named=False),))
    _check_count(fields, "firstAvailable", len(first), MOST_WAYS)
    ways = tuple(_read_device_request(each, is_named=True) for each in first)
    _check_names_differ(fields, "firstAvailable", [way.name for way in ways])
    return ClaimRequest(name, ways)


def _read_device_request(fields: Fields, *, is_named: bool) -> DeviceRequest:
    name = (fields.string("name") or "") if is_named else ""
    if is_named and not is_label(name):
        fields.report("name", LABEL_RULE, name)
    device_class = fields.string("deviceClassName") or ""
    if not is_subdomain(device_class):
        fields.report("deviceClassName", f"is required, and {SUBDOMAIN_RULE}", device_class)
    mode = fields.one_of("allocationMode", (_EXACT, _ALL)) or _EXACT
    count = fields.integer("count", 1, MOST_DEVICES)
    if mode == _ALL and count is not None:
        fields.report("count", "must be absent where allocationMode is All", count)
    selectors = _read_selectors(fields)
    capacity = fields.object("capacity")
    sizes = () if capacity is None else tuple((n, amount.value()) for n, amount in capacity.quantities("requests"))
    if capacity is not None:
        for key, size in sizes:
            if size < 1:
                capacity.report("requests", f"{shown(key)} must be more than 0", size)
        capacity.close()
    if fields.boolean("adminAccess"):
        fields.refuse(_REFUSED)
    fields.unused(("tolerations",))  # `tolerations` has no effect, because the agent taints no devices
    fields.close()
    return DeviceRequest(name, device_class, selectors, None if mode == _ALL else count or 1, sizes)


def _read_selectors(fields: Fields) -> tuple[str, ...]:
    found = []
    items = fields.objects("selectors")
    _check_count(fields, "selectors", len(items), MOST_SELECTORS)
    for item in items:
        cel = item.object("cel")
        item.close()
        expression = None if cel is None else cel.string("expression")
        if cel is None or not expression:
            item.report("cel", "is required, with an expression")
            continue
        cel.close()
        found.append(expression)
        from nodeagent.core.resources.claims.selectors import SelectorError, check  # noqa: PLC0415 - few claims have selectors

        try:
            check(expression)
        except SelectorError as err:
            cel.report("expression", f"must be a CEL expression that is true or false for a device: {err}")
    return tuple(found)


def _read_constraint(fields: Fields, known: set[str]) -> MatchAttribute:
    requests = fields.strings("requests")
    match, distinct = fields.string(_MATCH), fields.string(_DISTINCT)
    fields.close()
    if (match is None) is (distinct is None):
        fields.report(_MATCH, f"exactly one of this field and {_DISTINCT} is required")
    attribute = match or distinct or ""
    domain, slash, name = attribute.partition("/")
    if attribute and not (slash and is_subdomain(domain) and name.isascii() and name.isidentifier()):
        allowed = "must be a qualified name such as resource.kubernetes.io/numaNode"
        fields.report(_MATCH if distinct is None else _DISTINCT, allowed, attribute)
    for request in requests:
        if request not in known:
            fields.report("requests", f"must be requests of this claim: {', '.join(sorted(known))}", request)
    return MatchAttribute(attribute, requests, is_distinct=distinct is not None)


def devices_document(spec: ClaimSpec) -> dict[str, object]:
    """Format `spec.devices` of a claim. `read_devices` restores an equal spec from the result."""
    document: dict[str, object] = {
        "requests": [
            {"name": request.name, "firstAvailable": list(map(_format_device_request, request.ways))}
            if request.ways[0].name
            else {"name": request.name, "exactly": _format_device_request(request.ways[0])}
            for request in spec.requests
        ]
    }
    if spec.constraints:
        document["constraints"] = [
            {_DISTINCT if each.is_distinct else _MATCH: each.attribute}
            | ({"requests": list(each.requests)} if each.requests else {})
            for each in spec.constraints
        ]
    return document


def _format_device_request(way: DeviceRequest) -> dict[str, object]:
    document: dict[str, object] = {"deviceClassName": way.device_class}
    if way.name:
        document["name"] = way.name
    document |= {"allocationMode": _ALL} if way.count is None else {"allocationMode": _EXACT, "count": way.count}
    if way.selectors:
        document["selectors"] = [{"cel": {"expression": expression}} for expression in way.selectors]
    if way.capacity:
        document["capacity"] = {"requests": {name: str(size) for name, size in way.capacity}}
    return document


class ClaimDocuments:
    """Claim documents of a manifest directory, or of the files given to a command. If several documents have the same name, only the first
    takes effect.
    """

    def __init__(self, documents: Iterable[ClaimDocument] = ()) -> None:
        self._known: dict[tuple[str, str], ClaimDocument] = {}
        self.doubled: list[ClaimDocument] = []
        """Documents that are ignored because an earlier document has the same name."""
        for document in documents:
            key = document.kind, document.name
            if key not in self._known:
                self._known[key] = document
            elif document.is_whole:
                self.doubled.append(document)

    def resolved(self, pod: Pod) -> Pod:
        """Return the pod with the requests of its resource claims filled in from the documents. If a document is missing, the claim's field
        `missing` names it.
        """
        if not pod.claims:
            return pod
        return replace(pod, claims=tuple(self._resolve_claim(pod, claim) for claim in pod.claims))

    def _resolve_claim(self, pod: Pod, claim: PodClaim) -> PodClaim:
        kind, name = (TEMPLATE, claim.template) if claim.template else (CLAIM, claim.claim)
        document = self._known.get((kind, f"{pod.namespace}/{name}"))
        if document is None or not document.is_whole:
            return claim if claim.spec is not None else replace(claim, missing=f"{kind} {pod.namespace}/{name}")
        requests = []
        for request in document.spec.requests:
            ways = []
            for way in request.ways:
                selectors = self._selectors_of_class(way.device_class)
                if selectors is None:
                    return replace(claim, spec=None, missing=f"{CLASS} {way.device_class}")
                ways.append(replace(way, selectors=(*selectors, *way.selectors)))
            requests.append(replace(request, ways=tuple(ways)))
        return replace(claim, spec=replace(document.spec, requests=tuple(requests)), missing="")

    def _selectors_of_class(self, device_class: str) -> tuple[str, ...] | None:
        document = self._known.get((CLASS, device_class))
        if document is not None:
            return document.selectors if document.is_whole else None
        return (f'device.driver == "{device_class}"',) if device_class in BUILT_IN else None


def find_missing_documents(pod: Pod) -> tuple[str, ...]:
    """Return the kind and name of each missing document that a pod's claims need."""
    return tuple(dict.fromkeys(claim.missing for claim in pod.claims if claim.spec is None))
