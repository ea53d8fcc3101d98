"""`nodeagent config`: everything that is wrong with a file, what a configuration comes to, and what becomes of kubelet's."""
# ruff: noqa: E501 (tables: one case, one line)

import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, strategies as st
from msgspec.structs import replace

from nodeagent.cli.main import main
from nodeagent.core.model.config import DEFAULT_GATES, Config
from nodeagent.daemon.start.node_builder import load_node
from nodeagent.daemon.start.startup import StartError
from nodeagent.edge.kernel.sysfs import read_machine
from nodeagent.edge.transport.listening import listen
from nodeagent.edge.transport.local_api import LocalApi
from nodeagent.edge.transport.serving import ServingThread
from nodeagent.errors import NodeAgentError
from nodeagent.formats.config.config_text import KIND, config_fields, config_text
from nodeagent.formats.config.config_yaml import parse_config
from nodeagent.formats.config.kubelet_migration import migrate_config
from nodeagent.formats.kernel.sysfs import topology_of
from nodeagent.formats.syntax.bind_address import UnixAddress
from nodeagent.formats.topology.topology_json import topology_document
from nodeagent.formats.topology.topology_spec import topology_from_spec
from tests.support import json_schema
from tests.support.machine_tree import Machine

ROOT = Path(__file__).parents[2]
GOLDEN = Path(__file__).parents[1] / "golden"
KUBELETS = GOLDEN / "kubelet-config.yaml"

RunCommand = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> RunCommand:
    def run_one(*words: str) -> tuple[int, str, str]:
        try:
            status = main(["config", *words])
        except SystemExit as end:
            status = int(end.code or 0)
        out, err = capfd.readouterr()
        return status, out, err

    return run_one


@pytest.fixture
def node(tmp_path: Path) -> str:
    """A machine with 8 CPUs."""
    cores = ("0,4", "1,5", "2,6", "3,7")
    return str(Machine(cores, ("0-1,4-5", "2-3,6-7"), ((0, "0-1,4-5"), (1, "2-3,6-7"))).grow(tmp_path / "root"))


def written(directory: Path, text: str) -> str:
    path = directory / "config.yaml"
    path.write_text(text)
    return str(path)


def read(text: str) -> Config:
    return parse_config(text.encode(), "f")


# validate


def test_validate_warns_of_reserved_cpus_that_halve_cores_of_the_machine(
    run: RunCommand, node: str, tmp_path: Path
) -> None:
    file = written(tmp_path, "")
    warning = (
        "reservedSystemCPUs has 0 without the siblings 4: full-pcpus-only never allocates these exclusively, "
        'because it gives whole cores; reservedSystemCPUs: "0,4" in the configuration'
    )
    for reserved, option, warned in (("0", "1", True), ("0", "false", False), ("0,4", "true", False)):
        text = f"cpuManagerPolicy: static\nreservedSystemCPUs: '{reserved}'\n"
        Path(file).write_text(f"{text}cpuManagerPolicyOptions: {{full-pcpus-only: '{option}'}}")
        printed = f"{file} is valid for the machine\n{f'warning: {warning}' if warned else ''}".rstrip() + "\n"
        assert run("validate", file, "--root", node) == (0, printed, "")
        document = json.loads(run("validate", file, "--root", node, "-o", "json")[1])
        assert document["warnings"] == ([warning] if warned else [])
        assert run("validate", file, "--alone") == (0, f"{file} is valid\n", "")


