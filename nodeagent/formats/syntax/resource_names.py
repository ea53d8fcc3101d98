"""Names of Kubernetes' extended resources, which are devices here; and the part of a variable's name that each is. Only names."""

import re

_DOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_NATIVE = "kubernetes.io"
_QUOTA_PREFIX = "requests."


def is_extended_resource(name: str) -> bool:
    """Whether Kubernetes takes it for one (IsExtendedResourceName): a domain that isn't Kubernetes' own, and a name."""
    domain, slash, rest = name.partition("/")
    return (
        bool(slash)
        and _NATIVE not in f"{domain}/"
        and not name.startswith(_QUOTA_PREFIX)
        and len(_QUOTA_PREFIX) + len(domain) <= 253
        and len(rest) <= 63
        and _DOMAIN.fullmatch(domain) is not None
        and _NAME.fullmatch(rest) is not None
    )


def variable_part(resource: str) -> str:
    """Spell a resource as a part of a variable's name: in capitals, with _ for what no such name has."""
    return re.sub(r"[^A-Z0-9]", "_", resource.upper())
