import random

from verl.utils.seqlen_balancing import get_seqlen_balanced_partitions

from turnmill.training.batches.balance import MANY_ROWS, balanced_parts


def test_many_rows_are_dealt_so_that_workers_differ_by_one_row_at_most():
    drawn = random.Random(0)
    for num_workers in (1, 2, 3, 8):
        rows = 3 * MANY_ROWS * num_workers
        # Some are much longer than the others, and the longest come last.
        work = sorted(round(1000 / drawn.random() ** 2) for _ in range(rows))

        parts = balanced_parts(work, num_workers)

        sums = [sum(work[row] for row in part) for part in parts]
        assert sorted(row for part in parts for row in part) == list(range(rows))
        assert {len(part) for part in parts} == {rows // num_workers}
        assert all(list(part) == sorted(part) for part in parts)
        assert max(sums) - min(sums) <= max(work)


def test_few_rows_are_divided_by_verl():
    work = [random.Random(number).randrange(1, 10**6) for number in range(4 * (MANY_ROWS - 1))]

    assert balanced_parts(work, 4) == get_seqlen_balanced_partitions(work, k_partitions=4, equal_size=True)


def test_rows_of_all_lengths_give_all_workers_the_same_work():
    work = list(range(4 * MANY_ROWS))

    assert {sum(work[row] for row in part) for part in balanced_parts(work, 4)} == {sum(work) // 4}
