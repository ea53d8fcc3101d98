"""Sampled content of /sys and /proc, and readers of single values. The values aren't interpreted.

Captures contain the same sample, which includes all files that discovery needs. Missing files are never replaced by defaults.
"""

import re
import shlex
from collections.abc import Mapping

from msgspec import Struct

from nodeagent.core.model.idset import MAX_ID, CpuMask, CpuSet, IdSetSyntaxError
from nodeagent.errors import NodeAgentError
from nodeagent.formats.syntax.findings import shown

CPUS = "sys/devices/system/cpu"
NODES = "sys/devices/system/node"
HUGEPAGES = "sys/kernel/mm/hugepages"

WANTED = (
    f"{CPUS}/online",
    f"{CPUS}/isolated",
    f"{CPUS}/nohz_full",
    f"{CPUS}/cpu#/online",
    f"{CPUS}/cpu#/cpu_capacity",
    f"{CPUS}/cpu#/acpi_cppc/highest_perf",
    f"{CPUS}/cpu#/acpi_cppc/nominal_perf",
    f"{CPUS}/cpu#/cpufreq/base_frequency",
    f"{CPUS}/cpu#/cpufreq/cpuinfo_max_freq",
    f"{CPUS}/cpu#/topology/core_id",
    f"{CPUS}/cpu#/topology/physical_package_id",
    f"{CPUS}/cpu#/topology/die_id",
    f"{CPUS}/cpu#/topology/book_id",
    f"{CPUS}/cpu#/topology/drawer_id",
    f"{CPUS}/cpu#/topology/thread_siblings_list",
    f"{CPUS}/cpu#/cache/index#/id",
    f"{CPUS}/cpu#/cache/index#/level",
    f"{CPUS}/cpu#/cache/index#/size",
    f"{CPUS}/cpu#/cache/index#/type",
    f"{CPUS}/cpu#/cache/index#/shared_cpu_map",
    f"{CPUS}/cpu#/cache/index#/shared_cpu_list",
    f"{NODES}/possible",
    f"{NODES}/node#/cpu#/",
    f"{NODES}/node#/cpulist",
    f"{NODES}/node#/cpumap",
    f"{NODES}/node#/distance",
    f"{NODES}/node#/meminfo",
    f"{NODES}/node#/hugepages/hugepages-#kB/nr_hugepages",
    f"{HUGEPAGES}/hugepages-#kB/nr_hugepages",
    "sys/devices/cpu_core/cpus",
    "sys/devices/cpu_atom/cpus",
    "sys/devices/cpu_lowpower/cpus",
    "proc/cpuinfo",
    "proc/meminfo",
)
"""Files that discovery reads, below the root. `#` is a decimal number. A path with a final `/` is a name to list, and isn't opened."""

FIRMWARE_ANSWERS = "/acpi_cppc/"
"""Part of a path that marks files for which the kernel asks the firmware at each read. Such a file counts as missing if reading fails.
"""

ONLINE_FILES = (f"{CPUS}/online", f"{CPUS}/cpu#/cache/", f"{CPUS}/cpu#/topology/", f"{NODES}/node#/cpu#/")
"""Files that change when a CPU or a node is added or removed. If these files are equal before and after sampling, the sample is consistent.
"""

_MAX_NUMBER = 2**63 - 1
_NUMBERED = re.compile(r"\D*(0|[1-9][0-9]*)\D*")


class SysfsError(NodeAgentError):
    """A file that describes the machine can't be read or has content that the kernel never writes."""

    def __init__(self, path: str, reason: str, *, value: str | None = None, hint: str | None = None) -> None:
        self.path = path
        self.value = value
        text = f"cannot use {path}: {reason}" if value is None else f"cannot use {path}: {reason}, not {shown(value)}"
        super().__init__(
            text,
            hint=hint
            or f"see `ls -l {shlex.quote(path)}`; if the file belongs to a copied root, copy it again (--root takes any directory)",
        )


