"""From sampled tokens to judged text: bytes, special tokens, ends; the ids themselves are never made anew."""

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, PreTrainedTokenizerFast

from actors.config import VerifierConfig
from actors.prompts import encode_prompts
from actors.settings import stop_token_ids
from actors.verifiers import Verifiers
from store.errors import VergeError
from store.wire import Completion, Problem, RolloutGroup, Span, Verdict, decode_group, encode_group

END = "<|end|>"


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    """One token per byte, as byte-level BPE has before its merges, and an end-of-sequence token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={character: number for number, character in enumerate(alphabet)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(END, special=True)])
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token=END)


@pytest.fixture
def verifiers(monkeypatch: pytest.MonkeyPatch) -> Verifiers:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    return Verifiers(VerifierConfig())


def judge(verifiers: Verifiers, tokenizer: PreTrainedTokenizerFast, problem: Problem, ids: list[int]) -> Verdict:
    async def run() -> Verdict:
        text = tokenizer.decode(ids, skip_special_tokens=True)
        try:
            return (await verifiers.verify(problem, text, "stop" if ids[-1:] == [end_of(tokenizer)] else "length"))[1]
        finally:
            verifiers.close()

    return asyncio.run(run())


def end_of(tokenizer: PreTrainedTokenizerFast) -> int:
    return int(tokenizer.convert_tokens_to_ids(END))


@pytest.mark.parametrize("verifier", ["exact", "python:rough_checks:equal"])
@pytest.mark.parametrize("text", ["né", "日本", "𝛼≤½", "👩‍🔬", "é́"])
def test_multi_byte_text_is_judged_as_it_was_written(
    verifiers: Verifiers, tokenizer: PreTrainedTokenizerFast, verifier: str, text: str
) -> None:
    ids = [*tokenizer.encode(text), end_of(tokenizer)]
    assert len(ids) == len(text.encode()) + 1
    assert judge(verifiers, tokenizer, Problem("p", "?", verifier, text), ids) is Verdict.CORRECT


@pytest.mark.parametrize("verifier", ["exact", "python:rough_checks:equal"])
def test_a_completion_that_ends_inside_a_character_is_wrong_and_its_tokens_survive(
    verifiers: Verifiers, tokenizer: PreTrainedTokenizerFast, verifier: str
) -> None:
    ids = [*tokenizer.encode("日本")[:-1], end_of(tokenizer)]  # the last character lacks a byte
    assert tokenizer.decode(ids, skip_special_tokens=True) == "日�"
    assert tokenizer.encode("日�") != ids[:-1], "encoding the text anew would give other tokens"
    assert judge(verifiers, tokenizer, Problem("p", "?", verifier, "日本"), ids) is Verdict.WRONG
    stored = stored_again(ids)
    assert stored.completions[0].token_ids.tolist() == ids


def stored_again(ids: list[int]) -> RolloutGroup:
    tokens, nothing = np.array(ids, np.int32), np.zeros(0, np.int32)
    completions = tuple(
        Completion(t, np.zeros(len(t), np.float32), (Span(0, 0, len(t)),) if len(t) else (), 0.0, Verdict.WRONG)
        for t in (tokens, nothing)
    )
    return decode_group(encode_group(RolloutGroup("1-1", "p", np.array([1], np.int32), completions)))


def test_an_empty_completion_is_legal_evidence(verifiers: Verifiers, tokenizer: PreTrainedTokenizerFast) -> None:
    problem = Problem("p", "?", "number", 2)
    assert judge(verifiers, tokenizer, problem, [end_of(tokenizer)]) is Verdict.WRONG  # nothing but the end token
    stored = stored_again([5])
    assert [len(item.token_ids) for item in stored.evidence] == [1, 0]
    assert (stored.size, stored.tokens) == (2, 1)


def test_a_special_token_that_was_written_out_is_not_the_token(tokenizer: PreTrainedTokenizerFast) -> None:
    """The policy may write the characters of the end token: text to the verifier, and other ids to the store."""
    written = [token for character in END for token in tokenizer.encode(character)]
    assert end_of(tokenizer) not in written
    assert tokenizer.decode([*written, end_of(tokenizer)], skip_special_tokens=True) == END
    assert tokenizer.encode(END) == [end_of(tokenizer)]  # which is why completions are never encoded from text
    (prompt,) = encode_prompts([Problem("p", "ünï?", "exact", "x")], tokenizer, 64, 4).values()
    assert tokenizer.decode(prompt) == "ünï?"


def test_every_end_that_a_model_names_stops_a_completion(tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    end = end_of(tokenizer)
    assert stop_token_ids(tmp_path, tokenizer) == (end,)
    for named, expected in ((7, (7, end)), ([9, 7, end], (7, 9, end))):
        GenerationConfig(eos_token_id=named).save_pretrained(tmp_path)
        assert stop_token_ids(tmp_path, tokenizer) == expected
    (tmp_path / "generation_config.json").write_text(json.dumps({}))
    without_end = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0})))
    with pytest.raises(VergeError, match="names no end-of-sequence token"):
        stop_token_ids(tmp_path, without_end)
