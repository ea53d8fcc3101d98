"""One agent works in a state directory: a second one says which exists already, and is not started again."""

import json
import os
import subprocess
import sys
from pathlib import Path

from nodeagent.daemon.start.startup import EX_CONFIG
from nodeagent.edge.files.state_files import LOCK_NAME, lock_directory

RUN = "import sys; from nodeagent.cli.main import main; sys.exit(main(sys.argv[1:]))"


def test_a_second_agent_is_refused_and_touches_nothing(tmp_path: Path) -> None:
    state, manifests = tmp_path / "state", tmp_path / "manifests"
    state.mkdir()
    manifests.mkdir()
    config = tmp_path / "config.yaml"
    config.write_text(f"stateDirectory: {state}\nstaticPodPath: {manifests}\nruntimeDirectory: {tmp_path}\n")
    with lock_directory(str(state)):
        done = subprocess.run(
            [sys.executable, "-c", RUN, "run", "--config", config],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert [path.name for path in state.iterdir()] == [LOCK_NAME]
    assert done.returncode == EX_CONFIG == 78
    (line,) = [json.loads(line) for line in (done.stdout + done.stderr).splitlines() if "start_refused" in line]
    assert line["problem"] == f"another nodeagent (pid {os.getpid()}) already uses {state}"
    assert "systemctl stop nodeagent" in line["hint"]
