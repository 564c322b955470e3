"""Dashboard: throughput of trajectories, and their stop reasons."""

from turnmill.observability.dashboards.board import JOBS, RUN, WINDOW, Board, Row, lines, number, stacked
from turnmill.observability.dashboards.events import OF_RUNS

EPISODES = RUN("turnmill_episodes_total")
FAILED = RUN("turnmill_episodes_total", 'stop_reason="failed"')
ENDED = RUN("turnmill_episodes_total", 'stop_reason!="failed"')
TOKENS = RUN("turnmill_tokens_total")
RESPONSE_TOKENS = RUN("turnmill_tokens_total", 'kind="response"')
TURNS = RUN("turnmill_turns_total")

PROGRESS = Row(
    "Progress",
    (
        number(
            "Step",
            "The last step that each run has finished.",
            "none",
            (f"max by (namespace, training_job) ({RUN('turnmill_step')})", "{{namespace}} {{training_job}}"),
        ),
        number(
            "Done",
            "Share of its steps that each run has taken.",
            "percentunit",
            (
                f"max by (namespace, training_job) ({RUN('turnmill_step')})"
                f" / max by (namespace, training_job) ({RUN('turnmill_steps')})",
                "{{namespace}} {{training_job}}",
            ),
            max=1,
        ),
        number(
            "Attempt",
            "How often each run was started; more than 1 means that it failed and resumed from its last checkpoint.",
            "none",
            (
                f"max by (namespace, training_job) ({RUN('turnmill_attempt')})",
                "{{namespace}} {{training_job}}",
            ),
        ),
        number(
            "Since the last progress",
            "Time since the last turn or phase of a step; it grows while a run hangs.",
            "s",
            (
                f"min by (namespace, training_job) ({RUN('turnmill_progress_age_seconds')})",
                "{{namespace}} {{training_job}}",
            ),
            alarming_from=300,
        ),
        number(
            "Since the last checkpoint",
            "Time since the last checkpoint: the work that a crash would lose.",
            "s",
            (
                f"min by (namespace, training_job) ({RUN('turnmill_checkpoint_age_seconds')})",
                "{{namespace}} {{training_job}}",
            ),
        ),
        number(
            "Failed by infrastructure",
            "Share of trajectories that failed because of infrastructure; they are left out of mean reward and loss.",
            "percentunit",
            (f"sum(rate({FAILED}[{WINDOW}])) / sum(rate({EPISODES}[{WINDOW}]))", "failed"),
            max=1,
            alarming_from=0.05,
        ),
    ),
)

FLOW = Row(
    "Flow",
    (
        stacked(
            "Trajectories by stop reason",
            "Trajectories that the agent or a limit ended, by stop reason; the next panel has failed ones.",
            "suffix: /s",
            (f"sum by (stop_reason) (rate({ENDED}[{WINDOW}]))", "{{stop_reason}}"),
        ),
        stacked(
            "Trajectories failed by infrastructure",
            "Trajectories that failed because of infrastructure, by cause; investigate anything that stays above zero.",
            "suffix: /s",
            (f"sum by (cause) (rate({RUN('turnmill_episode_failures_total')}[{WINDOW}]))", "{{cause}}"),
        ),
        lines(
            "Failed share and its limit",
            "Share of trajectories that failed because of infrastructure, and the share above which a run fails.",
            "percentunit",
            (
                f"sum by (namespace, training_job) (rate({FAILED}[{WINDOW}]))"
                f" / sum by (namespace, training_job) (rate({EPISODES}[{WINDOW}]))",
                "{{namespace}} {{training_job}}",
            ),
            (
                f"min by (namespace, training_job) ({RUN('turnmill_failed_ratio_limit')})",
                "{{namespace}} {{training_job}}: limit",
            ),
            (RUN("turnmill_failed_ratio"), "{{namespace}} {{training_job}}: last step"),
            max=1,
        ),
        lines(
            "Turns",
            "Turns that were trained on, per second of the whole step.",
            "suffix: /s",
            (f"sum by (namespace, training_job) (rate({TURNS}[{WINDOW}]))", "{{namespace}} {{training_job}}"),
        ),
        lines(
            "Tokens",
            "Tokens that the policy read (prompt) and generated (response), per second of the whole step.",
            "suffix: /s",
            (f"sum by (kind) (rate({TOKENS}[{WINDOW}]))", "{{kind}}"),
        ),
        lines(
            "Generated tokens per GPU",
            "Generated tokens per second and GPU of the run, GPUs that only train included.",
            "suffix: /s",
            (
                f"sum by (namespace, training_job) (rate({RESPONSE_TOKENS}[{WINDOW}]))"
                f" / (sum by (namespace, training_job) ({RUN('turnmill_gpus')}) > 0)",
                "{{namespace}} {{training_job}}",
            ),
        ),
    ),
)

SHAPE = Row(
    "Shape of a trajectory",
    (
        lines(
            "Turns of a trajectory",
            "Mean turns of the step's trajectories.",
            "none",
            (RUN("turnmill_episode_length_turns"), "{{namespace}} {{training_job}}"),
        ),
        lines(
            "Tokens of a turn",
            "Mean tokens that the policy generates in a turn.",
            "none",
            (
                f"sum by (namespace, training_job) (rate({RESPONSE_TOKENS}[{WINDOW}]))"
                f" / sum by (namespace, training_job) (rate({TURNS}[{WINDOW}]))",
                "{{namespace}} {{training_job}}",
            ),
        ),
        lines(
            "Valid actions",
            "Share of turns whose response holds a valid action.",
            "percentunit",
            (RUN("turnmill_valid_action_ratio"), "{{namespace}} {{training_job}}"),
            max=1,
        ),
        lines(
            "Tool calls of a trajectory",
            "Mean tool calls of a trajectory; with agents of type `tool`.",
            "none",
            (RUN("turnmill_tool_calls_per_trajectory"), "{{namespace}} {{training_job}}"),
        ),
        lines(
            "Wait for a tool call",
            "Mean time that a trajectory waits for a tool call, retries included; with agents of type `tool`.",
            "s",
            (RUN("turnmill_tool_call_wait_seconds"), "{{namespace}} {{training_job}}"),
        ),
        lines(
            "Resumed turns",
            "Mean turns of a trajectory that an earlier attempt has played; with agents of type `tool`.",
            "none",
            (RUN("turnmill_turns_carried_on"), "{{namespace}} {{training_job}}"),
        ),
    ),
)

BOARD = Board(
    "rollout",
    "Turnmill / Rollout",
    "How fast trajectories are gathered, how they end, and why they fail.",
    (RUN, JOBS),
    (PROGRESS, FLOW, SHAPE),
    OF_RUNS,
)
