"""The gloo transfer of weights between processes, for which threads stand in."""

import asyncio
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from verl.checkpoint_engine.base import TensorMeta

from turnmill.training.verl.weight_transfer import GlooWeights, _decode

BUCKET_BYTES = 4096


@pytest.fixture
def run_concurrently() -> Iterator[Callable[..., list[Any]]]:
    """Call functions in separate threads; return their results or errors."""
    with ThreadPoolExecutor(8) as threads:

        def run(*functions: Callable[[], Any]) -> list[Any]:
            futures = [threads.submit(function) for function in functions]
            return [future.exception(timeout=60) or future.result() for future in futures]

        yield run


def weights() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {
        "odd": torch.rand(3).to(torch.bfloat16),
        "small": torch.rand(7, 5),
        "larger than a bucket": torch.rand(60, 70),
        "last": torch.arange(4),
    }


def connected(
    run_concurrently: Callable[..., list[Any]], *, num_training: int = 1, seconds: float = 30
) -> list[GlooWeights]:
    """Connect training processes and two receivers as verl does."""
    ends = [GlooWeights(BUCKET_BYTES, is_master=rank == 0, timeout_seconds=seconds) for rank in range(num_training)]
    ends += [GlooWeights(BUCKET_BYTES, timeout_seconds=seconds) for _ in range(2)]
    return connect(run_concurrently, ends, num_training=num_training)


def connect(
    run_concurrently: Callable[..., list[Any]], ends: list[GlooWeights], *, num_training: int = 1
) -> list[GlooWeights]:
    """Connect training processes and the receivers after them."""
    num_receivers = len(ends) - num_training
    senders, receivers = GlooWeights.build_topology(num_training, num_receivers, [end.prepare() for end in ends])
    arguments = [
        {name: values[i] for name, values in part.items()}
        for part, size in ((senders, num_training), (receivers, num_receivers))
        for i in range(size)
    ]
    errors = run_concurrently(
        *(lambda e=end, a=each: e.init_process_group(**a) for end, each in zip(ends, arguments, strict=True))
    )
    assert errors == [None] * len(ends)
    return ends


def send(end: GlooWeights) -> Callable[[], None]:
    return lambda: asyncio.run(end.send_weights(iter(weights().items())))


def receive(end: GlooWeights) -> Callable[[], dict[str, torch.Tensor]]:
    async def all_weights() -> dict[str, torch.Tensor]:
        return {name: weight.clone() async for name, weight in end.receive_weights()}

    return lambda: asyncio.run(all_weights())


def test_every_receiver_gets_the_weights_in_every_sync(run_concurrently):
    for _ in range(2):
        sender, *receivers = connected(run_concurrently)

        _, *received = run_concurrently(send(sender), *map(receive, receivers))

        for each in received:
            assert list(each) == list(weights())
            for name, weight in weights().items():
                torch.testing.assert_close(each[name], weight, rtol=0, atol=0)
        for end in (sender, *receivers):
            end.finalize()


def test_training_processes_other_than_the_first_gather_weights_and_send_nothing(run_concurrently):
    sender, other, *receivers = connected(run_concurrently, num_training=2)
    gathered = iter(weights().items())

    _, _, *received = run_concurrently(
        send(sender), lambda: asyncio.run(other.send_weights(gathered)), *map(receive, receivers)
    )

    assert next(gathered, None) is None
    assert [list(each) for each in received] == [list(weights())] * 2


def test_a_receiver_that_disconnects_is_an_error(run_concurrently):
    sender, first, second = connected(run_concurrently, seconds=3)
    second.finalize()

    errors = run_concurrently(send(sender), receive(first))

    assert any(isinstance(error, RuntimeError) for error in errors)


def test_a_receiver_that_never_connects_is_an_error_at_the_timeout():
    sender = GlooWeights(BUCKET_BYTES, is_master=True, timeout_seconds=1)
    place = sender.prepare()

    with pytest.raises(RuntimeError):
        sender.init_process_group(0, 2, place)


def test_the_next_transfer_succeeds_after_a_receiver_has_disconnected(run_concurrently):
    # The timeout is so long that the wait of the first receiver has to end otherwise.
    sender, other, first, second = connected(run_concurrently, num_training=2, seconds=300)
    second.finalize()
    sent, gathered = iter(weights().items()), iter(weights().items())

    failure, *_ = run_concurrently(
        lambda: asyncio.run(sender.send_weights(sent)),
        lambda: asyncio.run(other.send_weights(gathered)),
        receive(first),
    )

    assert isinstance(failure, RuntimeError)
    # Gathering a weight takes all training processes: none may stop in the middle.
    assert next(sent, None) is next(gathered, None) is None
    assert sender.is_idle()
    connect(run_concurrently, [sender, other, first], num_training=2)
    _, _, received = run_concurrently(send(sender), send(other), receive(first))
    assert list(received) == list(weights())


def test_an_engine_receives_no_weights_of_a_failed_transfer(run_concurrently):
    sender, first, second = connected(run_concurrently, seconds=3)
    read: list[str] = []

    async def read_all() -> None:
        async for name, _ in first.receive_weights():
            read.append(name)

    def fail_after_a_bucket() -> None:
        weight = torch.zeros(8, dtype=torch.uint8)
        meta = TensorMeta(name="w", shape=torch.Size([8]), dtype=torch.uint8, chunk_offset=0, chunk_size=8, offset=None)
        assert sender._connection is not None
        sender._send(sender._connection, [(meta, weight)])
        sender.finalize()

    _, error, _ = run_concurrently(fail_after_a_bucket, lambda: asyncio.run(read_all()), receive(second))

    assert isinstance(error, RuntimeError)
    assert read == []


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (pickle.dumps([1]), "can't decode"),
        (b'[["w", [1], "load", 0, 4]]', "'load' is no type"),
        (b'[["w", [1], "", 0, 4]]', "'' is no type"),
        (b"{", "property name"),
    ],
)
def test_a_message_that_names_no_tensors_is_refused(message: bytes, why: str):
    with pytest.raises(ValueError, match=why):
        _decode(message)
