"""Random calls of three servers that crash, repeat calls and answer late, compared with a simple model."""

import asyncio
from dataclasses import dataclass, field
from uuid import uuid4

import pytest
import redis.asyncio
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, multiple, rule, run_state_machine_as_test

from turnmill.core.errors import PoisonCallError, StaleClaimError, StoreError
from turnmill.trajectories.base import CallKey, Change, Claim, Recorded
from turnmill.trajectories.claim_watch import ClaimWatch
from turnmill.trajectories.client import deadline_in
from turnmill.trajectories.keys import Keys
from turnmill.trajectories.one_by_one import OneByOne
from turnmill.trajectories.settings import StoreSettings
from turnmill.trajectories.store import TrajectoryStore

GONE = "gone"
STATEFUL = {"shell": True, "sql": True, "search": False}
# Leases end only when the test ends them.
NEVER = StoreSettings(lease_seconds=1e6)
UNCACHED = StoreSettings(lease_seconds=1e6, cache_bytes=0)

trajectories = st.sampled_from(["a", "b"])
parts = st.dictionaries(st.sampled_from("xyz"), st.binary(max_size=3), max_size=2)
changes = st.builds(Change, parts, st.lists(st.sampled_from("xyz"), max_size=2).map(tuple), st.booleans())


@dataclass
class Model:
    """The expected state of a trajectory."""

    results: dict = field(default_factory=dict)
    states: dict = field(default_factory=dict)
    held: dict = field(default_factory=dict)
    """By tool, or by call for tools without state: the token that may commit, and whether its lease runs."""

    takeovers: dict = field(default_factory=dict)
    """By token: how often the call was taken over."""

    committed: set = field(default_factory=set)

    def finish(self):
        for _, _, call in self.held.values():
            if call is not None:
                self.results.setdefault(call, GONE)
        self.held.clear()
        self.states.clear()


def place(key, tool):
    return tool if STATEFUL[tool] else ("call", key.call_id)


class EndedLeases(ClaimWatch):
    """Leases end only when the test ends them: `end_lease` gives their claims the time 1."""

    def __init__(self):
        super().__init__(NEVER.lease_seconds)
        # Another server may commit a claim here, which the one that began it is not told.
        self.one_by_one = OneByOne(patience_seconds=0)

    def left_seconds(self, stamp):
        return 0.0 if stamp.endswith(" 1") else super().left_seconds(stamp)


