"""Names of extended resources (countable resources such as devices), and their form in names of environment variables."""

import re

_DOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_NATIVE = "kubernetes.io"
_QUOTA_PREFIX = "requests."


def is_extended_resource(name: str) -> bool:
    """Tell whether a name is an extended resource (IsExtendedResourceName): a domain other than Kubernetes' own, and a name."""
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
    """Format a resource's name for use in an environment variable's name: in capitals, with _ for other characters."""
    return re.sub(r"[^A-Z0-9]", "_", resource.upper())
