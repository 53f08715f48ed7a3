"""Before a ladder: does the endpoint answer at all, for which model, and how many words make the wanted tokens?

Whatever would make every request of a ladder fail ends here, with the endpoint's own words.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from appliance.errors import ApplianceError, Failed, Unreachable, UsageError

from .benchclient import Answer, Client, Endpoint
from .benchprompts import Prompts, Shape
from .chat import KEY_VARIABLE

ROUNDS = 4
NEAR, FAR = 0.01, 0.05  # of the wanted tokens


@dataclass(frozen=True, slots=True)
class Trial:
    """What requests look like, and what was learned on the way. `input_tokens` None: the endpoint tells no usage."""

    shape: Shape
    input_tokens: int | None
    notes: tuple[str, ...]


async def model_of(endpoint: Endpoint, wanted: str | None) -> str:
    """The model to ask for: the wanted one if it is served, else the first. Raises ApplianceError."""
    client = Client(endpoint)
    try:
        answer = await client.ask(b"", "GET", "/v1/models")
    finally:
        client.close()
    status = answer.head.status if answer.head else 0
    if status == 404 and wanted:  # an endpoint without a list
        return wanted
    if answer.failure or status != 200:
        raise refused(endpoint, answer)
    try:
        served = [str(entry["id"]) for entry in json.loads(bytes(answer.body))["data"]]
    except (ValueError, LookupError, TypeError):
        raise Failed("/v1/models is answered with something else than a list of models: --url is no endpoint of "
                     "OpenAI's API", hint="--url is the address before /v1") from None  # fmt: skip
    if not served:
        raise Failed("this key may use no model", hint="llm-appliance keys list" if endpoint.here else "")
    if wanted is None:
        return served[0]
    if wanted not in served:
        raise UsageError(f"{wanted!r} is not served", hint=f"--model {' | '.join(served[:8])}")
    return wanted


async def trial(endpoint: Endpoint, prompts: Prompts, shape: Shape, input_tokens: int, shared: int) -> Trial:
    """Fit the prompts to `input_tokens`, then see that a whole request gets its first token. Raises ApplianceError."""
    client = Client(endpoint)
    notes: list[str] = []
    try:
        shape, counted = await _fit(client, endpoint, prompts, shape, input_tokens, notes)
        if counted is not None and abs(counted - input_tokens) > max(2, FAR * input_tokens):
            notes.append(f"prompts have {counted} tokens as the endpoint counts them, not {input_tokens}")
        shape = replace(shape, shared_words=round(shape.words * shared / input_tokens))
        client.until_first = True
        answer = await client.ask(prompts.body(shape))
        if not answer.reader.first:
            raise refused(endpoint, answer)
    finally:
        client.close()
    return Trial(shape, counted, tuple(notes))


async def _fit(
    client: Client, endpoint: Endpoint, prompts: Prompts, shape: Shape, wanted: int, notes: list[str]
) -> tuple[Shape, int | None]:
    counted = None
    for _ in range(ROUNDS):
        answer = await client.ask(prompts.body(shape, output_tokens=1))
        request = answer.as_request()
        if request.failure.startswith("400") and shape.ignore_eos:
            shape = replace(shape, ignore_eos=False)
            answer = await client.ask(prompts.body(shape, output_tokens=1))
            request = answer.as_request()
            if not request.failure:
                notes.append("the endpoint does not know ignore_eos: answers may be shorter than --output-tokens")
        if request.failure:
            raise refused(endpoint, answer)
        if not request.input_tokens:
            notes.append("the endpoint tells no usage: tokens are counted by events, prompts by words")
            return shape, None
        counted = request.input_tokens
        if abs(counted - wanted) <= max(1, NEAR * wanted) or (counted > wanted and shape.words == 1):
            return shape, counted
        shape = shape.fitted(wanted, counted)
    return shape, counted


def refused(endpoint: Endpoint, answer: Answer) -> ApplianceError:
    """Why there can be no ladder."""
    place = endpoint.place
    where = f"{'https' if place.tls else 'http'}://{place.host}:{place.port}"
    kind, said = answer.as_request().failure, answer.message
    status = answer.head.status if answer.head else 0
    sentence = f"{where} answers {kind}" + (f": {said}" if said else "")
    look = "llm-appliance status" if endpoint.here else ""
    if not status:
        plain = f"--url http://{place.host}:{place.port} where it speaks no TLS"
        return Unreachable(f"{where} does not answer: {kind}", hint=plain if place.tls else look)
    if status == 401 and not endpoint.here:
        return Failed(sentence, hint="" if endpoint.key else f"give a key with --key-file FILE or {KEY_VARIABLE}")
    if status == 401:
        made = f"{KEY_VARIABLE}=$(sudo llm-appliance keys create bench) llm-appliance bench"
        return Failed(sentence, hint=made if not endpoint.key else "llm-appliance keys list")
    if status == 503:
        return Unreachable(sentence, hint=look)
    if status == 404 and endpoint.path == "/v1/completions":
        return Failed(sentence, hint="--chat, if this is a chat model without completions")
    return Failed(sentence)
