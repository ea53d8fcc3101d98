"""Records of which resource claims are allocated to which pods."""

from collections.abc import Iterator

from msgspec import Struct

from nodeagent.core.model.claims import ClaimAllocation
from nodeagent.core.model.podmap import Fold
from nodeagent.core.model.promises import PodPromises, Promises


class ClaimHoldings(Struct, frozen=True):
    """Allocated claims of one pod."""

    claims: tuple[ClaimAllocation, ...] = ()
    """Allocations, in the order of the pod's claims. The CPUs, memory and devices of the claims are also recorded as holdings of the
    containers that use them.
    """

    @property
    def holders(self) -> Iterator[str]:
        return iter(())

    @property
    def size(self) -> int:
        return 0  # claims don't count, because their devices already count as CPUs, memory and devices

    def without(self, container: str) -> "ClaimHoldings":  # noqa: ARG002 -- claims are the pod's
        return self


def list_claim_owners(promises: Promises) -> frozenset[tuple[str, str]]:
    """Return all allocated claims, as pairs of the claim (`namespace/name`) and the UID of the pod."""
    claims: frozenset[tuple[str, str]] = promises.pods.fold(_CLAIMS)
    unrecovered = promises.unrecovered
    return claims.union(*(_list_claims_of_pod(one.uid, one.held) for one in unrecovered)) if unrecovered else claims


def claims_of(promises: Promises, uid: str) -> tuple[ClaimAllocation, ...]:
    """Return the allocated claims of a pod, which may also be a lost pod (`Promises.unrecovered`)."""
    unrecovered = next((one.held.of(ClaimHoldings).claims for one in promises.unrecovered if one.uid == uid), ())
    return promises.of_pod(uid).of(ClaimHoldings).claims or unrecovered


def _list_claims_of_pod(uid: str, pod: PodPromises) -> frozenset[tuple[str, str]]:
    return frozenset((claim.claim, uid) for claim in pod.of(ClaimHoldings).claims)


_CLAIMS: Fold[PodPromises, frozenset[tuple[str, str]]] = Fold(frozenset(), _list_claims_of_pod, frozenset.__or__)
