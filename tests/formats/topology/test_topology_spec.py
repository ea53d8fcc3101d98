"""Machines described in a few words."""

import json
from pathlib import Path

import pytest

from nodeagent.cli.main import main
from nodeagent.core.model.idset import CpuSet
from nodeagent.formats.topology.topology_json import (
    DEFAULT_NODE_MEMORY_BYTES,
    topology_document,
    topology_from_document,
)
from nodeagent.formats.topology.topology_spec import TopologySpecError, topology_from_spec

GIB = 2**30


def test_siblings_are_half_the_machine_apart_and_every_number_is_per_parent():
    topology = topology_from_spec("2s.2n.8c.2t")
    assert len(topology.online) == 64
    assert topology.cores[0] == CpuSet.of(0, 32)
    assert topology.cores[31] == CpuSet.of(31, 63)
    assert {node: str(cpus) for node, cpus in topology.nodes.items()} == {
        0: "0-7,32-39",
        1: "8-15,40-47",
        2: "16-23,48-55",
        3: "24-31,56-63",
    }
    assert str(topology.sockets[1]) == "16-31,48-63"
    assert [node.distances for node in topology.numa][1] == (12, 10, 20, 20)
    assert all(cpu.uncore is None for cpu in topology.cpus)
    assert topology.l3 == ()


@pytest.mark.parametrize(
    ("spec", "cpus", "nodes", "sockets", "cores"),
    [
        ("1c", 1, 1, 1, 1),
        ("4c.2t", 8, 1, 1, 4),
        ("2n.4c", 8, 2, 1, 8),
        ("2s.4c", 8, 2, 2, 8),
        ("2s.8n.4l.8c.2t", 1024, 16, 2, 512),
        ("2s.1n.2c.1t", 4, 2, 2, 4),
    ],
)
def test_what_is_left_out_is_one(spec, cpus, nodes, sockets, cores):
    topology = topology_from_spec(spec)
    counts = (len(topology.online), len(topology.numa), topology.socket_count, len(topology.cores))
    assert counts == (cpus, nodes, sockets, cores)


def test_caches_are_uncore_caches_only_where_a_node_has_several():
    several, one = topology_from_spec("2n.2l.2c.2t"), topology_from_spec("2n.1l.2c.2t")
    assert [str(group) for group in several.l3] == ["0-1,8-9", "2-3,10-11", "4-5,12-13", "6-7,14-15"]
    assert {uncore: str(cpus) for uncore, cpus in several.uncores.items()} == {
        0: "0-1,8-9",
        1: "2-3,10-11",
        2: "4-5,12-13",
        3: "6-7,14-15",
    }
    assert [str(group) for group in one.l3] == ["0-1,4-5", "2-3,6-7"]
    assert all(cpu.uncore is None for cpu in one.cpus)


def test_efficiency_cores_are_beside_those_of_each_node() -> None:
    topology = topology_from_spec("2s.1l.2c.2t.3e,memory=8Gi")
    assert {name: str(cpus) for name, cpus in topology.core_classes.items()} == {
        "performance": "0-7",
        "efficiency": "8-13",
    }
    assert [str(cpus) for cpus in topology.nodes.values()] == ["0-1,4-5,8-10", "2-3,6-7,11-13"]
    assert topology.sockets == topology.nodes
    assert [str(group) for group in topology.l3] == ["0-1,4-5", "2-3,6-7"]
    assert [len(cpus) for cpus in topology.cores.values()] == [2] * 4 + [1] * 6
    assert topology_from_document(topology_document(topology)) == topology
    assert topology_from_spec("2c").core_classes == {}


def test_amounts_are_per_node():
    topology = topology_from_spec("2n.1c,memory=16Gi,hugepages-2Mi=1Gi,hugepages-1Gi=2Gi")
    assert [node.memory_bytes for node in topology.numa] == [16 * GIB] * 2
    assert topology.numa[1].hugepages == (("hugepages-1Gi", 2 * GIB), ("hugepages-2Mi", GIB))
    assert topology.memory_bytes == 32 * GIB
    assert topology_from_spec("1c").memory_bytes == DEFAULT_NODE_MEMORY_BYTES


