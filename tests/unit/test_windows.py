import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator.planning.windows import (
    PrefixPlace,
    Tail,
    Window,
    WindowRule,
    document_windows,
    gptq,
    hf_strided,
    llama_cpp,
    lm_eval,
    unscored_tokens,
    whole_document,
    why_without_windows,
)

NOWHERE, FIRST, EVERY = PrefixPlace.NOWHERE, PrefixPlace.FIRST, PrefixPlace.EVERY

LENGTHS = st.integers(min_value=0, max_value=120)
WINDOWS = st.integers(min_value=2, max_value=40)


def cut(num_tokens: int, rule: WindowRule) -> list[Window]:
    return list(document_windows(7, num_tokens, rule))


def fed(window: Window) -> list[int | str]:
    """The inputs of a window: positions of the document, `p` for the prefix."""
    return ["p"] * window.prefixed + list(range(window.begin, window.end - 1))


def scored(windows: list[Window]) -> list[int]:
    return [token for w in windows for token in range(w.score_begin, w.end)]


def contexts(windows: list[Window]) -> dict[int, int]:
    """Tokens before each scored token, the prefix counted."""
    return {
        token: token - w.begin + w.prefixed
        for w in windows
        for token in range(w.score_begin, w.end)
    }


def test_lm_eval_by_hand() -> None:
    # 10 tokens, 4 at a time: the last window is filled up to the left to 4 inputs.
    windows = cut(10, lm_eval(4, FIRST))
    assert [fed(w) for w in windows] == [["p", 0, 1, 2], [3, 4, 5, 6], [5, 6, 7, 8]]
    assert [(w.score_begin, w.end) for w in windows] == [(0, 4), (4, 8), (8, 10)]
    assert [w.document for w in windows] == [7, 7, 7]


def test_lm_eval_full_last_window_by_hand() -> None:
    windows = cut(8, lm_eval(4, FIRST))
    assert [fed(w) for w in windows] == [["p", 0, 1, 2], [3, 4, 5, 6]]
    assert scored(windows) == list(range(8))


def test_lm_eval_short_document_by_hand() -> None:
    assert [fed(w) for w in cut(3, lm_eval(4, FIRST))] == [["p", 0, 1]]
    assert [fed(w) for w in cut(1, lm_eval(4, FIRST))] == [["p"]]


def test_lm_eval_without_prefix_by_hand() -> None:
    # The first token takes the prefix's place: fed, not scored.
    windows = cut(10, lm_eval(4, NOWHERE))
    assert [fed(w) for w in windows] == [[0, 1, 2, 3], [4, 5, 6, 7], [5, 6, 7, 8]]
    assert [(w.score_begin, w.end) for w in windows] == [(1, 5), (5, 9), (9, 10)]


def test_hf_strided_by_hand() -> None:
    windows = cut(10, hf_strided(4, 2))
    assert [(w.begin, w.end) for w in windows] == [(0, 4), (2, 6), (4, 8), (6, 10)]
    assert [w.score_begin for w in windows] == [1, 4, 6, 8]
    assert fed(windows[1]) == [2, 3, 4]


def test_hf_strided_short_tail_by_hand() -> None:
    windows = cut(9, hf_strided(4, 2))
    assert [(w.begin, w.end, w.score_begin) for w in windows] == [
        (0, 4, 1),
        (2, 6, 4),
        (4, 8, 6),
        (6, 9, 8),
    ]


def test_hf_strided_without_overlap_leaves_first_tokens_unscored() -> None:
    windows = cut(10, hf_strided(4, 4))
    assert scored(windows) == [1, 2, 3, 5, 6, 7, 9]
    # A last window of one token has nothing to score, and is none.
    assert [(w.begin, w.end) for w in cut(9, hf_strided(4, 4))] == [(0, 4), (4, 8)]


def test_lm_eval_with_a_prefix_in_every_window_by_hand() -> None:
    # The prefix is one of 4 inputs, and one token of context is still carried: 3 new ones a window.
    windows = cut(10, lm_eval(4, EVERY))
    assert [fed(w) for w in windows] == [
        ["p", 0, 1, 2],
        ["p", 3, 4, 5],
        ["p", 6, 7, 8],
    ]
    assert [(w.score_begin, w.end) for w in windows] == [(0, 4), (4, 7), (7, 10)]
    # A short last window is filled up to the left.
    assert [fed(w) for w in cut(8, lm_eval(4, EVERY))] == [
        ["p", 0, 1, 2],
        ["p", 3, 4, 5],
        ["p", 4, 5, 6],
    ]


