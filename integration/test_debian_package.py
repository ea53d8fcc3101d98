"""The Debian package on a node: installed without a network, upgraded under a pod, not removable under it, and finally purged
completely.
"""

import pytest

from integration.guest.base import base_of
from integration.guest.debian_package import HIGHER_VERSION, debian_packages
from integration.guest.guest import Guest
from integration.installed import traces, uninstall
from integration.isolation import differences, isolate, listed, settled, wait_as
from integration.node import CONFIG, Node, container, pod

SLEEP = ["sleep", "infinity"]
APT = "DEBIAN_FRONTEND=noninteractive apt-get --yes --quiet"
UNITS = ("nodeagent", "nodeagent-launcher", "nodeagent-pods")


@pytest.fixture(params=["two_sockets", "four_nodes"])
def node(request: pytest.FixtureRequest) -> Node:
    """A node with `make install`'s nodeagent, like all others."""
    guest: Guest = request.getfixturevalue(request.param)
    node = Node(guest)
    node.run("sed -i /path-exclude/d /etc/dpkg/dpkg.cfg.d/*")  # guests do without manual pages and documents
    return node


@pytest.mark.long
@pytest.mark.reinstalls
def test_a_package_comes_is_upgraded_under_a_pod_and_goes_without_one(node: Node) -> None:
    packages = debian_packages(node.guest.image.release)
    node.guest.put("/root/package.deb", packages.package.read_bytes())
    node.guest.put("/root/higher.deb", packages.higher.read_bytes())

    refused = node.run(f"{APT} install /root/package.deb", check=False)
    assert refused.returncode != 0
    assert "hint: sudo make uninstall" in refused.stdout, "apt shows there what dpkg says"
    host = listed(node)
    isolate(node)
    node.apply(pod("one", container("app", SLEEP, cpu="2")))
    node.wait_running("one")
    assert differences(host, settled(node)) != {}
    uninstall(node, "STOP_PODS=1")
    wait_as(node, host)

    node.run(f"{APT} install /root/package.deb", timeout_seconds=30)
    assert node.run("systemctl is-enabled nodeagent && systemctl is-active nodeagent").stdout == "enabled\nactive\n"
    assert node.run("dpkg --verify nodeagent").stdout == "", "every file is as it was packed"
    assert node.run("man -w nodeagent-inspect").stdout == "/usr/share/man/man8/nodeagent-inspect.8.gz\n"
    node.run("ls /usr/share/doc/nodeagent/examples/config.yaml /usr/share/zsh/vendor-completions/_nodeagent")

    isolate(node)
    node.run(f"echo '# mine' >>{CONFIG}")
    node.apply(pod("one", container("app", SLEEP, cpu="2")), pod("burst", container("app", SLEEP, cpu="100m")))
    node.wait_running("one", "burst")
    before = node.footprint()
    pids, invoked = [node.main_pid(unit) for unit in UNITS], node.unit("InvocationID", name="nodeagent-pods")
    cursor = node.cursor()

    node.run(f"{APT} install /root/higher.deb", timeout_seconds=30)
    assert node.footprint() == before
    assert node.unit("InvocationID", name="nodeagent-pods") == invoked
    after = [node.main_pid(unit) for unit in UNITS]
    assert (after[0] != pids[0], after[1:]) == (True, pids[1:])
    assert node.wait_log(cursor, "started")["version"] == HIGHER_VERSION
    assert any("reexec" in line for line in _until_launcher_serves(node, cursor))
    assert node.guest.get(CONFIG).endswith(b"# mine\n")
    assert node.run("nodeagent inspect --no-host-processes", check=False).returncode == 0

    refused = node.run(f"{APT} purge nodeagent", check=False)
    assert refused.returncode != 0
    assert "nodeagent release --all" in refused.stdout
    assert node.footprint() == before
    assert [node.main_pid(unit) for unit in UNITS] == after

    node.run("nodeagent release --all")
    node.run(f"{APT} purge nodeagent", timeout_seconds=30)
    assert traces(node) == []
    wait_as(node, host)


def _until_launcher_serves(node: Node, cursor: str) -> list[str]:
    """A reload is a signal only."""

    def look() -> list[str] | None:
        lines = node.journal(cursor, "nodeagent-launcher")
        return lines if any(line.startswith("serving ") for line in lines) else None

    return node.until(look, lambda: f"it does not serve: {node.journal(cursor, 'nodeagent-launcher')}")


@pytest.mark.long
@pytest.mark.reinstalls
def test_a_removed_packages_purge_takes_nothing_from_make_install(node: Node) -> None:
    packages = debian_packages(node.guest.image.release)
    node.guest.put("/root/package.deb", packages.package.read_bytes())
    node.guest.put("/root/higher.deb", packages.higher.read_bytes())
    for wheel in base_of(node.guest.image.release).wheels.iterdir():
        node.guest.put(f"/root/wheels/{wheel.name}", wheel.read_bytes())
    uninstall(node)

    active = "systemctl is-active nodeagent || true"
    node.run(f"{APT} install /root/package.deb", timeout_seconds=30)
    node.run("systemctl stop nodeagent nodeagent-pods")
    node.run(f"{APT} install /root/higher.deb", timeout_seconds=30)
    assert node.run(active).stdout == "inactive\n", "what was stopped stays so"
    node.run(f"{APT} remove nodeagent", timeout_seconds=30)
    node.run(f"{APT} install /root/higher.deb", timeout_seconds=30)
    assert node.run(active).stdout == "active\n", "what comes is started"
    node.run(f"{APT} remove nodeagent && ls {CONFIG}", timeout_seconds=30)

    node.run("WHEELS=/root/wheels make --directory=/usr/src/nodeagent install", timeout_seconds=60)
    node.run("systemctl enable --now nodeagent")
    node.apply(pod("stays", container("app", SLEEP, cpu="2")))
    node.wait_running("stays")
    before, listing = node.footprint(), f"ls -R /etc/nodeagent /var/lib/nodeagent /var/lib/nodeagent-pods; cat {CONFIG}"
    files = node.run(listing).stdout

    said = node.run(f"{APT} purge nodeagent", timeout_seconds=30).stdout
    assert "configuration and state are kept: make install was used since" in said
    assert node.run("dpkg --list nodeagent | grep -c ^rc || true").stdout == "0\n"
    assert (node.footprint(), node.run(listing).stdout) == (before, files)
    assert node.run("systemctl is-enabled nodeagent && systemctl is-active nodeagent").stdout == "enabled\nactive\n"
    assert node.run("nodeagent inspect --no-host-processes", check=False).returncode == 0
