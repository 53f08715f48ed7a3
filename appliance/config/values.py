"""One value as TOML gave it, read as its row says: the model's value, or `Wrong` with what would be right."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar, cast

from appliance.config.table import Kind, Row
from appliance.quantity import parse_duration, parse_size

T = TypeVar("T")


class Wrong(ValueError):
    """A value that does not fit its row: a clause about the value, and what would be right.

    `member` is the index or key of the part that is wrong. Where several parts are, `each` holds one Wrong for each.
    """

    def __init__(self, message: str, remedy: str, member: int | str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.member = member
        self.each: tuple[Wrong, ...] = (self,)


def _each(members: Iterable[tuple[int | str, object]], one: Callable[[object], T]) -> tuple[T, ...]:
    """Every member as `one` reads it. Raises a Wrong that holds those of all members."""
    good: list[T] = []
    bad: list[Wrong] = []
    for place, member in members:
        try:
            good.append(one(member))
        except Wrong as wrong:
            bad.append(Wrong(wrong.message, wrong.remedy, place))
    if bad:
        bad[0].each = tuple(bad)
        raise bad[0]
    return tuple(good)


_CONTROL = re.compile(r"[\x00-\x1f\x7f\u0085\u2028\u2029]")
_ADDRESS = re.compile(r"(?:(\d{1,3}(?:\.\d{1,3}){3})|\[([0-9A-Fa-f:.]+)\]):(\d{1,5})")
_SECRET = re.compile(r"(?<=//)[^/@?#]+(?=@)|(?<=[?#]).+", re.DOTALL)  # where a text that should be a URL may hold one
_URL = re.compile(r"https?://(?:[^\s/@?#]+@)?(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(\d{1,5}))?(/[^\s?#]*)?")
_GPU = re.compile(r"(?:GPU|MIG)-[0-9A-Za-z/-]+")
_ENV = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def read(row: Row, value: object) -> object:
    """The model's value. Raises Wrong."""
    if row.word is not None and value == row.word[0] and isinstance(value, str):
        return row.word[1]
    result = _READERS[row.kind](row, value)
    if isinstance(result, (int, float)) and not isinstance(result, bool):
        if row.low is not None and result < row.low:
            raise Wrong(f"{show(value)} is too small", f"at least {spell(row, row.low)}")
        if row.high is not None and result > row.high:
            raise Wrong(f"{show(value)} is too large", f"at most {spell(row, row.high)}")
    return result


def spell(row: Row, value: object) -> str:
    """A value of the model as an operator writes it in TOML."""
    if row.word is not None and value == row.word[1]:
        return f'"{row.word[0]}"'
    if isinstance(value, bool):
        return "true" if value else "false"
    if row.kind == "duration" and isinstance(value, (int, float)):
        return f'"{exact_duration(value)}"'
    if row.kind == "size" and isinstance(value, (int, float)):
        return f'"{_exact_size(int(value))}"'
    return show(value)


def exact_duration(seconds: float) -> str:
    """A duration that reads back as the same number: `90s`, `5m`, `1h`, `90d`, `250ms`."""
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds % size == 0 and (seconds >= 2 * size or seconds == size > 60):
            return f"{seconds / size:.0f}{unit}"
    if 0 < seconds < 1 and float(seconds * 1000).is_integer():
        return f"{seconds * 1000:.0f}ms"
    text = f"{seconds:.9f}".rstrip("0").rstrip(".") if "e" in repr(float(seconds)) else repr(float(seconds))
    return f"{text.removesuffix('.0')}s"


def _exact_size(count: int) -> str:
    for unit, size in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size and count % size == 0:
            return f"{count // size}{unit}"
    return f"{count}B"


