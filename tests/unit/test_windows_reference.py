"""The window machine against the plain loops of the reference, for any length."""

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from evaluator.planning import windows
from evaluator.planning.windows import PrefixPlace, WindowRule, document_windows
from tests.reference import plain_perplexity as plain

NOWHERE, FIRST, EVERY = PrefixPlace.NOWHERE, PrefixPlace.FIRST, PrefixPlace.EVERY
PREFIX = -1
NUM_TOKENS = st.integers(min_value=1, max_value=120)
LENGTHS = st.integers(min_value=3, max_value=40)


def assert_same(num_tokens: int, rule: WindowRule, requests: Iterable[plain.Request]) -> None:
    tokens = list(range(num_tokens))
    ours = [
        ([PREFIX] * w.prefixed + tokens[w.begin : w.end - 1], tokens[w.score_begin : w.end])
        for w in document_windows(0, num_tokens, rule)
    ]
    assert ours == list(requests)


@given(NUM_TOKENS, LENGTHS)
def test_lm_eval(num_tokens: int, length: int) -> None:
    tokens = list(range(num_tokens))
    for place, prefix in ((FIRST, PREFIX), (NOWHERE, None)):
        expected = plain.lm_eval_requests(tokens, length, prefix)
        assert_same(num_tokens, windows.lm_eval(length, place), expected)
    expected = plain.lm_eval_every_requests(tokens, length, PREFIX)
    assert_same(num_tokens, windows.lm_eval(length, EVERY), expected)


@given(NUM_TOKENS, LENGTHS, st.data())
def test_hf_strided(num_tokens: int, length: int, data: st.DataObject) -> None:
    stride = data.draw(st.integers(min_value=1, max_value=length))
    tokens = list(range(num_tokens))
    for place, start in ((NOWHERE, []), (FIRST, [PREFIX])):
        rule = windows.hf_strided(length, stride, place)
        expected = plain.hf_strided_requests(start + tokens, length, stride)
        assert_same(num_tokens, rule, expected)


@given(NUM_TOKENS, LENGTHS, st.booleans())
def test_gptq(num_tokens: int, length: int, keep: bool) -> None:
    tokens = list(range(num_tokens))
    for place, start in ((NOWHERE, []), (FIRST, [PREFIX])):
        rule = windows.gptq(length, place, keep_tail=keep)
        assert_same(num_tokens, rule, plain.gptq_requests(start + tokens, length, keep=keep))


@given(NUM_TOKENS, LENGTHS)
def test_llama_cpp(num_tokens: int, length: int) -> None:
    tokens = list(range(num_tokens))
    rule = windows.llama_cpp(length, NOWHERE, replaces=False)
    assert_same(num_tokens, rule, plain.llama_cpp_requests(tokens, length, None))
    rule = windows.llama_cpp(length, EVERY, replaces=True)
    assert_same(num_tokens, rule, plain.llama_cpp_requests([PREFIX, *tokens], length, PREFIX))
