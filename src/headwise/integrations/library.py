"""Transformers as a guest: is it there, and how to keep its own talk out of our output."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterator

from headwise.errors import TargetError
from headwise.texts import translate as _


def require_transformers() -> None:
    """Raise a TargetError that says what to install where transformers is missing."""
    try:
        import transformers  # noqa: F401
    except ImportError as error:
        raise TargetError(
            _("transformers is not installed"),
            fix="pip install 'headwise[hf,models]'",
        ) from error


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep progress bars, hints and warnings of the libraries out of our output."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
