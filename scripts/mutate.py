# ruff: noqa: INP001, SLF001, T201, PLC0415 - a script of its own: prints, forks, imports what a child alone may hold
"""Mutation testing of the decision core: are there tests for what it decides? docs/mutation-testing.md has the outcome.

The mutants are those of mutmut's operators. Its runner needs copies of the sources and leaves out decorated functions; here a mutant
lives in a forked child's memory only, where the tests stand collected and the mutated function's code is exchanged. What is read while
modules are imported (constants, defaults) is imported anew, mutated, in a child that starts before anything is imported.
"""

import argparse
import functools
import gc
import importlib.abc
import importlib.machinery
import json
import math
import os
import random
import resource
import select
import signal
import sys
import time
import types
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

try:
    import libcst as cst
    from mutmut.mutation import file_mutation, mutators, pragma_handling
except ModuleNotFoundError as err:
    sys.exit(f"mutate.py: {err}\nhint: .venv/bin/pip install --editable '.[dev,mutation]'")

ROOT = Path(__file__).parent.parent
CORE = ROOT / "nodeagent" / "core"
MODULES = (
    "cpu_assignment", "cpu_distribution", "cpu_hints", "cpu_layout", "cpu_manager", "cpu_options", "cpu_pods", "cpu_restore",
    "memory_accounting", "memory_groups", "memory_hints", "memory_manager", "memory_pods", "memory_reservation", "memory_restore",
    "hints", "hint_family", "node_search", "affinity_score", "topology_manager",
    "pod_resources", "demand", "admission", "managers", "holding", "promises", "idset",
)  # fmt: skip
"""Who gets what, and why: the managers, the hints, the demands and the arithmetic of sets beneath them."""
QUICK = (
    "decision_tables", "memory_tables", "node_search", "cpu_assignment", "cpu_manager", "idset", "errata", "most_allocated",
    "pod_level_resources", "pod_resources", "hint_families",
)  # fmt: skip
"""Tests for mutants that have to be imported: their modules are quickly collected."""
TESTS = (
    *QUICK,
    "every_finding", "machine_changes", "recovery", "core_metric_totals", "layout", "plan", "node_capacity",
    "lifecycle", "step", "checkpoints", "node_state", "oracles", "properties", "vectors",
)  # fmt: skip
VECTORS = 8
"""Every so many-th of the reference's decisions is replayed: a run of the tests has all or a quarter of them."""
EXAMPLES = 25
"""Of each property that doesn't say how many it needs: a quarter of what a run of the tests has."""
PATIENCE_S = 10.0
"""A test that takes this much longer than 20 times its usual time doesn't end."""
MEMORY_BYTES = 4 << 30


class Mutants(file_mutation.MutationVisitor):
    """All of mutmut's mutants of a module: of properties and cached functions, too."""

    def __init__(self) -> None:
        super().__init__(mutators.mutation_operators, pragma_handling.IgnoredCode(set(), set(), set()))
        self.lines: list[int] = []

    def _create_mutations(self, node: cst.CSTNode) -> None:
        super()._create_mutations(node)
        where = self.get_metadata(cst.metadata.PositionProvider, node)
        self.lines += [where.start.line] * (len(self.mutations) - len(self.lines))

    def _skip_node_and_children(self, node: cst.CSTNode) -> bool:
        return not isinstance(node, cst.FunctionDef) and super()._skip_node_and_children(node)


def mutants_of(name: str, draw: Callable[[list[int]], list[int]]) -> tuple[int, list[dict[str, Any]]]:
    """How many there are, and those that are drawn.

    Each has the text before and after, and, unless it's read while importing, the function that it changes.
    """
    path = CORE / f"{name}.py"
    source = path.read_text()
    visitor = Mutants()
    module = cst.metadata.MetadataWrapper(cst.parse_module(source)).visit(visitor)
    original = functions(compile(source, path, "exec"))
    mutants = []
    for number in sorted(draw(list(range(len(visitor.mutations))))):
        mutation, line = visitor.mutations[number], visitor.lines[number]
        replacement = file_mutation.ChildReplacementTransformer(mutation.original_node, mutation.mutated_node)
        code = module.visit(replacement).code
        mutant = {"module": name, "number": number, "line": line, "text": source.splitlines()[line - 1].strip()}
        mutant |= {"was": module.code_for_node(mutation.original_node).strip(), "code": code, "function": None}
        mutant["becomes"] = module.code_for_node(mutation.mutated_node).strip()
        changed = functions(compile(code, path, "exec"))
        different = [each for each in original if changed[each] != original[each]]
        if mutation.contained_by_top_level_function is not None and len(different) == 1:
            mutant["function"] = different[0]
        mutants.append(mutant)
    return len(visitor.mutations), mutants


