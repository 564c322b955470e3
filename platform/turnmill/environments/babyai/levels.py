"""BabyAI levels: five goals in one or two rooms, and all levels that minigrid registers."""

import re
from collections.abc import Callable
from functools import cache
from typing import Literal

import gymnasium
import minigrid  # noqa: F401  (registers the levels)
from gymnasium.envs.registration import load_env_creator
from minigrid.core.constants import COLOR_NAMES
from minigrid.envs.babyai.core.roomgrid_level import RoomGridLevel
from minigrid.envs.babyai.core.verifier import (
    AfterInstr,
    BeforeInstr,
    GoToInstr,
    Instr,
    ObjDesc,
    OpenInstr,
    PickupInstr,
    PutNextInstr,
)

from turnmill.core.errors import SettingsError
from turnmill.core.lookup import suggestion

GOALS = ("goto", "pickup", "open", "putnext", "pick_up_seq_go_to")
"""Tasks of turnmill's own, each with one kind of goal."""

Objects = Literal["training", "held_out", "all"]
"""Split of the objects that goals may be about."""

ObjectKind = tuple[str, str]
"""Type and colour of an object."""

HELD_OUT: frozenset[ObjectKind] = frozenset(
    {("box", "yellow"), ("key", "red"), ("ball", "green"), ("door", "red"), ("door", "grey")}
)
"""Objects that never occur in training, to measure generalization."""

_ROOM_SIZE = 8


class GoalLevel(RoomGridLevel):
    """One kind of goal in one room; `open` has a second room behind a locked door."""

    def __init__(self, goal: str, num_dists: int, objects: Objects, max_steps: int) -> None:
        self.goal = goal
        self.num_dists = num_dists
        self.objects: Objects = objects
        super().__init__(room_size=_ROOM_SIZE, num_rows=1, num_cols=2 if goal == "open" else 1, max_steps=max_steps)

    def gen_mission(self) -> None:
        """Place the objects and set the instruction; minigrid calls this at every reset."""
        if self.goal == "open":
            self.instrs: Instr = self._behind_a_locked_door()
            return
        pairs = self.goal in ("putnext", "pick_up_seq_go_to")
        subjects = self._put_objects(2 if pairs else 1)
        self.place_agent()
        self.check_objs_reachable()
        self.instrs = self._instruction(subjects)

    def _behind_a_locked_door(self) -> Instr:
        colours = [colour for kind, colour in _kinds(("door",), self.objects)]
        door, _ = self.add_door(0, 0, 0, color=self._rand_elem(colours), locked=True)
        self.add_object(0, 0, "key", door.color)
        self.place_agent(0, 0)
        return OpenInstr(ObjDesc("door", door.color))

    def _put_objects(self, num_subjects: int) -> list[ObjDesc]:
        """Place the objects of the goal, then the distractors; no two are of the same type and colour."""
        subjects = list(self._rand_subset(_kinds(("key", "ball", "box"), self.objects), num_subjects))
        distractors: Objects = "all" if self.objects == "all" else "training"
        others = [kind for kind in _kinds(("key", "ball", "box"), distractors) if kind not in subjects]
        for kind, colour in [*subjects, *self._rand_subset(others, self.num_dists)]:
            self.add_object(0, 0, kind, colour)
        return [ObjDesc(kind, colour) for kind, colour in subjects]

    def _instruction(self, subjects: list[ObjDesc]) -> Instr:
        if self.goal == "goto":
            return GoToInstr(subjects[0])
        if self.goal == "pickup":
            return PickupInstr(subjects[0])
        if self.goal == "putnext":
            return PutNextInstr(*subjects)
        pick_up, go_to = PickupInstr(subjects[0]), GoToInstr(subjects[1])
        return BeforeInstr(pick_up, go_to) if self._rand_bool() else AfterInstr(go_to, pick_up)


def make_level(task: str, *, num_dists: int, objects: Objects, max_steps: int) -> RoomGridLevel:
    """Create a fresh level for a goal or for a registered level."""
    if task in GOALS:
        return GoalLevel(task, num_dists, objects, max_steps)
    specification = gymnasium.spec(level_id(task))
    entry_point = specification.entry_point
    make: Callable[..., RoomGridLevel] = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
    return make(**{**specification.kwargs, "max_steps": max_steps})


def level_id(task: str) -> str:
    """Return the id of a registered level: `BabyAI-GoToObj-v0` for `GoToObj`. Raises SettingsError if there is none."""
    level = registered_levels().get(task)
    if level is None:
        known = [*GOALS, *(name for name in registered_levels() if not name.startswith("BabyAI-"))]
        # The name of the original: BabyAI-MixedTrainLocal-v0/goto.
        if (goal := task.rpartition("/")[2]) in GOALS:
            raise SettingsError(f"environment.task: babyai has no task {task!r}. Its name here is {goal!r}.")
        raise SettingsError(f"environment.task: babyai has no task {task!r}. {suggestion(task, known)}")
    return level


@cache
def registered_levels() -> dict[str, str]:
    """Return the ids of all registered levels by id and by short name; a short name means the latest version."""
    levels: dict[str, str] = {}
    for name in sorted(name for name in gymnasium.registry if name.startswith("BabyAI-")):
        levels[name] = name
        levels[re.sub(r"^BabyAI-|-v\d+$", "", name)] = name
    return levels


def _kinds(types: tuple[str, ...], objects: Objects) -> list[ObjectKind]:
    kinds = [(kind, colour) for kind in types for colour in COLOR_NAMES]
    if objects == "all":
        return kinds
    return [kind for kind in kinds if (kind in HELD_OUT) == (objects == "held_out")]
