"""Invariants of allocations that all resources share. The agent checks them before each save, where a violation is a bug in the agent, and
after each load.

The invariants need not hold while errata are reproduced, so violations are then only reported. Further invariants of one resource are in
the resource's package, for example core/resources/cpu/invariants.py.
"""

from collections.abc import Iterator

from nodeagent.core.model.pod import ContainerKind, Pod
from nodeagent.core.model.promises import Promises
from nodeagent.core.model.violations import Invariant, Violation
from nodeagent.core.resources.claims.held import find_held_claims
from nodeagent.core.resources.claims.holdings import ClaimHoldings, list_claim_owners
from nodeagent.core.resources.devices.holdings import DeviceHoldings, taken_devices


def orphans(promises: Promises, active: tuple[Pod, ...]) -> Iterator[Violation]:
    """Yield a violation for each allocation to a pod that isn't active, or to a container that its pod doesn't have."""
    pods = {pod.uid: pod for pod in active}
    for uid, held in promises.pods:
        pod = pods.get(uid)
        if pod is None:
            yield Violation(invariant=Invariant.HOLDER_IS_ACTIVE, pod=uid)
            continue
        names = {container.name for container in pod.containers}
        holders = {*held.holders, *(name for name, _ in held.hints)}
        if holders <= names:
            continue
        for name in sorted(holders - names):
            yield Violation(invariant=Invariant.HOLDER_IS_IN_ITS_POD, pod=uid, container=name)


def shared_devices(promises: Promises, active: tuple[Pod, ...]) -> Iterator[Violation]:
    """Yield a violation for each device that two containers hold without permission. A plain init container may share devices with the
    other containers of its pod, and all users of a claim may share the claim's devices.
    """
    if not taken_devices(promises):
        return
    kinds = {(pod.uid, container.name): container.kind for pod in active for container in pod.containers}
    holders: dict[tuple[str, str], list[tuple[str, str, str]]] = {}
    for uid, held in promises.pods:
        for name, devices in held.of(DeviceHoldings).devices:
            for device in devices:
                holders.setdefault(device.key, []).append((uid, name, device.claim))
    for key, owners in holders.items():
        if len(owners) == 1 or (owners[0][2] and len({claim for _, _, claim in owners}) == 1):
            continue
        lasting = [one for one in owners if kinds.get((one[0], one[1])) is not ContainerKind.INIT]
        if len(lasting) > 1 or len({uid for uid, _, _ in owners}) > 1:
            (uid, name, _), (other, beside, _) = owners[:2]
            yield Violation(
                invariant=Invariant.DEVICES_HAVE_ONE_OWNER,
                pod=uid,
                container=name,
                beside=f"pod {other}, container {beside}",
                resource=key[1],
            )


def claims_without_holders(promises: Promises) -> Iterator[Violation]:
    """Yield a violation for each device that is allocated to a pod's claim, but to none of the pod's containers."""
    for uid in sorted({uid for _, uid in list_claim_owners(promises)}):
        held = promises.of_pod(uid)
        kept = {claim.claim: set(claim.devices) for claim in find_held_claims(held)}
        for claim in held.of(ClaimHoldings).claims:
            for one in claim.devices:
                if one not in kept.get(claim.claim, set()):
                    yield Violation(
                        invariant=Invariant.CLAIMS_ARE_HELD, pod=uid, beside=claim.claim, resource=one.device
                    )