def functions(code: types.CodeType) -> dict[str, types.CodeType]:
    """Functions of a module and methods of its classes, not what is inside them."""
    found = {}
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            is_function = each.co_flags & 0x2  # CO_NEWLOCALS, which classes lack
            found |= {each.co_qualname: each} if is_function else functions(each)
    return found


def chosen(names: Iterable[str], share: float, seed: int) -> tuple[dict[str, int], list[dict[str, Any]]]:
    """How many mutants there are per module, and a random sample, the same for the same seed."""
    counts, sample = {}, []
    for name in names:
        drawing = random.Random(f"{seed} {name}")  # noqa: S311 - no secret
        counts[name], drawn = mutants_of(
            name, lambda numbers, drawing=drawing: drawing.sample(numbers, math.ceil(share * len(numbers)))
        )
        sample += drawn
    return counts, sample


class Imported(importlib.abc.MetaPathFinder, importlib.abc.SourceLoader):
    """Imports a mutated text in the module's place."""

    def __init__(self, mutant: dict[str, Any]) -> None:
        self.mutant = mutant
        self.name = f"nodeagent.core.{mutant['module']}"

    def find_spec(self, fullname: str, *_: object) -> importlib.machinery.ModuleSpec | None:
        path = self.get_filename(fullname)
        return importlib.machinery.ModuleSpec(fullname, self, origin=path) if fullname == self.name else None

    def get_filename(self, fullname: str) -> str:
        return str(CORE / f"{fullname.rpartition('.')[2]}.py")

    def get_data(self, path: str) -> bytes:
        assert path.endswith(".py"), path
        return self.mutant["code"].encode()


class Called:
    """Notes which functions of the core are called."""

    def __init__(self) -> None:
        self.codes: dict[int, types.CodeType] = {}

    def begin(self) -> None:
        sys.setprofile(self._note)

    def stop(self) -> None:
        sys.setprofile(None)

    def _note(self, frame: types.FrameType, event: str, _: object) -> None:
        if event == "call":
            self.codes[id(frame.f_code)] = frame.f_code

    def names(self) -> set[str]:
        """As `module:function`; what is inside a function belongs to it."""
        mine = [code for code in self.codes.values() if code.co_filename.startswith(str(CORE))]
        return {f"{Path(code.co_filename).stem}:{code.co_qualname.split('.<locals>')[0]}" for code in mine}


class Session:
    """A pytest plugin that hands the collected tests to `work` in the place of pytest's own loop."""

    def __init__(self, work: Callable[[list[pytest.Item]], int]) -> None:
        self.work = work
        self.failed = False
        self.result = 0

    def pytest_configure(self) -> None:
        from hypothesis import Phase, settings

        # A failure is all there is to know: no smaller example of it, no explanation.
        phases = (Phase.explicit, Phase.generate)
        settings.register_profile("mutation", derandomize=True, deadline=None, phases=phases, max_examples=EXAMPLES)
        settings.load_profile("mutation")

    def pytest_collection_finish(self) -> None:
        test_vectors = sys.modules.get("test_vectors")
        if test_vectors is None:
            return
        import decision_vectors

        kept = {name: tuple(decision_vectors.vectors(name))[::VECTORS] for name in decision_vectors.FILES}
        test_vectors.vectors = lambda name: iter(kept[name])
        test_vectors.COUNTS = {name: len(each) for name, each in kept.items()}
        test_vectors.QUARTERS = 1

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.failed |= report.failed

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.result = self.work(session.items)
        return True


def pytest_session(session: Session, names: Iterable[str]) -> int:
    sys.path.insert(0, str(ROOT))
    files = [str(ROOT / "tests" / f"test_{name}.py") for name in names]
    flags = ["-qq", "-s", "--assert=plain", "--tb=no", "-p", "no:cacheprovider", "-p", "no:unraisableexception"]
    result = pytest.main([*flags, f"--rootdir={ROOT}", *files], plugins=[session])
    return int(result) or session.result


def run(item: pytest.Item, following: pytest.Item | None) -> None:
    item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)


class Child:
    """A forked process that names each test before it runs it, and ends with 0 if none failed."""

    def __init__(self, work: Callable[[Callable[[str], None]], int]) -> None:
        self.reader, writer = os.pipe()
        self.pid = os.fork()
        if self.pid:
            os.close(writer)
            return
        code = 1
        try:
            null = os.open(os.devnull, os.O_RDWR)
            for descriptor in (0, 1, 2):
                os.dup2(null, descriptor)
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
            code = work(lambda name: void(os.write(writer, f"{name}\n".encode())))
        finally:
            os._exit(code)

    def outcome(self, times: dict[str, float]) -> tuple[str, str]:
        """How it ended, and in which test: `killed`, `timed out` or `survived`."""
        name, rest = "import", b""
        while True:
            ready, _, _ = select.select([self.reader], [], [], PATIENCE_S + 20 * times.get(name, 1.0))
            if not ready:
                os.kill(self.pid, signal.SIGKILL)
                break
            data = os.read(self.reader, 1 << 16)
            if not data:
                break
            *lines, rest = (rest + data).split(b"\n")
            name = lines[-1].decode() if lines else name
        os.close(self.reader)
        _, status = os.waitpid(self.pid, 0)
        if not ready:
            return "timed out", name
        return ("survived", "") if status == 0 else ("killed", name)


