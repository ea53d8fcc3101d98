"""What the agent asks others to do to the host, and how long that may take."""

from pathlib import Path

import pytest

from nodeagent.core.host.settings import Setting, SettingKind
from nodeagent.core.model.idset import CpuSet
from nodeagent.daemon.host_edges import HostEdges
from nodeagent.edge import units
from nodeagent.edge.host_settings import possible_cpus

UNITS = tuple(Setting(SettingKind.UNIT, f"unit-{number}.slice") for number in range(20))


@pytest.mark.parametrize("cpus", [CpuSet.of(0), None], ids=["set", "cleared"])
def test_a_systemd_that_hangs_costs_one_limit_however_many_units_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cpus: CpuSet | None
) -> None:
    program = tmp_path / "systemctl"
    program.write_text(f"#!/bin/sh\necho >>{tmp_path}/calls\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setattr(units, "CALL_SECONDS", 2.0)
    monkeypatch.setattr(units, "_ENVIRONMENT", {"PATH": f"{tmp_path}:/usr/bin:/bin"})
    refused = HostEdges(lambda writes: (None,) * len(writes)).write(dict.fromkeys(UNITS, cpus or possible_cpus()))
    assert refused.keys() == set(UNITS)
    assert all(why.endswith("systemd has not answered for 2 s") for why in refused.values())
    assert len((tmp_path / "calls").read_text().splitlines()) == 8, "those that were asked at once, and no other"
