"""What a command loads before it does anything. Seconds are measured by `make bench`; imports can be counted, and cost them."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.installed_command import install_command
from tests.support.job_agent import admit_job, answer_jobs
from tests.support.machine_tree import Machine

ROOT = Path(__file__).parents[2]
PROGRAM = """
import json, sys
before = set(sys.modules)
from nodeagent.cli.main import main
try:
    main(sys.argv[1:])
except SystemExit:
    pass
print("\\n" + json.dumps(sorted(set(sys.modules) - before)))
"""
OF_RUNTIMES = {
    "nodeagent.core.model.nri",
    "nodeagent.core.domains.runtime",
    "nodeagent.core.domains.runtime.decisions",
    "nodeagent.daemon.domains.runtime.beside_kubelet",
    "nodeagent.daemon.domains.runtime.containers",
    "nodeagent.daemon.domains.runtime.exchange",
    "nodeagent.daemon.domains.runtime.runtime_facts",
    "nodeagent.daemon.domains.runtime.runtime_link",
    "nodeagent.daemon.domains.runtime.container_cgroups",
    "nodeagent.daemon.domains.runtime.untracked_cgroups",
    "nodeagent.edge.runtime.nri",
    "nodeagent.formats.config.containerd_config",
    "nodeagent.formats.config.kubelet_beside",
    "nodeagent.formats.runtime",
}
"""What is needed where a container runtime is served."""
OF_PLUGINS = {
    "nodeagent.core.resources.cpu.plugins",
    "nodeagent.core.resources.cpu.shipped",
    "nodeagent.core.resources.cpu.shipped.prefer_class",
    "nodeagent.core.resources.cpu.shipped.spread_caches",
    "nodeagent.edge.plugins.cpu_plugins",
    "importlib.metadata",
}
"""What is needed where CPU plugins choose."""
OF_DEVICES = {
    "nodeagent.core.resources.devices.hints",
    "nodeagent.core.resources.devices.manager",
    "nodeagent.core.model.device_pools",
    "nodeagent.core.resources.devices.resource",
    "nodeagent.core.model.device_selection",
    "nodeagent.core.model.devices",
    "nodeagent.formats.config.device_fields",
    "nodeagent.formats.syntax.resource_names",
}
"""What is needed where the configuration gives devices."""
OF_HOLDINGS = {
    "nodeagent.core.resources.devices",
    "nodeagent.formats.holdings.devices",
    "nodeagent.views.holdings.devices",
}
"""What every state is made of."""
OF_ACCESS = {
    "nodeagent.core.model.device_access",
    "nodeagent.daemon.domains.runtime.device_access",
    "nodeagent.daemon.domains.systemd.unit_devices",
    "nodeagent.edge.kernel.device_files",
    "nodeagent.formats.kernel.device_files",
}
"""What is needed where somebody is given a device's files."""
MOST_MIB = 40
OF_OTHERS = {
    "prometheus_client",
    "http.server",
    "ssl",
    "_hashlib",
    "rich",
    "pygments",
    "typing_extensions",
    "pyroute2",
    "cel",
    "pydantic",
    "h2",
    "tqdm",
    "argcomplete",
}
"""What the libraries of an agent would load, or what only few agents need."""
LIBRARIES = {"yaml", "psutil", "pyroute2", "watchdog", "structlog", "prometheus_client", "h2"}


