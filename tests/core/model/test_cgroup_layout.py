"""Where cgroups are, and what stands for those that are systemd's."""

import pytest
from msgspec.structs import replace

from nodeagent.core.model.cgroup_layout import is_above, is_ours, is_pinned, pinned_pod_path, unit_at
from nodeagent.core.model.pod import OWN, SYSTEMD
from nodeagent.core.model.state import Origin
from nodeagent.core.turn.pod_sources import Manifest, new_entry
from tests.support.pods import app, manifests, pod, unit


def only(manifest: tuple[Manifest, ...]) -> Manifest:
    (one,) = manifest
    return one


def test_a_units_path_names_its_pod_and_the_unit() -> None:
    entry = new_entry(only(manifests(pod("db", unit("db@1.service", "2")))), 0, pod_level_resources=False)
    path = entry.container_path("db@1")
    assert (entry.domain, entry.pins_units, entry.pod.units) == (SYSTEMD, True, ("db@1.service",))
    assert (entry.pod_path, path) == ("units/poduid-db", "units/poduid-db/db@1.service")
    assert path == f"{pinned_pod_path(SYSTEMD, 'uid-db')}/{unit_at(path)}"
    assert is_pinned(path)
    assert not is_above(path)


def test_a_container_of_ours_is_below_its_pod() -> None:
    entry = new_entry(only(manifests(pod("a", app(cpu="2")))), 0, pod_level_resources=False)
    assert (entry.domain, entry.pins_units, entry.pod.units) == (OWN, False, ())
    assert (entry.pod_path, entry.container_path("app")) == ("poduid-a", "poduid-a/app")


@pytest.mark.parametrize("path", ["", "..", "burstable", "podunits/app", "unitspod1/app", "besteffort/podu/units"])
def test_what_is_ours_is_not_systemds(path: str) -> None:
    assert not is_pinned(path)


def test_what_a_pod_of_another_domain_pins_has_a_path_of_that_domain() -> None:
    manifest = only(manifests(pod("db", unit("db@1.service", "2"))))
    origin = Origin("db", "supervisor", "supervisor")
    entry = new_entry(replace(manifest, origin=origin), 0, pod_level_resources=False)
    assert (entry.domain, entry.pins_units, entry.is_requested_per_container) == ("supervisor", True, False)
    assert entry.container_path("db@1") == "@supervisor/poduid-db/db@1.service"
    assert not is_ours(entry.pod_path)