def show(value: object) -> str:
    """A TOML value in a message, short."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        text = '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
        text = _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    elif isinstance(value, (list, tuple)):
        text = f"[{', '.join(map(show, value))}]"
    elif isinstance(value, Mapping):
        text = "{}" if not value else f"{{ {', '.join(f'{key} = {show(inner)}' for key, inner in value.items())} }}"
    else:
        text = f"{value:g}" if isinstance(value, float) and value.is_integer() else str(value)
    return text if len(text) <= 70 else f"{text[:66]}..."


def _text(row: Row, value: object) -> str:
    if not isinstance(value, str):
        raise Wrong(f"{show(value)} is not text", f"write it in quotes, like {row.example}")
    if _CONTROL.search(value):
        raise Wrong(f"{show(value)} holds a control character", "write it on one line, without tabs")
    return value


def _bool(row: Row, value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "false"):
        raise Wrong(f"{show(value)} is text", f"write {value.lower()} without quotes")
    choices = f'true, false or "{row.word[0]}"' if row.word else "true or false"
    raise Wrong(f"{show(value)} is neither true nor false", f"write {choices}")


def _int(row: Row, value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    word = f' or "{row.word[0]}"' if row.word and row.word[0] else ""
    if isinstance(value, str) and re.fullmatch(r"-?\d+", value):
        raise Wrong(f"{show(value)} is text", f"write {value} without quotes")
    raise Wrong(f"{show(value)} is not a whole number", f"write a number like {row.example}{word}")


def _duration(row: Row, value: object) -> float:
    word = f' or "{row.word[0]}"' if row.word and row.word[0] else ""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        raise Wrong(f"{show(value)} has no unit", f'write "{show(value)}s" for seconds{word}')
    if not isinstance(value, str):
        raise Wrong(f"{show(value)} is not a duration", f"write it like {row.example}{word}")
    if re.fullmatch(r"\d+(\.\d+)?", value.strip()):
        raise Wrong(f"{show(value)} has no unit", f'write "{value.strip()}s" for seconds{word}')
    try:
        return parse_duration(value)
    except (ValueError, OverflowError):
        raise Wrong(f"{show(value)} is not a duration", f"ms, s, m, h or d, like {row.example}{word}") from None


def _size(row: Row, value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value  # bytes
    word = f' or "{row.word[0]}"' if row.word and row.word[0] else ""
    if not isinstance(value, str):
        raise Wrong(f"{show(value)} is not a size", f"write it like {row.example}{word}")
    try:
        return parse_size(value)
    except (ValueError, OverflowError):
        raise Wrong(f"{show(value)} is not a size", f"KiB, MiB, GiB or TiB, like {row.example}{word}") from None


def _path(row: Row, value: object) -> str:
    text = _text(row, value)
    if text and (not text.startswith("/") or "/../" in f"{text}/"):
        raise Wrong(f"{show(value)} is not an absolute path", f"write it from the root on, like {row.example}")
    return text


def _choice(row: Row, value: object) -> str:
    if value in row.choices:
        return str(value)
    raise Wrong(f"{show(value)} is none of the choices", f"one of {', '.join(map(show, row.choices))}")


def _name(row: Row, value: object) -> str:
    text = _text(row, value)
    if re.fullmatch(r"[a-z0-9][a-z0-9-]{0,62}", text) is None:
        plain = re.sub(r"[^a-z0-9-]+", "-", text.lower()).strip("-")[:63].rstrip("-")
        raise Wrong(
            f"{show(value)} cannot be the name of a unit",
            "lower-case letters, digits and dashes, 63 at most" + (f', like "{plain}"' if plain else ""),
        )
    return text


def _url(row: Row, value: object) -> str:
    text = _text(row, value)
    match = _URL.fullmatch(text)
    if text and (match is None or int(match[1] or 0) > 65535):
        raise Wrong(f"{_show_url(text)} is not a URL", f"http:// or https:// and a host, like {row.example}")
    return text.rstrip("/")


def _show_url(text: str) -> str:
    """A URL, or what should be one, as the journal may have it."""
    return show(_SECRET.sub("***", text))


def _list(row: Row, value: object) -> list[object]:
    if not isinstance(value, (list, tuple)):
        word = f'"{row.word[0]}" or ' if row.word is not None else ""
        remedy = f"write [{show(value)}]" if _fits(row, [value]) else f"like {word}{row.example}"
        raise Wrong(f"{show(value)} is not an array", remedy)
    return list(value)


def _fits(row: Row, value: object) -> bool:
    try:
        _READERS[row.kind](row, value)
    except Wrong:
        return False
    return True


def _urls(row: Row, value: object) -> tuple[str, ...]:
    def one(member: object) -> str:
        url = _url(row, member)
        if not url:
            raise Wrong('"" is not a URL', f"like {row.example}")
        if url.endswith("/v1"):
            shorter = _show_url(url[: -len("/v1")])
            raise Wrong(f"{_show_url(url)} ends in /v1, which is added to it", f"write {shorter}")
        return url

    return _each(enumerate(_list(row, value)), one)


def _texts(row: Row, value: object) -> tuple[str, ...]:
    def one(member: object) -> str:
        text = _text(row, member)
        if not text.strip():
            raise Wrong(f"{show(text)} is empty", f"like {row.example}")
        return text

    return _each(enumerate(_list(row, value)), one)


def _address(row: Row, value: object) -> str:
    text = _text(row, value)
    match = _ADDRESS.fullmatch(text)
    if match and int(match[3]) <= 65535 and _is_ip(match[1] or match[2]):
        return text
    port = re.fullmatch(r"(?:localhost|\*)?:?(\d{1,5})", text)
    right = f'write "127.0.0.1:{port[1]}"' if port else f"IP:PORT or [IPv6]:PORT, like {row.example}"
    if port and text.startswith("*"):
        right = f'write "0.0.0.0:{port[1]}"'
    raise Wrong(f"{show(value)} is not an address with a port", right)


def _is_ip(text: str) -> bool:
    if ":" not in text:
        return all(int(part) <= 255 for part in text.split("."))
    from ipaddress import IPv6Address  # 5 ms that only an IPv6 address costs

    try:
        IPv6Address(text)
    except ValueError:
        return False
    return True


def _addresses(row: Row, value: object) -> tuple[str, ...]:
    addresses = _each(enumerate(_list(row, value)), lambda member: _address(row, member))
    if not addresses:
        raise Wrong("[] leaves nowhere to listen", f"write {show(row.default)}")
    return addresses


def _networks(row: Row, value: object) -> tuple[str, ...]:
    def one(text: str) -> str:
        from ipaddress import ip_network  # costs 5 ms to import

        try:
            ip_network(text)
        except ValueError:
            raise Wrong(f"{show(text)} is not an address or network", f"like {row.example}") from None
        return text

    return _each(enumerate(_texts(row, value)), lambda text: one(str(text)))


def _origins(row: Row, value: object) -> tuple[str, ...]:
    def one(text: str) -> str:
        match = _URL.fullmatch(text)
        if text != "*" and (match is None or match[2]):
            raise Wrong(f"{show(text)} is not an origin", f'scheme and host without a path, like {row.example}, or "*"')
        return text

    return _each(enumerate(_texts(row, value)), lambda text: one(str(text)))


def _gpu(member: object) -> int | str:
    if isinstance(member, int) and not isinstance(member, bool) and 0 <= member < 1024:
        return member
    if isinstance(member, str) and _GPU.fullmatch(member):
        return member
    if isinstance(member, str) and member.isdigit():
        raise Wrong(f"{show(member)} is text", f"write {member} without quotes")
    raise Wrong(f"{show(member)} is no GPU", 'an index like 0, or a UUID like "GPU-..." (nvidia-smi -L)')


def _gpus(row: Row, value: object) -> tuple[int | str, ...]:
    if isinstance(value, str) and value.isdigit():
        raise Wrong(f"{show(value)} is text", f"write [{value}]")
    gpus = _each(enumerate(_list(row, value)), _gpu)
    if len(gpus) != len(set(gpus)):
        raise Wrong(f"{show(value)} names a GPU twice", "name each once")
    if len({type(gpu) for gpu in gpus}) > 1:
        raise Wrong(f"{show(value)} mixes indexes and UUIDs", "write all of them one way")
    return gpus


def _env(row: Row, value: object) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise Wrong(f"{show(value)} is not a table", f"like {row.example}")

    def one(item: object) -> tuple[str, str]:
        name, text = cast("tuple[str, object]", item)
        if _ENV.fullmatch(name) is None:
            raise Wrong(f"{show(name)} cannot be an environment variable", "letters, digits and _")
        if not isinstance(text, str):
            shown = str(int(text)) if isinstance(text, bool) else show(text)
            raise Wrong(f"{show(text)} is not text", f'write {name} = "{shown}"')
        return name, _text(row, text)

    return dict(_each(((str(name), (name, text)) for name, text in value.items()), one))


def _flags(row: Row, value: object) -> dict[str, object]:
    if not isinstance(value, Mapping):
        raise Wrong(f"{show(value)} is not a table", f"write [engine.vllm] below the engine, or {row.example}")
    return dict(value)


_READERS: dict[Kind, Callable[[Row, object], object]] = {
    "bool": _bool, "int": _int, "duration": _duration, "size": _size, "str": _text, "path": _path,
    "choice": _choice, "url": _url, "urls": _urls, "address": _address, "addresses": _addresses,
    "networks": _networks, "origins": _origins, "texts": _texts, "gpus": _gpus, "env": _env, "flags": _flags,
    "name": _name,
}  # fmt: skip
