"""`nodeagent pin` and `unpin`: the pod that is installed for a unit, and what is said where there is none."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from nodeagent.cli.main import main
from nodeagent.cli.support.exit_status import EXIT_AWAY, EXIT_USAGE
from nodeagent.edge.systemd import units
from nodeagent.formats.manifest.pod_manifest import ManifestPod, parse_manifest
from tests.cli.test_apply import AWAY, Live, Node, agent, document, live, node, run
from tests.cli.test_cli_inspect import failed, host
from tests.support.described_nodes import of_unit

__all__ = ["agent", "host", "live", "node", "run"]
SYSTEMCTL = """\
#!/bin/sh
for name; do :; done
[ ! -e {0}/refuses ] || {{ echo 'Failed to connect to bus' >&2; exit 1; }}
case " $* " in
*" list-units "*) echo 'db.service loaded active running A database'; exit ;;
*" list-unit-files "*) echo 'late.socket enabled enabled'; echo 'worker.service enabled enabled'; exit ;;
esac
case $name in
db.service|alias.service|x@1.service) id=$name state=loaded ;;
*) id=$name state=not-found ;;
esac
[ $id != alias.service ] || id=db.service
printf 'Id=%s\\nLoadState=%s\\nControlGroup=\\nSlice=system.slice\\nAllowedCPUs=\\nAllowedMemoryNodes=\\n' $id $state
"""
AMOUNTS = ("--cpus", "2", "--memory", "64Mi")


@pytest.fixture(autouse=True)
def systemctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A systemd that knows db.service, which is alias.service, too, and x@1.service."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "systemctl").write_text(SYSTEMCTL.format(programs))
    (programs / "systemctl").chmod(0o755)
    monkeypatch.setattr(units, "ENVIRONMENT", {"PATH": f"{programs}:/usr/bin:/bin"})
    return programs


def installed(node: Node, name: str) -> Any:
    (found,) = parse_manifest((node.manifests / name).read_bytes(), name)
    assert isinstance(found, ManifestPod)
    return found.pod


def wrongly_used(result: tuple[int, str, str]) -> str:
    code, out, err = result
    assert (code, out) == (EXIT_USAGE, "")
    assert "hint: nodeagent pin --help" in err
    return err


def test_a_pod_that_stands_for_the_unit_is_installed(node: Node) -> None:
    path = node.manifests / "db.service.yaml"
    assert node("pin", "db", *AMOUNTS, "--numa", "1", "--hugepages-2Mi", "4Mi") == (
        0,
        f"pod units/db.service created ({path}): unit exclusive 2,6, NUMA 1\n{AWAY}",
        "",
    )
    found = installed(node, "db.service.yaml")
    assert (found.full_name, found.units, found.numa_node) == ("units/db.service", ("db.service",), 1)
    assert {name: str(amount) for name, amount in found.containers[0].resources.limits} == {
        "cpu": "2",
        "memory": "64Mi",
        "hugepages-2Mi": "4Mi",
    }


def test_devices_are_limits_whatever_they_are_called(node: Node) -> None:
    own = ("--device", "example.com/nic=2", "--device", "example.com/disk", "--force")
    assert node("pin", "db", *AMOUNTS, *own)[0] == 0
    limits = installed(node, "db.service.yaml").containers[0].resources.limits
    assert [(name, str(amount)) for name, amount in limits if "/" in name] == [
        ("example.com/disk", "1"),
        ("example.com/nic", "2"),
    ]
    err = wrongly_used(node("pin", "db", *AMOUNTS, "--device", "example.com/a: 1\n        requests: {x"))
    assert "--device " in err


def test_a_pinned_unit_keeps_its_cpus_if_it_can_and_moves_otherwise(node: Node, tmp_path: Path) -> None:
    assert node("pin", "db", *AMOUNTS)[0] == 0
    content = (node.manifests / "db.service.yaml").read_text()
    node.runs(next(yaml.safe_load_all(content)))

    def said(cpus: str) -> str:
        changed = tmp_path / "db.service.yaml"
        changed.write_text(content.replace('cpu: "2"', f"cpu: {json.dumps(cpus)}"))
        return out_of(node("diff", str(changed))[1])

    assert "pod units/db.service changes, and is resized while it runs (" in said("4")
    assert "pod units/db.service changes, and is resized while it runs (" in said("1")
    assert "pod units/db.service changes, and moves (" in said("500m")
    assert "would be refused: OutOfcpu: " in said("40")


def test_what_becomes_of_its_cpus_while_it_is_not_active_is_chosen(node: Node) -> None:
    for choice, gives_back in (("give-back", True), ("keep", False)):
        assert node("pin", "db", *AMOUNTS, "--while-inactive", choice)[0] == 0
        assert installed(node, "db.service.yaml").gives_back is gives_back


@pytest.mark.parametrize("name", ["db", "db.service", "alias", "alias.service"])
def test_a_unit_is_pinned_under_its_own_name_and_only_once(node: Node, name: str) -> None:
    assert node("pin", "db.service", *AMOUNTS)[0] == 0
    _, out, _ = node("pin", name, *AMOUNTS)
    assert out.startswith("pod units/db.service unchanged (")
    assert node.files() == ["db.service.yaml"]


@pytest.mark.parametrize(
    ("unit", "meant"), [("dbb", ", did you mean db?"), ("wroker", ", did you mean worker?"), ("x", "")]
)
def test_a_unit_that_does_not_exist_is_not_pinned(node: Node, unit: str, meant: str) -> None:
    err = failed(node("pin", unit, *AMOUNTS))
    assert err.startswith(f"nodeagent: there is no unit {unit}.service{meant}\n")
    assert "--allow-missing" in err
    assert node.files() == []


def test_a_unit_that_systemd_does_not_know_yet_may_be_pinned_on_request(node: Node) -> None:
    assert node("pin", "later", *AMOUNTS, "--allow-missing")[0] == 0
    assert installed(node, "later.service.yaml").units == ("later.service",)


def test_nobody_decides_where_the_agent_is_away(node: Node) -> None:
    status, _, err = node("pin", "db", *AMOUNTS, "--wait")
    assert (status, "hint: start it" in err) == (3, True)


@pytest.mark.parametrize("text", [None, "maxPods: many"])
def test_nobody_decides_without_an_agent_and_a_configuration(tmp_path: Path, text: str | None) -> None:
    config = tmp_path / "wrong.yaml"
    if text is not None:
        config.write_text(text)
    assert main(["pin", "db", *AMOUNTS, "--config", str(config), "--socket", str(tmp_path / "s")]) == EXIT_AWAY


def test_who_waits_does_so_until_the_unit_has_its_cpus(agent: Live) -> None:
    def decide() -> None:
        if agent.asked > 3 and not any(entry.pod.units for entry in agent.entries):
            (found,) = parse_manifest((agent.manifests / "db.service.yaml").read_bytes(), "db.service.yaml")
            assert isinstance(found, ManifestPod)
            agent.host.world.add(found.pod)

    agent.act = decide
    status, out, err = agent("pin", "db", "--cpus", "1", "--memory", "64Mi", "--wait", "--timeout", "1")
    assert (status, "pod units/db.service admitted: " in out) == (1, True)
    assert err.startswith("nodeagent: units/db.service is admitted, but does not have its CPUs yet: ")
    assert "with --timeout SECONDS, the command waits longer" in err


@pytest.mark.parametrize(
    "name", ["", "x.socket", "init.scope", "x@", "nodeagent", "nodeagent-pods.service", "a/b", "../db"]
)
def test_what_is_no_unit_with_processes_is_not_pinned(node: Node, name: str) -> None:
    err = wrongly_used(node("pin", name, *AMOUNTS))
    assert "can't be pinned" in err
    assert node.files() == []


def test_wrong_amounts_are_named(node: Node) -> None:
    err = wrongly_used(node("pin", "db", "--cpus", "2", "--memory", "64MB"))
    assert '--memory "64MB": MB is not a unit: 64M or 64Mi' in err
    assert node.files() == []


def test_one_that_does_not_fit_is_not_pinned(node: Node) -> None:
    status, out, err = node("pin", "db", "--cpus", "40", "--memory", "64Mi")
    assert status == 4
    assert out.startswith("pod units/db.service would be refused: OutOfcpu: ")
    assert err.startswith("nodeagent: nothing was installed: units/db.service would be refused\nhint: ")
    assert "FILE" not in err, "there is no manifest that could be explained or applied"
    assert "then pin the unit again" in err
    assert node.files() == []
    assert node("pin", "--force", "db", "--cpus", "40", "--memory", "64Mi")[0] == 0
    assert node.files() == ["db.service.yaml"]


WHY = "a unit has only one pod, and db.service already belongs to pod default/shop"
REMEDY = "what would admit it (each of these has been tried): * end pod default/shop"
TAKEN = "UnitTaken: pod default/shop already pins unit db.service"


def test_a_unit_that_another_pod_stands_for_is_not_pinned(node: Node) -> None:
    node.runs(of_unit("shop", "db.service"))
    status, out, err = node("pin", "db", *AMOUNTS)
    assert (status, out_of(out)) == (4, f"pod units/db.service would be refused: {TAKEN} {WHY} {REMEDY}")
    assert err.startswith("nodeagent: nothing was installed: units/db.service would be refused\n")
    assert node.files() == ["shop.yaml"]


def test_apply_and_diff_say_that_a_unit_is_taken(node: Node, tmp_path: Path) -> None:
    node.runs(of_unit("shop", "db.service"))
    (file,) = files(tmp_path, of_unit("other", "db.service"))
    for command in (("apply", file), ("diff", file)):
        assert f"would be refused: {TAKEN}" in out_of(node(*command)[1])


def test_of_two_pods_for_a_unit_in_one_command_the_second_is_refused(node: Node, tmp_path: Path) -> None:
    first, second = files(tmp_path, of_unit("a", "db.service"), of_unit("b", "db.service"))
    _, out, _ = node("apply", first, second)
    taken = "pod default/b would be refused: UnitTaken: pod default/a already pins unit db.service"
    assert taken in out_of(out)


def test_a_pod_may_take_the_unit_that_another_gives_up_in_the_same_command(node: Node, tmp_path: Path) -> None:
    node.runs(of_unit("shop", "db.service"))
    changed, new = files(tmp_path, of_unit("shop", "web.service"), of_unit("other", "db.service"))
    assert node("apply", changed, new)[0] == 0


def out_of(text: str) -> str:
    """Without line breaks."""
    return " ".join(text.split())


def files(directory: Path, *pods: dict[str, Any]) -> list[str]:
    paths = [directory / f"{pod['metadata']['name']}.yaml" for pod in pods]
    for path, pod in zip(paths, pods, strict=True):
        path.write_text(json.dumps(pod))
    return [str(path) for path in paths]


def test_a_class_of_cores_is_required_of_its_pod(node: Node) -> None:
    status, out, _ = node("pin", "db", *AMOUNTS, "--core-class", "performance")
    assert status == 4
    assert (
        "CoreClassUnavailable: it requires performance cores, but all cores of this machine are of one kind"
        in " ".join(out.split())
    )
    assert node("pin", "--force", "db", *AMOUNTS, "--core-class", "performance")[0] == 0
    assert installed(node, "db.service.yaml").core_class == "performance"


def test_other_amounts_move_a_unit(node: Node) -> None:
    node.runs(of_unit("db.service", "db.service", namespace="units"))
    _, out, _ = node("pin", "db", *AMOUNTS)
    assert out.startswith("pod units/db.service changed, moves (")


def test_systemd_that_cannot_be_asked_is_said(node: Node, systemctl: Path) -> None:
    (systemctl / "refuses").touch()
    err = failed(node("pin", "db", *AMOUNTS))
    assert "cannot ask systemd about db.service: Failed to connect to bus" in err
    assert node.files() == []


# unpin


def test_the_manifests_of_units_are_removed(node: Node) -> None:
    for name in ("db", "x@1", "later"):
        assert node("pin", name, "--cpus", "1", "--memory", "64Mi", "--allow-missing")[0] == 0
    assert len(node.files()) == 3
    status, out, err = node("unpin", "db", "x@1.service")
    assert (status, err) == (0, "")
    assert f"pod units/db.service deleted, {node.manifests}/db.service.yaml removed" in out
    assert node.files() == ["later.service.yaml"]
    found = document(node("unpin", "later", "-o", "json"), "delete")
    assert [file["file"] for file in found["files"]] == [f"{node.manifests}/later.service.yaml"]
    assert node.files() == []


def test_a_unit_of_a_manifest_of_ones_own_is_given_back_by_its_name(node: Node) -> None:
    node.runs(of_unit("shop", "db.service"))
    _, out, _ = node("unpin", "db")
    assert "pod default/shop deleted" in out
    assert "systemd manages its units' CPUs again" in out
    assert node.files() == []


def test_a_unit_is_given_back_by_any_of_its_names(node: Node, systemctl: Path) -> None:
    node("pin", "alias", *AMOUNTS)
    assert node.files() == ["db.service.yaml"]
    (systemctl / "refuses").touch()
    err = failed(node("unpin", "alias"))
    assert "pins unit alias.service" in err, "systemd can't be asked who that is"
    (systemctl / "refuses").unlink()
    assert node("unpin", "alias")[0] == 0
    assert node.files() == []


def test_what_is_not_pinned_is_named_with_what_is_and_nothing_is_removed(node: Node) -> None:
    err = failed(node("unpin", "db"))
    assert f"no manifest in {node.manifests} pins unit db.service" in err
    assert "hint: name a pinned unit, as `nodeagent inspect` lists them: none" in err
    node("pin", "db", *AMOUNTS)
    err = failed(node("unpin", "db", "web"))
    assert "pins unit web.service" in err
    assert "lists them: db.service" in err
    assert node.files() == ["db.service.yaml"]


def test_what_is_printed_says_that_systemd_has_it(node: Node) -> None:
    out = node("pin", "db", *AMOUNTS, "-o", "json")[1]
    (one,) = document((0, out, ""), "apply")["pods"]
    assert (one["domain"], one["name"], json.loads(out)["applied"]) == ("systemd", "db.service", True)
