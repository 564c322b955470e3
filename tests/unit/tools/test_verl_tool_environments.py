import collections
import json

import pytest

from turnmill.tools.verl_tool_environments import pack, unpack

PLAIN = {"trajectory_id": "t", "metadata": {"turns": 1}, "previous_obs": [{"action": "é", "is_valid": True}], "x": None}


@pytest.mark.parametrize(
    "environment",
    [
        PLAIN,
        {1: "a", 2: {3.5: "b"}},
        {"1": "text", 1: "number"},
        {"board": ((0, 1), (2, 3)), "seen": {(0, 1), (2, 3)}, "fixed": frozenset("ab")},
        {(0, 1): b"\x00\xff"},
        {1: 2**70},
        [1, 2.5, float("inf"), True],
    ],
)
def test_an_environment_keeps_its_keys_and_containers(environment):
    unpacked = unpack(pack(environment))

    assert unpacked == environment
    assert repr(unpacked) == repr(environment) or isinstance(environment, dict)


def test_an_environment_that_json_holds_unchanged_is_json():
    assert json.loads(pack(PLAIN)) == PLAIN
    assert pack(collections.defaultdict(int, a=1)) == b'{"a": 1}'


def test_a_dict_of_another_type_keeps_its_integer_keys():
    assert unpack(pack({"n": collections.Counter([3, 3])})) == {"n": {3: 2}}


def test_a_named_tuple_becomes_a_list_as_in_json():
    point = collections.namedtuple("point", "x y")(1, 2)

    assert unpack(pack({"at": point})) == {"at": [1, 2]}


def test_other_objects_are_refused():
    with pytest.raises(TypeError):
        pack({"lock": object()})
