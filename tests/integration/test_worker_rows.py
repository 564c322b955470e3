"""Rows of verl's queue as they are dealt to workers, against what verl's own batch sends them."""

from collections.abc import Iterator

import pytest
import ray
import torch
import transfer_queue as tq
from tensordict import TensorDict
from transfer_queue import BatchMeta, KVBatchMeta
from verl.utils import transferqueue_utils
from verl.utils.transferqueue_utils import kv_batch_meta2batch_meta

from turnmill.training.row_advantages import ADVANTAGE, ROW_VALUES, WorkerRows, to_workers
from turnmill.training.row_places import clear, places_of
from turnmill.training.verl.config import compose_defaults

KEYS = [f"task{number}_0_0" for number in range(7)]


@pytest.fixture(scope="module", autouse=True)
def queue() -> Iterator[None]:
    """The real queue, with rows in another order than that of their keys, and a prompt among them."""
    ray.init(address="local", include_dashboard=False, log_to_driver=False, num_cpus=4)
    settings = compose_defaults().transfer_queue
    settings.enable, settings.backend.SimpleStorage.num_data_storage_units = True, 1
    tq.init(settings)
    for number in reversed(range(len(KEYS))):
        columns = {
            "responses": torch.nested.as_nested_tensor([torch.full((number + 1,), number)], layout=torch.jagged),
            "num_turns": torch.tensor([number]),
        }
        if number:
            columns["some_lack_it"] = torch.zeros(1, 2)
        tq.kv_batch_put(
            keys=[KEYS[number]], partition_id="train", tags=[{"seq_len": number}],
            fields=TensorDict(columns, batch_size=1),
        )  # fmt: skip
        tq.kv_put(key=f"task{number}", partition_id="train", tag={"is_prompt": True})
    yield
    tq.close()
    ray.shutdown()
    transferqueue_utils.TQ_INITIALIZED = False


def batch_of(keys: list[str], **named: object) -> KVBatchMeta:
    tags = [{ADVANTAGE: float(key[4])} for key in keys]
    return KVBatchMeta(keys=keys, tags=tags, partition_id="train", extra_info={"temperature": 0.5}, **named)


def read(part: BatchMeta) -> dict[str, object]:
    data = tq.get_client().get_data(part)
    return {name: [row.tolist() for row in data[name].unbind()] for name in sorted(data.keys())}


@pytest.mark.parametrize("keys", [KEYS, KEYS[5:0:-2]], ids=["a row lacks a column", "all columns, another order"])
@pytest.mark.parametrize("fields", [None, ["responses"]])
def test_workers_get_the_rows_that_verl_sends_them(keys: list[str], fields: list[str] | None):
    batch = batch_of(keys, fields=fields)

    found, expected = to_workers(batch).chunk(3), kv_batch_meta2batch_meta(batch).chunk(3)

    for part, of_verl in zip(found, expected, strict=True):
        assert (part.global_indexes, part.field_names) == (of_verl.global_indexes, of_verl.field_names)
        assert part.production_status.tolist() == of_verl.production_status.tolist()
        assert read(part) == read(of_verl)
        assert part.extra_info["temperature"] == of_verl.extra_info["temperature"]


def test_places_are_known_without_the_shape_of_every_row_unless_rows_differ_in_their_columns():
    places = places_of(batch_of(KEYS[1:]))

    assert places is not None
    assert not any("per_sample_shapes" in field for field in places.field_schema.values())
    assert places_of(batch_of([KEYS[1], KEYS[0]])) is None