def loaded(*words: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", PROGRAM, *words], cwd=ROOT, capture_output=True, text=True, check=True)
    found: list[str] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_help_loads_nothing_but_the_list_of_commands() -> None:
    modules = loaded("--help")
    assert {one for one in modules if one.startswith("nodeagent")} == {
        "nodeagent",
        "nodeagent.cli",
        "nodeagent.cli.parser",
        "nodeagent.cli.main",
        "nodeagent.cli.support",
        "nodeagent.cli.support.colour",
        "nodeagent.cli.support.exit_status",
        "nodeagent.cli.support.printable_output",
        "nodeagent.cli.support.standard_streams",
        "nodeagent.cli.support.help_text",
        "nodeagent.errors",
        "nodeagent.lean_imports",
    }
    assert not (LIBRARIES | {"shutil", "threading"}) & set(modules)
    assert len(modules) < 60, "each costs a fraction of a millisecond, and those of the standard library, too"


@pytest.mark.parametrize("command", ["inspect", "exec", "job", "retry", "topology"])
def test_what_looks_at_a_node_loads_no_library(command: str) -> None:
    modules = loaded(command, "--help")
    assert not LIBRARIES & set(modules)


def test_a_plain_job_loads_no_parser_and_nothing_that_its_answer_does_not_need(tmp_path: Path) -> None:
    command = install_command(tmp_path / "prefix")
    python, options = Path(command).read_text().partition("\n")[0].removeprefix("#!").split()
    with answer_jobs(admit_job) as socket:
        words = ("job", "--socket", socket, "--cpus", "2", "--memory", "1Gi", "--", "true")
        done = subprocess.run(
            [python, options, "-X", "importtime", command, *words], capture_output=True, text=True, check=True
        )
    modules = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert {"nodeagent.cli.commands.job", "_socket"} <= modules
    others = {"argparse", "re", "enum", "json", "socket", "typing", "pathlib", "site", "msgspec", "nodeagent.cli.main"}
    assert not modules & others
    assert not {one for one in modules if "certificate" in one or "report" in one}, "only for --report"


def test_the_collector_is_off_while_modules_load_and_on_while_the_command_runs() -> None:
    program = """
import gc, sys
from nodeagent.__main__ import main
begun = []
gc.callbacks.append(lambda phase, _: begun.append("nodeagent.views.inspect.text" in sys.modules))
main()
print(gc.isenabled(), all(begun), gc.get_freeze_count() > 0)
"""
    words = ("inspect", "--socket", "/nonexistent/agent.sock", "--config", "/nonexistent/config.yaml")
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=True)
    assert done.stdout == "True True True\n"


def test_the_collector_is_off_while_the_agent_starts() -> None:
    program = """
import gc, sys
from nodeagent.__main__ import main
sys.modules["nodeagent.daemon.service"] = type("service", (), {"serve": lambda path: print(path, gc.isenabled())})
main()
"""
    words = ("run", "--config", "/nonexistent/config.yaml")
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=True)
    assert done.stdout == "/nonexistent/config.yaml False\n"


