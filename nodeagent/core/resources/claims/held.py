"""Allocations of claims that a pod still holds. Devices that ended containers have released are left out."""

from msgspec.structs import replace

from nodeagent.core.model.claims import (
    MEMORY_DRIVER,
    AllocatedDevice,
    ClaimAllocation,
    format_card_name,
    format_cpu_name,
)
from nodeagent.core.model.promises import PodPromises
from nodeagent.core.resources.claims.holdings import ClaimHoldings
from nodeagent.core.resources.cpu.holdings import CpuHoldings
from nodeagent.core.resources.devices.holdings import DeviceHoldings
from nodeagent.core.resources.memory.holdings import MemoryHoldings


def find_held_claims(held: PodPromises) -> tuple[ClaimAllocation, ...]:
    """Return the allocations of the pod's claims, without the devices that ended containers have released. A claim without remaining
    devices is left out.
    """
    claims = held.of(ClaimHoldings).claims
    if not claims:
        return ()
    cards = {format_card_name(one.id) for _, own in held.of(DeviceHoldings).devices for one in own}
    names = cards | {format_cpu_name(cpu) for cpu in held.of(CpuHoldings).every_cpu}
    has_memory = bool(held.of(MemoryHoldings).memory)

    def is_held(one: AllocatedDevice) -> bool:
        return one.device in names if one.driver != MEMORY_DRIVER else has_memory

    kept = (replace(claim, devices=tuple(filter(is_held, claim.devices))) for claim in claims)
    return tuple(claim for claim in kept if claim.devices)


def drop_released_claims(held: PodPromises) -> PodPromises:
    """Remove, from the pod's record of claims, the devices that its ended containers have released."""
    return held.having(ClaimHoldings(find_held_claims(held))) if held.of(ClaimHoldings).claims else held