class SysfsSample(Struct, frozen=True):
    """Sampled files: their contents by path below the root, and the wanted names in each listed directory, in text order."""

    files: Mapping[str, str]
    directories: Mapping[str, tuple[str, ...]]
    root: str = "/"
    """Root directory, used in error messages only."""

    def error(self, path: str, reason: str, *, value: str | None = None, hint: str | None = None) -> SysfsError:
        return SysfsError(f"{self.root.rstrip('/')}/{path}", reason, value=value, hint=hint)

    def number(self, path: str, low: int = 0, high: int = _MAX_NUMBER) -> int | None:
        """Read a whole number. None means that the file doesn't exist."""
        text = self.files.get(path)
        return None if text is None else self._parse_number(path, text.strip(), low, high)

    def _parse_number(self, path: str, text: str, low: int, high: int) -> int:
        if not re.fullmatch(r"-?[0-9]{1,20}", text) or not low <= int(text) <= high:
            raise self.error(path, f"expected a whole number from {low} to {high}", value=text)
        return int(text)

    def numbers(self, path: str) -> tuple[int, ...] | None:
        """Read whole numbers separated by blanks. None means that the file doesn't exist."""
        text = self.files.get(path)
        if text is None:
            return None
        words = text.split()
        if not words:
            raise self.error(path, "expected whole numbers", value=text)
        return tuple(self._parse_number(path, word, 0, _MAX_NUMBER) for word in words)

    def cpu_list(self, path: str) -> CpuSet | None:
        """Read a list such as `0-3,8`. None means that the file doesn't exist."""
        text = self.files.get(path)
        if text is None:
            return None
        try:
            return CpuSet.parse(text.strip())
        except IdSetSyntaxError as err:
            raise self.error(path, "expected a CPU list such as 0-3,8", value=text.strip()) from err

    def cpu_map(self, path: str) -> CpuSet | None:
        """Read a mask of hexadecimal 32-bit words, highest first. None means that the file doesn't exist."""
        text = self.files.get(path)
        if text is None:
            return None
        try:
            return parse_cpu_mask(text)
        except ValueError as err:
            raise self.error(path, "expected a CPU mask such as 00000000,0000ff0f", value=text.strip()) from err

    def total_memory_bytes(self, path: str) -> int | None:
        """Read the `MemTotal` of a meminfo file. None means that the file doesn't exist."""
        text = self.files.get(path)
        if text is None:
            return None
        match = re.search(r"MemTotal:\s*([0-9]{1,20}) kB", text)
        if match is None:
            raise self.error(path, "expected a line such as `MemTotal: 16384 kB`", value=text)
        return self._check_size(path, int(match[1]) * 1024)

    def _check_size(self, path: str, size_bytes: int) -> int:
        if size_bytes > _MAX_NUMBER:
            raise self.error(path, f"expected an amount of at most {_MAX_NUMBER} bytes", value=str(size_bytes))
        return size_bytes

    def hugepage_bytes(self, directory: str) -> tuple[tuple[int, int], ...]:
        """Return (page size in bytes, bytes in pages of this size), ascending. The result is empty if there are no huge
        pages or no directory.
        """
        amounts = []
        for name, size_kib in self.numbered(directory, "hugepages-"):
            path = f"{directory}/{name}/nr_hugepages"
            pages = self.number(path)
            if pages is None:
                raise self.error(path, "expected a number of pages, found no file")
            page_bytes = self._check_size(f"{directory}/{name}", size_kib * 1024)
            amounts.append((page_bytes, self._check_size(path, pages * page_bytes)))
        return tuple(sorted(amounts))

    def names(self, directory: str) -> tuple[str, ...] | None:
        """Return the wanted names in a directory, in text order. None means that the directory doesn't exist."""
        return self.directories.get(directory)

    def numbered(self, directory: str, prefix: str) -> tuple[tuple[str, int], ...]:
        """Return (name, number) of names such as `cpu12` in a directory, in text order. Empty if the directory doesn't exist."""
        matches = (
            (name, _NUMBERED.fullmatch(name)) for name in self.directories.get(directory, ()) if name.startswith(prefix)
        )
        found = [(name, match[1]) for name, match in matches if match is not None]
        seen: set[str] = set()
        for name, digits in found:
            if len(digits) > 18:
                raise self.error(f"{directory}/{name}", "the number in its name is too large")
            if digits in seen:  # no file system lists a name twice, but an edited capture can
                raise self.error(f"{directory}/{name}", "two names have the same number")
            seen.add(digits)
        return tuple((name, int(digits)) for name, digits in found)

    def identified(self, directory: str, prefix: str) -> tuple[int, ...]:
        """Return the IDs in the names of CPU or node directories, in text order of the names."""
        ids = []
        for name, number in self.numbered(directory, prefix):
            if number > MAX_ID:
                raise self.error(f"{directory}/{name}", f"the number in its name is over {MAX_ID}")
            ids.append(number)
        return tuple(ids)


_WORD = re.compile(r"[0-9a-fA-F]{1,8}")
_WORD_BITS = 32
_MAX_WORDS = (MAX_ID + 1) // _WORD_BITS


def parse_cpu_mask(text: str) -> CpuSet:
    """Parse a mask of CPUs: hexadecimal 32-bit words, highest first.

    Raises:
        ValueError: the text is malformed.
    """
    words = text.strip().split(",")
    if len(words) > _MAX_WORDS or not all(_WORD.fullmatch(word) for word in words):
        raise ValueError(f"{text.strip()[:80]!r} is not a CPU mask such as 00000000,0000ff0f")
    return CpuSet(CpuMask(int("".join(word.zfill(8) for word in words), 16)))


def format_cpu_mask(cpus: CpuSet) -> str:
    """Format a mask of CPUs as the kernel does. `parse_cpu_mask` reads it back."""
    words, rest = [f"{cpus.bits & 0xFFFFFFFF:08x}"], cpus.bits >> _WORD_BITS
    while rest:
        words.append(f"{rest & 0xFFFFFFFF:08x}")
        rest >>= _WORD_BITS
    return ",".join(reversed(words))
