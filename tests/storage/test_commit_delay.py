"""A commit waits for the senders that were just answered, if the disk is slow and they do send again."""

from storage.commit_delay import CommitDelay

SLOW = 0.010


def on_slow_disk() -> CommitDelay:
    """After many commits of 25 rows on a slow disk, while 25 others waited."""
    delay = CommitDelay()
    for _ in range(50):
        delay.committed(25, disk_seconds=SLOW, waiting=25, now=100.0)
    return delay


def test_a_commit_waits_until_most_of_those_who_were_answered_came_again() -> None:
    delay = on_slow_disk()
    assert delay.until(25, 100.0) is not None
    assert not delay.is_enough(44)
    assert delay.is_enough(45)
    assert delay.until(45, 100.0) is None


def test_a_commit_waits_for_less_than_the_disk_takes_and_at_most_20_ms() -> None:
    delay = on_slow_disk()
    until = delay.until(25, 100.0)
    assert until is not None
    assert 0.005 < until - 100.0 < SLOW
    for _ in range(50):
        delay.committed(25, disk_seconds=1.0, waiting=25, now=100.0)
    assert delay.until(25, 100.0) == 100.02


def test_a_row_that_comes_later_is_committed_at_once() -> None:
    assert on_slow_disk().until(1, 100.008) is None


def test_a_single_sender_never_waits() -> None:
    delay = CommitDelay()
    for _ in range(50):
        delay.committed(1, disk_seconds=SLOW, waiting=0, now=100.0)
    assert delay.until(1, 100.0) is None


def test_on_a_quick_disk_no_commit_waits() -> None:
    delay = CommitDelay()
    for _ in range(50):
        delay.committed(25, disk_seconds=0.0005, waiting=25, now=100.0)
    assert delay.until(25, 100.0) is None


def test_the_first_commit_does_not_wait() -> None:
    assert CommitDelay().until(1, 0.0) is None


def test_after_each_wait_in_vain_twice_as_many_commits_do_not_wait() -> None:
    delay = on_slow_disk()
    skipped: list[int] = []
    for _ in range(9):
        count = 0
        while delay.until(25, 100.0) is None:
            count += 1
        skipped.append(count)
        delay.waited(30)
    assert skipped == [0, 1, 2, 4, 8, 16, 32, 64, 64]
    while delay.until(25, 100.0) is None:
        pass
    delay.waited(50)
    assert delay.until(25, 100.0) is not None, "they came: the next commit waits again"
