"""What must not be in evidence is taken out of it: keys, tokens, passwords, prompts and completions.

Three nets, each for what the one before lets through: the very values that the configuration holds under secret-looking
names; whatever has the shape of a credential, or stands behind a name that means one; and what stands behind a word
that introduces a prompt. A line is cut at such a word: what follows on it is no evidence that is worth the risk.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping

HIDDEN = "(hidden)"
BLOCK = 128 << 10  # characters
SHORTEST = 5  # a shorter value is a word of any text

_SECRET_WORDS = frozenset(
    {"key", "apikey", "token", "secret", "password", "passwd", "passphrase", "credential", "credentials", "auth",
     "authorization", "bearer", "pat", "cookie"}
)  # fmt: skip
# `token_file` is a path, `eos_token_id` a number, `key_id` public.
_HARMLESS_ENDS = frozenset(
    {"file", "path", "directory", "name", "id", "ids", "type", "count", "len", "length", "limit", "size"}
)
_PATHS = frozenset({"tls_key"})  # a file's name in spite of its own
_PARTS = re.compile(r"[^A-Za-z0-9]+|(?<=[a-z0-9])(?=[A-Z])")
USERINFO = re.compile(r"(?<=://)[^/@\s\"']+(?=@)")
_SHAPES = re.compile(
    r"\bsk-[A-Za-z0-9_\-]{8,}|\bhf_[A-Za-z0-9]{8,}|\bgh[pousr]_[A-Za-z0-9]{16,}|\bgithub_pat_\w{16,}|\bglpat-[\w\-]{16,}"
    r"|\bAKIA[0-9A-Z]{16}\b|\bxox[abeprs]-[\w\-]{8,}|\beyJ[\w\-]{6,}\.[\w\-]{8,}(?:\.[\w\-]*)?"
    r"|(?<=PRIVATE KEY-----)[^-]+"
)
_MARKS = ("sk-", "hf_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "AKIA", "xox", "eyJ",
          "PRIVATE KEY")  # fmt: skip
_BEARER = re.compile(r"(?i)\b(bearer|basic)[ \t]+[\w\-.~+/=]{6,}")
# NAME=value, NAME: value, "name": "value", --name value
_NAMED = re.compile(
    r"(?<![\w\-])(-{0,2})([A-Za-z_][\w\-]{0,80})([\"']?[ \t]*[=:][ \t]*|(?<=[A-Za-z])[ \t]+)([\"']?)"
    r"([^\s\"',;&?}\])]{3,1000})"
)
# A name that may be a secret's, with a value in quotes: that is hidden to its end, whatever stands in it. Quotes in
# JSON in a line have a backslash before them.
_NAMED_QUOTED = re.compile(
    r"(?<![\w\-])(-{1,2})?(?=[\w\-]{0,80}?(?i:key|token|secret|pass|credential|auth|bearer|pat|cookie))"
    r"([A-Za-z_][\w\-]{0,80})(\\*[\"']?[ \t]*[=:][ \t]*|(?(1)[ \t]+|(?!)))"
    r"(\\*[\"'])((?:(?!\4)(?:\\.|.)){1,8000})"
)
_ALWAYS = "prompts?|messages|completions?|input_value|generated_text|prompt_token_ids|output_text"
_QUOTED = (
    "content|text|inputs?|query|documents?|arguments|instructions|system|output|input_text|reasoning|reasoning_content"
    "|thinking|partial_json|system_prompt|user_prompt"
)
_PROMPT = re.compile(
    rf"(?i)(?<![\w\-])[\"']?(?:(?:{_ALWAYS})[\"']?[ \t]*[:=][ \t]*(?=\S)"
    rf"|(?:{_QUOTED})[\"']?[ \t]*[:=][ \t]*(?=[\"'\[{{(]))(?P<rest>.*)"
)
_PROMPT_NAME = re.compile(rf"(?i)(?:{_ALWAYS}|{_QUOTED})")
_FRESH = re.compile(r"(?:\d+\.\d+ )?(?:\([A-Za-z][\w.\-]* pid=\d+\) |(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\b|\[|=== )")


def is_secret_name(name: str) -> bool:
    """Whether a value of this name is to be hidden, by the words that the name is made of."""
    words = [word.lower() for word in _PARTS.split(name) if word]
    return (
        bool(words) and words[-1] not in _HARMLESS_ENDS and name not in _PATHS and not _SECRET_WORDS.isdisjoint(words)
    )


def secrets_in(settings: object, name: str = "") -> frozenset[str]:
    """The values below secret-looking names, and what stands before the `@` of addresses."""
    if isinstance(settings, Mapping):
        return frozenset().union(*(secrets_in(value, str(key)) for key, value in settings.items()))
    if isinstance(settings, (list, tuple)):
        return frozenset().union(*(secrets_in(value, name) for value in settings))
    if not isinstance(settings, str):
        return frozenset()
    found = {part for user in USERINFO.findall(settings) for part in (user, user.partition(":")[2])}
    found |= {settings.strip()} if is_secret_name(name) else set()
    return frozenset(value for value in found if len(value) >= SHORTEST)


class Redactor:
    """Hides, in texts and values, the given secrets and whatever looks like one."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        known = sorted({value for value in secrets if len(value) >= SHORTEST}, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, known))) if known else None

    def text(self, text: str) -> str:
        """A text of lines without what must not be in it."""
        made: list[str] = []
        quote = ""
        for start, end in _blocks(text):
            block = self._known.sub(HIDDEN, text[start:end]) if self._known is not None else text[start:end]
            if quote or _PROMPT.search(block):
                block, quote = _without_prompts(block, quote)
            made.append(_shaped(block))
        return "".join(made)

    def file(self, name: str, text: str) -> str:
        """A file's text; `.json` and `.jsonl` are redacted value by value, so that they stay what they are."""
        if not name.endswith((".json", ".jsonl")):
            return self.text(text)
        made = []
        for document in [text] if name.endswith(".json") else text.splitlines():
            try:
                made.append(json.dumps(self.value(json.loads(document)), ensure_ascii=False))
            except (ValueError, RecursionError):
                made.append(self.text(document))
        return "".join(f"{line}\n" for line in made)

    def value(self, value: object, name: str = "") -> object:
        """A value of JSON or TOML; what stands below a name of a secret or of a prompt is hidden whole."""
        if name and value and _PROMPT_NAME.fullmatch(name) and not isinstance(value, (int, float)):
            return HIDDEN
        if isinstance(value, Mapping):
            return {key: self.value(inner, str(key)) for key, inner in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.value(inner, name) for inner in value]
        if not isinstance(value, str):
            return value
        return HIDDEN if is_secret_name(name) and value else self.text(value)


