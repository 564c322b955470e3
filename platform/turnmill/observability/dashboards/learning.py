"""Dashboard: learning of the policy, and quality of the training data."""

from turnmill.observability.dashboards.board import JOBS, RUN, Board, Row, lines, number
from turnmill.observability.dashboards.events import OF_RUNS


def of_run(metric: str) -> tuple[str, str]:
    """Return the query for a gauge of each run."""
    return RUN(metric), "{{namespace}} {{training_job}}"


CURVE = Row(
    "Does it learn?",
    (
        lines(
            "Solved",
            "Share of trajectories that were solved: in training, which explores, and in validation on other tasks.",
            "percentunit",
            (RUN("turnmill_success_ratio"), "{{namespace}} {{training_job}}: training"),
            (RUN("turnmill_validation_success_ratio"), "{{namespace}} {{training_job}}: validation"),
            width=12,
            max=1,
        ),
        lines(
            "Reward",
            "Mean reward of a trajectory; trajectories that failed because of infrastructure are left out.",
            "none",
            (RUN("turnmill_reward_mean"), "{{namespace}} {{training_job}}: training"),
            (RUN("turnmill_validation_reward_mean"), "{{namespace}} {{training_job}}: validation"),
            width=12,
        ),
        lines(
            "Spread of the rewards",
            "Reward that a tenth, half and nine tenths of the trajectories stay below.",
            "none",
            (RUN("turnmill_reward_quantile"), "{{namespace}} {{training_job}}: {{quantile}}"),
        ),
        lines(
            "Groups without a signal",
            "Share of groups in which all trajectories have the same reward, so that nothing is learned from them; "
            "with agents of type `tool`.",
            "percentunit",
            of_run("turnmill_uniform_groups_ratio"),
            max=1,
        ),
        lines(
            "Responses cut off",
            "Share of responses that reached the token limit; what they were about to do is lost.",
            "percentunit",
            of_run("turnmill_truncated_ratio"),
            max=1,
        ),
        lines(
            "Turns of a trajectory",
            "Mean turns in training and in validation; fewer for the same reward is progress.",
            "none",
            (RUN("turnmill_episode_length_turns"), "{{namespace}} {{training_job}}: training"),
            (RUN("turnmill_validation_episode_length_turns"), "{{namespace}} {{training_job}}: validation"),
        ),
    ),
)

UPDATE = Row(
    "Is the update sound?",
    (
        lines(
            "KL from the reference",
            "How far the policy has moved from the model it started as, in nats per token.",
            "none",
            of_run("turnmill_kl_reference"),
        ),
        lines(
            "KL of a step",
            "How far one step moves the policy, in nats per token; a jump comes before a collapse.",
            "none",
            of_run("turnmill_kl_step"),
        ),
        lines(
            "Entropy",
            "Entropy of the policy in nats per token; near 0 it has stopped exploring.",
            "none",
            of_run("turnmill_policy_entropy"),
        ),
        lines(
            "Gradient norm",
            "Norm of the policy's gradient before it is clipped.",
            "none",
            of_run("turnmill_gradient_norm"),
        ),
        lines(
            "Clipped tokens",
            "Share of tokens whose probability ratio the loss clips; above a fifth the steps are too large.",
            "percentunit",
            of_run("turnmill_clipped_ratio"),
            max=1,
        ),
        lines(
            "Learning rate",
            "Learning rate of the policy after each step; with the schedule `cosine` it falls to 0.",
            "none",
            of_run("turnmill_learning_rate"),
        ),
        lines(
            "Spread of the advantages",
            "Standard deviation of the trained tokens' advantages; at 0 the policy learns nothing from its rewards.",
            "none",
            of_run("turnmill_advantage_std"),
        ),
        lines(
            "Variance that the critic explains",
            "Share of the returns' variance that the critic's values explain: 1 is perfect, 0 worth nothing.",
            "none",
            of_run("turnmill_value_explained_variance"),
        ),
        lines(
            "KL between engine and trainer",
            "How far the engine's policy is from the trainer's, in nats per token, although their weights are equal.",
            "none",
            of_run("turnmill_kl_engine"),
        ),
        lines(
            "Disagreement of engine and trainer",
            "Mean difference between a sampled token's probability in the engine and in the trainer.",
            "none",
            of_run("turnmill_rollout_probability_difference"),
        ),
    ),
)

TRUST = Row(
    "Can it be trusted?",
    (
        number(
            "Trained tokens that were not sampled",
            "Tokens that were learned from although the policy did not sample them; anything but 0 is a fault.",
            "none",
            (
                f"sum by (namespace, training_job) ({RUN('turnmill_token_mismatches_total')})",
                "{{namespace}} {{training_job}}",
            ),
            width=12,
            alarming_from=1,
        ),
        number(
            "Weight updates",
            "Updates of the policy that generates.",
            "none",
            of_run("turnmill_policy_version"),
            width=12,
        ),
    ),
)

BOARD = Board(
    "learning",
    "Turnmill / Learning",
    "Whether the policy learns, and whether what it learns from can be trusted.",
    (RUN, JOBS),
    (CURVE, UPDATE, TRUST),
    OF_RUNS,
)
