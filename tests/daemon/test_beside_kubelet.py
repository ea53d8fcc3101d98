"""A kubelet with managers of its own is found, whether it runs or has left its files."""

from pathlib import Path

import pytest

from nodeagent.daemon.domains.runtime.beside_kubelet import kubelet_problem


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for directory in ("proc/1", "proc/700", "proc/sys", "var/lib/kubelet", "etc/parts"):
        (tmp_path / directory).mkdir(parents=True)
    (tmp_path / "proc/1/comm").write_text("systemd\n")
    return tmp_path


def runs(root: Path, *arguments: str) -> None:
    (root / "proc/700/comm").write_text("kubelet\n")
    (root / "proc/700/cmdline").write_text("\0".join(("/usr/bin/kubelet", *arguments)) + "\0")


def test_without_a_kubelet_and_with_one_that_has_nothing_there_is_no_problem(root: Path) -> None:
    assert kubelet_problem(root) is None
    runs(root)
    (root / "var/lib/kubelet/config.yaml").write_text("cpuManagerPolicy: none\n")
    (root / "var/lib/kubelet/cpu_manager_state").write_text('{"policyName":"none","checksum":1}')
    assert kubelet_problem(root) is None


@pytest.mark.parametrize(
    ("file", "content", "arguments", "named"),
    [
        ("var/lib/kubelet/config.yaml", "cpuManagerPolicy: static\n", (), "cpuManagerPolicy"),
        ("etc/kubelet.yaml", "memoryManagerPolicy: Static\n", ("--config", "/etc/kubelet.yaml"), "memoryManagerPolicy"),
        ("etc/parts/9.conf", "cpuManagerPolicy: static\n", ("--config-dir=/etc/parts",), "/etc/parts/9.conf"),
        ("etc/none", "", ("--cpu-manager-policy=static",), "--cpu-manager-policy"),
        ("var/lib/kubelet/cpu_manager_state", '{"policyName":"static"}', (), "rm /var/lib/kubelet/cpu_manager_state"),
        ("etc/cpu_manager_state", '{"policyName":"static"}', ("--root-dir", "/etc"), "rm /etc/cpu_manager_state"),
        ("etc/cpu_manager_state", '{"policyName":"static"}', ("--root_dir=/etc",), "rm /etc/cpu_manager_state"),
    ],
)
def test_what_has_to_be_changed_is_named(
    root: Path, file: str, content: str, arguments: tuple[str, ...], named: str
) -> None:
    runs(root, *arguments)
    (root / file).write_text(content)
    problem = kubelet_problem(root)
    assert problem is not None
    assert named in problem


def test_what_can_not_be_read_counts(root: Path) -> None:
    (root / "var/lib/kubelet/config.yaml").mkdir()
    problem = kubelet_problem(root)
    assert problem is not None
    assert "it is unknown whether" in problem
