"""Ways to damage a valid checkpoint, drawn from a seeded generator.

Some know nothing of formats (bits flipped, ends cut, runs moved); others write exactly what a
reader must not trust: counts, lengths, shapes and places, entries twice, JSON nested deep.
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from typing import Any

from tests.checkpoints.samples import Sample, pack_safetensors

Bytes = Callable[[bytes, random.Random], bytes]

FORGED = (
    0, 1, 2, 3, 5, 7, 8, 31, 33, 64, 255, 2**16, 2**20, 2**28, 2**31 - 1, 2**31, 2**32 - 1, 2**32,
    2**33, 2**40, 2**59, 2**61, 2**62, 2**63 - 1, 2**63, 2**64 - 32, 2**64 - 1,
)  # fmt: skip


def forged(content: bytes, rng: random.Random) -> int:
    """A number that a reader must not trust, some near the size of the file."""
    near = (len(content), len(content) - 1, len(content) + 1, len(content) * 2, len(content) // 2)
    return rng.choice(FORGED + near)


# -- any bytes ----------------------------------------------------------------------------------


def _run(content: bytes, rng: random.Random) -> tuple[int, int]:
    start = rng.randrange(len(content) + 1)
    return start, min(len(content), start + rng.choice((1, 4, 8, 16, 64, 300)))


def flip_bits(content: bytes, rng: random.Random) -> bytes:
    out = bytearray(content)
    # Half of them among the first bytes, where the counts are.
    for _flip in range(rng.randint(1, 6)):
        at = rng.randrange(min(len(out), rng.choice((16, 64, 400, len(out)))))
        out[at] ^= 1 << rng.randrange(8)
    return bytes(out)


def cut(content: bytes, rng: random.Random) -> bytes:
    return content[: rng.randrange(len(content))]


def grow(content: bytes, rng: random.Random) -> bytes:
    return content + rng.randbytes(rng.choice((1, 8, 32, 1000)))


def fill_run(content: bytes, rng: random.Random) -> bytes:
    start, end = _run(content, rng)
    return (
        content[:start] + rng.choice((b"\0", b"\xff", b"[", b'"')) * (end - start) + content[end:]
    )


def repeat_run(content: bytes, rng: random.Random) -> bytes:
    start, end = _run(content, rng)
    return content[:end] + content[start:end] * rng.choice((1, 2, 50)) + content[end:]


def drop_run(content: bytes, rng: random.Random) -> bytes:
    start, end = _run(content, rng)
    return content[:start] + content[end:]


def swap_runs(content: bytes, rng: random.Random) -> bytes:
    out, width = bytearray(content), rng.choice((1, 4, 8, 24))
    one, two = rng.randrange(len(out) - width), rng.randrange(len(out) - width)
    out[one : one + width], out[two : two + width] = out[two : two + width], out[one : one + width]
    return bytes(out)


def forge_eight(content: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(content) - 8)
    return content[:at] + struct.pack("<Q", forged(content, rng) % 2**64) + content[at + 8 :]


def replace_all(content: bytes, rng: random.Random) -> bytes:
    return rng.choice((b"", b"GGUF", b"\0" * 64, b"{}", b"[]", rng.randbytes(200), content[:8]))


ANY: tuple[Bytes, ...] = (
    flip_bits, cut, grow, fill_run, repeat_run, drop_run, swap_runs, forge_eight, replace_all,
)  # fmt: skip


# -- GGUF ---------------------------------------------------------------------------------------


def gguf_field(sample: Sample, content: bytes, rng: random.Random) -> bytes:
    """One number forged; each role is as likely as another."""
    role = rng.choice(sorted({field.role for field in sample.fields}))
    field = rng.choice([field for field in sample.fields if field.role == role])
    if rng.random() < 0.4:  # near what it was
        was = int.from_bytes(content[field.start : field.start + field.width], "little")
        value = was + rng.choice((-32, -1, 1, 2, 32)) if rng.random() < 0.5 else was * 2
    else:
        value = forged(content, rng)
    written = (value % 2 ** (8 * field.width)).to_bytes(field.width, "little")
    return content[: field.start] + written + content[field.start + field.width :]


def gguf_swap(sample: Sample, content: bytes, rng: random.Random) -> bytes:
    """Two numbers of one width exchanged."""
    one = rng.choice(sample.fields)
    two = rng.choice([field for field in sample.fields if field.width == one.width])
    out = bytearray(content)
    place_one, place_two = (slice(f.start, f.start + f.width) for f in (one, two))
    out[place_one], out[place_two] = content[place_two], content[place_one]
    return bytes(out)


def gguf_insert(sample: Sample, content: bytes, rng: random.Random) -> bytes:
    """One more pair of metadata, with the count set right: lists in lists, a key twice, NaN."""
    key = rng.choice((b"new", b"general.architecture", b"llama.block_count", b"\xff\xfe", b""))
    deep = struct.pack("<IQ", 9, 1) * rng.choice((1, 3, 4, 50, 3000)) + struct.pack("<IQ", 4, 0)
    values = (
        (9, deep),
        (6, struct.pack("<f", float("nan"))),
        (7, b"\x02"),
        (9, struct.pack("<IQ", 8, 2**61)),
        (9, struct.pack("<IQ", 9, forged(content, rng) % 2**64)),
        (9, struct.pack("<IQ", 0, 200) + bytes(200)),
        (13, b""),
        (8, struct.pack("<Q", 2) + b"\xc3("),
    )
    kind, value = rng.choice(values)
    pair = struct.pack("<Q", len(key)) + key + struct.pack("<I", kind) + value
    count = next(field for field in sample.fields if field.role == "pair count")
    was = int.from_bytes(content[count.start : count.start + 8], "little")
    return content[: count.start] + struct.pack("<Q", was + 1) + pair + content[count.start + 8 :]


# -- safetensors --------------------------------------------------------------------------------

ODD: tuple[Any, ...] = (
    float("nan"), float("inf"), -1, 1.0, "3", None, True, [], [1], {}, 2**31, 2**62, 2**63, 2**64,
    10**30, "F32", "F64", "BF16", "I8", "Q4_1", "F8_E4M3", 0, 1,
)  # fmt: skip


def safetensors_entry(_sample: Sample, content: bytes, rng: random.Random) -> bytes:
    """One entry of the header changed, the rest as it was."""
    length = int.from_bytes(content[:8], "little")
    header, data = json.loads(content[8 : 8 + length]), content[8 + length :]
    name = rng.choice([name for name in header if name != "__metadata__"])
    entry = header[name]
    change = rng.randrange(9)
    if change == 0:
        entry[rng.choice(sorted(entry))] = rng.choice(ODD)
    elif change == 1:
        entry["shape"] = [rng.choice(ODD) for _axis in range(rng.randint(1, 5))]
    elif change == 2:
        entry["data_offsets"][rng.randrange(2)] = rng.choice((*ODD, forged(content, rng)))
    elif change == 3:
        entry["data_offsets"].reverse()
    elif change == 4:
        entry["shape"].reverse()
    elif change == 5:
        other = rng.choice([name for name in header if name != "__metadata__"])
        header[name], header[other] = header[other], header[name]
    elif change == 6:
        header["another"] = entry  # the same data twice
    elif change == 7:
        header["__metadata__"] = rng.choice(ODD)
    else:
        del header[name]
    return pack_safetensors(json.dumps(header).encode(), data)


def safetensors_text(_sample: Sample, content: bytes, rng: random.Random) -> bytes:
    """The text of the header changed: a name twice, deep lists, spaces, many small lists."""
    length = int.from_bytes(content[:8], "little")
    header, data = content[8 : 8 + length], content[8 + length :]
    first = b'"embed.weight": {"dtype": "F32", "shape": [7, 4], "data_offsets": [0, 112]}, '
    inserted = rng.choice(
        (
            first,
            b'"deep": ' + b"[" * 100_000 + b"]" * 100_000 + b", ",
            b'"deep": ' + b'{"a":' * 5000 + b"0" + b"}" * 5000 + b", ",
            b'"wide": [' + b"[]," * 20_000 + b"[]], ",
            b'"digits": ' + b"9" * 6000 + b", ",
            b'"open": "' + b'\\"' * 5000 + b", ",
            b" " * 1000,
        )
    )
    header = header[:1] + inserted + header[1:] + rng.choice((b"", b" " * 7, b"x"))
    return pack_safetensors(header, data)


def safetensors_length(_sample: Sample, content: bytes, rng: random.Random) -> bytes:
    return (forged(content, rng) % 2**64).to_bytes(8, "little") + content[8:]


# -- JSON ---------------------------------------------------------------------------------------


def json_value(_sample: Sample, content: bytes, rng: random.Random) -> bytes:
    """Some value of an object replaced, at any depth."""
    parsed = json.loads(content)
    places: list[tuple[Any, Any]] = []

    def visit(node: Any) -> None:
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            places.append((node, key))
            if isinstance(value, (dict, list)):
                visit(value)

    visit(parsed)
    node, key = rng.choice(places)
    names = ("../config.json", "/etc/hostname", "config.json", "", ".", "..", "a" * 5000, "\0")
    node[key] = rng.choice((*ODD, *names, {"a": [{}] * 3}))
    return json.dumps(parsed).encode()


def json_text(_sample: Sample, content: bytes, rng: random.Random) -> bytes:
    """The text of an object changed: deep, wide, a name twice, numbers without end."""
    choices = (
        b'{"a":' * 30_000 + b"1" + b"}" * 30_000,
        b"[" * 200_000,
        b'{"a": [' + b"{}," * 50_000 + b"{}]}",
        b'{"a": "' + b'\\"' * 20_000,
        b'{"a": ' + b"1" * 5000 + b"}",
        b'{"a": 1e999}',
        b'{"a": -Infinity}',
        b"[1, 2]",
        b'"text"',
        b"null",
        b"\xef\xbb\xbf" + content,
        b"\xff\xfe" + content,
        content[:-1] + b', "model_type": "gpt2"}',
        content[:-1] + b', "weight_map": {}}',
        content + content,
        content.decode().encode("utf-16"),
        b'{"pad": "' + b"x" * 2**22 + b'"}',
        b" " * 3000 + content,
    )
    return rng.choice(choices)


KNOWING = {
    "gguf": (gguf_field, gguf_swap, gguf_insert),
    "safetensors": (safetensors_entry, safetensors_text, safetensors_length),
    "json": (json_value, json_text),
    "state-dict": (),
}


def mutate(sample: Sample, rng: random.Random) -> tuple[str, str, bytes]:
    """A damaged file of a checkpoint: which mutation, which file, its new content."""
    name = rng.choice(sample.target)
    suffix = name.rpartition(".")[2]
    knowing = KNOWING[{"pt": "state-dict"}.get(suffix, suffix)]
    content = sample.files[name]
    if knowing and rng.random() < 0.6:
        knows = rng.choice(knowing)
        return knows.__name__, name, knows(sample, content, rng)
    for _more in range(rng.choice((1, 1, 1, 2, 3))):
        way = rng.choice(ANY)
        content = way(content, rng) if len(content) > 32 else content
    return way.__name__, name, content
