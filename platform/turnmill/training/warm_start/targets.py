"""Target distributions of demonstrated responses."""

from collections.abc import Mapping

import torch


def target_distributions(
    response_ids: tuple[int, ...], probabilities: Mapping[tuple[int, ...], float], *, vocabulary: int
) -> torch.Tensor:
    """Return the distribution of each token of a response given those before it; shape (tokens, `vocabulary`).

    `probabilities` has the token ids of every response that the teacher chose from, with its probability. Imitating
    them has the same mean gradient as imitating the chosen response, with far less noise. A token after the end of
    all of them is certain.
    """
    targets = torch.nn.functional.one_hot(torch.tensor(response_ids), vocabulary).float()
    for position in range(len(response_ids)):
        next_token = torch.zeros(vocabulary)
        for ids, probability in probabilities.items():
            if len(ids) > position and ids[:position] == response_ids[:position]:
                next_token[ids[position]] += probability
        if not next_token.any():
            break
        targets[position] = next_token / next_token.sum()
    return targets
