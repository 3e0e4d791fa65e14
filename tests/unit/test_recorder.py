from evaluator.exchange.recorder import KEPT_STEPS, Recorder, say


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000_000.0

    def __call__(self) -> float:
        return self.now


def test_the_last_steps_are_kept_and_one_now_and_then_is_shown() -> None:
    clock, shown = Clock(), list[str]()
    recorder = Recorder(now=clock, monotonic=clock)
    recorder.note("stage load")  # nobody can see it yet
    recorder.publish = shown.append
    for batch in range(20):
        recorder.note(f"score batch {batch}")
        clock.now += 1 / 16
    recorder.note("wait for all at done", wait=True)
    assert [one.rpartition(" at ")[0] for one in shown] == [
        # Every 0.25 s: the first that comes after 0.2 s.
        *(f"score batch {batch}" for batch in (0, 4, 8, 12, 16)),
        "wait for all at done",
    ]
    assert len(recorder.steps) == KEPT_STEPS
    assert recorder.steps[-2].what == "score batch 19"
    # 2001-09-09 01:46:40 UTC.
    assert shown[0] == "score batch 0 at 01:46:40Z"
    assert say(recorder.steps[-1]) == "wait for all at done at 01:46:41Z"
