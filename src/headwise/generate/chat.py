"""Chat templates: a small program of the model's makers that turns messages into a prompt.

It comes from strangers, so it runs in Jinja's sandbox, without files, imports or changes to what it
is given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headwise.errors import UsageError
from headwise.texts import translate as _


def render(template: str, messages: Sequence[Mapping[str, str]], **words: Any) -> str:
    """The prompt for some messages, ending where the answer begins.

    Args:
        template: source text.
        messages: each with ``role`` and ``content``.
        words: what the template may also use, such as ``bos_token``.

    Raises:
        UsageError: if the template refuses the messages or is no template.

    Example:
        >>> source = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}{% endfor %}"
        >>> render(source, [{"role": "user", "content": "Hi"}])
        'user: Hi'
    """
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> None:
        raise UsageError(
            _("the chat template refuses these messages"), why=str(message).partition("\n")[0]
        )

    # Whitespace is trimmed as the templates of Hugging Face expect it.
    world = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    world.globals["raise_exception"] = refuse
    try:
        made = world.from_string(template)
        return made.render(messages=list(messages), add_generation_prompt=True, **words)
    except UsageError:
        raise
    except (TemplateError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise UsageError(
            _("the chat template of this model can't be run"),
            why=f"{type(error).__name__}: {error}".partition("\n")[0],
            fix=_("the plain prompt, without --chat"),
        ) from error
