"""Texts: the choice of language, and whether the catalogues are complete."""

from __future__ import annotations

import gettext
import importlib.util
import io
import subprocess
import sys
from pathlib import Path

import pytest
from babel.messages.catalog import Catalog

from headwise import texts
from headwise.errors import UsageError

ROOT = Path(__file__).parent.parent


def _script():
    spec = importlib.util.spec_from_file_location("texts_script", ROOT / "scripts" / "texts.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


script = _script()


def _catalog(**messages: str) -> Catalog:
    catalog = Catalog(locale="zh_CN", fuzzy=False)
    for msgid, text in messages.items():
        catalog.add(msgid, text)
    return catalog


# -- the committed catalogues -------------------------------------------------------------------


@pytest.mark.parametrize("language", script.LANGUAGES)
def test_every_text_is_translated_with_the_same_placeholders(language):
    wanted = script.collect()
    assert len(wanted) > 50, "the texts were not collected"
    assert script.problems(script.read(script.po_path(language)), wanted) == []


@pytest.mark.parametrize("language", script.LANGUAGES)
def test_the_compiled_catalogue_is_that_of_the_source(language):
    path = script.po_path(language)
    assert path.with_suffix(".mo").read_bytes() == script.compiled(script.read(path))


def test_every_language_of_the_program_has_a_catalogue():
    assert tuple(texts.CATALOGUES.values()) == script.LANGUAGES
    assert set(texts.CATALOGUES) == set(texts.LANGUAGES) - {"en"}
    assert set(texts.HTML_LANGUAGES) == set(texts.LANGUAGES)


# -- negative twins: each of these checks can fail ----------------------------------------------


@pytest.mark.parametrize(
    ("translation", "expected"),
    [
        ({}, "not in the catalogue: 'row {n}'"),
        ({"row {n}": ""}, "not translated: 'row {n}'"),
        ({"row {n}": "第 n 行"}, "other placeholders: 'row {n}' -> '第 n 行'"),
        ({"row {n}": "第 {m} 行"}, "other placeholders: 'row {n}' -> '第 {m} 行'"),
        ({"row {n}": "第 {n:.2f} 行"}, "other placeholders: 'row {n}' -> '第 {n:.2f} 行'"),
        ({"row {n}": "第 {n} 行", "old": "旧"}, "no longer in the source: 'old'"),
    ],
)
def test_a_bad_translation_is_reported(translation, expected):
    assert script.problems(_catalog(**translation), _catalog(**{"row {n}": ""})) == [expected]


def test_fuzzy_and_obsolete_translations_are_reported():
    wanted = _catalog(**{"row {n}": ""})
    catalog = _catalog(**{"row {n}": "第 {n} 行"})
    assert script.problems(catalog, wanted) == []
    catalog["row {n}"].flags.add("fuzzy")
    catalog.obsolete["gone"] = catalog["row {n}"]
    assert script.problems(catalog, wanted) == ["marked fuzzy: 'row {n}'", "obsolete: 'gone'"]


def test_a_stale_compiled_catalogue_is_noticed():
    assert script.compiled(_catalog(a="甲")) != script.compiled(_catalog(a="乙"))


def test_texts_are_collected_by_all_four_names(tmp_path):
    (tmp_path / "module.py").write_text(
        '_("one")\ntranslate("two")\nN_("three")\nmark("fo" "ur")\nother("five")\n_(variable)\n'
    )
    collected = {message.id for message in script.collect(tmp_path) if message.id}
    assert collected == {"one", "two", "three", "four"}


def test_the_compiled_form_is_readable_by_the_standard_library():
    mo = gettext.GNUTranslations(io.BytesIO(script.compiled(_catalog(a="甲"))))
    assert mo.gettext("a") == "甲"


# -- the language of the user -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flag", "environ", "expected"),
    [
        ("zh", {"HEADWISE_LANG": "en", "LANG": "en_US.UTF-8"}, "zh"),
        (None, {"HEADWISE_LANG": "zh", "LANG": "en_US.UTF-8"}, "zh"),
        (None, {"LANG": "zh_CN.UTF-8"}, "zh"),
        (None, {"LC_ALL": "C.UTF-8", "LANG": "zh_CN.UTF-8"}, "en"),
        (None, {"LC_MESSAGES": "zh_CN", "LANG": "en_US.UTF-8"}, "zh"),
        (None, {"LANG": "de_DE.UTF-8"}, "en"),
        (None, {"HEADWISE_LANG": ""}, "en"),
        (None, {}, "en"),
        ("zh-Hans", {}, "zh"),
        ("EN", {"LANG": "zh_CN.UTF-8"}, "en"),
    ],
)
def test_choice_of_language(flag, environ, expected):
    assert texts.choose_language(flag, environ) == expected


@pytest.mark.parametrize(
    ("flag", "environ", "source"),
    [("fr", {}, "--lang = fr"), (None, {"HEADWISE_LANG": "fr"}, "HEADWISE_LANG = fr")],
)
def test_an_unknown_language_is_an_error_that_lists_the_known(flag, environ, source):
    with pytest.raises(UsageError, match="language 'fr' is unknown") as caught:
        texts.choose_language(flag, environ)
    assert caught.value.where == source
    assert caught.value.why == "texts exist in en (English), zh (简体中文)"
    assert caught.value.fix == "one of en, zh"


def test_translation_follows_the_language_of_the_block():
    msgid = "one of {codes}"
    assert texts.translate(msgid) == msgid
    with texts.use_language("zh"):
        assert texts.current_language() == "zh"
        assert texts.translate(msgid) != msgid
        assert texts.translate("") == ""
        assert texts.translate("a text that nobody translated") == "a text that nobody translated"
        with texts.use_language("en"):
            assert texts.translate(msgid) == msgid
    assert texts.current_language() == "en"


def test_untranslated_texts_are_counted(tmp_path, monkeypatch):
    messages = [message for message in script.read(script.po_path("zh_CN")) if message.id]
    left = sum(not message.string for message in messages)
    assert texts.untranslated("zh") == (len(messages), left)
    monkeypatch.setattr(texts, "LOCALE_DIRECTORY", tmp_path)
    assert texts.untranslated("zh") == (0, 0)
    folder = tmp_path / "zh_CN" / "LC_MESSAGES"
    folder.mkdir(parents=True)
    script._write(folder / "headwise.po", _catalog(one="", two="二", three=""))
    assert texts.untranslated("zh") == (3, 2)


def test_texts_import_no_heavy_library():
    code = (
        "import sys, headwise.texts;"
        "print([name for name in ('torch', 'babel', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
