"""Board: staleness of the policy that generated the trajectories."""

from turnmill.observability.dashboards.board import JOBS, RUN, WINDOW, Board, Row, lines
from turnmill.observability.dashboards.events import OF_RUNS

UPDATES = RUN("turnmill_phase_seconds_count", 'phase="update_weights"')

AGE = Row(
    "Age of trajectories",
    (
        lines(
            "Staleness",
            "Steps between the policy that generated a trajectory and the one that learns from it: mean and stalest.",
            "none",
            (RUN("turnmill_staleness_steps"), "{{namespace}} {{training_job}}: mean"),
            (RUN("turnmill_staleness_steps_max"), "{{namespace}} {{training_job}}: stalest"),
            width=12,
        ),
        lines(
            "Dropped for their age",
            "Trajectories per second that were dropped because they were too stale: wasted work.",
            "suffix: /s",
            (
                f"sum by (namespace, training_job) (rate({RUN('turnmill_evicted_trajectories_total')}[{WINDOW}]))",
                "{{namespace}} {{training_job}}",
            ),
            width=12,
        ),
        lines(
            "Disagreement of engine and trainer",
            "Mean difference of a sampled token's probability between engine and trainer; it grows with age.",
            "none",
            (RUN("turnmill_rollout_probability_difference"), "{{namespace}} {{training_job}}"),
        ),
        lines(
            "Clipped tokens",
            "Share of tokens whose probability ratio the loss clips; it grows with age.",
            "percentunit",
            (RUN("turnmill_clipped_ratio"), "{{namespace}} {{training_job}}"),
            max=1,
        ),
        lines(
            "Off-policy correction",
            "Effective sample size under the weights, as a share of tokens, the share of ratios above the threshold, "
            "and the share of tokens left out of the loss.",
            "percentunit",
            (RUN("turnmill_effective_sample_ratio"), "{{namespace}} {{training_job}} effective"),
            (RUN("turnmill_weights_above_threshold_ratio"), "{{namespace}} {{training_job}} above threshold"),
            (RUN("turnmill_rejected_tokens_ratio"), "{{namespace}} {{training_job}} rejected"),
            max=1,
        ),
        lines(
            "KL divergence to the trainer",
            "From the policies that sampled the step's tokens, stale ones too, to the trainer's at the step's start.",
            "suffix: nats per token",
            (RUN("turnmill_off_policy_kl"), "{{namespace}} {{training_job}}"),
        ),
        lines(
            "Weight updates",
            "Weight updates per hour that reach the engines.",
            "none",
            (
                f"sum by (namespace, training_job) (rate({UPDATES}[{WINDOW}])) * 3600",
                "{{namespace}} {{training_job}}",
            ),
        ),
    ),
)

BOARD = Board(
    "staleness",
    "Turnmill / Staleness",
    "Age of the policy that trajectories come from, and its effect on learning.",
    (RUN, JOBS),
    (AGE,),
    OF_RUNS,
)