@pytest.mark.parametrize(
    ("reserved", "named"),
    [
        ("systemReserved: {cpu: 500m}", "systemReserved reserves"),
        ("kubeReserved: {cpu: 1, memory: 100Mi}\nsystemReserved: {memory: 1Mi}", "kubeReserved reserves"),
        ("kubeReserved: {cpu: 500m}\nsystemReserved: {cpu: 500m}", "systemReserved and kubeReserved reserve"),
        ("kubeReserved: {cpu: 500m}\nreservedSystemCPUs: '0'", "reservedSystemCPUs has"),
    ],
)
def test_the_warning_of_halved_cores_names_the_fields_that_reserve_and_a_cure(
    run: RunCommand, node: str, tmp_path: Path, reserved: str, named: str
) -> None:
    text = f"cpuManagerPolicy: static\ncpuManagerPolicyOptions: {{full-pcpus-only: 'true'}}\n{reserved}\n"
    file = written(tmp_path, text)
    (warning,) = json.loads(run("validate", file, "--root", node, "-o", "json")[1])["warnings"]
    assert warning.startswith(f"{named} 0 without the siblings 4: ")
    cure = warning.rpartition("; ")[2].removesuffix(" in the configuration")
    Path(file).write_text(text.replace("reservedSystemCPUs: '0'\n", "") + f"{cure}\n")
    assert run("validate", file, "--root", node) == (0, f"{file} is valid for the machine\n", "")


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (("show",), 3),
        (("show", "none.yaml"), 1),
        (("validate",), 1),
        (("validate", "none.yaml"), 1),
        (("validate", "--running"), 1),
        (("reload",), 3),
        (("migrate-from-kubelet", "none.yaml"), 1),
    ],
)
def test_a_missing_file_is_1_unless_the_agent_is_asked_in_vain(
    run: RunCommand, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: tuple[str, ...], status: int
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = run(*words)
    assert (code, out) == (status, "")
    assert err.startswith("nodeagent: ")


def test_the_example_is_right(run: RunCommand, node: str) -> None:
    example = str(ROOT / "examples" / "config.yaml")
    assert run("validate", example, "--root", node) == (0, f"{example} is valid for the machine\n", "")
    assert run("validate", example, "--alone") == (0, f"{example} is valid\n", "")


def test_everything_wrong_is_reported_at_once_with_its_line(run: RunCommand, tmp_path: Path) -> None:
    file = written(tmp_path, "maxPods: many\ncpuManagerPolicy: static\ncpuManagerPolcy: x\n")
    status, out, err = run("validate", file, "--alone")
    assert (status, out) == (2, "")
    assert f'{file}:1: maxPods: "many"' in err
    assert f"{file}:3: cpuManagerPolcy" in err
    assert err.count(f"{file}:") == 3
    assert err.splitlines()[-1] == f"hint: fix {file}; once it is valid, `nodeagent config show {file}` prints it"


def test_what_does_not_suit_the_machine_is_reported_with_its_line(run: RunCommand, tmp_path: Path, node: str) -> None:
    file = written(tmp_path, "cpuManagerPolicy: static\nreservedSystemCPUs: '77'\n")
    status, _, err = run("validate", file, "--root", node)
    assert status == 2
    assert f"{file}:2: reservedSystemCPUs" in err
    assert run("validate", file, "--alone")[0] == 0


MISTAKES = """\
cpuManagerPolicy: static
cpuManagerPolicyOptions:
  nonsense: "true"
  full-pcpus-only: "maybe"
  distribute-cpus-across-numa: "true"
  prefer-align-cpus-by-uncorecache: "true"
reservedSystemCPUs: "0,77"
topologyManagerPolicy: single-numa-node
topologyManagerPolicyOptions:
  max-allowable-numa-nodes: "3"
  bar: "1"
  prefer-closest-numa-nodes: "perhaps"
memoryManagerPolicy: Static
evictionHard: {memory.available: 0%}
reservedMemory:
- {numaNode: 17, limits: {memory: 1Gi}}
- {numaNode: 18, limits: {memory: 1Gi}}
"""


def places(err: str, file: str) -> list[str]:
    """Line and field of each finding."""
    return [": ".join(line.split(f"{file}:")[1].split(": ")[:2]) for line in err.splitlines() if f"{file}:" in line]


def test_every_mistake_of_every_manager_is_reported_with_its_line(run: RunCommand, tmp_path: Path, node: str) -> None:
    file = written(tmp_path, MISTAKES)
    assert places(run("validate", file, "--root", node)[2], file) == [
        "3: cpuManagerPolicyOptions[nonsense]",
        "4: cpuManagerPolicyOptions[full-pcpus-only]",
        "5: cpuManagerPolicyOptions[distribute-cpus-across-numa]",
        "7: reservedSystemCPUs",
        "10: topologyManagerPolicyOptions[max-allowable-numa-nodes]",
        "11: topologyManagerPolicyOptions[bar]",
        "12: topologyManagerPolicyOptions[prefer-closest-numa-nodes]",
        "15: reservedMemory",
        "16: reservedMemory[0]",
        "17: reservedMemory[1]",
    ]


def test_what_the_text_has_wrong_hides_nothing_of_what_the_managers_say(
    run: RunCommand, tmp_path: Path, node: str
) -> None:
    text = "cpuManagerPolicy: static\nreservedSystemCPUs: '77'\nunknownField: 1\ncpuManagerPolicyOptions: {nonsense: 'true'}\n"
    file = written(tmp_path, text)
    expected = ["2: reservedSystemCPUs", "3: unknownField", "4: cpuManagerPolicyOptions[nonsense]"]
    assert places(run("validate", file, "--root", node)[2], file) == expected
    with pytest.raises(StartError) as refused:
        load_node(file, node)
    assert places(refused.value.message, file) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cpuManagerPolicy: 3\ncpuManagerPolicyOptions: {full-pcpus-only: 'true'}", ["1: cpuManagerPolicy"]),
        ("cpuManagerPolicy: statik\ncpuManagerPolicyOptions: {x: 'true'}", ["1: cpuManagerPolicy", "2: cpuManagerPolicyOptions[x]"]),
        ("topologyManagerPolicy: X\ntopologyManagerScope: Y", ["1: topologyManagerPolicy", "2: topologyManagerScope"]),
        ("cpuManagerPolicy: static\nreservedSystemCPUs: '0'\nfeatureGates: {CPUManagerPolicyAlphaOptions: maybe}\ncpuManagerPolicyOptions: {align-by-socket: 'true'}", ["3: featureGates[CPUManagerPolicyAlphaOptions]"]),
        ("memoryManagerPolicy: Static\nsystemReserved: {memory: lots}\nreservedMemory:\n- {numaNode: 7, limits: {memory: 1Gi}}", ["2: systemReserved[memory]", "4: reservedMemory[0]"]),
        ("memoryManagerPolicy: Static\nreservedMemory:\n- {numaNode: 7, limits: {memory: 1Gi, foo: 1}}", ["2: reservedMemory", "3: reservedMemory[0]"]),
        ("memoryManagerPolicy: static", ["1: memoryManagerPolicy"]),
        ("cpuManagerPolicy: static\nreservedSystemCPUs: 3-1", ["2: reservedSystemCPUs"]),
        ("cpuManagerPolicy: static\nkubeReserved: {cpu: some}", ["2: kubeReserved[cpu]"]),
    ],
)  # fmt: skip
def test_what_follows_from_a_mistake_is_not_reported_as_another(text: str, expected: list[str], run: RunCommand, tmp_path: Path, node: str) -> None:  # fmt: skip
    file = written(tmp_path, text + "\n")
    assert places(run("validate", file, "--root", node)[2], file) == expected


