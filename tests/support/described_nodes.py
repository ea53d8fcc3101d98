"""Pods tried out on a described machine: what the tests of `explain` and `simulate` share."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from nodeagent.cli.main import main

ROOT = Path(__file__).parents[2]
GOLDEN = Path(__file__).parents[1] / "golden"
CONFIG = """\
cpuManagerPolicy: static
cpuManagerPolicyOptions: {full-pcpus-only: "true"}
reservedSystemCPUs: "0,8"
topologyManagerPolicy: single-numa-node
memoryManagerPolicy: Static
evictionHard: {memory.available: 100Mi}
reservedMemory: [{numaNode: 0, limits: {memory: 100Mi}}]
checkAllocatable: false
"""
MACHINE = "2s.4c.2t,memory=8Gi"
"""16 CPUs on two NUMA nodes; siblings are c and c+8."""

RunCommand = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunCommand:
    """Run a command in a directory of its own, where `config.yaml` lies."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").write_text(CONFIG)

    def run_one(*words: str) -> tuple[int, str, str]:
        try:
            status = main(list(words))
        except SystemExit as end:
            status = int(end.code or 0)
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run_one


def container(name: str, cpu: str, memory: str) -> dict[str, Any]:
    return {"name": name, "command": ["x"], "resources": {"limits": {"cpu": cpu, "memory": memory}}}


def pod(name: str, *containers: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": list(containers), **spec},
    }


def of_unit(name: str, unit: str, cpu: str = "1", namespace: str = "default") -> dict[str, Any]:
    """A pod whose only container, `unit`, stands for a unit of systemd's."""
    made = pod(name, {key: value for key, value in container("unit", cpu, "64Mi").items() if key != "command"})
    named = {"name": name, "namespace": namespace, "annotations": {"unit.nodeagent.io/unit": unit}}
    return {**made, "metadata": named}


def manifest(name: str, *pods: dict[str, Any]) -> str:
    Path(name).write_text("---\n".join(yaml.safe_dump(each) for each in pods))
    return name


def golden(name: str, text: str) -> None:
    """Compare with the kept text; where there is none, keep it, and fail once."""
    path = GOLDEN / name
    if not path.exists():
        path.write_text(text)
        pytest.fail(f"{path} is new: read it, then run again")
    assert text == path.read_text()
