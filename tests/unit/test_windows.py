import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator.windows import (
    PrefixPlace,
    Tail,
    Window,
    WindowRule,
    document_windows,
    rolling,
    strided,
)

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


def test_rolling_by_hand() -> None:
    # 10 tokens, 4 at a time: the last window is filled up to the left to 4 inputs.
    windows = cut(10, rolling(4, prefixed=True))
    assert [fed(w) for w in windows] == [["p", 0, 1, 2], [3, 4, 5, 6], [5, 6, 7, 8]]
    assert [(w.score_begin, w.end) for w in windows] == [(0, 4), (4, 8), (8, 10)]
    assert [w.document for w in windows] == [7, 7, 7]


def test_rolling_full_last_window_by_hand() -> None:
    windows = cut(8, rolling(4, prefixed=True))
    assert [fed(w) for w in windows] == [["p", 0, 1, 2], [3, 4, 5, 6]]
    assert scored(windows) == list(range(8))


def test_rolling_short_document_by_hand() -> None:
    assert [fed(w) for w in cut(3, rolling(4, prefixed=True))] == [["p", 0, 1]]
    assert [fed(w) for w in cut(1, rolling(4, prefixed=True))] == [["p"]]


def test_rolling_without_prefix_by_hand() -> None:
    # The first token takes the prefix's place: fed, not scored.
    windows = cut(10, rolling(4, prefixed=False))
    assert [fed(w) for w in windows] == [[0, 1, 2, 3], [4, 5, 6, 7], [5, 6, 7, 8]]
    assert [(w.score_begin, w.end) for w in windows] == [(1, 5), (5, 9), (9, 10)]


def test_strided_by_hand() -> None:
    windows = cut(10, strided(4, 2))
    assert [(w.begin, w.end) for w in windows] == [(0, 4), (2, 6), (4, 8), (6, 10)]
    assert [w.score_begin for w in windows] == [1, 4, 6, 8]
    assert fed(windows[1]) == [2, 3, 4]


def test_strided_short_tail_by_hand() -> None:
    windows = cut(9, strided(4, 2))
    assert [(w.begin, w.end, w.score_begin) for w in windows] == [
        (0, 4, 1),
        (2, 6, 4),
        (4, 8, 6),
        (6, 9, 8),
    ]


def test_strided_without_overlap_leaves_first_tokens_unscored() -> None:
    windows = cut(10, strided(4, 4))
    assert scored(windows) == [1, 2, 3, 5, 6, 7, 9]
    # A last window of one token has nothing to score, and is none.
    assert [(w.begin, w.end) for w in cut(9, strided(4, 4))] == [(0, 4), (4, 8)]


def test_llama_cpp_half_windows_are_parameters_of_the_machine() -> None:
    # n_ctx 8: the first token of a chunk is replaced by BOS, targets 5..7 count, the rest drops.
    rule = WindowRule(span=8, step=8, min_context=5, tail=Tail.DROP, prefix=PrefixPlace.REPLACES)
    windows = cut(19, rule)
    assert [fed(w) for w in windows] == [
        ["p", 1, 2, 3, 4, 5, 6],
        ["p", 9, 10, 11, 12, 13, 14],
    ]
    assert scored(windows) == [5, 6, 7, 13, 14, 15]


def test_gptq_chunks_are_parameters_of_the_machine() -> None:
    windows = cut(11, WindowRule(span=4, step=4, tail=Tail.DROP))
    assert [fed(w) for w in windows] == [[0, 1, 2], [4, 5, 6]]
    assert scored(windows) == [1, 2, 3, 5, 6, 7]


def test_whole_document_is_a_rule_with_a_long_span() -> None:
    rule = WindowRule(span=1 << 20, step=1 << 20, prefix=PrefixPlace.FIRST)
    assert [fed(w) for w in cut(5, rule)] == [["p", 0, 1, 2, 3]]


@given(LENGTHS, WINDOWS)
def test_rolling_scores_every_token_once(num_tokens: int, length: int) -> None:
    windows = cut(num_tokens, rolling(length, prefixed=True))
    assert scored(windows) == list(range(num_tokens))
    assert len(windows) == -(-num_tokens // length)


@given(LENGTHS, WINDOWS)
def test_rolling_without_prefix_scores_all_but_the_first(num_tokens: int, length: int) -> None:
    windows = cut(num_tokens, rolling(length, prefixed=False))
    assert scored(windows) == list(range(1, num_tokens))
    assert not any(w.prefixed for w in windows)


@given(LENGTHS, WINDOWS, st.booleans())
def test_rolling_windows_feed_all_they_can(num_tokens: int, length: int, prefixed: bool) -> None:
    windows = cut(num_tokens, rolling(length, prefixed=prefixed))
    for window in windows if len(windows) > 1 else []:
        assert window.num_inputs == len(fed(window)) == length
    for window in windows[1:-1]:
        # One token of context is carried over.
        assert window.score_begin == window.begin + 1
    for window in windows[-1:] if len(windows) > 1 else []:
        num_new = window.num_scored
        assert contexts([window])[window.score_begin] == length - num_new + 1


@given(LENGTHS, WINDOWS, st.data())
def test_strided_scores_every_token_but_the_first_once(
    num_tokens: int, length: int, data: st.DataObject
) -> None:
    stride = data.draw(st.integers(min_value=1, max_value=length - 1))
    windows = cut(num_tokens, strided(length, stride))
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