def test_options_are_judged_without_a_machine(run: RunCommand, tmp_path: Path) -> None:
    file = written(tmp_path, MISTAKES)
    assert places(run("validate", file, "--alone")[2], file) == [
        "3: cpuManagerPolicyOptions[nonsense]",
        "4: cpuManagerPolicyOptions[full-pcpus-only]",
        "5: cpuManagerPolicyOptions[distribute-cpus-across-numa]",
        "10: topologyManagerPolicyOptions[max-allowable-numa-nodes]",
        "11: topologyManagerPolicyOptions[bar]",
        "12: topologyManagerPolicyOptions[prefer-closest-numa-nodes]",
        "15: reservedMemory",
    ]


@pytest.mark.parametrize("as_json", [False, True])
def test_a_field_given_twice_hides_nothing(as_json: bool, run: RunCommand, tmp_path: Path, node: str) -> None:
    lines = ["cpuManagerPolicy: static", "maxPods: 1", "maxPods: 2", "unknownField: 1", "reservedSystemCPUs: '77'"]
    if as_json:
        lines = ['{"cpuManagerPolicy": "static",', '"maxPods": 1,', '"maxPods": 2,', '"unknownField": 1, ', '"reservedSystemCPUs": "77"}']  # fmt: skip
    file = written(tmp_path, "\n".join(lines))
    assert places(run("validate", file, "--root", node)[2], file) == [
        '3: "maxPods"',
        "4: unknownField",
        "5: reservedSystemCPUs",
    ]


def test_what_another_field_makes_wrong_has_that_ones_line(run: RunCommand, tmp_path: Path, node: str) -> None:
    text = "cpuManagerPolicy: static\nkubeReserved: {cpu: 20}\nmemoryManagerPolicy: Static\n"
    file = written(tmp_path, text)
    assert places(run("validate", file, "--root", node)[2], file) == ["2: systemReserved", "3: reservedMemory"]


CPU_OPTIONS = "full-pcpus-only, strict-cpu-reservation, prefer-align-cpus-by-uncorecache, distribute-cpus-across-numa, align-by-socket, distribute-cpus-across-cores"
ALL_SIGNALS = "memory.available, nodefs.available, nodefs.inodesFree, imagefs.available, imagefs.inodesFree, containerfs.available, containerfs.inodesFree, pid.available, allocatableMemory.available"
ALLOWED = [
    ("cpuManagerPolicy: static\ncpuManagerPolicyOptions: {full-pcpus: 'true'}", 'new static policy error: unknown CPU Manager Policy option: "full-pcpus"', f"must be one of {CPU_OPTIONS}"),
    ("cpuManagerPolicy: static\ncpuManagerPolicyOptions: {align-by-socket: 'true'}", 'new static policy error: CPU Manager Policy Alpha-level Options not enabled, but option "align-by-socket" provided', "needs CPUManagerPolicyAlphaOptions: true in featureGates"),
    ("topologyManagerPolicy: restricted\ntopologyManagerPolicyOptions: {bar: 'true'}", 'unknown Topology Manager Policy option: "bar"', "must be one of prefer-closest-numa-nodes, max-allowable-numa-nodes, numa-allocation-strategy, numa-score-weights, prefer-most-allocated-numa-node"),
    ("topologyManagerPolicy: restricted\ntopologyManagerPolicyOptions: {prefer-most-allocated-numa-node: 'true'}", 'Topology Manager Policy Alpha-level Options not enabled, but option "prefer-most-allocated-numa-node" provided', "needs TopologyManagerPolicyAlphaOptions: true in featureGates"),
    ("memoryManagerPolicy: Static\nevictionHard: {memory.available: 1Gi}\nreservedMemory: [{numaNode: 7, limits: {memory: 1Gi}}]", "the reserved memory configuration references a NUMA node 7 that does not exist on this machine", "must be one of 0-1"),
    ("evictionHard: {memory.avail: 5%}", "unknown eviction signal memory.avail", f"must be one of {ALL_SIGNALS}"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "words", "allowed"), ALLOWED)
