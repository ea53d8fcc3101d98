"""What the units do by a shell, carried out below another root."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest

UNITS = Path(__file__).parents[2] / "systemd"


@pytest.mark.parametrize(
    ("files", "asked"),
    [
        ({}, False),
        ({"etc/nodeagent/config.yaml": "cpuManagerPolicy: static"}, False),
        ({"etc/nodeagent/config.yaml": "stateDirectory: /srv/state"}, True),
        ({"etc/nodeagent/config.yaml": '{"stateDirectory": "/srv/state"}'}, True),
        ({"etc/nodeagent/config.yaml": "runtimeDirectory: /srv/run"}, True),
        ({"var/lib/nodeagent/host_settings": ""}, True),
        ({"run/nodeagent/units/db.service/before": ""}, True),
        ({"run/nodeagent/unit-devices/db.service/allowed": ""}, True),
    ],
)
def test_when_the_pods_unit_stops_the_hosts_settings_go_back_wherever_they_are_recorded(
    tmp_path: Path, files: dict[str, str], asked: bool
) -> None:
    program = tmp_path / "opt/nodeagent/bin/nodeagent"
    for path, text in {str(program): '#!/bin/sh\necho "$@"\n', **files}.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    program.chmod(0o755)
    line, _ = re.findall(r"^ExecStopPost=-\+(.*)$", (UNITS / "nodeagent-pods.service").read_text(), re.MULTILINE)
    shell, option, script = shlex.split(line)
    script = re.sub(r"(?<= )(?=/(?:opt|etc|var|run)/)", str(tmp_path), script)
    done = subprocess.run([shell, option, script], check=True, capture_output=True, text=True)
    config = tmp_path / "etc/nodeagent/config.yaml"
    assert done.stdout == (f"release --host-settings --config {config}\n" if asked else "")
