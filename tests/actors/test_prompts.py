"""Prompt ids, with real tokenizers made on the spot."""

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from actors.prompts import encode_prompts
from store.errors import VergeError
from store.wire import Message, Problem

TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'assistant' %}{{ raise_exception('no assistant turns') }}{% endif %}"
    "<b>{{ m.content }}{% endfor %}{% if add_generation_prompt %}>{% endif %}"
)


def make_tokenizer(template: str | None = None) -> PreTrainedTokenizerFast:
    """Characters a–e, `?` and `>`, with a beginning-of-text token that the tokenizer puts before plain text."""
    tokenizer = Tokenizer(models.WordLevel({token: i for i, token in enumerate([*"abcde?>", "<b>"])}))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.post_processor = processors.TemplateProcessing(single="<b> $A", special_tokens=[("<b>", 7)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<b>", chat_template=template)


def plain(text: str) -> Problem:
    return Problem("p", text, "exact", "a")


def chat(*messages: tuple[str, str]) -> Problem:
    return Problem("c", tuple(Message(role=role, content=content) for role, content in messages), "exact", "a")


def test_plain_text_gets_the_tokenizers_own_special_tokens_once() -> None:
    ids = encode_prompts([plain("ab?")], make_tokenizer(), 16, 4)["p"]
    assert ids.dtype == np.int32
    assert ids.tolist() == [7, 0, 1, 5]


def test_a_chat_goes_through_the_template_once_with_its_generation_prompt() -> None:
    ids = encode_prompts([chat(("system", "a"), ("user", "b?"))], make_tokenizer(TEMPLATE), 16, 4)["c"]
    assert ids.tolist() == [7, 0, 7, 1, 5, 6]  # <b>a<b>b?> : no second <b> in front


def test_a_prompt_that_just_fits_passes_and_one_more_token_does_not() -> None:
    assert len(encode_prompts([plain("abcde")], make_tokenizer(), 10, 4)["p"]) == 6
    with pytest.raises(VergeError, match=r"problem p does not fit: 7 prompt tokens \+ .*= 4 make 11, but .*= 10"):
        encode_prompts([plain("abcdea")], make_tokenizer(), 10, 4)


def test_what_cannot_be_encoded_is_named() -> None:
    with pytest.raises(VergeError, match="problem c is a chat, but the model's tokenizer has no chat template"):
        encode_prompts([chat(("user", "a"))], make_tokenizer(), 16, 4)
    with pytest.raises(VergeError, match="problem p: the model's tokenizer cannot encode its prompt"):
        encode_prompts([plain("axb")], make_tokenizer(), 16, 4)
    with pytest.raises(VergeError, match="problem c: the model's chat template does not take it: no assistant turns"):
        encode_prompts([chat(("assistant", "a"))], make_tokenizer(TEMPLATE), 16, 4)
    bare = make_tokenizer()
    bare.backend_tokenizer.post_processor = processors.TemplateProcessing(single="$A")
    with pytest.raises(VergeError, match="problem p has an empty prompt"):
        encode_prompts([plain("")], bare, 16, 4)
