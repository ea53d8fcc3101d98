"""What strace writes is read as the changes that it is about."""

from integration.faults.system_calls import changes

TEXT = """\
12 openat(AT_FDCWD</>, "/a/b", O_WRONLY|O_CREAT|O_CLOEXEC, 0600) = 3</a/b>
12 openat(AT_FDCWD</>, "/a/c", O_RDONLY|O_CLOEXEC) = 4</a/c>
13 write(3</a/b>, "x, \\"y", 6 <unfinished ...>
12 write(2<socket:[7]>, "said", 4) = 4
13 <... write resumed>)            = 6
12 fchmod(3</a/b>, 0600) = 0
12 rename("/a/b", "/a/d") = 0
12 openat(5</a>, "e", O_RDWR) = 6</a/e>
12 unlinkat(5</a>, "old", AT_REMOVEDIR) = 0
12 unlinkat(AT_FDCWD</>, "/a/f", 0) = 0
12 mkdir("/a/g", 0755) = -1 EEXIST (File exists)
12 kill(99, SIGTERM) = 0
12 +++ exited with 0 +++
"""


def test_every_call_that_changes_something_is_there_with_its_path() -> None:
    assert [(change.kind, change.path) for change in changes(TEXT)] == [
        ("open", "/a/b"),
        ("write", "/a/b"),
        ("write", "socket:[7]"),
        ("fchmod", "/a/b"),
        ("os.rename", "/a/b"),
        ("open", "/a/e"),
        ("os.rmdir", "/a/old"),
        ("os.remove", "/a/f"),
        ("os.mkdir", "/a/g"),
        ("kill", ""),
    ]
