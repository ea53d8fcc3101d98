# ruff: noqa: E501 (tables: one case, one line)
"""Pods that stand for units of systemd's: the annotation and its rules, and the pod that `nodeagent pin` makes."""

import json

import pytest

from nodeagent.formats.manifest.pod_manifest import pod_to_document
from nodeagent.formats.manifest.unit_pod import full_unit_name, unit_manifest, unit_pod_name
from tests.formats.manifest.test_pod_manifest import accepted, refused

WEB = "web: web.service"
CONTAINER = "{name: web, resources: {limits: {cpu: 2, memory: 1Gi}}}"


def manifest(annotations: str = WEB, spec: str = f"containers: [{CONTAINER}]") -> str:
    named = ", ".join(f"unit.nodeagent.io/{each}" for each in annotations.split("; "))
    return f"apiVersion: v1\nkind: Pod\nmetadata: {{name: a, annotations: {{{named}}}}}\nspec: {{{spec}}}\n"


def test_an_annotation_makes_a_container_stand_for_a_unit() -> None:
    found = accepted(manifest()).pod
    assert (found.units, found.container("web").unit) == (("web.service",), "web.service")
    plain = accepted(manifest().replace("unit.nodeagent.io/web", "example.org/x")).pod
    assert plain.units == ()
    assert plain.uid != found.uid, "it is part of what the pod is"
    assert accepted(json.dumps(pod_to_document(found))).pod == found


@pytest.mark.parametrize(
    "unit",
    [
        "web.service",
        "web@1.service",
        "machine-qemu\\\\x2d1\\\\x2dvm.scope",
        "a-b.slice",
        "A_b:c.service",
        f"{'x' * 247}.service",
        "nodeagents.service",
        "init.service",
    ],
)
def test_units_that_can_be_pinned(unit: str) -> None:
    assert accepted(manifest(f'web: "{unit}"')).pod.units == (unit.replace("\\\\", "\\"),)


@pytest.mark.parametrize(
    "unit",
    [
        "",
        "web",
        "web.socket",
        "web.service ",
        "web/1.service",
        ".service",
        "web@.service",
        "@1.service",
        "init.scope",
        "-.slice",
        "nodeagent.service",
        "nodeagent.slice",
        "nodeagent-pods.service",
        "nodeagent-launcher.service",
        "wéb.service",
        f"{'x' * 248}.service",
    ],
)
def test_units_that_cannot(unit: str) -> None:
    (found,) = refused(manifest(f'web: "{unit}"'))
    assert found.startswith("3: metadata.annotations[unit.nodeagent.io/web]: ")
    assert "must be a systemd service, scope or slice, such as postgresql.service" in found


def test_what_becomes_of_its_cpus_while_its_units_are_not_active() -> None:
    chosen = {"keep": False, "give-back": True}
    for choice, gives_back in chosen.items():
        text = manifest().replace("annotations: {", f"annotations: {{nodeagent.io/while-inactive: {choice}, ")
        found = accepted(text).pod
        assert found.gives_back is gives_back
        assert accepted(json.dumps(pod_to_document(found))).pod == found
    (found_wrong,) = refused(manifest().replace("annotations: {", "annotations: {nodeagent.io/while-inactive: drop, "))
    assert "nodeagent.io/while-inactive" in found_wrong
    plain = manifest().replace("unit.nodeagent.io/web: web.service", "nodeagent.io/while-inactive: give-back")
    (found_wrong,) = refused(plain)
    assert "needs containers that pin systemd units (unit.nodeagent.io/<container>)" in found_wrong


BOTH = f"{CONTAINER}, {CONTAINER.replace('web', 'too')}"


