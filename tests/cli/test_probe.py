"""`nodeagent probe` from the outside, with programs in the place of rt-tests: what it refuses, what it runs, and where."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from nodeagent.cli.commands.probe import ProbeError, check_free, find_measured_container
from nodeagent.cli.main import main
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.pod import ContainerKind
from nodeagent.core.model.promises import NOTHING
from nodeagent.core.resources.cpu.holdings import CpuHoldings
from tests.cli.test_cli_inspect import Host, host, live
from tests.support import json_schema
from tests.support.inspected_nodes import World
from tests.support.pods import app, pod

__all__ = ["host", "live"]
CPUS = CpuSet.from_ids(os.sched_getaffinity(0))
CPU = min(CPUS)
REPORT = json.dumps({"thread": {"0": {"cpu": CPU, "max": 40, "cycles": 6, "histogram": {"3": 5}}}})
RunCommand = Callable[..., tuple[int, str, str]]
by_root = pytest.mark.usefixtures("root")
"""What they call are scripts, so that it takes no rights."""


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> RunCommand:
    def run_one(*words: str) -> tuple[int, str, str]:
        try:
            status = main(["probe", *words])
        except SystemExit as end:
            status = int(end.code or 0)
        return status, *capfd.readouterr()

    return run_one


@pytest.fixture
def called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with how the programs were called, a line each."""
    calls = tmp_path / "calls"
    for name in ("oslat", "cyclictest"):
        program = tmp_path / name
        report = f"sleep 1\nfor last; do :; done\necho '{REPORT}' >\"${{last#--json=}}\""
        program.write_text(f'#!/bin/sh\necho {name} "$@" >>{calls}\n{report}\n')
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return calls


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--cpus", "x"], "'x' is not a list of CPUs"),
        (["--cpus", ""], "'' is an empty list of CPUs"),
        (["web", "--cpus", "1"], "--cpus names the CPUs: leave out the pod"),
        (["--latency"], "--container and --latency need a pod: name it, too"),
        (["--container", "app"], "--container and --latency need a pod: name it, too"),
        (["web", "--force"], "--force needs a pod and --latency"),
        (["web", "--seconds", "1"], "--seconds and --compare need --latency"),
        (["web", "--compare", "f"], "--seconds and --compare need --latency"),
        (["web", "--latency", "--seconds", "0"], "not a whole number above 0"),
        (["web", "--latency", "--seconds", "86401"], "at most 86400"),
    ],
)
def test_arguments_that_do_not_go_together(words: list[str], said: str, run: RunCommand) -> None:
    status, out, err = run(*words)
    assert (status, out) == (64, "")
    assert said in err


def numa_stat(live: Host, container: str, text: str | None) -> None:
    cgroup = live.cgroups / "shared/pool/payload/besteffort/poduid-web" / container
    (cgroup / "cpu.stat").write_text("usage_usec 1\n")
    if text is not None:
        (cgroup / "memory.numa_stat").write_text(text)


def test_where_memory_is_needs_no_root_and_no_program(live: Host, run: RunCommand) -> None:
    numa_stat(live, "app", "anon N0=1048576 N1=4096\nfile N0=0 N1=4096\nshmem N0=0 N1=4096\n")
    numa_stat(live, "slot", None)
    status, out, err = run("web", *live.options)
    assert (status, err) == (0, "")
    assert out.splitlines()[1:] == [
        "default/web  app        anywhere   0: 1.0MiB, 1: 8.0KiB  -      -",
        "default/web  slot       anywhere   unknown               -      -",
    ]
    status, out, _ = run("web", "--container", "app", "-o", "json", *live.options)
    document = json.loads(out)
    json_schema.check(document, "probe")
    assert (status, [one["container"] for one in document["memory"]]) == (0, ["app"])


def test_a_container_that_is_not_there_is_named(live: Host, run: RunCommand) -> None:
    status, _, err = run("web", "--container", "ap", *live.options)
    assert (status, err.splitlines()[0]) == (1, "nodeagent: pod default/web has no container 'ap'")