def test_kubelets_words_are_followed_by_what_is_allowed(text: str, words: str, allowed: str, run: RunCommand, tmp_path: Path, node: str) -> None:  # fmt: skip
    reserved = "" if "Reserved" in text or "static" not in text else "reservedSystemCPUs: '0'\n"
    file = written(tmp_path, f"{reserved}{text}\n")
    (found,) = json.loads(run("validate", file, "--root", node, "-o", "json")[1])["findings"]
    assert (found["message"], found["allowed"]) == (f"{words}, {allowed}", allowed)
    with pytest.raises(StartError, match=re.escape(f"{words}, {allowed}")):
        load_node(file, node)


PLAIN = [
    ("cpuManagerPolicyOptions: {full-pcpus-only: 'true'}\n", "full-pcpus-only: needs cpuManagerPolicy: static"),
    ("cpuManagerPolicy: static\ncpuManagerPolicyOptions: {full-pcpus-only: 'on'}\n", 'full-pcpus-only must be "true" or "false", not "on"'),
    ("topologyManagerPolicy: restricted\ntopologyManagerPolicyOptions: {prefer-closest-numa-nodes: 'on'}\n", 'prefer-closest-numa-nodes must be "true" or "false", not "on"'),
    ("topologyManagerPolicy: restricted\ntopologyManagerPolicyOptions: {max-allowable-numa-nodes: 'x'}\n", 'max-allowable-numa-nodes must be a whole number of at least 8, not "x"'),
    ("memoryManagerPolicy: Static\n", "add reservedMemory: [{numaNode: 0, limits: {memory: 100Mi}}] (memoryManagerPolicy Static needs 100Mi, the sum of systemReserved, kubeReserved and evictionHard)"),
    ("memoryManagerPolicy: Static\nevictionHard: {memory.available: '0'}\n", "memoryManagerPolicy Static needs reserved memory: add systemReserved: {memory: 512Mi} and reservedMemory: [{numaNode: 0, limits: {memory: 512Mi}}]"),
    ("memoryManagerPolicy: Static\nreservedMemory: [{numaNode: 0, limits: {memory: 1Gi}}]\n", "the reserved memory must add up to 100Mi, not 1Gi (the sum of systemReserved, kubeReserved and evictionHard)"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), PLAIN)
def test_what_kubelet_says_of_its_own_program_is_said_of_the_configuration(text: str, message: str, run: RunCommand, tmp_path: Path, node: str) -> None:  # fmt: skip
    file = written(tmp_path, f"reservedSystemCPUs: '0'\n{text}")
    (found,) = json.loads(run("validate", file, "--root", node, "-o", "json")[1])["findings"]
    assert found["message"] == message
    with pytest.raises(StartError, match=re.escape(message)):
        load_node(file, node)


def test_an_amount_of_reserved_cpus_that_the_machine_has_not_is_said_with_what_it_has(run: RunCommand, tmp_path: Path, node: str) -> None:  # fmt: skip
    file = written(tmp_path, "cpuManagerPolicy: static\nkubeReserved: {cpu: 20}\n")
    (found,) = json.loads(run("validate", file, "--root", node, "-o", "json")[1])["findings"]
    assert found["message"] == "cannot reserve 20 CPUs: must be at most 8, the CPUs that are online"


ALL_RESERVED = [
    (
        "reservedSystemCPUs: 0-7\n",
        "1: reservedSystemCPUs: 0-7 are all CPUs that this machine has: leave some to the pods",
    ),
    (
        "cpuManagerPolicy: static\nreservedSystemCPUs: 0-7\n",
        "2: reservedSystemCPUs: 0-7 are all CPUs that this machine has: leave some to the pods",
    ),
    (
        "cpuManagerPolicy: static\nsystemReserved: {cpu: 4}\nkubeReserved: {cpu: 4}\n",
        "2: systemReserved: cannot reserve 8 CPUs, all that this machine has: leave some to the pods",
    ),
    (
        "cpuManagerPolicy: static\nkubeReserved: {cpu: 7500m}\n",
        "2: kubeReserved: cannot reserve 8 CPUs, all that this machine has: leave some to the pods",
    ),
]


@pytest.mark.parametrize(("text", "said"), ALL_RESERVED)
def test_a_reservation_that_leaves_nothing_to_pods_is_refused_as_the_start_refuses_it(text: str, said: str, run: RunCommand, tmp_path: Path, node: str) -> None:  # fmt: skip
    file = written(tmp_path, text)
    assert run("validate", file, "--root", node)[:2] == (2, "")
    assert run("validate", file, "--root", node)[2].startswith(f"nodeagent: {file}:{said}\n")
    with pytest.raises(StartError) as refused:
        load_node(file, node)
    assert refused.value.message == f"{file}:{said}"
    assert run("validate", file, "--alone")[0] == 0


