from __future__ import annotations

import sys
from pathlib import Path

import pytest

import rigs.engines
from rigs.engines.base import Engine
from rigs.errors import UnknownNameError
from rigs.plugins import engine_names, load_engine

PLANTED = """\
from rigs.engines.llamacpp import Plugin as Base


class Plugin(Base):
    name = "planted"
"""


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "planted.py").write_text(PLANTED)
    (tmp_path / "_helper.py").write_text("raise AssertionError('no engine: its name begins with _')")
    monkeypatch.setattr(rigs.engines, "__path__", [*rigs.engines.__path__, str(tmp_path)])
    monkeypatch.delitem(sys.modules, "rigs.engines.planted", raising=False)
    return "planted"


def test_a_file_in_the_folder_is_an_engine_and_no_list_names_it(planted: str) -> None:
    assert "llamacpp" in engine_names()
    assert planted in engine_names()
    assert isinstance(load_engine(planted), Engine)
    assert load_engine(planted).name == "planted"


def test_what_engines_share_is_none_of_them(planted: str) -> None:
    assert {"base", "_helper", "_xllamacpp_server"} & set(engine_names()) == set()
    assert engine_names() == sorted(engine_names())


def test_listing_loads_no_engine(planted: str) -> None:
    engine_names()
    assert "rigs.engines.planted" not in sys.modules


@pytest.mark.parametrize("name", ["vlm", "base", "_xllamacpp_server", "", "../errors", "llamacpp.Plugin", "os"])
def test_a_name_that_is_no_engine_is_refused_with_those_there_are(name: str) -> None:
    with pytest.raises(UnknownNameError, match=r"Unknown engine .*\. Available: .*llamacpp") as refused:
        load_engine(name)
    assert repr(name) in str(refused.value)
