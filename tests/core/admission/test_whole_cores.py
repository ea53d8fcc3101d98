"""Pods that request settings of their cores have whole cores, so that no core has two owners; others are decided as before."""

import pytest
from hypothesis import given, strategies as st

from nodeagent.core.admission.managers import Admitted, Rejected, admit, initial, violations
from nodeagent.core.model.config import Errata
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.quiet import QuietRequest, QuietSettings
from nodeagent.core.model.refusals import Reason
from nodeagent.core.resources.cpu.holdings import own_set_of
from tests.support.builders import hybrid, managers
from tests.support.pods import app, pod
from tests.support.world import SMALL, node

OF_CORES = QuietRequest("", QuietSettings(governor="performance"))


def cpus_of(decision: Admitted, of: Pod) -> CpuSet:
    return own_set_of(decision.promises, of.uid, of.containers[0].name) or CpuSet()


@given(
    st.lists(st.tuples(st.integers(1, 5), st.booleans()), max_size=6),
    st.sampled_from([{}, {"full-pcpus-only": "true"}, {"distribute-cpus-across-cores": "true"}]),
    st.sampled_from([Errata.FIXED, Errata.KUBELET_1_36]),
)
def test_no_core_has_two_owners_if_one_of_them_sets_it(
    requests: list[tuple[int, bool]], options: dict[str, str], errata: Errata
) -> None:
    of = node(
        SMALL,
        gates=(("CPUManagerPolicyAlphaOptions", True),),
        cpu_manager_policy_options=tuple(options.items()),
        errata=errata,
    ).managers
    promises, owners, pods = initial(of), list[tuple[CpuSet, bool]](), list[Pod]()
    for number, (cpus, is_quiet) in enumerate(requests):
        new = pod(f"p{number}", app(cpu=str(cpus)), quiet=OF_CORES if is_quiet else None)
        decision = admit(of, promises, new)
        if isinstance(decision, Rejected):
            continue
        promises = decision.promises
        owners.append((cpus_of(decision, new), is_quiet))
        pods.append(new)
    assert violations(of, promises, tuple(pods)) == ()
    for own, is_quiet in owners:
        for core in SMALL.cores.values():
            others = [cpus for cpus, _ in owners if cpus != own and cpus & core]
            assert not (is_quiet and own & core and (others or not core <= own)), (own, core, others)


def test_another_setting_for_a_core_is_refused_with_the_reason_until_its_owner_has_ended() -> None:
    """Two cores have owners, of one more a thread is reserved: two pods want the last core, together or its threads one by one."""
    of = node(SMALL).managers
    first = admit(of, initial(of), pod("first", app(cpu="4"), quiet=OF_CORES))
    assert isinstance(first, Admitted)
    other = QuietRequest("", QuietSettings(governor="powersave"))
    owner, second = (pod(name, app(cpu="2"), quiet=quiet) for name, quiet in (("owner", OF_CORES), ("second", other)))
    owned = admit(of, first.promises, owner)
    assert isinstance(owned, Admitted)
    assert cpus_of(owned, owner) in SMALL.cores.values()
    thread = pod("thread", app(cpu="1"), quiet=other)
    for refused, promises in ((second, owned.promises), (thread, owned.promises), (thread, first.promises)):
        decision = admit(of, promises, refused)
        assert isinstance(decision, Rejected)
        assert decision.reason == Reason.SMT_ALIGNMENT.value
        assert decision.message.endswith("(settings of cores need whole cores)")
    later = admit(of, first.promises, second)
    assert isinstance(later, Admitted)
    assert cpus_of(later, second) == cpus_of(owned, owner)


def test_half_a_core_is_refused_with_the_reason() -> None:
    of = node(SMALL).managers
    decision = admit(of, initial(of), pod("half", app(cpu="3"), quiet=OF_CORES))
    assert isinstance(decision, Rejected)
    assert decision.reason == Reason.SMT_ALIGNMENT.value
    assert decision.message.endswith("cpus not multiple cpus per core = 2 (settings of cores need whole cores)")
    assert isinstance(admit(of, initial(of), pod("half", app(cpu="3"))), Admitted)


@pytest.mark.parametrize(("core_class", "cpus", "is_admitted"), [("performance", 3, False), ("efficiency", 3, True)])
def test_cores_are_those_of_the_class(core_class: str, cpus: int, *, is_admitted: bool) -> None:
    of = managers(hybrid())
    new = pod("one", app(cpu=str(cpus)), quiet=OF_CORES, core_class=core_class)
    assert isinstance(admit(of, initial(of), new), Admitted) is is_admitted


def test_a_pod_of_the_shared_pool_needs_no_cores() -> None:
    of = node(SMALL).managers
    assert isinstance(admit(of, initial(of), pod("shares", app(), quiet=OF_CORES)), Admitted)
