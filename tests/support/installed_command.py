"""The command as it is installed, of this checkout: an environment with its script, and with the packages of the one that runs tests."""

import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parents[2]


def install_command(prefix: Path) -> str:
    """Returns its path."""
    site = prefix / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    site.mkdir(parents=True)
    (site / "nodeagent").symlink_to(ROOT / "nodeagent")
    for package in Path(sysconfig.get_path("purelib")).iterdir():
        if package.suffix != ".pth" and "nodeagent" not in package.name:
            (site / package.name).symlink_to(package)
    (prefix / "bin").mkdir()
    (prefix / "bin" / "python").symlink_to(Path(sys.executable).resolve())
    (prefix / "pyvenv.cfg").write_text(Path(sys.prefix, "pyvenv.cfg").read_text())
    command = prefix / "bin" / "nodeagent"
    script = (ROOT / "scripts" / "command.py").read_text()
    command.write_text(script.replace("/opt/nodeagent/", f"{prefix}/"))
    command.chmod(0o755)
    return str(command)