def void(_: object) -> None:
    return None


def measure(items: list[pytest.Item], session: Session) -> tuple[dict[str, float], dict[str, set[str]]]:
    """In a child: how long each test takes, and the functions of the core that it calls. None may fail."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writer)
        with os.fdopen(reader) as stream:
            told = json.loads(stream.read() or "null")
        os.waitpid(pid, 0)
        assert told is not None, "a test fails without any mutation"
        return told[0], {name: set(called) for name, called in told[1].items()}
    times, calls = {}, {}
    caches = [each for each in gc.get_objects() if isinstance(each, functools._lru_cache_wrapper)]
    for item, following in zip(items, [*items[1:], None], strict=True):
        for cache in caches:
            cache.cache_clear()
        start = time.perf_counter()
        called = Called()
        called.begin()
        run(item, following)
        called.stop()
        times[item.nodeid] = time.perf_counter() - start
        calls[item.nodeid] = sorted(called.names())
        if session.failed:
            os.write(2, f"fails without any mutation: {item.nodeid}\n".encode())
            os._exit(1)
    with os.fdopen(writer, "w") as stream:
        stream.write(json.dumps([times, calls]))
    os._exit(0)


Held = dict[tuple[str, str], list[types.FunctionType]]


def held_functions() -> Held:
    """All functions of the core by module and name, wherever they are held: in a class, in a cache, alone."""
    found = defaultdict(list)
    for each in gc.get_objects():
        if isinstance(each, types.FunctionType) and each.__code__.co_filename.startswith(str(CORE)):
            found[Path(each.__code__.co_filename).stem, each.__code__.co_qualname].append(each)
    return found


def exchange(mutant: dict[str, Any], held: Held) -> None:
    """Give the mutated function its new code."""
    path = str(CORE / f"{mutant['module']}.py")
    new = functions(compile(mutant["code"], path, "exec"))[mutant["function"]]
    for function in held[mutant["module"], mutant["function"]]:
        function.__code__ = new


def judge(mutants: list[dict[str, Any]], report: Callable[[dict[str, Any]], None]) -> tuple[dict[str, float], set[str]]:
    """Test mutants of functions in one session. Returns each test's time, and functions called before the first test."""
    reader, writer = os.pipe()
    if os.fork():
        os.close(writer)
        with os.fdopen(reader) as stream:
            times, early = json.loads(stream.readline())
            for line in stream:
                report(json.loads(line))
        os.wait()
        return times, set(early)
    os.close(reader)
    stream = os.fdopen(writer, "w", buffering=1)
    collecting = Called()

    def work(items: list[pytest.Item]) -> int:
        collecting.stop()
        times, calls = measure(items, session)
        print(json.dumps([times, sorted(collecting.names())]), file=stream)
        print(f"{len(items)} tests take {sum(times.values()):.0f} s", flush=True)
        held = held_functions()
        gc.freeze()
        killers: dict[str, list[str]] = defaultdict(list)
        by_name = {item.nodeid: item for item in items}
        for mutant in mutants:
            function = f"{mutant['module']}:{mutant['function']}"
            assert (mutant["module"], mutant["function"]) in held, function
            covering = sorted((name for name in calls if function in calls[name]), key=times.__getitem__)
            # First those that found a fault here before, then the others, the quickest first.
            proven = [*reversed(killers[function]), *reversed(killers[mutant["module"]][-12:])]
            order = list(dict.fromkeys([*(name for name in proven if name in covering), *covering]))
            test(mutant, [by_name[name] for name in order], times, held)
            if mutant["by"] in by_name:
                for place in (function, mutant["module"]):
                    killers[place] = [*(name for name in killers[place] if name != mutant["by"]), mutant["by"]]
            print(json.dumps(mutant), file=stream)
        return 0

    def test(mutant: dict[str, Any], items: list[pytest.Item], times: dict[str, float], held: Held) -> None:
        def child(tell: Callable[[str], None]) -> int:
            exchange(mutant, held)
            return int(is_noticed(session, items, tell))

        start = time.perf_counter()
        mutant["outcome"], mutant["by"] = Child(child).outcome(times)
        mutant["seconds"] = round(time.perf_counter() - start, 2)

    session = Session(work)
    collecting.begin()
    os._exit(0 if pytest_session(session, TESTS) == 0 else 1)