def test_quiet_says_only_what_is_wrong(run: RunCommand, tmp_path: Path, node: str) -> None:
    right = written(tmp_path, "reservedSystemCPUs: '0'\n")
    assert run("validate", "--quiet", right, "--root", node) == (0, "", "")
    wrong = written(tmp_path, "reservedSystemCPUs: 0-7\n")
    assert run("validate", "--quiet", wrong, "--root", node)[::2] == run("validate", wrong, "--root", node)[::2]
    assert json.loads(run("validate", "-q", wrong, "--root", node, "-o", "json")[1])["valid"] is False


def test_the_running_agent_is_asked_whether_it_fits_what_runs(run: RunCommand, tmp_path: Path) -> None:
    file, socket = written(tmp_path, "maxPods: 7\n"), str(tmp_path / "s")
    asked: list[tuple[str, bool]] = []

    async def judge(arguments: Mapping[str, Any]) -> dict[str, str]:
        asked.append((arguments["config"], arguments["apply"]))
        if 1 < len(asked) < 5:
            raise NodeAgentError(
                "changed fields need a restart: metrics_bind_address", hint="systemctl restart nodeagent"
            )
        return {}

    assert "the agent does not answer" in run("validate", file, "--running", "--socket", socket)[2]
    bugs: list[object] = []
    thread = ServingThread(lambda *bug: bugs.append(bug))
    api = LocalApi(reads={}, writes={"judge": judge}, owner=os.geteuid(), group=None)
    server = thread.serve(listen(UnixAddress(socket)), api)
    try:
        assert run("validate", "-q", file, "--running", "--socket", socket) == (0, "", "")
        refused = "changed fields need a restart: metrics_bind_address\nhint: systemctl restart nodeagent\n"
        assert run("validate", file, "--running", "--socket", socket) == (2, "", f"nodeagent: {file}: {refused}")
        assert run("reload", "-q", file, "--socket", socket) == (2, "", f"nodeagent: {refused}")
        wrong = written(tmp_path, "maxPods: many\n")
        assert "many" in run("validate", wrong, "--running", "--socket", socket)[2]
        assert run("reload", file, "--socket", socket) == (0, f"{file} is in effect\n", "")
    finally:
        server.close()
        thread.stop()
    assert (asked, bugs) == ([(file, False), (file, False), (file, True), (file, False), (file, True)], [])
    status, _, said = run("reload", file, "--socket", socket)
    assert (status, "hint: start it with `systemctl start nodeagent`\n" in said) == (3, True)
    assert run("validate", file, "--running", "--alone")[0] == 64


@pytest.mark.parametrize("reserved", ["100Mi", "3Gi", "5Gi"])
def test_the_lines_that_are_offered_for_static_memory_are_right(reserved: str, run: RunCommand, tmp_path: Path) -> None:
    machine = tmp_path / "machine.json"
    machine.write_text(json.dumps(topology_document(topology_from_spec("2s.1n.4c.2t,memory=4Gi"))))
    text = f"memoryManagerPolicy: Static\nevictionHard: {{memory.available: {reserved}}}\n"
    said = run("validate", "--config", written(tmp_path, text), "--machine", str(machine))[2]
    offered = re.search(r"add (reservedMemory: \[.*\]) \(", said)
    assert offered is not None
    right = written(tmp_path, f"{text}{offered[1]}\n")
    assert run("validate", "--config", right, "--machine", str(machine))[0] == 0


def test_reserved_cpus_that_are_offline_hide_nothing(run: RunCommand, tmp_path: Path) -> None:
    offline = Machine(("0,2", "1,3"), ("0-3",), ((0, "0-3"),), offline="3").grow(tmp_path / "off")
    text = "cpuManagerPolicy: static\nreservedSystemCPUs: '3'\ncpuManagerPolicyOptions: {nonsense: 'true'}\n"
    file = written(tmp_path, text)
    assert places(run("validate", file, "--root", str(offline))[2], file) == [
        "2: reservedSystemCPUs",
        "3: cpuManagerPolicyOptions[nonsense]",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("maxPods: 110\n", {"valid": True, "findings": [], "unusedFields": [], "notes": []}),
        ("failSwapOn: true\n", {"valid": True, "unusedFields": ["failSwapOn"]}),
        ("maxPods: -1\n", {"valid": False, "findings": [{"line": 1, "field": "maxPods", "value": "-1", "allowed": "must be between 0 and 2147483647", "message": "-1: must be between 0 and 2147483647"}]}),
        ("cpuManagerPolicy: foo\n", {"findings": [{"line": 1, "field": "cpuManagerPolicy", "value": '"foo"', "allowed": "must be none or static", "message": 'unknown policy: "foo", must be none or static'}], "valid": False}),
        ("memoryManagerPolicy: foo\n", {"findings": [{"line": 1, "field": "memoryManagerPolicy", "value": '"foo"', "allowed": "must be None or Static", "message": 'unknown policy: "foo", must be None or Static'}], "valid": False}),
        ("cpuManagerPolcy: x\n", {"findings": [{"line": 1, "field": "cpuManagerPolcy", "value": "", "allowed": "unknown field, did you mean cpuManagerPolicy?", "message": "unknown field, did you mean cpuManagerPolicy?"}], "valid": False}),
    ],
)  # fmt: skip
def test_as_json_it_is_as_its_schema_says(
    text: str, expected: dict[str, object], run: RunCommand, tmp_path: Path
) -> None:
    file = written(tmp_path, text)
    status, out, err = run("validate", file, "--alone", "-o", "json")
    document = json.loads(out)
    json_schema.check(document, "config-validation")
    assert (status, err) == (0 if expected["valid"] else 2, "")
    assert {name: document[name] for name in expected} == expected
    assert (document["file"], document["machine"]) == (file, False)
    assert yaml.safe_load(run("validate", file, "--alone", "-o", "yaml")[1]) == document


