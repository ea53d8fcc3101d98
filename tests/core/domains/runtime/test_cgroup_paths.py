"""A container's cgroup from its spelling, which comes from outside."""

import pytest

from nodeagent.core.domains.runtime.cgroup_paths import decode_cgroup_path

ROWS = [
    (
        "kubepods-burstable-pod1_2.slice:cri-containerd:abc",
        "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_2.slice/cri-containerd-abc.scope",
    ),
    ("kubepods-pod1.slice:crio:abc", "kubepods.slice/kubepods-pod1.slice/crio-abc.scope"),
    ("system.slice:docker:abc", "system.slice/docker-abc.scope"),
    ("/kubepods/burstable/pod1/abc", "kubepods/burstable/pod1/abc"),
    ("", ""),
    ("/", ""),
    ("-.slice:cri-containerd:abc", ""),
    ("a--b.slice:cri-containerd:abc", ""),
    ("system:cri-containerd:abc", ""),
    ("/kubepods/../../etc", ""),
    ("/kubepods//abc", ""),
    ("kubepods.slice:cri-containerd:../abc", ""),
    ("kubepods.slice:cri-containerd:a\0b", ""),
]


@pytest.mark.parametrize(("spelt", "path"), ROWS)
def test_a_path_or_nothing(spelt: str, path: str) -> None:
    assert decode_cgroup_path(spelt) == path
