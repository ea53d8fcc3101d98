"""Allocations of resources that no view has its own words for, described by the resources."""

from collections.abc import Iterable

from nodeagent.core.model.promises import PodPromises
from nodeagent.core.resources.resource import Resource


def describe_further_holdings(resources: Iterable[Resource], held: PodPromises, container: str) -> dict[str, str]:
    """Return the descriptions of a container's allocations by resource. Resources without a description are left out."""
    return {resource.name: said for resource in resources if (said := resource.describe(held, container))}