def test_a_command_ends_without_freeing_what_it_has_loaded(tmp_path: Path) -> None:
    command = install_command(tmp_path / "prefix")
    python, options = Path(command).read_text().partition("\n")[0].removeprefix("#!").split()
    words = ("inspect", "--socket", "/nonexistent/agent.sock", "--config", "/nonexistent/config.yaml")
    done = subprocess.run([python, f"{options}v", command, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert "nodeagent: no configuration at /nonexistent/config.yaml" in done.stderr
    assert "# cleanup" not in done.stderr, "Python's own end says what it removes"


def test_inspect_loads_no_more_modules_than_it_has_to() -> None:
    """The bound is what there is, and a little: who adds one may ask whether it is needed before a pod is shown."""
    modules = loaded("inspect", "--socket", "/nonexistent/agent.sock", "--config", "/nonexistent/config.yaml")
    ours = [one for one in modules if one.startswith("nodeagent.") and not (ROOT / one.replace(".", "/")).is_dir()]
    assert len(ours) <= 106, ours
    assert "yaml" not in modules, "there was no configuration to read"
    assert "hashlib" not in modules, "it loads OpenSSL, and there was nothing to digest"


def test_devices_are_loaded_only_for_who_asks(tmp_path: Path) -> None:
    root = str(Machine(cores=("0", "1"), packages=("0-1",)).grow(tmp_path))
    of_devices = {
        "nodeagent.core.model.devices",
        "nodeagent.formats.kernel.pci_devices",
        "nodeagent.views.topology.devices",
    }
    assert not of_devices & set(loaded("topology", "--root", root))
    assert of_devices <= set(loaded("topology", "--root", root, "--devices"))


def test_cpu_plugins_are_loaded_only_where_the_configuration_names_them(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text('cpuManagerPolicy: static\nreservedSystemCPUs: "0"\n')
    words = (
        "simulate",
        "--topology",
        "4c",
        "--config",
        str(config),
        "--file",
        str(ROOT / "examples" / "guaranteed.yaml"),
    )
    assert not OF_PLUGINS & set(loaded(*words))
    config.write_text(f"{config.read_text()}cpuManagerPlugins: [{{name: spread-caches}}]\n")
    assert OF_PLUGINS - {"nodeagent.core.resources.cpu.shipped.prefer_class"} <= set(loaded(*words))


def test_devices_are_counted_only_where_the_configuration_names_them(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text('cpuManagerPolicy: static\nreservedSystemCPUs: "0"\n')
    pods = tmp_path / "pod.yaml"
    pods.write_text((ROOT / "examples" / "guaranteed.yaml").read_text())
    words = ("simulate", "--topology", "4c", "--config", str(config), "--file", str(pods))
    assert not OF_DEVICES & set(loaded(*words))
    config.write_text(f"{config.read_text()}devices: [{{resource: x.com/nic, select: [{{kind: network}}]}}]\n")
    pods.write_text(pods.read_text().replace('cpu: "2"', 'cpu: "2", x.com/nic: 1'))
    assert set(loaded(*words)) >= OF_DEVICES


def test_completion_of_a_command_loads_no_other_command() -> None:
    modules = loaded("completion", "words", "--", "retry", "--so")
    commands = {one for one in modules if one.startswith("nodeagent.cli.")}
    assert (
        commands & {"nodeagent.cli.commands.inspect", "nodeagent.cli.commands.simulate", "nodeagent.cli.commands.run"}
        == set()
    )
    assert not LIBRARIES & set(modules)


def test_an_agent_without_a_container_runtime_loads_nothing_of_one() -> None:
    """The agent as a whole, and every module that it imports at the beginning."""
    program = (
        "from nodeagent.cli.parser import build_parser; build_parser(['run']); "
        "import sys, psutil, nodeagent.daemon.service; "
        "print(psutil.Process().memory_info().rss >> 20, *sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    mib, *names = done.stdout.split()
    assert int(mib) <= MOST_MIB
    modules = set(names)
    assert not OF_OTHERS & modules
    assert all(find_spec(one) for one in OF_RUNTIMES)
    assert {one for one in modules if any(f"{one}.".startswith(f"{of}.") for of in OF_RUNTIMES)} == set()
    assert "nodeagent.daemon.turn.agent" in modules
    assert all(find_spec(one) for one in OF_DEVICES | OF_ACCESS)
    assert not modules & OF_PLUGINS, "loaded where the configuration names plugins"
    assert not modules & (OF_DEVICES | OF_ACCESS), "loaded where the configuration gives devices"
    assert not {one for one in modules if "device_plugins" in one or "device_checkpoint" in one}
    assert not {one for one in modules if one.endswith(".devices")} - OF_HOLDINGS
    assert {one for one in modules if {"nri", "runtime_link", "protobuf", "grpc"} & set(one.split("."))} == set()


def test_a_scrape_loads_no_http_server_and_leaves_the_real_modules_to_others() -> None:
    program = """
import json, sys
from nodeagent.core.metrics.totals import MetricTotals
from nodeagent.daemon.reports.exposition import Exposition
text = Exposition(MetricTotals().snapshot({})).text()
modules = [*sys.modules]
import ssl
print(json.dumps([text.decode(), modules, ssl.SSLContext.__module__]))
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    text, modules, origin = json.loads(done.stdout)
    assert "process_cpu_seconds_total" in text
    assert "prometheus_client" in modules
    assert not {"http.server", "ssl", "_ssl", "urllib.request", "wsgiref.simple_server"} & set(modules)
    assert origin == "ssl"
