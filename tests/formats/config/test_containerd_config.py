"""What containerd's configuration says of NRI, and which of several files counts."""

import pytest

from nodeagent.formats.config.containerd_config import (
    PLUGIN,
    ConfiguredValue,
    ContainerdConfigError,
    NriConfig,
    read_imports,
    read_nri_config,
)

TABLE = f'[plugins."{PLUGIN}"]\n'


def said(*texts: str) -> NriConfig:
    return read_nri_config(tuple((f"f{number}", text.encode()) for number, text in enumerate(texts)))


def test_nothing_is_said_where_nothing_is() -> None:
    assert said() == said("") == said('version = 2\n[plugins."io.containerd.grpc.v1.cri"]\n') == NriConfig()


def test_all_that_is_said_is_found_with_its_file() -> None:
    text = 'disable = true\nsocket_path = "/x"\nplugin_registration_timeout = "5s"\nplugin_request_timeout = "1m0.5s"\n'
    assert said(TABLE + text) == NriConfig(
        ConfiguredValue(value=True, path="f0"),
        ConfiguredValue("/x", "f0"),
        ConfiguredValue(5000, "f0"),
        ConfiguredValue(60_500, "f0"),
    )


def test_later_files_replace_what_earlier_ones_say() -> None:
    found = said(
        f"{TABLE}disable = true\nplugin_request_timeout = '1s'",
        f"{TABLE}disable = false",
        "[plugins]\n[plugins.other]\n",
    )
    assert found == NriConfig(
        is_off=ConfiguredValue(value=False, path="f1"), request_timeout_ms=ConfiguredValue(1000, "f0")
    )
    assert said(f"disabled_plugins = ['{PLUGIN}']").is_off == ConfiguredValue(value=True, path="f0")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("plugins = {", "f0: "),
        ("\x00", "f0: "),
        ("a = " + "[" * 100_000, "f0: "),
        (f'[plugins]\n"{PLUGIN}" = 1', "must be a table"),
        (f"{TABLE}disable = 'no'", "disable must be true or false"),
        (f"{TABLE}socket_path = 1", "socket_path must be a string"),
        (f"{TABLE}plugin_request_timeout = '2 s'", "plugin_request_timeout must be a duration"),
        (f"{TABLE}plugin_request_timeout = 2", "plugin_request_timeout must be a string"),
    ],
)
def test_what_can_not_be_told_is_said(text: str, problem: str) -> None:
    with pytest.raises(ContainerdConfigError, match=r"^f0: ") as caught:
        said(text)
    assert problem in str(caught.value)


def test_imports_are_paths() -> None:
    assert read_imports(b"imports = ['/etc/x/*.toml', 'y.toml']", "f") == ("/etc/x/*.toml", "y.toml")
    assert read_imports(b"", "f") == ()
    with pytest.raises(ContainerdConfigError, match="f: imports must be a list"):
        read_imports(b"imports = 'x'", "f")