def test_it_is_a_machine_like_any_other():
    topology = topology_from_spec("2s.2n.2l.4c.2t,memory=8Gi,hugepages-2Mi=1Gi")
    assert topology_from_document(topology_document(topology)) == topology


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ("", '"" must have a number before each of the letters s, n, l, c, t, e, in this order; only c is required'),
        ("2s", "must have a number before each of the letters"),
        ("8c.2s", "must have a number before each of the letters"),
        ("8C", "must have a number before each of the letters"),
        ("-1c", "must have a number before each of the letters"),
        ("1c.", "must have a number before each of the letters"),
        ("٣c", "must have a number before each of the letters"),
        ("8c.0e", "each number must be at least 1"),
        ("1c.9000e", "a machine has at most 8192 CPUs"),
        ("8c.8e.2t", "must have a number before each of the letters"),
        ("0s.8c", "each number must be at least 1"),
        ("99999s.99999c", "a machine has at most 8192 CPUs"),
        ("99999999c", "a number may have at most 5 digits, because a machine has at most 8192 CPUs"),
        ("2000n.1c", "and 1024 NUMA nodes"),
        ("1c,", '"" is neither memory=AMOUNT nor hugepages-SIZE=AMOUNT'),
        ("1c,swap=1Gi", '"swap=1Gi" is neither'),
        ("1c,memory=lots", "must be a quantity such as"),
        ("1c,memory=64GB", "GB is not a unit: 64G or 64Gi"),
        ("1c,memory=-1", "must be from 0 to less than 8Ei"),
        ("1c,memory=8Ei", "must be from 0 to less than 8Ei"),
        ("1c,memory=1e30", "must be from 0 to less than 8Ei"),
        ("1c,hugepages-2Mi=1e30", "must be from 0 to less than 8Ei"),
        ("1c,hugepages-1e30=0", "needs a page size in its name, such as 2Mi"),
        ("1c,memory=1Gi,memory=2Gi", "memory is given twice"),
        ("1c,hugepages-big=1Gi", "needs a page size in its name, such as 2Mi"),
        ("1c,hugepages-0=1Gi", "needs a page size in its name, such as 2Mi"),
        ("1c,hugepages-2Mi=3Mi", "must be a multiple of the page size"),
        (
            "1c,memory=1Gi,hugepages-2Mi=2Gi",
            "the huge pages of a NUMA node need more than the node's 1073741824 bytes of memory",
        ),
        ("x" * 500, "must have a number before each of the letters"),
    ],
)
def test_what_is_no_machine_is_refused_with_the_way_to_write_one(spec, problem):
    with pytest.raises(TopologySpecError) as err:
        topology_from_spec(spec)
    assert problem in err.value.message
    assert len(err.value.message) < 300
    assert "2s.2n.8c.2t" in err.value.hint


def test_a_node_has_just_less_than_8ei():
    assert topology_from_spec("1c,memory=9223372036854775806").numa[0].memory_bytes == 2**63 - 2


def test_the_command_draws_a_described_machine_without_owners(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topology", "--topology", "2s.1n.2c.2t"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("8 CPUs in 4 cores, 2 sockets, 2 NUMA nodes")
    assert "[0 4] [1 5]" in out
    assert "reserved" not in out
    assert main(["topology", "--topology", "2s.1n.2c.2t", "-o", "json"]) == 0
    assert topology_from_document(json.loads(capsys.readouterr().out)) == topology_from_spec("2s.1n.2c.2t")
    assert main(["topology", "--topology", "2x"]) == 64
    assert "write --topology 2s.2n.8c.2t" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="64"):
        main(["topology", "--topology", "2s.1n.2c.2t", "--root", "/"])


def test_with_a_configuration_it_shows_what_that_reserves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.yaml"
    config.write_text('cpuManagerPolicy: static\nreservedSystemCPUs: "0,4"\n')
    assert main(["topology", "--topology", "2s.1n.2c.2t", "--config", str(config)]) == 0
    assert "[0# 4#] [1. 5.]" in capsys.readouterr().out
    assert main(["topology", "--topology", "2s.1n.2c.2t", "--config", f"{tmp_path}/none"]) == 1
    assert f"no configuration at {tmp_path}/none" in capsys.readouterr().err
