import os

from nodeagent.edge.kernel_threads import unbound


def test_kernel_threads_are_told_apart_from_processes() -> None:
    found = unbound()
    assert os.getpid() not in {key.pid for key in found}
    assert found == dict(sorted(found.items()))
    for thread in found.values():
        assert thread.is_movable or len(thread.cpus) > 1
