"""What `check` finds out about a container runtime: from itself, and from its files."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from nodeagent.daemon.domains.runtime.runtime_facts import runtime_facts
from nodeagent.formats.config.containerd_config import ConfiguredValue, NriConfig
from nodeagent.views.check.runtime_facts import PodsApiFacts
from tests.support.kubelet import serving
from tests.support.nri_runtime import PATIENCE_SECONDS, VERSIONS, Runtime, pods_and_containers


@pytest.fixture(params=VERSIONS, ids=lambda version: version.nri)
def runtime(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Runtime]:
    one = Runtime(tmp_path / "nri.sock", request.param)
    yield one
    one.close()


def test_a_runtime_says_who_it_is_and_is_left_again(runtime: Runtime, tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(runtime_facts, str(runtime.path), tmp_path)
        connection = runtime.accept_plugin()
        assert connection.synchronize(*pods_and_containers(10)) == []
        connection.wait_for_end()
        found = asked.result(PATIENCE_SECONDS)
    assert found.found is not None
    assert (found.found.name, found.found.version) == ("containerd", runtime.version.runtime)
    assert (found.problem, found.config, found.config_problem) == ("", None, "")


def test_a_runtime_that_does_not_take_it_says_why(runtime: Runtime, tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(runtime_facts, str(runtime.path), tmp_path)
        connection = runtime.accept()
        connection.registration()
        connection.answer_registration(code=2, message="no plugins here")
        found = asked.result(PATIENCE_SECONDS)
    assert found.found is None
    assert "no plugins here" in found.problem
    assert found.hint


def test_without_a_runtime_its_files_may_say_why(tmp_path: Path) -> None:
    etc = tmp_path / "etc/containerd"
    (etc / "parts").mkdir(parents=True)
    (etc / "config.toml").write_text('imports = ["parts/*.toml", "/etc/containerd/none.toml", "config.toml"]\n')
    (etc / "parts/1.toml").write_text('[plugins."io.containerd.nri.v1.nri"]\ndisable = true\n')
    found = runtime_facts(str(tmp_path / "nri.sock"), tmp_path)
    assert "No such file" in found.problem
    assert found.config == NriConfig(is_off=ConfiguredValue(value=True, path="/etc/containerd/parts/1.toml"))
    copied = runtime_facts(str(tmp_path / "nri.sock"), tmp_path, is_elsewhere=True)
    assert (copied.problem, copied.config) == ("", found.config)
    (etc / "parts/1.toml").write_text("disable =")
    assert runtime_facts("/x", tmp_path, is_elsewhere=True).config_problem.startswith("/etc/containerd/parts/1.toml: ")


def test_kubelets_pods_api_is_asked_about_a_pod_that_there_is_not(tmp_path: Path) -> None:
    path = tmp_path / "pods-api.sock"
    absent = runtime_facts(str(tmp_path / "nri.sock"), tmp_path, pods_socket=str(path)).pods_api
    assert absent is not None
    assert (absent.is_absent, absent.is_hidden) == (True, False)
    with serving(path) as kubelet:
        assert runtime_facts(str(tmp_path / "nri.sock"), tmp_path, pods_socket=str(path)).pods_api == PodsApiFacts()
        assert len(kubelet.asked) == 1
        assert runtime_facts("/x", tmp_path, pods_socket=str(path), is_elsewhere=True).pods_api is None
        assert runtime_facts("/x", tmp_path).pods_api is None
    path.unlink(missing_ok=True)
    path.write_text("")
    wrong = runtime_facts("/x", tmp_path, pods_socket=str(path)).pods_api
    assert wrong is not None
    assert "Connection refused" in wrong.problem
