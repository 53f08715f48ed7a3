"""`llm-appliance bench`: a ladder of concurrency against the appliance or any endpoint of OpenAI's API.

So many clients at once as a step says, each sending its next request when it has its answer; the next step has twice as
many, until goodput falls or the engine's limit is reached. Ctrl-C ends the requests and prints what was measured. With
`--tune` settings are derived from the ladder and written as a drop-in.
"""

from __future__ import annotations

import argparse
import ssl

from appliance.config import source
from appliance.config.model import Config
from appliance.errors import EXIT_FOUND, EXIT_OK, ConfigInvalid, UsageError
from appliance.policy import loadladder

from . import benchpage, benchplot, benchtune, output
from .benchclient import Endpoint
from .benchoptions import EACH, SECONDS, TIMEOUT, Options, duration
from .benchrun import Bench
from .chat import add_key_arguments, key_of
from .frontclient import parse_place
from .gatewayclient import public_place

EXIT_INTERRUPTED = 130

METRICS = """\
The figures are those of `vllm bench serve`, by its definitions:
  TTFT   from sending a request to its first token
  ITL    every time between two tokens of an answer, over all answers of a step
  TPOT   of one answer: (E2EL - TTFT) / (output tokens - 1)
  E2EL   from sending a request to its last token
  N      requests at once: so many clients, each sends its next one when it has
         its answer
  REQ/S, TOK/S  whole answers and their output tokens (by the engine's usage) over
         the time from the first request of a step to its last answer
  GOOD/S goodput: answers a second that keep --target-ttft and --target-itl; the
         latter is held against an answer's TPOT
E2EL stands as its p50. Percentiles interpolate linearly. Short requests before
each step, which open the connections, are in no figure; failed requests are
counted by kind and are in no time. The first event of a chat, which names its
role, is no token here. A step ends after --requests or --duration, whichever
comes first; by default after 8 requests of each client or 60 s.

On a core of its own means and medians are within 5 % up to about 10,000 tokens a
second; of p99 the load's own lateness is a part. It measures how late it sees what
has come, and says so where that is more than 5 % of the figures.

Prompts are random words; their length is fitted by what the engine counts. Each
run draws its own --seed: the same seed again would find its prompts in the
engine's prefix cache.

--plot writes SVG or PNG by the file's name, `-` draws on the terminal.
Exit status: 0 measured, 1 nothing could be measured or a step got no answer, 3 the
endpoint does not answer, 130 after Ctrl-C."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's arguments."""
    parser.epilog = f"{METRICS}\n\n{parser.epilog}"
    add = parser.add_argument
    add("--url", metavar="URL", help="an endpoint of OpenAI's API (default: this machine's gateway)")
    add_key_arguments(parser)
    add("--ca", metavar="FILE", help="certificates to trust instead of the system's")
    add("--model", metavar="M", help="a served name (default: the first that the key may use)")
    add("--chat", action="store_true", help="ask /v1/chat/completions instead of /v1/completions")
    add("--concurrency", metavar="N,N", help="the steps (default: 1, 2, 4 ... until goodput falls)")
    add("--requests", type=int, metavar="N", help=f"requests of each step (default: {EACH} for each client)")
    add("--duration", metavar="TIME", help=f"begin no request of a step later (default: {SECONDS:g}s)")
    add("--input-tokens", type=int, default=512, metavar="N", help="length of prompts (default %(default)s)")
    add("--output-tokens", type=int, default=128, metavar="N", help="length of answers (default %(default)s)")
    add("--shared-prefix", type=int, default=0, metavar="N", help="tokens that all prompts begin with (default 0)")
    add("--target-ttft", metavar="TIME", help="a good answer's first token comes within this, like 500ms")
    add("--target-itl", metavar="TIME", help="a good answer's tokens come as often as this, like 50ms")
    add("--timeout", metavar="TIME", default=f"{TIMEOUT:g}s", help="the longest answer (default %(default)s)")
    add("--seed", type=int, metavar="N", help="make the same prompts as a former run")
    add("--plot", metavar="FILE", help="draw the ladder: FILE.svg, FILE.png, or - for the terminal")
    add("--tune", action="store_true", help="derive settings and write them as a drop-in, after asking")
    add("--yes", action="store_true", help="with --tune: do not ask")


def run(args: argparse.Namespace) -> int:
    """Measure, print, draw, tune."""
    options = Options.read(args)
    config = None if args.url else _config(args.config)
    endpoint = _endpoint(args, config)
    benchplot.check(args.plot)
    if args.tune:
        benchtune.check(args)
    elif args.yes:
        raise UsageError("--yes goes with --tune")
    bench = Bench(endpoint, options, config, tune=args.tune)
    interrupted = bench.measure()
    steps, best = bench.steps, loadladder.best(bench.steps)
    notes = [*bench.notes, *benchpage.remarks(steps, options.output_tokens)]
    if not args.json:
        print(bench.title())
        benchpage.table(steps, options.target)
        benchpage.conclude(notes, bench.stopped, best, options.target)
    if args.plot and steps:
        benchplot.draw(args.plot, steps, options.target, bench.title())
    tuned = benchtune.settle(args, config, bench, best) if args.tune and not interrupted else None
    if args.json:
        told = benchpage.as_json(steps, options.target, best, bench.head(), notes)
        output.print_json(told if tuned is None else {**told, "tune": tuned})
    if interrupted:
        return EXIT_INTERRUPTED
    return EXIT_OK if steps and all(step.completed for step in steps) else EXIT_FOUND


def _config(path: str) -> Config:
    found = source.effective(path)
    if found.config is None:
        raise ConfigInvalid(found.problems)
    return found.config


def _endpoint(args: argparse.Namespace, config: Config | None) -> Endpoint:
    place = parse_place(args.url) if config is None else public_place(config)
    context = None
    if place.tls:
        try:
            context = ssl.create_default_context(cafile=args.ca)
        except (OSError, ssl.SSLError) as error:
            raise UsageError(f"{args.ca}: {error.strerror or error}") from None
        if config is not None and place.is_loopback:  # the certificate's name cannot fit, and nothing leaves here
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    path = "/v1/chat/completions" if args.chat else "/v1/completions"
    return Endpoint(place, key_of(args), path, context, duration(args.timeout, "--timeout"), here=config is not None)
