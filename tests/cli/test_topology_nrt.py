"""`nodeagent topology -o nrt` and `-o resourceslice`: of a copied node, of its capture; and what has no such object."""

from pathlib import Path

import pytest
import yaml

from nodeagent.cli.main import main
from tests.cli.test_selected_node import root as root  # noqa: PLC0414 - a fixture
from tests.support.nrt_rules import checked
from tests.support.resource_slice_rules import checked as checked_slices


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["topology", "-o", "nrt", *words]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def test_a_copied_node_and_its_capture_have_the_same_object(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "etc/hostname").write_text("Far-Away\n")
    taken = tmp_path / "node.json"
    assert main(["capture", "--root", str(root), "--out", str(taken)]) == 0
    copied = printed(capsys, "--root", str(root))
    assert printed(capsys, "--machine", str(taken)) == copied
    document = yaml.safe_load(copied)
    assert document["metadata"] == {"name": "far-away"}
    assert [zone["cpu"] for zone in checked(document).values()] == [
        {"capacity": 4, "allocatable": 3, "available": 1},
        {"capacity": 4, "allocatable": 4, "available": 4},
    ]


def test_a_node_without_a_name_has_none(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topology", "-o", "nrt", "--root", str(root)]) == 1
    assert "the node's name is unknown" in capsys.readouterr().err


def test_a_machine_that_is_only_described_has_none(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["topology", "-o", "nrt", "--topology", "2s.4c.2t"])
    assert ended.value.code == 64
    assert "leave out --topology" in capsys.readouterr().err


def test_a_copied_node_and_its_capture_have_the_same_slices(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "etc/hostname").write_text("Far-Away\n")
    taken = tmp_path / "node.json"
    assert main(["capture", "--root", str(root), "--out", str(taken)]) == 0
    printed_ones = []
    for words in (("--root", str(root)), ("--machine", str(taken))):
        assert main(["topology", "-o", "resourceslice", *words]) == 0
        printed_ones.append(capsys.readouterr().out)
    assert printed_ones[0] == printed_ones[1]
    found = checked_slices(yaml.safe_load_all(printed_ones[0]))
    assert len(found["dra.cpu"]) == 7, "8, and one is reserved"
    assert set(found["dra.memory"]) >= {"memory-0", "memory-1"}


def test_gates_of_the_configuration_decide_what_slices_have(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "etc/hostname").write_text("far-away\n")
    config = tmp_path / "config.yaml"
    for gates, expected in (("{}", 0), ("{DRANodeAllocatableResources: true}", 7), ("{AllAlpha: true}", 7)):
        config.write_text(f"cpuManagerPolicy: static\nreservedSystemCPUs: '0'\nfeatureGates: {gates}\n")
        words = ("--root", str(root), "--config", str(config))
        assert main(["topology", "-o", "resourceslice", *words]) == 0
        slices = list(yaml.safe_load_all(capsys.readouterr().out))
        checked_slices(slices)
        devices = [device for one in slices for device in one["spec"]["devices"]]
        assert sum("nodeAllocatableResources" in device for device in devices) == expected


def test_slices_are_of_a_node_with_a_name(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topology", "-o", "resourceslice", "--root", str(root)]) == 1
    assert "ResourceSlices need it" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["topology", "-o", "resourceslice", "--topology", "2s.4c.2t"])


def test_a_configuration_that_does_not_suit_the_machine_has_one_status_in_every_form(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The configuration reserves a CPU that the machine doesn't have."""
    config = tmp_path / "config.yaml"
    config.write_text("cpuManagerPolicy: static\nreservedSystemCPUs: '99'\n")
    for form in ("text", "json", "yaml", "svg", "hwloc-xml", "nrt", "resourceslice"):
        status = main(["topology", "--root", str(root), "--config", str(config), "-o", form])
        out, err = capsys.readouterr()
        assert (status, out) == (1, ""), form
        assert "99" in err