@pytest.mark.parametrize(("field", "allowed"), [("Policy", "one of none, best-effort"), ("Scope", "container or pod")])
def test_a_policy_that_there_is_not_is_named_once(field: str, allowed: str, run: RunCommand, tmp_path: Path) -> None:
    file = written(tmp_path, f"topologyManager{field}: foo\n")
    (found,) = json.loads(run("validate", file, "--alone", "-o", "json")[1])["findings"]
    assert (found["value"], found["allowed"].startswith(f"must be {allowed}")) == ('"foo"', True)
    message = f'"foo": {found["allowed"]}'
    assert found["message"] == message
    assert (
        run("validate", file, "--alone")[2].splitlines()[0] == f"nodeagent: {file}:1: topologyManager{field}: {message}"
    )


def test_notes_and_unused_fields_are_reported(run: RunCommand, tmp_path: Path) -> None:
    file = written(tmp_path, "metricsBindAddress: 0.0.0.0:80\nfailSwapOn: true\n")
    _, out, _ = run("validate", file, "--alone")
    assert "\nnote: metricsBindAddress 0.0.0.0:80 is not a loopback address" in out
    assert out.endswith("\nnot used by nodeagent: failSwapOn\n")


@pytest.mark.parametrize("action", ["validate", "show", "migrate-from-kubelet"])
def test_a_file_that_is_not_there_is_named(action: str, run: RunCommand, tmp_path: Path) -> None:
    status, out, err = run(action, str(tmp_path / "none.yaml"))
    assert (status, out) == (1, "")
    assert err.startswith(f"nodeagent: no configuration at {tmp_path}/none.yaml\nhint: name another file: ")
    assert "--config" not in err
    advised = run(action, str(tmp_path / "none/deeper/none.yaml"))[2]
    assert f"`ls -l {tmp_path}` shows what is there" in advised, "the nearest directory that exists"


def test_a_result_that_cannot_be_written_is_an_error_about_its_option(run: RunCommand, tmp_path: Path) -> None:
    target = tmp_path / "none" / "config.yaml"
    status, _, err = run("migrate-from-kubelet", str(KUBELETS), "--out", str(target))
    assert status == 1
    assert err.startswith(f"nodeagent: cannot write {target}: No such file or directory\nhint: make the directory")
    assert err.endswith("or name another file with --out\n")


def test_without_a_file_it_is_the_copied_nodes_own(run: RunCommand, node: str) -> None:
    assert run("validate", "--root", node)[2].startswith(
        f"nodeagent: no configuration at {node}/etc/nodeagent/config.yaml\nhint: copy the file there from the node, or name"
    )
    (Path(node) / "etc/nodeagent").mkdir(parents=True)
    own = written(Path(node) / "etc/nodeagent", "reservedSystemCPUs: '0'\n")
    assert run("validate", "--root", node) == (0, f"{own} is valid for the machine\n", "")
    written(Path(node) / "etc/nodeagent", "cpuManagerPolicy: static\nreservedSystemCPUs: '77'\n")
    assert places(run("validate", "--root", node)[2], own) == ["2: reservedSystemCPUs"]


def test_without_a_file_it_is_the_captured_nodes_own(run: RunCommand, node: str, tmp_path: Path) -> None:
    capture = tmp_path / "node.json"
    (Path(node) / "etc/nodeagent").mkdir(parents=True)
    own = written(Path(node) / "etc/nodeagent", "cpuManagerPolicy: static\nreservedSystemCPUs: '1'\n")
    assert main(["capture", "--root", node, "--config", own, "--out", str(capture)]) == 0
    assert run("validate", "--machine", str(capture))[:2] == (0, f"{capture} is valid for the machine\n")
    document = json.loads(capture.read_text())
    document["agent"]["config"]["reservedSystemCPUs"] = "77"
    capture.write_text(json.dumps(document))
    status, out, err = run("validate", "--machine", str(capture))
    assert (status, out) == (2, "")
    assert err.startswith(f"nodeagent: {capture}: reservedSystemCPUs: "), "a line of the capture would say nothing"
    assert err.endswith(f"`nodeagent config show --machine {capture}` prints the captured one\n")


