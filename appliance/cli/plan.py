"""`llm-appliance plan [ENGINE | --model M]`: will it fit, how many requests at once, which flags.

The model is read from its directory, or from the hub without its weights; GPUs are those of this machine, or those of
`--gpus`. Exit status: 0 everything fits, 1 something does not (or cannot be told), 3 a model could not be looked up.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from appliance import names
from appliance.config import placement, source
from appliance.config.model import Config, Engine
from appliance.errors import EXIT_FOUND, EXIT_OK, ConfigInvalid, Unreachable, UsageError
from appliance.host import checkpoint, files, gpus, places
from appliance.host.checkpoint import Checkpoint
from appliance.policy import cards, fitting, kvcache, planerror, weights
from appliance.policy.cards import Card
from appliance.policy.engineoptions import of_flags
from appliance.policy.fitting import Plan
from appliance.policy.sizing import Options
from appliance.policy.weights import Weights
from appliance.wire import vllmmodels

from . import output, planpage, values

CONTEXTS = (4096, 8192, 16384, 32768, 65536, 131072, 262144)


@dataclass(frozen=True, slots=True)
class Case:
    """One engine to plan for."""

    engine: str | None
    model: str
    cards: tuple[Card, ...]
    options: Options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to plan, on what, and what is fixed."""
    parser.add_argument("engine", nargs="?", metavar="ENGINE", help="one engine of the configuration (default: all)")
    parser.add_argument("--model", metavar="M", help="a model that is not configured: a hub's ORG/NAME or a directory")
    parser.add_argument("--gpus", metavar="LIST", help='cards that are not here, like "4x RTX 4090"')
    parser.add_argument("--tp", type=values.count, metavar="N", help="tensor_parallel_size")
    parser.add_argument("--max-model-len", type=values.tokens, metavar="N", help="the context that must fit")
    parser.add_argument("--kv-cache-dtype", metavar="T", choices=("auto", *kvcache.KV_BYTES), help="auto, fp8, ...")
    parser.add_argument("--gpu-memory-utilization", type=float, metavar="F", help="vLLM's share of each GPU")
    parser.add_argument("--context", type=values.contexts, metavar="N,N", help="context lengths to count requests for")


def run(args: argparse.Namespace) -> int:
    """Plan, print, tell whether all fit."""
    cases = _cases(args)
    plans = [(case, *_judge(case, args)) for case in cases]
    if args.json:
        output.print_json([planpage.as_json(case.engine, case.model, plan, size) for case, plan, size in plans])
    else:
        if not plans:
            print("every engine runs on the CPU or elsewhere: nothing to plan")
        for number, (case, plan, size) in enumerate(plans):
            print("\n" * (number > 0) + planpage.text(case.engine, case.model, case.cards, plan, size))
    return EXIT_OK if all(plan.verdict == "fits" for _, plan, _ in plans) else EXIT_FOUND


def _judge(case: Case, args: argparse.Namespace) -> tuple[Plan, Weights | None]:
    found = _look_up(case.model, _config(args))
    model = found.architecture
    tensors = [(one.name, one.dtype, one.size) for one in found.tensors]
    size = weights.known(tensors, found.total, found.source, model)
    options = replace(case.options, corrections=_learned(case))
    return fitting.plan(model, size, case.cards, options, args.context or CONTEXTS), size


