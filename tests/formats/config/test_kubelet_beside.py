"""A kubelet on the same node: its managers are off, or what to change is said with file and line."""

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from nodeagent.core.model.promises import Promises
from nodeagent.formats.checkpoint.cpu_checkpoint import encode_cpu_state
from nodeagent.formats.checkpoint.memory_checkpoint import encode_memory_state
from nodeagent.formats.config.kubelet_beside import KubeletFiles, find_kubelet_conflicts

HEAD = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
OFF = f"{HEAD}cpuManagerPolicy: none\nmemoryManagerPolicy: None\n"
CPU, MEMORY = "/var/lib/kubelet/cpu_manager_state", "/var/lib/kubelet/memory_manager_state"


def said(*documents: str, **more: Any) -> list[str]:
    named = tuple((f"f{n}", text.encode()) for n, text in enumerate(documents))
    return [str(finding) for finding in find_kubelet_conflicts(KubeletFiles(named, **more))]


@pytest.mark.parametrize("text", ["", "{}", HEAD, OFF, 'cpuManagerPolicy: ""\n', "topologyManagerPolicy: restricted\n"])
def test_managers_that_are_off_are_no_conflict(text: str) -> None:
    assert said(text) == []
    assert said(text, arguments=("kubelet", "--config=/x", "--cpu-manager-policy=none")) == []


def test_no_files_at_all_are_kubelets_defaults() -> None:
    assert said() == []


def remedy(path: str) -> str:
    return f"drain the node, stop kubelet, `rm {path}`, start it again"


def test_policies_are_found_with_line_value_and_what_to_do() -> None:
    cpu, memory = said(f"{HEAD}cpuManagerPolicy: static\nmemoryManagerPolicy: Static\n")
    must = "must be none where nodeagent places containers"
    assert cpu == f'f0:3: cpuManagerPolicy: "static": {must}: write cpuManagerPolicy: none, {remedy(CPU)}'
    must = "must be None where nodeagent places containers"
    assert memory == f'f0:4: memoryManagerPolicy: "Static": {must}: write memoryManagerPolicy: None, {remedy(MEMORY)}'


def test_json_is_read_as_well() -> None:
    (found,) = said('{"kind": "KubeletConfiguration",\n "cpuManagerPolicy": "static"}')
    assert found.startswith('f0:2: cpuManagerPolicy: "static"')


def test_of_several_documents_the_last_one_that_says_it_counts() -> None:
    assert said("cpuManagerPolicy: static\n", OFF, HEAD) == []
    assert [one[:20] for one in said(OFF, "cpuManagerPolicy: static\n", HEAD)] == ["f1:1: cpuManagerPoli"]


@pytest.mark.parametrize(
    "flag",
    [
        ("--cpu_manager_policy=static",),
        ("--cpu-manager-policy=static",),
        ("--v=2", "--cpu-manager-policy", "static", "--x"),
    ],
)
def test_the_command_line_counts_more(flag: tuple[str, ...]) -> None:
    (found,) = said(OFF, arguments=("kubelet", *flag))
    assert found.startswith('kubelet\'s command line: --cpu-manager-policy: "static": must be none')
    assert "remove the flag, drain the node" in found
    assert said("cpuManagerPolicy: static\n", arguments=("kubelet", *flag, "--cpu-manager-policy=none")) == []
    assert said(arguments=("kubelet", "--cpu-manager-policy")) == []


@pytest.mark.parametrize("pod_level", [False, True])
def test_state_files_of_managers_that_are_off_are_no_conflict(pod_level: bool) -> None:
    states = {
        "cpu_state": encode_cpu_state("none", Promises(), pod_level=pod_level),
        "memory_state": encode_memory_state("None", Promises(), pod_level=pod_level),
    }
    assert said(OFF, **states) == []


def test_state_files_that_were_left_are_found() -> None:
    cpu, memory = said(
        OFF,
        cpu_state=encode_cpu_state("static", Promises(), pod_level=False),
        memory_state=encode_memory_state("Static", Promises(), pod_level=False),
    )
    must = "must be none where nodeagent places containers"
    assert cpu == f'{CPU}: policyName: "static": {must}: once cpuManagerPolicy is none, {remedy(CPU)}'
    must = "must be None where nodeagent places containers"
    assert memory == f'{MEMORY}: policyName: "Static": {must}: once memoryManagerPolicy is None, {remedy(MEMORY)}'


@pytest.mark.parametrize(("policy", "count"), [("none", 0), ("static", 1)])
def test_state_files_of_newer_kubelets_have_it_in_their_data(policy: str, count: int) -> None:
    data = json.dumps({"policyName": policy, "defaultCpuSet": ""})
    assert len(said(OFF, cpu_state=json.dumps({"data": data, "dataChecksum": 1}))) == count


@pytest.mark.parametrize("text", ["", "{", "{}", "null", "[]", '{"policyName": 7}', "\x00"])
def test_a_state_file_that_cannot_be_read_is_found(text: str) -> None:
    (found,) = said(OFF, cpu_state=text)
    assert found == f"{CPU}: is damaged, so its policy is unknown: stop kubelet, `rm {CPU}`, start it again"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("cpuManagerPolicy: [static]\n", "f0:1: cpuManagerPolicy: must be a string, not a list"),
        ("cpuManagerPolicy: 1\n", "f0:1: cpuManagerPolicy: 1: must be a string (quote it)"),
        ("- static\n", "f0:1: must be an object with kubelet's fields"),
        ("a: {\n", "f0:"),
    ],
)
def test_a_configuration_that_cannot_be_read_is_found(text: str, named: str) -> None:
    found = said(text)
    assert len(found) == 1
    assert found[0].startswith(named)


@given(st.binary(max_size=60), st.text(max_size=60))
def test_any_bytes_are_read_or_found(content: bytes, state: str) -> None:
    found = find_kubelet_conflicts(KubeletFiles((("f", content),), cpu_state=state, memory_state=state))
    assert all(str(one).isprintable() for one in found)
