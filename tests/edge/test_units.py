import os
from pathlib import Path
from typing import Any

import pytest

from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.edge.systemd import units
from nodeagent.edge.systemd.units import (
    UnitsError,
    clear_allowed_cpus,
    has_device_drop_in,
    read_units,
    set_allowed_cpus,
    set_unit,
    show_units,
)


@pytest.fixture
def systemctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A systemctl that writes down what it is called with, prints `answer`, complains in `complaint`, and ends with `status`."""
    monkeypatch.setenv("NOTIFY_SOCKET", "/run/notify")
    program = tmp_path / "systemctl"
    program.write_text(
        f'#!/bin/sh\ncd {tmp_path}\n[ -z "$NOTIFY_SOCKET" ] || echo notifies >>calls\necho "$@" >>calls\n'
        "cat answer 2>/dev/null\ncat complaint >&2 2>/dev/null\nexit $(cat status 2>/dev/null || echo 0)\n"
    )
    program.chmod(0o755)
    return program


def calls(systemctl: Path) -> list[str]:
    return (systemctl.parent / "calls").read_text().splitlines()


def test_the_topmost_units_are_read(tmp_path: Path) -> None:
    cgroups = tmp_path / "cgroup"
    held = {
        "nodeagent.slice": "4\n",
        "system.slice": "\n",
        "own.slice": "0-1,4\n",
        "kubepods": "1\n",
        "init.scope": None,
    }
    for name, cpus in held.items():
        (cgroups / name).mkdir(parents=True)
        if cpus is not None:
            (cgroups / name / "cpuset.cpus").write_text(cpus)
    (cgroups / "memory.stat").write_text("")
    read = {unit: str(cpus) for unit, cpus in read_units(CpuSet.parse("0-15"), cgroups=cgroups).items()}
    assert read == {"init.scope": "0-15", "own.slice": "0-1,4", "system.slice": "0-15"}
    assert "own.slice" not in read_units(CpuSet.parse("0-15"), ours="own.slice", cgroups=cgroups)
    (cgroups / "system.slice" / "cpuset.cpus").write_text("all\n")
    with pytest.raises(UnitsError, match=r"cannot read .*/system.slice/cpuset.cpus"):
        read_units(CpuSet.parse("0-15"), cgroups=cgroups)


def test_cpus_are_set(systemctl: Path) -> None:
    set_allowed_cpus("system.slice", CpuSet.parse("0-3,8"), str(systemctl))
    assert calls(systemctl) == ["--no-ask-password set-property --runtime -- system.slice AllowedCPUs=0-3,8"]


def test_before_they_are_cleared_they_are_all(systemctl: Path) -> None:
    clear_allowed_cpus("system.slice", CpuSet.parse("0-15"), str(systemctl))
    assert [call.rpartition(" ")[2] for call in calls(systemctl)] == ["AllowedCPUs=0-15", "AllowedCPUs="]


def test_a_refusal_has_what_systemd_said(systemctl: Path) -> None:
    (systemctl.parent / "complaint").write_text("Failed to set unit properties on no.slice: Unit no.slice not found.\n")
    (systemctl.parent / "status").write_text("1")
    with pytest.raises(UnitsError) as caught:
        clear_allowed_cpus("no.slice", CpuSet.of(0), str(systemctl))
    assert caught.value.message == (
        "cannot set AllowedCPUs=0 of no.slice: Failed to set unit properties on no.slice: Unit no.slice not found."
    )
    assert caught.value.hint.endswith("set-property --runtime -- no.slice AllowedCPUs=0")
    assert len(calls(systemctl)) == 1


def test_a_silent_failure_has_its_status(systemctl: Path) -> None:
    (systemctl.parent / "status").write_text("4")
    with pytest.raises(UnitsError, match="systemctl has exited with status 4"):
        set_allowed_cpus("a.slice", CpuSet.of(0), str(systemctl))


def test_systemd_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units, "CALL_SECONDS", 0.2)
    program = tmp_path / "systemctl"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    with pytest.raises(UnitsError, match=r"cannot set AllowedCPUs=0 of a.slice: systemd has not answered for 0.2 s"):
        set_allowed_cpus("a.slice", CpuSet.of(0), os.fspath(program))


def test_no_systemd(tmp_path: Path) -> None:
    with pytest.raises(UnitsError, match=r"cannot run .*: No such file or directory"):
        set_allowed_cpus("a.slice", CpuSet.of(0), os.fspath(tmp_path / "systemctl"))


def test_no_cgroups(tmp_path: Path) -> None:
    with pytest.raises(UnitsError, match=r"cannot list .*/none: No such file or directory"):
        read_units(CpuSet.of(0), cgroups=tmp_path / "none")


def test_units_in_some_slices_are_read_too_and_some_are_left_out(tmp_path: Path) -> None:
    cgroups = tmp_path / "cgroup"
    for path in (
        "system.slice/db.service",
        "system.slice/web.service",
        "system.slice/_cpu.service",
        "own.slice/a.service",
    ):
        (cgroups / path).mkdir(parents=True)
        (cgroups / path / "cpuset.cpus").write_text("1\n")
    (cgroups / "system.slice/not-a-unit").mkdir()
    (cgroups / "system.slice/nodeagent.slice").mkdir()
    (cgroups / "nodeagent.slice/nodeagent-pods.service").mkdir(parents=True)
    inside = ("system.slice", "nodeagent.slice", "gone.slice", "gone.slice/gone-too.slice")
    found = read_units(CpuSet.parse("0-3"), cgroups=cgroups, within=inside, without=("system.slice/db.service",))
    assert {path: str(cpus) for path, cpus in found.items()} == {
        "own.slice": "0-3",
        "system.slice": "0-3",
        "system.slice/_cpu.service": "1",
        "system.slice/nodeagent.slice": "0-3",
        "system.slice/web.service": "1",
    }
    assert "own.slice" not in read_units(CpuSet.parse("0-3"), cgroups=cgroups, without=("own.slice",))


def shown(name: str, state: str = "loaded", cpus: str = "") -> str:
    lines = (f"Id={name}", f"LoadState={state}", "ControlGroup=", "Slice=system.slice", f"AllowedCPUs={cpus}")
    return "\n".join((*lines, "AllowedMemoryNodes=", ""))


def test_systemd_is_asked_about_units_all_at_once(systemctl: Path) -> None:
    (systemctl.parent / "answer").write_text(f"{shown('a.service', cpus='0-1 3')}\n{shown('real.service')}")
    found = show_units({"b.service", "a.service"}, str(systemctl))
    properties = "Id,LoadState,ActiveState,Job,ControlGroup,Slice,AllowedCPUs,AllowedMemoryNodes"
    assert calls(systemctl) == [f"--no-ask-password show --property={properties} -- a.service b.service"]
    assert {name: (unit.id, str(unit.settings.allowed_cpus)) for name, unit in found.items()} == {
        "a.service": ("a.service", "0-1,3"),
        "b.service": ("real.service", ""),
    }


@pytest.mark.parametrize(
    "answer", ["", "hello\n", shown("a.service", cpus="all"), f"{shown('a.service')}\n{shown('b.service')}"]
)
def test_an_answer_that_makes_no_sense(systemctl: Path, answer: str) -> None:
    (systemctl.parent / "answer").write_text(answer)
    with pytest.raises(UnitsError, match=r"cannot ask systemd about a.service: cannot parse the answer: ") as caught:
        show_units(["a.service"], str(systemctl))
    assert "show --property=Id," in caught.value.hint


def test_a_question_that_systemd_refuses(systemctl: Path) -> None:
    (systemctl.parent / "complaint").write_text("Failed to connect to bus\n")
    (systemctl.parent / "status").write_text("1")
    with pytest.raises(UnitsError, match=r"cannot ask systemd about a.service: Failed to connect to bus"):
        show_units(["a.service"], str(systemctl))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        pytest.param({"cpus": CpuSet.parse("0-1,4")}, "AllowedCPUs=0-1,4", id="CPUs"),
        pytest.param({"memory_nodes": NumaSet.of(1)}, "AllowedMemoryNodes=1", id="memory nodes"),
        pytest.param(
            {"cpus": CpuSet.of(2), "memory_nodes": NumaSet.of(0)}, "AllowedCPUs=2 AllowedMemoryNodes=0", id="both"
        ),
        pytest.param({"cpus": CpuSet()}, "AllowedCPUs=", id="no restriction"),
    ],
)
def test_what_a_unit_may_use_is_set_at_run_time(systemctl: Path, given: dict[str, Any], told: str) -> None:
    set_unit("-a.service", **given, systemctl=str(systemctl))
    assert calls(systemctl) == [f"--no-ask-password set-property --runtime -- -a.service {told}"]


def test_what_cannot_be_set_is_named(systemctl: Path) -> None:
    (systemctl.parent / "status").write_text("1")
    with pytest.raises(UnitsError, match=r"cannot set AllowedCPUs=2 AllowedMemoryNodes=0 of a\.service"):
        set_unit("a.service", cpus=CpuSet.of(2), memory_nodes=NumaSet.of(0), systemctl=str(systemctl))


def test_what_was_set_is_kept_as_long_as_its_drop_in_is_there(tmp_path: Path) -> None:
    directory = tmp_path / "db.service.d"
    directory.mkdir()
    assert not has_device_drop_in("db.service", tmp_path)
    (directory / "50-DeviceAllow.conf").write_text("[Service]\nDeviceAllow=\n")
    assert has_device_drop_in("db.service", tmp_path)
    assert not has_device_drop_in("a.service", tmp_path)