def _blocks(text: str) -> Iterator[tuple[int, int]]:
    """Where blocks of whole lines begin and end: each is small enough not to hold up other threads."""
    start = 0
    while start < len(text):
        end = text.find("\n", start + BLOCK) + 1 or len(text)
        yield start, end
        start = end


def _without_prompts(block: str, quote: str) -> tuple[str, str]:
    """A block with its lines cut at prompts; `quote` is one that a prompt before it left open, and what it leaves."""
    kept: list[str] = []
    for line in block.split("\n"):
        if quote and not _FRESH.match(line):  # a quoted prompt that goes on over lines
            quote = "" if quote in line else quote
            if not kept or kept[-1] != HIDDEN:
                kept.append(HIDDEN)
            continue
        prompt = _PROMPT.search(line)
        quote = _opened(prompt["rest"]) if prompt is not None else ""
        kept.append(line if prompt is None else line[: prompt.start("rest")] + HIDDEN)
    return "\n".join(kept), quote


def _shaped(text: str) -> str:
    text = USERINFO.sub(HIDDEN, text)
    if any(mark in text for mark in _MARKS):  # the pattern is slow, and what it looks for is rare
        text = _SHAPES.sub(HIDDEN, text)
    text = _BEARER.sub(rf"\1 {HIDDEN}", text)
    return _NAMED.sub(_hide_named, _NAMED_QUOTED.sub(_hide_quoted, text))


def _hide_quoted(found: re.Match[str]) -> str:
    value = found[5]
    hidden = HIDDEN if is_secret_name(found[2]) else _NAMED_QUOTED.sub(_hide_quoted, value)
    return found[0][: -len(value)] + hidden


def _hide_named(found: re.Match[str]) -> str:
    option, name, mark, quote, value = found.groups()
    spaced = not mark.strip(" \t\"'")
    if is_secret_name(name) and (option or not spaced):
        return found[0] if value.startswith(HIDDEN[:-1]) else f"{option}{name}{mark}{quote}{HIDDEN}"
    # `ERROR token=x`: what was taken for a value may hold a name of its own.
    return found[0][: -len(value)] + _NAMED.sub(_hide_named, value)


def _opened(rest: str) -> str:
    """The quote that a value opens and does not close on its line; empty for none."""
    quote = rest.lstrip("[{( ")[:1]
    return quote if quote in ("'", '"') and rest.count(quote) == 1 else ""