def test_hf_strided_with_a_prefix_by_hand() -> None:
    # In front of the text it counts as a token of it.
    windows = cut(9, hf_strided(4, 2, FIRST))
    assert [fed(w) for w in windows] == [["p", 0, 1], [1, 2, 3], [3, 4, 5], [5, 6, 7]]
    assert scored(windows) == list(range(9))
    windows = cut(9, hf_strided(4, 2, EVERY))
    assert [fed(w) for w in windows] == [
        ["p", 0, 1],
        ["p", 2, 3],
        ["p", 4, 5],
        ["p", 6, 7],
    ]
    assert [w.score_begin for w in windows] == [0, 3, 5, 7]
    assert scored(windows) == list(range(9))


def test_gptq_by_hand() -> None:
    rule = gptq(4, NOWHERE, keep_tail=False)
    windows = cut(11, rule)
    assert [fed(w) for w in windows] == [[0, 1, 2], [4, 5, 6]]
    assert scored(windows) == [1, 2, 3, 5, 6, 7]
    assert unscored_tokens(11, windows, rule) == {"first_token": 2, "tail": 3}


def test_gptq_with_a_kept_tail_by_hand() -> None:
    rule = gptq(4, NOWHERE, keep_tail=True)
    windows = cut(11, rule)
    assert scored(windows) == [1, 2, 3, 5, 6, 7, 9, 10]
    assert unscored_tokens(11, windows, rule) == {"first_token": 3}
    # A tail of one token has nothing to score.
    assert scored(cut(9, rule)) == [1, 2, 3, 5, 6, 7]


def test_gptq_with_bos_shifts_the_windows_by_one() -> None:
    # The stream is p 0 1 2 | 3 4 5 6 | 7 8 9.
    rule = gptq(4, FIRST, keep_tail=False)
    windows = cut(10, rule)
    assert [fed(w) for w in windows] == [["p", 0, 1], [3, 4, 5]]
    assert scored(windows) == [0, 1, 2, 4, 5, 6]
    assert unscored_tokens(10, windows, rule) == {"first_token": 1, "tail": 3}


def test_gptq_with_a_prefix_in_every_window_scores_all_tokens_of_full_ones() -> None:
    rule = gptq(4, EVERY, keep_tail=False)
    windows = cut(8, rule)
    assert [fed(w) for w in windows] == [["p", 0, 1], ["p", 3, 4]]
    assert scored(windows) == [0, 1, 2, 3, 4, 5]
    assert unscored_tokens(8, windows, rule) == {"tail": 2}


def test_llama_cpp_without_bos_by_hand() -> None:
    # n_ctx 8: logits at 4, 5 and 6 are used, so tokens 5 to 7 of a chunk are scored.
    rule = llama_cpp(8, NOWHERE, replaces=False)
    windows = cut(19, rule)
    assert [fed(w) for w in windows] == [[0, 1, 2, 3, 4, 5, 6], [8, 9, 10, 11, 12, 13, 14]]
    assert scored(windows) == [5, 6, 7, 13, 14, 15]
    assert unscored_tokens(19, windows, rule) == {"first_half": 10, "tail": 3}


def test_llama_cpp_replaces_the_first_token_of_each_chunk_by_hand() -> None:
    # The stream is p 0 .. 6 | 7 .. 14 | ...: the first chunk begins with BOS as it is, the second
    # loses token 7 to it.
    rule = llama_cpp(8, EVERY, replaces=True)
    windows = cut(19, rule)
    assert [fed(w) for w in windows] == [
        ["p", 0, 1, 2, 3, 4, 5],
        ["p", 8, 9, 10, 11, 12, 13],
    ]
    assert scored(windows) == [4, 5, 6, 12, 13, 14]
    assert unscored_tokens(19, windows, rule) == {"first_half": 9, "tail": 4}


def test_llama_cpp_with_bos_first_or_in_front_of_every_window_by_hand() -> None:
    assert [fed(w) for w in cut(19, llama_cpp(8, FIRST, replaces=False))] == [
        ["p", 0, 1, 2, 3, 4, 5],
        [7, 8, 9, 10, 11, 12, 13],
    ]
    assert [fed(w) for w in cut(19, llama_cpp(8, EVERY, replaces=False))] == [
        ["p", 0, 1, 2, 3, 4, 5],
        ["p", 7, 8, 9, 10, 11, 12],
    ]


