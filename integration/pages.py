"""The blocks of commands in README and docs/ (`sh`): where each is typed, and which are not, with the reason. `console` blocks are all run.

tests/project/test_documentation.py makes sure that this has every block, once.
"""

from scripts.shown import ROOT, Block, blocks

README = "../README.md"
"""Pages are named relative to docs/."""
FIRST_PAGE = "how-to/one-benchmark.md"
"""The newcomer's page. integration/test_first_page.py types it as a whole, where nodeagent never was."""
ON_NODE = frozenset(
    {
        "capture.md",
        "explain.md",
        "how-to/benchmark.md",
        "how-to/certificate.md",
        "how-to/claims.md",
        "how-to/fleet.md",
        "how-to/huge-pages.md",
        "how-to/job.md",
        "how-to/latency-test.md",
        "how-to/logs.md",
        "how-to/node-resource-topology.md",
        FIRST_PAGE,
        "how-to/packet-forwarder.md",
        "how-to/quiet.md",
        "how-to/resize.md",
        "how-to/resource-slices.md",
        "how-to/services.md",
        "simulate.md",
    }
)
"""Pages whose blocks are typed in a guest, in their order: integration/test_documentation.py."""
INSTALLATION = (README, "how-to/everyday.md", "how-to/install.md")
"""Pages whose blocks are typed one page after the other, on a machine of their own: from the installation to the end of nodeagent there."""
HERE = {
    ("simulate.md", "nodeagent simulate scenarios.jsonl"),
    (
        "reference/commands.md",
        "nodeagent explain -f examples/guaranteed.yaml --topology 2s.2n.8c.2t --config examples/config.yaml",
    ),
    ("reference/commands.md", "nodeagent simulate examples/scenario.jsonl"),
}
"""Blocks that need no node: tests/project/test_documentation.py runs them."""
UNTYPED = {
    ("development.md", "make demo"): "guests in a guest; what `make demo` shows, test_the_demo_comes_to_its_end sees",
    ("tutorial.md", "sudo make install"): "README's, typed there on a machine without nodeagent, line for line",
    (FIRST_PAGE, "sudo make install"): "test_first_page.py types it, on a machine without nodeagent",
    (
        "how-to/benchmark-tools.md",
        "",
    ): "guests have none of these tools: tests/cli/test_benchmark_tools.py runs them, and integration/test_benchmark_tools.py hyperfine",
    ("how-to/latency-test.md", "sudo apt install rt-tests"): "guests have it, and no network",
    (
        "how-to/node-resource-topology.md",
        "sudo cp node-resource-topology.service node-resource-topology.timer /etc/systemd/system/",
    ): "needs an API server, and none is at hand",
    (
        "how-to/fleet.md",
        "nodeagent fleet inspect node01 node02 admin@node03",
    ): "a guest knows no other hosts: tests/cli/test_fleet.py has an ssh that does",
    (
        "how-to/fleet.md",
        """nodeagent fleet inspect captures/*.json -o json | jq -r '.pods[] | select(.name == "web") | .node'""",
    ): "a guest has no captures of others: tests/cli/test_fleet.py types it, up to the pipe",
    (
        "how-to/podman.md",
        "",
    ): "guests have none of these tools, and no images: tests/cli/test_cpus.py has each form of the answer",
    ("how-to/packages.md", "make deb"): "two packages, of which one is higher: test_debian_package.py does each step",
    ("performance.md", "make bench"): "takes minutes, and an idle machine",
    ("reliability.md", "make test-all"): "takes minutes to hours, and runs this",
    (
        "reference/commands.md",
        "",
    ): "the others are of pods and files that are anywhere: tests/cli/test_help_examples.py has a shell read them",
}
"""By page and the first command of the block, an empty one for all blocks of a page: why it isn't typed."""


def blocks_of(page: str) -> list[Block]:
    """Return the blocks of commands that a page has."""
    return [block for block in blocks((ROOT / "docs" / page).read_text()) if block.language == "sh"]


def first_command(block: Block) -> str:
    return block.text.splitlines()[0].partition("  #")[0].strip()


def is_untyped(page: str, block: Block) -> bool:
    """Whether nobody would type it on a node."""
    keys = {(page, first_command(block)), (page, "")}
    return bool(keys & (UNTYPED.keys() | HERE))
