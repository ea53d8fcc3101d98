"""What containers hold of resources that no view shows by itself, in the resources' own words."""

from collections.abc import Iterable

from nodeagent.core.model.promises import PodPromises
from nodeagent.core.resources.resource import Resource


def further_holdings(resources: Iterable[Resource], held: PodPromises, container: str) -> dict[str, str]:
    """Return what a container holds, by resource."""
    return {resource.name: said for resource in resources if (said := resource.describe(held, container))}
