"""Models from a hub: the hub's own client fetches them in a child, this side shows progress and explains failures.

models/huggingface/ORG/NAME[@REVISION][~files]/            filled in place: a cut download keeps its whole files
models/huggingface/ORG/NAME[@REVISION][~files]/.complete   written last, after all was checked

Hugging Face's client is in the runtime (vLLM needs it). ModelScope's is installed for the time of a fetch.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from pathlib import Path

from appliance import clock, names
from appliance.config.model import Config
from appliance.errors import Failed
from appliance.host import files, hubtoken
from appliance.host.modelstore import Model

from . import child, space
from .build import Workshop, fetch_files, put
from .faults import Impossible
from .locks import Lock
from .progress import Progress
from .resolve import redacted, resolve

FETCH_DEADLINE_S = 7 * 86400.0  # a 400 GB model over a slow line; the client ends by itself when nothing comes
PROGRAM = Path(__file__).resolve().parent / "inside" / "fetch_hub.py"
IDENTIFIER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?(@[A-Za-z0-9._-]+)?")
CLIENT_LOCK = "modelscope.txt"


def fetch(model: Model, config: Config, python: str, shop: Workshop, client: Lock) -> None:
    """Fetch one model into its directory. Raises Failed, Impossible; may block for hours.

    `client` is the lock of ModelScope's client.
    """
    progress = shop.progress
    name = model.model.removesuffix(names.WITHOUT_WEIGHTS)
    if not IDENTIFIER.fullmatch(name) or ".." in name:
        raise Impossible(
            f"{model.model!r} is neither a hub's name (ORG/NAME) nor a directory nor a builtin: model",
            hint="llm-appliance check",
        )
    target = Path(model.path)
    target.mkdir(parents=True, exist_ok=True)
    answer: dict[str, object] = {}
    part = "files" if name != model.model else "whole"
    words = [python, "-I", str(PROGRAM), config.models.source, name, str(target), str(space.SPARE), part]
    if config.models.source == "modelscope":
        words.append(modelscope_client(python, shop, client))
    progress.phase("models", f"fetching {model.model}", lambda: (_bytes(target), _number(answer.get("total"))))
    ended = child.run(
        words,
        env=dict(shop.env) | environment(config),
        cwd=str(target),
        deadline_s=FETCH_DEADLINE_S,
        on_line=lambda line: _hear(line, answer, model.model, target, progress),
    )
    if ended.status != 0 or not answer.get("done"):
        with contextlib.suppress(OSError):
            target.rmdir()  # only when it is empty: what came is gone on with
        if answer.get("error") == "room":
            needed, free = (_number(answer.get(key)) or 0 for key in ("needed", "free"))
            space.require(str(target), needed - space.SPARE, f"model {model.model}", available=free)
        raise failure(model.model, config, str(answer.get("error", "other")), str(answer.get("message", "")))
    shutil.rmtree(target / ".cache", ignore_errors=True)
    record: dict[str, object] = {"model": model.model, "source": config.models.source, "at": clock.wall()}
    record |= {"revision": str(answer.get("revision", "")), "size": _bytes(target)}
    files.settle(target)
    files.replace_json(target / names.RUNTIME_COMPLETE, record)


def modelscope_client(python: str, shop: Workshop, lock: Lock) -> str:
    """A directory that ModelScope's client can be imported from, made anew. Raises Failed."""
    shop.progress.phase("models", "preparing the client of ModelScope")
    found = resolve(shop.uv, python, lock, shop.sources, env=shop.env, scratch=shop.layout.scratch)
    fetch_files(shop, [wheel for wheel in found if wheel.path is None], phase="models", what="the client of ModelScope")
    target = Path(shop.layout.scratch, "modelscope")
    shutil.rmtree(target, ignore_errors=True)
    put(shop, lock, found, "--python", python, "--target", str(target))
    return str(target)


def environment(config: Config) -> dict[str, str]:
    """The variables of the hubs' clients. Raises Impossible when the token cannot be read."""
    made = {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DOWNLOAD_TIMEOUT": "30"}
    made["TQDM_DISABLE"] = "1"  # ModelScope's client would draw into the lines that it speaks
    if config.models.endpoint:
        made |= {"HF_ENDPOINT": config.models.endpoint, "MODELSCOPE_ENDPOINT": config.models.endpoint}
    if config.models.token_file:
        try:
            token = hubtoken.read(config.models.token_file)
        except OSError as error:
            raise Impossible(
                f"[models] token_file {config.models.token_file} cannot be read: {(error.strerror or '').lower()}",
                hint=f"chgrp {names.RUNTIME_USER} it and chmod 0640 it",
            ) from error
        except ValueError as error:
            raise Impossible(
                f"[models] token_file {config.models.token_file}: {error}", hint="write it anew"
            ) from error
        made |= {"HF_TOKEN": token, "MODELSCOPE_API_TOKEN": token}
    return made


def _hear(line: str, answer: dict[str, object], model: str, target: Path, progress: Progress) -> None:
    """Take one line of the child; what is no JSON object is talk of its libraries."""
    try:
        said = json.loads(line)
    except ValueError:
        return
    if not isinstance(said, dict):
        return
    if "checked" in said and "checked" not in answer:
        progress.phase("models", f"checking {model}", lambda: (_number(answer.get("checked")) or 0, _bytes(target)))
    answer.update(said)


def _bytes(directory: Path) -> int:
    total = 0
    for parent, _, entries in os.walk(directory):
        for entry in entries:
            try:
                total += os.lstat(os.path.join(parent, entry)).st_blocks * 512
            except OSError:
                continue
    return total


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def failure(model: str, config: Config, kind: str, message: str) -> Failed:
    """What the child met, in words for the operator. Whether another try may help decides the class."""
    where = redacted(config.models.endpoint) or {"huggingface": "the Hugging Face hub", "modelscope": "ModelScope"}.get(
        config.models.source, config.models.source
    )
    if kind == "unreachable":
        return Failed(
            f"{model} cannot be fetched: {where} cannot be reached ({message})",
            hint="check the network, [network] https_proxy and [models] endpoint, or copy the model's directory here "
            'and name it: model = "/path"',
        )
    if kind == "full":
        return Failed(f"{model} cannot be fetched: the disk is full", hint="llm-appliance models list; df -h")
    if kind == "denied":
        return Impossible(
            f"{where} does not give {model} to us ({message})",
            hint="accept the model's licence there and put an access token into [models] token_file",
        )
    if kind == "missing":
        return Impossible(
            f"{where} has no model {model}", hint="check the spelling of model; a private one needs a token"
        )
    if kind == "damaged":
        return Failed(
            f"{model} cannot be fetched: {message}",
            hint="the next try fetches that file again; if it stays so, the hub, the proxy or the disk damages files",
        )
    if kind == "client":
        return Failed(
            f"the client for {config.models.source} does not work", hint="llm-appliance runtime install builds it anew"
        )
    return Failed(f"{model} cannot be fetched: {message or 'the client ended without a word'}")