@pytest.mark.parametrize(
    ("text", "where", "finding"),
    [
        pytest.param(manifest("web: 7"), "web", "must be a string (quote it), not a number", id="no text"),
        pytest.param(manifest("wbe: web.service"), "wbe", "must name a container of this pod after the slash, did you mean web?", id="no such container"),
        pytest.param(manifest(spec=f"containers: [{BOTH}]"), "too", "is required: either all containers of a pod pin systemd units, or none", id="one of two"),
        pytest.param(manifest("web: web.service; too: web.service", f"containers: [{BOTH}]"), "too", "is the unit of another container in this pod", id="twice"),
        pytest.param(manifest("web: web.service; in: in.service", f"initContainers: [{{name: in, command: [run]}}], containers: [{CONTAINER}]"), "in", "can't be set on an init container", id="an init container"),
        pytest.param(manifest(spec="containers: [{name: web, command: [sleep]}]"), "web", "can't be combined with a command", id="a command"),
    ],
)  # fmt: skip
def test_what_does_not_go_together(text: str, where: str, finding: str) -> None:
    (found,) = refused(text)
    assert f"metadata.annotations[unit.nodeagent.io/{where}]: " in found
    assert finding in found


# What `nodeagent pin` makes


@pytest.mark.parametrize(
    ("typed", "unit"),
    [
        ("db", "db.service"),
        ("db.service", "db.service"),
        ("a.b", "a.b.service"),
        ("x.scope", "x.scope"),
        ("x.slice", "x.slice"),
        ("x.socket", "x.socket"),
        ("x.conf", "x.conf.service"),
    ],
)
def test_without_a_kind_a_unit_is_a_service(typed: str, unit: str) -> None:
    assert full_unit_name(typed) == unit


def test_a_units_pod_is_called_as_the_unit_where_a_pod_may_be_and_no_two_are_called_the_same() -> None:
    plain = ("a-b.service", "a-b.scope", "db1.slice")
    others = (
        "a@b.service",
        "a.b.service",
        "a_b.service",
        "A-b.service",
        "a--b.service",
        "-a-b.service",
        "a\\x2db.service",
        "_.service",
        f"{'x' * 247}.service",
        f"{'x' * 246}y.service",
    )
    assert [unit_pod_name(unit) for unit in plain] == [*plain]
    names = [unit_pod_name(unit) for unit in (*plain, *others)]
    assert len({*names}) == len(names)
    assert all(len(name) <= 200 for name in names), "a file is called so, too"
    assert unit_pod_name("a@b.service").startswith("a-b-")


@pytest.mark.parametrize(
    "unit", ["db.service", "db@1.service", "machine-qemu\\x2d1\\x2dvm.scope", f"{'x' * 247}.service"]
)
def test_its_manifest_is_a_pod_that_stands_for_the_unit(unit: str) -> None:
    made = unit_manifest(unit, {"cpu": "2", "memory": "64Mi", "hugepages-2Mi": "4Mi"}, "1").decode()
    found = accepted(made).pod
    assert (found.namespace, found.name, found.units, found.numa_node) == ("units", unit_pod_name(unit), (unit,), 1)
    assert found.termination_grace_seconds == 0
    (container,) = found.containers
    assert container.resources.limits == container.resources.requests
    assert {name: str(amount) for name, amount in container.resources.limits} == {
        "cpu": "2",
        "memory": "64Mi",
        "hugepages-2Mi": "4Mi",
    }
    assert made.startswith(f"# made by `nodeagent pin {unit}`; ")
    assert accepted(unit_manifest(unit, {"cpu": "500m", "memory": "1Gi"}).decode()).pod.numa_node is None
    classed = accepted(unit_manifest(unit, {"cpu": "2", "memory": "1Gi"}, core_class="efficiency").decode()).pod
    assert (classed.numa_node, classed.core_class, classed.near) == (None, "efficiency", ())
    beside = accepted(unit_manifest(unit, {"cpu": "2", "memory": "1Gi"}, near="eth0, nvme").decode()).pod
    assert (beside.core_class, beside.near) == (None, ("eth0", "nvme"))


def test_amounts_are_read_as_in_any_manifest() -> None:
    (found,) = refused(unit_manifest("db.service", {"cpu": "two", "memory": "1Gi"}).decode())
    assert "two" in found
