from types import SimpleNamespace

import pytest
import ray

from turnmill.training.verl.placement import this_node


def test_an_actor_of_this_machine_is_on_no_other(monkeypatch: pytest.MonkeyPatch):
    node = "ab" * 28
    monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: node))

    strategy = this_node()

    assert (strategy.node_id, strategy.soft) == (node, False)