def _learned(case: Case) -> Mapping[tuple[int, int], int]:
    """What starts of this model on such GPUs under the present runtime taught; root and the group may read it."""
    where = places.from_environment()
    listed = (files.read_json(where.under_state(names.PLAN_ERRORS)) or {}).get("errors")
    read = [planerror.read(one) for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    runtime = os.path.basename(os.path.realpath(where.under_state(names.CURRENT_RUNTIME)))
    card = min(case.cards, key=lambda one: one.memory)
    return planerror.corrections([one for one in read if one is not None], case.model, card.name, runtime)


def _config(args: argparse.Namespace) -> Config:
    """The configuration in force; for `--model` alone the defaults do where there is none."""
    found = source.effective(args.config)
    if found.config is not None:
        return found.config
    if args.model and not os.path.exists(args.config):
        return Config()
    raise ConfigInvalid(found.problems)


def _look_up(model: str, config: Config) -> Checkpoint:
    """A model's description, from this machine where it lies here, else from the hub."""
    root = places.from_environment().under_state(config.models.directory)
    directory = names.model_directory(model, root, config.models.source)
    if model.startswith("/") or os.path.exists(f"{directory}/config.json"):
        return checkpoint.from_directory(directory)
    if names.is_builtin(model):
        raise Unreachable(f"{model} is not on this machine yet", hint="llm-appliance models pull")
    return checkpoint.from_hub(model, config)


# --- what to plan -----------------------------------------------------------------------------------------------------


def _cases(args: argparse.Namespace) -> list[Case]:
    if args.engine and args.model:
        raise UsageError("ENGINE and --model exclude one another", hint="llm-appliance plan --help")
    share = args.gpu_memory_utilization
    if share is not None and not 0 < share <= 1:
        raise UsageError("--gpu-memory-utilization is a share: more than 0, at most 1")
    given = _given(args.gpus) if args.gpus else None
    if args.model:
        if args.model.startswith((".", "~")):  # a directory as a shell's user writes it
            args.model = os.path.abspath(os.path.expanduser(args.model))
        return [Case(None, args.model, given or tuple(card for _, card in _here()), _asked(Options(), args))]
    config = _config(args)
    engines = [engine for engine in config.engines if args.engine in (None, engine.name)]
    if not engines:
        known = ", ".join(engine.name for engine in config.engines)
        raise UsageError(
            f"there is no engine {args.engine!r}; the configuration has: {known}", hint="or name a model with --model"
        )
    planned = [engine for engine in engines if not engine.remote and (engine.gpus != () or given)]
    return [_case(engine, config, given, args) for engine in planned]


def _given(text: str) -> tuple[Card, ...]:
    try:
        return cards.parse(text)
    except ValueError as error:
        raise UsageError(f"--gpus: {error}") from None


def _here() -> list[tuple[gpus.Found, Card]]:
    """This machine's GPUs with what the table knows of them."""
    found = gpus.found(places.from_environment().under_run(names.GPU_STATE))
    if not found:
        raise UsageError("no GPU is known on this machine", hint='name cards with --gpus, like --gpus "2x RTX 4090"')
    made = []
    for one in found:
        card = cards.of_gpu(one.name, one.memory)
        if card is None:
            raise UsageError(f"{one.name} is not in the table of cards", hint="name a similar one with --gpus")
        made.append((one, card))
    return made


def _case(engine: Engine, config: Config, given: tuple[Card, ...] | None, args: argparse.Namespace) -> Case:
    """One configured engine; each replica by itself, on the GPUs that its first one gets."""
    wanted = placement.gpus_of(engine, engine.instances[0])
    options = _asked(of_flags(engine.vllm, placement.memory_share(engine)), args)
    if given is not None:
        return Case(engine.name, vllmmodels.own(engine), given, options)
    here = _here()
    if wanted == "auto":  # every GPU that no other engine names
        others = {gpu for other in config.engines if other is not engine and other.gpus != "auto" for gpu in other.gpus}
        chosen = [card for number, (one, card) in enumerate(here) if number not in others and one.uuid not in others]
    else:
        chosen = [card for number, (one, card) in enumerate(here) if number in wanted or one.uuid in wanted]
    if not chosen or (wanted != "auto" and len(chosen) < len(wanted)):
        raise UsageError(
            f"not all GPUs of engine {engine.name} are here: {len(here)} are known",
            hint="name cards with --gpus to plan for another machine",
        )
    copies = _parallel(engine, "data_parallel_size") * _parallel(engine, "prefill_context_parallel_size")
    chosen = chosen[: max(len(chosen) // copies, 1)]  # each copy holds the whole model
    if options.tp is None:  # as the launcher does
        options = replace(options, tp=max(len(chosen) // options.pp, 1))
    return Case(engine.name, vllmmodels.own(engine), tuple(chosen), options)


def _parallel(engine: Engine, flag: str) -> int:
    value = engine.vllm.get(flag)
    return value if isinstance(value, int) and value > 0 else 1


def _asked(options: Options, args: argparse.Namespace) -> Options:
    """Arguments win over the file."""
    told: dict[str, Callable[[Options], Options]] = {
        "tp": lambda o: replace(o, tp=args.tp),
        "max_model_len": lambda o: replace(o, max_model_len=args.max_model_len),
        "kv_cache_dtype": lambda o: replace(o, kv_cache_dtype=args.kv_cache_dtype),
        "gpu_memory_utilization": lambda o: replace(o, utilization=args.gpu_memory_utilization),
    }
    for name, change in told.items():
        if getattr(args, name) is not None:
            options = change(options)
    return options