@pytest.mark.parametrize(("length", "num_scored"), [(512, 255), (2048, 1023), (7, 3)])
def test_llama_cpp_scores_as_many_tokens_as_its_origin(length: int, num_scored: int) -> None:
    (window,) = cut(length, llama_cpp(length, NOWHERE, replaces=False))
    assert window.num_scored == num_scored


def test_a_whole_document_is_one_window_or_none() -> None:
    rule = whole_document(5, FIRST)
    assert [fed(w) for w in cut(5, rule)] == [["p", 0, 1, 2, 3]]
    assert cut(6, rule) == []
    assert why_without_windows(6, rule) == "too_long"
    rule = whole_document(5, NOWHERE)
    assert [fed(w) for w in cut(6, rule)] == [[0, 1, 2, 3, 4]]
    assert unscored_tokens(6, cut(6, rule), rule) == {"first_token": 1}
    assert cut(7, rule) == []
    assert why_without_windows(1, rule) == "too_short"


@given(LENGTHS, WINDOWS)
def test_lm_eval_scores_every_token_once(num_tokens: int, length: int) -> None:
    windows = cut(num_tokens, lm_eval(length, FIRST))
    assert scored(windows) == list(range(num_tokens))
    assert len(windows) == -(-num_tokens // length)


@given(LENGTHS, WINDOWS)
def test_lm_eval_without_prefix_scores_all_but_the_first(num_tokens: int, length: int) -> None:
    windows = cut(num_tokens, lm_eval(length, NOWHERE))
    assert scored(windows) == list(range(1, num_tokens))
    assert not any(w.prefixed for w in windows)


@given(LENGTHS, WINDOWS, st.booleans())
def test_lm_eval_windows_feed_all_they_can(num_tokens: int, length: int, prefixed: bool) -> None:
    windows = cut(num_tokens, lm_eval(length, FIRST if prefixed else NOWHERE))
    for window in windows if len(windows) > 1 else []:
        assert window.num_inputs == len(fed(window)) == length
    for window in windows[1:-1]:
        # One token of context is carried over.
        assert window.score_begin == window.begin + 1
    for window in windows[-1:] if len(windows) > 1 else []:
        num_new = window.num_scored
        assert contexts([window])[window.score_begin] == length - num_new + 1


@given(LENGTHS, WINDOWS, st.data())
def test_hf_strided_scores_every_token_but_the_first_once(
    num_tokens: int, length: int, data: st.DataObject
) -> None:
    stride = data.draw(st.integers(min_value=1, max_value=length - 1))
    windows = cut(num_tokens, hf_strided(length, stride))
    assert scored(windows) == list(range(1, num_tokens))
    for token, context in contexts(windows).items():
        # Every token after the first window sees at least window - stride tokens.
        assert context >= min(token, length - stride)
        assert context <= length - 1


@given(
    LENGTHS,
    st.integers(min_value=2, max_value=30),
    st.sampled_from(Tail),
    st.sampled_from(PrefixPlace),
    st.data(),
)
def test_any_rule_scores_no_token_twice_and_feeds_what_it_needs(
    num_tokens: int, span: int, tail: Tail, prefix: PrefixPlace, data: st.DataObject
) -> None:
    step = data.draw(st.integers(min_value=1, max_value=span))
    min_context = data.draw(st.integers(min_value=1, max_value=span - 1))
    rule = WindowRule(span=span, step=step, min_context=min_context, tail=tail, prefix=prefix)
    windows = cut(num_tokens, rule)
    tokens = scored(windows)
    assert tokens == sorted(set(tokens))
    if windows:
        unscored = unscored_tokens(num_tokens, windows, rule)
        assert sum(unscored.values()) + len(tokens) == num_tokens
        assert all(count > 0 for count in unscored.values())
    for window in windows:
        assert 0 <= window.begin < window.end <= num_tokens or window.prefixed
        assert window.num_scored >= 1
        assert 1 <= window.num_inputs == len(fed(window)) <= span - 1
        # The input at `first_scored_input` is the one right before the first target.
        before = window.score_begin - 1
        expected = before if before >= window.begin else "p"
        assert fed(window)[window.first_scored_input] == expected


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"span": 1, "step": 1}, "span is 1"),
        ({"span": 4, "step": 5}, "step is 5"),
        ({"span": 4, "step": 0}, "step is 0"),
        ({"span": 4, "step": 2, "min_context": 4}, "min_context is 4"),
    ],
    ids=["span", "step above", "step below", "context"],
)
def test_impossible_rules_are_refused(fields: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        WindowRule(**fields)  # type: ignore[arg-type]