def test_a_machine_without_a_configuration_says_so(run: RunCommand, node: str, tmp_path: Path) -> None:
    machine = tmp_path / "machine.json"
    machine.write_text(json.dumps(topology_document(topology_of(read_machine(node)))))
    status, _, err = run("validate", "--machine", str(machine))
    assert status == 1
    assert err == f"nodeagent: {machine} contains no configuration\nhint: name one with --config FILE\n"


@pytest.mark.parametrize("action", ["validate", "show"])
def test_two_configurations_are_one_too_many(action: str, run: RunCommand, tmp_path: Path) -> None:
    file = written(tmp_path, "maxPods: 1\n")
    status, out, err = run(action, file, "--config", "other.yaml")
    assert (status, out) == (64, "")
    assert f"nodeagent: {file} and --config other.yaml are two configurations: name one\nhint: " in err


@pytest.mark.parametrize("option", ["--root", "--machine", "--socket"])
def test_a_file_is_shown_of_no_node(option: str, run: RunCommand) -> None:
    status, out, err = run("show", str(ROOT / "examples" / "config.yaml"), option, "x")
    assert (status, out) == (64, "")
    assert f"nodeagent: {option} selects a node and its configuration: leave out FILE\n" in err


def test_config_names_the_file_as_in_other_commands(run: RunCommand, tmp_path: Path) -> None:
    file = written(tmp_path, "maxPods: 7\n")
    assert run("validate", "--config", file, "--alone") == (0, f"{file} is valid\n", "")


# show


def test_every_field_is_shown_and_reads_back_as_the_same(run: RunCommand) -> None:
    status, out, err = run("show", str(ROOT / "examples" / "config.yaml"))
    assert (status, err) == (0, "")
    assert read(out) == read((ROOT / "examples" / "config.yaml").read_text())
    assert "cpuManagerPolicy: static\n" in out
    assert "maxPods: 1000 # default\n" in out


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "cpuManagerPolicyOptions": st.dictionaries(st.sampled_from(["full-pcpus-only", "strict-cpu-reservation"]), st.sampled_from(["true", "false"])),
            "reservedSystemCPUs": st.sampled_from(["0", "0-3,8"]),
            "systemReserved": st.dictionaries(st.sampled_from(["cpu", "memory"]), st.sampled_from(["1", "500m", "2"])),
            "topologyManagerPolicy": st.sampled_from(["none", "best-effort", "restricted"]),
            "memoryManagerPolicy": st.just("Static"),
            "reservedMemory": st.just([{"numaNode": 0, "limits": {"memory": "1536Mi", "hugepages-2Mi": "4Mi"}}]),
            "evictionHard": st.sampled_from([{}, {"memory.available": "5.5%"}, {"memory.available": "0%"}, {"memory.available": "123456"}, {"pid.available": "5%"}]),
            "featureGates": st.dictionaries(st.sampled_from(sorted(DEFAULT_GATES)), st.booleans()).filter(
                lambda gates: gates.get("PodLevelResources", True) or not gates.get("PodLevelResourceManagers")
            ),
            "cpuManagerReconcilePeriod": st.sampled_from(["1m", "1.5s", "150ms"]),
            "cpuCFSQuota": st.booleans(),
            "maxPods": st.integers(0, 5000),
            "stateDirectory": st.just("/srv/state"),
            "cgroupRoot": st.just("/sys/fs/cgroup/x"),
            "metricsBindAddress": st.sampled_from(["", "unix:/run/m", "127.0.0.1:1"]),
            "podResourcesSocket": st.sampled_from(["", "/run/p.sock"]),
            "nriSocket": st.sampled_from(["", "/var/run/nri/nri.sock"]),
            "kubeletPodsSocket": st.sampled_from(["", "/var/lib/kubelet/pods-api/pods-api.sock", "/r/pods.sock"]),
        },
    )
)  # fmt: skip
def test_what_is_shown_of_any_configuration_reads_back_as_the_same(document: dict[str, object]) -> None:
    if document.get("cpuManagerPolicyOptions"):
        document = {"reservedSystemCPUs": "0", **document, "cpuManagerPolicy": "static"}
    if document.get("memoryManagerPolicy"):
        amounts = {"evictionHard": {"memory.available": "512Mi"}, "systemReserved": {"memory": "1Gi"}}
        document |= {**amounts, "reservedMemory": [{"numaNode": 0, "limits": {"memory": "1536Mi"}}]}
    config = read(json.dumps(document))
    fields = config_fields(config)
    bare = replace(config, reported_fields=())
    assert read(config_text(fields)) == bare
    assert read(json.dumps(fields)) == bare
    json_schema.check({"kind": KIND, **fields}, "configuration")


def test_as_json_and_yaml_it_is_a_configuration_too(run: RunCommand) -> None:
    example = str(ROOT / "examples" / "config.yaml")
    shown = json.loads(run("show", example, "-o", "json")[1])
    assert shown["kind"] == KIND
    json_schema.check(shown, "configuration")
    assert yaml.safe_load(run("show", example, "-o", "yaml")[1]) == shown
    assert read(json.dumps(shown)) == read(run("show", example)[1])