def is_noticed(session: Session, items: list[pytest.Item], tell: Callable[[str], None]) -> bool:
    """Run tests until one fails."""
    for item, following in zip(items, [*items[1:], None], strict=False):
        tell(item.nodeid)
        run(item, following)
        if session.failed:
            return True
    return False


def judge_imported(mutant: dict[str, Any], times: dict[str, float]) -> None:
    """Test a mutant of what is read, or called, while modules are imported and tests are collected."""

    def child(tell: Callable[[str], None]) -> int:
        sys.meta_path.insert(0, Imported(mutant))
        sys.dont_write_bytecode = True

        def work(items: list[pytest.Item]) -> int:
            # A mutant may have changed the names of tests.
            return int(is_noticed(session, sorted(items, key=lambda item: times.get(item.nodeid, 0)), tell))

        session = Session(work)
        return pytest_session(session, QUICK)

    start = time.perf_counter()
    mutant["outcome"], mutant["by"] = Child(child).outcome(times)
    mutant["seconds"] = round(time.perf_counter() - start, 2)


def table(counts: dict[str, int], mutants: list[dict[str, Any]]) -> str:
    """Markdown: each module's numbers, and their sum."""
    rows = [
        "| module | mutants | tested | killed | timed out | survived | killed, % |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name in (*counts, None):
        mine = [mutant for mutant in mutants if name in (None, mutant["module"])]
        ends = [sum(mutant["outcome"] == end for mutant in mine) for end in ("killed", "timed out", "survived")]
        share = 100 * (ends[0] + ends[1]) / max(1, len(mine))
        total = sum(counts.values()) if name is None else counts[name]
        title = "**all**" if name is None else f"`{name}`"
        rows.append(f"| {title} | {total} | {len(mine)} | {ends[0]} | {ends[1]} | {ends[2]} | {share:.1f} |")
    return "\n".join(rows)


def shown(mutant: dict[str, Any]) -> str:
    """One line: where, and what became of what."""
    texts = (" ".join(mutant[key].split()) for key in ("was", "becomes"))
    return f"{mutant['module']}.py:{mutant['line']} #{mutant['number']} " + " → ".join(f"`{text}`" for text in texts)


def main() -> None:
    about = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="examples:\n  mutate.py\n  mutate.py --share 1 --module idset\n  mutate.py --again .cache/mutants.jsonl",
    )
    about.add_argument(
        "--module", action="append", choices=MODULES, metavar="NAME", help="only this one of the core; may be repeated"
    )
    about.add_argument("--share", type=float, default=1 / 6, help="how much of each module's mutants: a sixth")
    about.add_argument("--seed", type=int, default=1, help="of the sample: 1")
    about.add_argument(
        "--again", type=Path, help="only those that survived by this file of an earlier run, which is rewritten"
    )
    about.add_argument("--out", type=Path, default=ROOT / ".cache" / "mutants.jsonl", help="the outcome, a line each")
    about.add_argument("--table", type=Path, help="test nothing: print the table and the survivors of this file")
    given = about.parse_args()
    names = given.module or MODULES
    counts, sample = chosen(names, given.share, given.seed)
    known: dict[tuple[str, int], dict[str, Any]] = {}
    earlier = given.table or given.again
    if earlier:
        known = {(told["module"], told["number"]): told for told in map(json.loads, earlier.read_text().splitlines())}
    if not given.table:
        out = given.again or given.out
        out.parent.mkdir(exist_ok=True)

        def report(told: dict[str, Any]) -> None:
            known[told["module"], told["number"]] = {key: value for key, value in told.items() if key != "code"}
            out.write_text("".join(f"{json.dumps(each)}\n" for each in known.values()))
            print(f"{told['outcome']:9} {told['seconds']:6.2f} s {shown(told)} {told['by']}", flush=True)

        def survives(mutant: dict[str, Any]) -> bool:
            return known.get((mutant["module"], mutant["number"]), {"outcome": "survived"})["outcome"] == "survived"

        left = [mutant for mutant in sample if survives(mutant)]
        times, early = judge([mutant for mutant in left if mutant["function"]], report)
        for mutant in left:
            if not mutant["function"] or (f"{mutant['module']}:{mutant['function']}" in early and survives(mutant)):
                judge_imported(mutant, times)
                report(mutant)
    outcomes = [known[key] for mutant in sample if (key := (mutant["module"], mutant["number"])) in known]
    print(table(counts, outcomes))
    print(*(f"- {shown(mutant)}" for mutant in outcomes if mutant["outcome"] == "survived"), sep="\n")


if __name__ == "__main__":
    main()
