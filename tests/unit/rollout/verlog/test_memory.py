import pytest

from turnmill.rollout.verlog.memory import Memory, RememberedTurn


def memory_after(num_turns: int, *, text_turns: int, thought_turns: int = 1) -> Memory:
    memory = Memory(text_turns=text_turns, thought_turns=thought_turns)
    memory.begin("o0")
    for turn in range(num_turns):
        memory.remember(response=f"r{turn}", action=f"a{turn}", observation=f"o{turn + 1}")
    return memory


@pytest.mark.feature("Verlog", "window of memory")
def test_a_window_holds_the_newest_turns():
    memory = memory_after(5, text_turns=2)

    assert memory.turns == (RememberedTurn("o3", "r3", "a3"), RememberedTurn("o4", "r4", "a4"))
    assert memory.observation == "o5"


def test_a_window_of_zero_turns_is_empty():
    memory = memory_after(3, text_turns=0)

    assert memory.turns == ()
    assert memory.observation == "o3"


@pytest.mark.feature("Verlog", "memory of thoughts")
def test_the_newest_responses_are_remembered_in_full():
    memory = memory_after(4, text_turns=3, thought_turns=2)

    assert [in_full for _, in_full in memory.turns_with_detail()] == [False, True, True]


def test_an_episode_begins_with_an_empty_memory():
    memory = memory_after(3, text_turns=2)

    memory.begin("elsewhere")

    assert memory.turns == ()
    assert memory.observation == "elsewhere"