def test_each_part_has_the_advantages_of_its_rows_and_no_tags():
    parts = to_workers(batch_of(KEYS)).chunk(3)

    assert [part.extra_info["row_advantages"] for part in parts] == [[0.0, 1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
    assert not any(part.custom_meta for part in parts)


def test_each_part_has_the_values_of_its_rows():
    batch = batch_of(KEYS)
    batch.extra_info[ROW_VALUES] = {"is_compared": [True, False, True, True, False, False, True]}

    parts = to_workers(batch).chunk(3)

    assert [part.extra_info["is_compared"] for part in parts] == [[True, False, True], [True, False], [False, True]]
    assert not any(ROW_VALUES in part.extra_info for part in parts)


def test_columns_of_workers_leave_the_tags_of_their_rows():
    (part,) = to_workers(batch_of(KEYS[2:4])).chunk(1)

    tq.get_client().put(data=TensorDict({"log_probs": torch.ones(2, 1)}, batch_size=2), metadata=part)

    assert tq.kv_list(partition_id="train")["train"][KEYS[3]] == {"seq_len": 3}


def test_rows_are_dropped_from_the_queue_with_their_columns():
    columns = TensorDict({"responses": torch.ones(2, 3)}, batch_size=2)
    tq.kv_batch_put(keys=["a_0_0", "b_0_0"], partition_id="val", tags=[{}, {}], fields=columns)
    dropped = KVBatchMeta(keys=["a_0_0"], tags=[{}], partition_id="val")
    places = kv_batch_meta2batch_meta(dropped)

    clear(dropped)

    assert [*tq.kv_list(partition_id="val")["val"]] == ["b_0_0"]
    with pytest.raises(Exception, match="not found"):
        tq.get_client().get_data(places)


def test_the_queue_is_asked_once_for_the_numbers_of_rows_until_they_are_dropped(monkeypatch: pytest.MonkeyPatch):
    asked: list[int] = []
    retrieve = tq.get_client().kv_retrieve_keys

    def counted(**named: object) -> list[str]:
        asked.append(len(named["global_indexes"]))
        return retrieve(**named)

    monkeypatch.setattr(tq.get_client(), "kv_retrieve_keys", counted)
    columns = TensorDict({"responses": torch.arange(3)[:, None]}, batch_size=3)

    def put(*keys: str) -> KVBatchMeta:
        tq.kv_batch_put(keys=[*keys], partition_id="again", tags=[{}] * 3, fields=columns[: len(keys)])
        return KVBatchMeta(keys=[*keys], tags=[{}] * 3, partition_id="again")

    rows = put("a_0_0", "b_0_0", "c_0_0")
    assert places_of(rows).global_indexes == places_of(rows).global_indexes
    others = KVBatchMeta(keys=rows.keys[1:], tags=rows.tags[1:], partition_id="again")
    assert read(places_of(others)) == {"responses": [[1], [2]]}
    assert len(asked) == 1
    # In another order, and after the rows have gone, whose numbers the queue gives to others.
    assert read(places_of(KVBatchMeta(keys=rows.keys[::-1], tags=rows.tags, partition_id="again"))) == {
        "responses": [[2], [1], [0]]
    }
    clear(rows)
    assert read(places_of(put("f_0_0", "e_0_0", "d_0_0"))) == {"responses": [[0], [1], [2]]}
    assert len(asked) == 4


def test_rows_that_others_have_dropped_have_no_places():
    columns = TensorDict({"responses": torch.ones(2, 3)}, batch_size=2)
    tq.kv_batch_put(keys=["a_0_0", "b_0_0"], partition_id="gone", tags=[{}, {}], fields=columns)
    rows = KVBatchMeta(keys=["a_0_0", "b_0_0"], tags=[{}, {}], partition_id="gone")
    assert places_of(rows) is not None

    tq.kv_clear(keys=["a_0_0"], partition_id="gone")

    assert places_of(rows) is None


def test_rows_in_other_storage_keep_their_shapes_and_what_the_storage_knows_of_them():
    shapes = [(number,) for number in range(5)]
    schema = {"responses": {"dtype": torch.int64, "shape": None, "is_nested": True, "per_sample_shapes": shapes}}
    backend = [{"responses": number} for number in range(5)]
    rows = BatchMeta([*range(5)], ["train"] * 5, schema, _custom_backend_meta=backend)

    found, expected = WorkerRows(rows, {}).chunk(2), rows.chunk(2)

    for part, of_verl in zip(found, expected, strict=True):
        assert part.field_schema == of_verl.field_schema
        assert part._custom_backend_meta == of_verl._custom_backend_meta