def test_without_a_file_it_is_the_nodes(run: RunCommand, node: str) -> None:
    (Path(node) / "etc/nodeagent").mkdir(parents=True)
    written(Path(node) / "etc/nodeagent", "maxPods: 7\nstateDirectory: /srv/state\n")
    status, out, _ = run("show", "--root", node)
    assert status == 0
    assert "maxPods: 7\n" in out
    assert "stateDirectory" not in out, "a running agent doesn't tell"
    json_schema.check(json.loads(run("show", "--root", node, "-o", "json")[1]), "configuration")


def test_the_schema_knows_every_field_and_no_other() -> None:
    rules = json_schema.schema("configuration")
    known = {"kind", "cgroupRoot", "jobs", "profiles", "runThresholds", *config_fields(Config())}
    assert rules["properties"].keys() == known
    assert set(rules["required"]) == {"kind", *config_fields(Config(), with_places=False)}
    assert list(json_schema.faults({"kind": KIND, "maxPodz": 1}, rules, rules))[-1] == "$.maxPodz is not foreseen"


# migrate-from-kubelet


def test_kubelets_file_keeps_what_counts_and_comments_on_the_rest(run: RunCommand) -> None:
    status, out, err = run("migrate-from-kubelet", str(KUBELETS))
    assert (status, out) == (0, (GOLDEN / "kubelet-config-migrated.yaml").read_text())
    assert err == (
        "kept: cpuManagerPolicy, cpuManagerPolicyOptions, evictionHard, maxPods, reservedSystemCPUs, topologyManagerPolicy\n"
        "commented out: authentication, clusterDNS, staticPodPath\n"
        "kept without effect: evictionHard[nodefs.available]\n"
    )


def test_it_is_written_to_a_file(run: RunCommand, tmp_path: Path) -> None:
    target = tmp_path / "new.yaml"
    assert run("migrate-from-kubelet", str(KUBELETS), "--out", str(target))[:2] == (0, "")
    assert target.read_text() == (GOLDEN / "kubelet-config-migrated.yaml").read_text()
    assert target.stat().st_mode & 0o777 == 0o644


FORMS = {
    "JSON": json.dumps(yaml.safe_load(KUBELETS.read_text())),
    "indented JSON": json.dumps(yaml.safe_load(KUBELETS.read_text()), indent=2),
    "quoted keys": '"cpuManagerPolicy": none\n"failSwapOn": false\n',
    "anchors": "failSwapOn: &no false\ncpuCFSQuota: *no\n",
    "an anchor in what is dropped": "authentication: &a {x: '1'}\nevictionHard: {memory.available: 1Mi}\nlogging: *a\n",
    "a document's marks": "---\n# first\nfailSwapOn: false\nmaxPods: 3\n...\n",
    "CRLF": "failSwapOn: false\r\nmaxPods: 3\r\n",
    "a byte order mark": "\ufefffailSwapOn: false\nmaxPods: 3\n",
    "a block text": "providerID: |\n  a\n  # no comment\n\nmaxPods: 3\n",
    "a cgroup's name": "kind: KubeletConfiguration\ncgroupRoot: /kube\nmaxPods: 3\n",
    "nothing": "",
    "only comments": "# nothing\n",
    "complex keys": "? maxPods\n: 3\n? failSwapOn\n: false\n",
    "a number": "reservedSystemCPUs: '1'\nevictionHard: {memory.available: '1.5Gi'}\ncrashLoopBackOff: {x: 1.50}\n",
}


@pytest.mark.parametrize("form", FORMS)
def test_it_means_the_same_in_every_form(form: str) -> None:
    content = FORMS[form].encode()
    before = parse_config(content, "f")
    migration = migrate_config(content, "f")
    after = parse_config(migration.text.encode(), "f")
    assert after == migration.config
    unused = [name for name in after.reported_fields if "[" not in name]
    assert unused == []
    same = {"reported_fields": (), "static_pod_path": "/x"}
    assert replace(after, **same) == replace(before, **same)
    assert after.static_pod_path == Config().static_pod_path
    assert KIND in migration.text


def test_what_is_refused_is_not_migrated(run: RunCommand, tmp_path: Path) -> None:
    status, out, err = run("migrate-from-kubelet", written(tmp_path, "cgroupsPerQOS: false\n"))
    assert (status, out) == (1, "")
    assert "cgroupsPerQOS: false: must be true" in err
    assert "then migrate it again" in err


@pytest.mark.parametrize(
    "text", ["staticPodURLHeader:\n  Authorization: [Bearer SECRET]\n", "staticPodURLHeader: {A: [SECRET]}\n"]
)
@pytest.mark.parametrize("form", ["x", "&a x"], ids=["lines", "anew"])
def test_no_password_goes_into_a_file_that_others_read(text: str, form: str) -> None:
    content = f"kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\nclusterDomain: {form}\n{text}"
    migration = migrate_config(content.encode(), "f")
    assert migration.commented == ("clusterDomain", "staticPodURLHeader")
    assert "SECRET" not in migration.text
    assert "# staticPodURLHeader: value omitted\n" in migration.text