def test_only_root_may_measure(live: Host, run: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    status, _, err = run("--cpus", "2-3", *live.options)
    assert (status, err) == (1, "nodeagent: only root may measure latency\nhint: sudo nodeagent probe --cpus 2-3\n")


@by_root
def test_without_rt_tests_the_package_is_named(live: Host, run: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/none")
    status, _, err = run("--cpus", str(CPU), *live.options)
    assert status == 1
    assert err == "nodeagent: rt-tests is not installed: there is no oslat\nhint: install it: `apt install rt-tests`\n"


@by_root
def test_named_cpus_are_measured_and_compared_with_an_earlier_answer(
    live: Host, run: RunCommand, called: Path, tmp_path: Path
) -> None:
    status, out, err = run("--cpus", str(CPU), "--seconds", "1", "-o", "json", *live.options)
    assert (status, err) == (0, "")
    document = json.loads(out)
    json_schema.check(document, "probe")
    assert (document["memory"], document["before"], document["latency"]["seconds"]) == (None, None, 1)
    oslat, cyclictest = (line.rpartition(" --json=")[0] for line in called.read_text().splitlines())
    assert oslat.startswith(f"oslat --cpu-list {CPU} --duration 1 --cpu-main-thread {CPU} ")
    assert cyclictest.startswith(f"cyclictest --affinity={CPU} --threads=1 --duration=1 --default-system ")

    (tmp_path / "before.json").write_text(out)
    status, out, err = run(
        "--cpus", str(CPU), "--seconds", "1", "--compare", str(tmp_path / "before.json"), *live.options
    )
    assert (status, err) == (0, "")
    assert f"  {CPU}    40us -> 40us" in out
    assert "before: " in out


@by_root
def test_what_was_not_measured_cannot_be_compared_with(
    live: Host, run: RunCommand, called: Path, tmp_path: Path
) -> None:
    (tmp_path / "f").write_text("{}")
    for name, said in (("none", "there is no file"), ("f", "contains no latency results: kind: is missing")):
        status, _, err = run("--cpus", str(CPU), "--compare", str(tmp_path / name), *live.options)
        assert status == 1
        assert said in err
        assert "nodeagent probe --cpus LIST -o json" in err
    assert not called.exists(), "nothing was run"


@by_root
def test_cpus_that_are_not_there_are_named(live: Host, run: RunCommand, called: Path) -> None:
    status, _, err = run("--cpus", f"{CPU},8000", *live.options)
    assert (status, err.splitlines()[0]) == (1, "nodeagent: this process can't use CPUs 8000")
    assert not called.exists()


@by_root
def test_another_cpu_than_was_asked_for_is_not_passed_over(live: Host, run: RunCommand, called: Path) -> None:
    if len(CPUS) < 2:
        return
    other = max(CPUS)
    status, _, err = run("--cpus", str(other), "--seconds", "1", *live.options)
    assert (status, err.splitlines()[0]) == (1, f"nodeagent: oslat measured CPUs {CPU} instead of {other}")


def claimed() -> World:
    found = World().add(pod("web", app("app", cpu="2"), app("side", cpu="500m")))
    return found.add(pod("two", app("setup", kind=ContainerKind.INIT, cpu="1"), app("a", cpu="1"), app("b", cpu="1")))


def test_exclusive_cpus_are_their_pods() -> None:
    view = claimed().view()
    with pytest.raises(ProbeError) as caught:
        check_free(view, CpuSet.of(1, 7))
    assert caught.value.message == "CPUs 1 are exclusive to default/web"
    assert "nodeagent probe default/web --latency" in caught.value.hint
    check_free(view, CpuSet.of(0))


def test_the_container_that_has_cpus_of_its_own_is_meant() -> None:
    view = claimed().view()
    web, two = view.state.entries
    assert find_measured_container(view, web, None) == "app"
    assert find_measured_container(view, two, "b") == "b"
    assert find_measured_container(view, two, "setup") == "setup"
    with pytest.raises(ProbeError, match="several containers with exclusive CPUs: a, b"):
        find_measured_container(view, two, None)
    with pytest.raises(ProbeError, match="default/web side has no exclusive CPUs"):
        find_measured_container(view, web, "side")


def own(live: Host, container: str) -> None:
    promises: Any = live.world.state.promises
    pods = promises.pods.put("uid-web", NOTHING.having(CpuHoldings(cpus=((container, CPUS),))))
    live.world.state = replace(live.world.state, promises=replace(promises, pods=pods))
    live.write_cgroups(live.world.observed())


@by_root
def test_a_pods_processes_are_not_disturbed_unless_asked_to(live: Host, run: RunCommand, called: Path) -> None:
    own(live, "app")
    status, _, err = run("web", "--latency", *live.options)
    assert status == 1
    assert f"1 process of default/web may run on CPUs {CPUS}" in err
    assert "--force" in err
    assert not called.exists()


@by_root
def test_a_container_is_entered_by_exec_with_its_checks(live: Host, run: RunCommand, called: Path) -> None:
    """What happens inside, a guest shows: integration/test_probe.py."""
    own(live, "slot")
    status, _, err = run("web", "--latency", *live.options)
    assert status == 1
    assert err.startswith("nodeagent: oslat failed with status 125: nodeagent: the kernel has put this process into ")
    assert not called.exists()