class Servers(RuleBasedStateMachine):
    claims = Bundle("claims")

    def __init__(self, url):
        super().__init__()
        self.runner = asyncio.Runner()
        self.run_name = uuid4().hex
        self.stores = [self.runner.run(self.new(url, each)) for each in (NEVER, NEVER, UNCACHED)]
        self.redis = redis.asyncio.Redis.from_url(url)
        self.models = {"a": Model(), "b": Model()}
        self.num_commits = 0

    async def new(self, url, store_settings):
        store = TrajectoryStore.from_url(url, self.run_name, store_settings)
        store._watch = EndedLeases()
        return store

    def teardown(self):
        async def close():
            for name in self.models:
                await self.stores[0].delete(name, deadline=deadline_in(30))
            for store in self.stores:
                await store.close()
            await self.redis.aclose()

        self.runner.run(close())
        self.runner.close()

    def ask(self, server, operation, *arguments, seconds=30, **options):
        async def go():
            return await getattr(self.stores[server], operation)(*arguments, **options, deadline=deadline_in(seconds))

        return self.runner.run(go())

    @rule(
        target=claims,
        server=st.integers(0, 2),
        name=trajectories,
        tool=st.sampled_from([*STATEFUL]),
        call=st.sampled_from([None, "1", "2"]),
    )
    def begin(self, server, name, tool, call):
        model, key, stateful = self.models[name], CallKey(name, call), STATEFUL[tool]
        if call is None and not stateful:
            return multiple()
        expected = model.results.get(call) if call is not None else None
        if expected == GONE:
            with pytest.raises(StaleClaimError):
                self.ask(server, "begin", key, tool, stateful=stateful)
            return multiple()
        if expected is not None:
            assert self.ask(server, "begin", key, tool, stateful=stateful) == Recorded(expected[1])
            return multiple()
        token, runs, holder = model.held.get(place(key, tool), (0, False, None))
        if runs:
            with pytest.raises(StoreError):
                self.ask(server, "begin", key, tool, stateful=stateful, seconds=0.06)
            return multiple()
        # The third server that dies of a call is the last that gets it.
        takeovers = model.takeovers.get(token, 0) + 1 if token and holder == call else 0
        if takeovers == 3:
            with pytest.raises(PoisonCallError):
                self.ask(server, "begin", key, tool, stateful=stateful)
            return multiple()
        claim = self.ask(server, "begin", key, tool, stateful=stateful)
        assert isinstance(claim, Claim)
        model.takeovers[claim.token] = takeovers
        assert claim.token > token
        assert dict(claim.state) == (model.states.get(tool, {}) if stateful else {})
        model.held[place(key, tool)] = (claim.token, True, call)
        return claim

    @rule(server=st.integers(0, 2), claim=claims, change=changes, finishes=st.integers(0, 9).map(lambda n: n == 0))
    def commit(self, server, claim, change, finishes):
        """Commit from any server: only the claim matters, not the server that began the call."""
        key, tool = claim.key, claim.tool
        model = self.models[key.trajectory_id]
        self.num_commits += 1
        result = b"result %d" % self.num_commits
        change = change if claim.stateful else None
        token, _, _ = model.held.get(place(key, tool), (0, False, None))
        arguments = (claim, result, change)
        if token != claim.token:
            recorded = model.results.get(key.call_id, GONE)[0] if key.call_id is not None else None
            if recorded == claim.token or claim.token in model.committed:
                self.ask(server, "commit", *arguments, finishes=finishes)
            else:
                with pytest.raises(StaleClaimError):
                    self.ask(server, "commit", *arguments, finishes=finishes)
            return
        if key.call_id in model.results:
            # Another tool has executed the call of this id.
            with pytest.raises(StaleClaimError):
                self.ask(server, "commit", *arguments, finishes=finishes)
            del model.held[place(key, tool)]
            return
        self.ask(server, "commit", *arguments, finishes=finishes)
        del model.held[place(key, tool)]
        if finishes:
            model.finish()
        elif change is not None:
            state = {} if change.forget else model.states.get(tool, {})
            state = {name: value for name, value in state.items() if name not in change.removed}
            model.states[tool] = state | change.written
        if key.call_id is None:
            model.committed.add(claim.token)
        else:
            model.results[key.call_id] = (claim.token, result)

    @rule(server=st.integers(0, 2), claim=claims)
    def release(self, server, claim):
        self.ask(server, "release", claim)

        model, where = self.models[claim.key.trajectory_id], place(claim.key, claim.tool)
        if model.held.get(where, (0,))[0] == claim.token:
            del model.held[where]

    @rule(claim=claims)
    def crash(self, claim):
        """End the lease of a claim, as after the death of its server."""
        model, where = self.models[claim.key.trajectory_id], place(claim.key, claim.tool)
        token, _, call = model.held.get(where, (0, False, None))
        if token != claim.token:
            return
        model.held[where] = (token, False, call)
        name = f"lock {claim.tool}" if claim.stateful else f"claim {claim.key.call_id}"
        self.runner.run(self.end_lease(Keys(self.run_name).trajectory(claim.key.trajectory_id), name))

    async def end_lease(self, key, name):
        token, _, rest = (await self.redis.hget(key, name)).split(b" ", 2)
        await self.redis.hset(key, name, b" ".join([token, b"1", rest]))

    @rule(server=st.integers(0, 2), name=trajectories)
    def finish(self, server, name):
        self.ask(server, "finish", name)

        self.models[name].finish()

    @rule(server=st.integers(0, 2), name=trajectories)
    def delete(self, server, name):
        self.ask(server, "delete", name)

        self.models[name] = Model()

    @rule()
    def sizes_add_up(self):
        for name, model in self.models.items():
            expected = sum(
                len(part) + len(value) for state in model.states.values() for part, value in state.items()
            ) + sum(len(call) + len(known[1]) for call, known in model.results.items() if known != GONE)
            key = Keys(self.run_name).trajectory(name)
            assert int(self.runner.run(self.bytes_of(key)) or 0) == expected

    async def bytes_of(self, key):
        return await self.redis.hget(key, "bytes")


def test_servers_behave_like_the_model(redis_url):
    run_state_machine_as_test(
        lambda: Servers(redis_url),
        settings=settings(
            max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
