"""Protocols that the tests speak with protobuf's and gRPC's own code, made of the .proto files here when they are asked for."""

import importlib
import os
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


@cache
def generated(name: str) -> tuple[Any, Any]:
    """Return the modules with a protocol's messages and with its stubs."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # or it speaks about every fork
    import grpc_tools
    from grpc_tools import protoc

    include = str(Path(grpc_tools.__file__).parent / "_proto")
    with tempfile.TemporaryDirectory() as directory:
        made = protoc.main(
            [
                "",
                f"-I{HERE}",
                f"-I{include}",
                f"--python_out={directory}",
                f"--grpc_python_out={directory}",
                f"{name}.proto",
            ]
        )
        assert made == 0
        sys.path.insert(0, directory)
        try:
            return importlib.import_module(f"{name}_pb2"), importlib.import_module(f"{name}_pb2_grpc")
        finally:
            sys.path.remove(directory)
