"""Prometheus metrics of a run; each has a row in docs/metrics.md."""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from numbers import Real
from types import TracebackType
from typing import Self
from wsgiref.simple_server import WSGIServer

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, Summary

from turnmill.core.errors import EpisodeError
from turnmill.observability.step_time import PARTS
from turnmill.observability.summary import GENERATING, LEARNING, NEITHER, OUTSIDE

STOP_REASONS = ("completed", "max_turns", "max_tokens", "timeout", "failed")
REWARD_QUANTILES = ("0.1", "0.5", "0.9")
PHASES = (*GENERATING, *LEARNING, *NEITHER, *OUTSIDE)
STEP_SECONDS_BUCKETS = (0.5, 1, 2, 4, 8, 15, 30, 60, 120, 300, 600, 1200, 3600)

# The trainer's key of a mean over the step -> name and help text of its gauge.
GAUGES = {
    "training/global_step": ("turnmill_step", "Step the run has finished last"),
    "turnmill/policy_version": ("turnmill_policy_version", "Weight updates behind the policy that acts"),
    "turnmill/success": ("turnmill_success_ratio", "Share of the step's episodes that were solved"),
    "turnmill/reward_mean": ("turnmill_reward_mean", "Mean reward of the step's episodes"),
    "turnmill/episode_length": ("turnmill_episode_length_turns", "Mean turns of the step's episodes"),
    "turnmill/valid_action_ratio": ("turnmill_valid_action_ratio", "Share of the step's turns with a valid action"),
    "turnmill/kl_reference": ("turnmill_kl_reference", "Mean KL divergence from the reference policy, nats per token"),
    "actor/entropy": ("turnmill_policy_entropy", "Mean entropy of the policy, nats per token"),
    "actor/ppo_kl": ("turnmill_kl_step", "KL divergence of the step's update, nats per token"),
    "actor/grad_norm": ("turnmill_gradient_norm", "Norm of the policy's gradient before it is clipped"),
    "actor/lr": ("turnmill_learning_rate", "Learning rate of the policy after the step"),
    "critic/advantages/std": ("turnmill_advantage_std", "Standard deviation of the trained tokens' advantages"),
    "critic/vf_explained_var": (
        "turnmill_value_explained_variance",
        "Share of the returns' variance that the critic's values explain",
    ),
    "turnmill/truncated_ratio": ("turnmill_truncated_ratio", "Share of responses that reached the token limit"),
    "rollout_corr/k3_kl": ("turnmill_kl_engine", "KL divergence between engine and trainer, nats per token"),
    "actor/pg_clipfrac": ("turnmill_clipped_ratio", "Share of tokens whose probability ratio the loss clips"),
    "turnmill/uniform_groups_ratio": (
        "turnmill_uniform_groups_ratio",
        "Share of the step's groups in which all trajectories have the same reward",
    ),
    "training/off_policy/trajectory_staleness/max": (
        "turnmill_staleness_steps_max",
        "Steps between the stalest of the step's trajectories and the policy that learned from it",
    ),
    "training/off_policy/trajectory_staleness/mean": (
        "turnmill_staleness_steps",
        "Mean steps between the policy that generated a token and the one that learned from it",
    ),
    "training/rollout_probs_diff_mean": (
        "turnmill_rollout_probability_difference",
        "Mean absolute difference between a token's probability at rollout and in the trainer",
    ),
    "turnmill/off_policy_kl": (
        "turnmill_off_policy_kl",
        "KL divergence between the policies that sampled the step's tokens and the trainer's, nats per token",
    ),
    "rollout_corr/rollout_is_eff_sample_size": (
        "turnmill_effective_sample_ratio",
        "Effective sample size under the weights of importance sampling, as a share of the step's tokens",
    ),
    "rollout_corr/rollout_is_ratio_fraction_high": (
        "turnmill_weights_above_threshold_ratio",
        "Share of importance sampling ratios above the threshold, which are truncated or masked",
    ),
    "rollout_corr/rollout_rs_masked_fraction": (
        "turnmill_rejected_tokens_ratio",
        "Share of the step's tokens that rejection left out of the loss",
    ),
    "turnmill/failed_ratio": ("turnmill_failed_ratio", "Share of the step's trajectories that something around broke"),
    "turnmill/tool/num_tool_calls/mean": ("turnmill_tool_calls_per_trajectory", "Mean tool calls of a trajectory"),
    "turnmill/tool/session_request_time/mean": (
        "turnmill_tool_call_wait_seconds",
        "Mean time a trajectory waited for a tool call, with all its tries",
    ),
    "turnmill/tool/turns_carried_on/mean": (
        "turnmill_turns_carried_on",
        "Mean turns that a trajectory had from an attempt before",
    ),
    "validation/success": ("turnmill_validation_success_ratio", "Share of the last validation's episodes solved"),
    "validation/reward": ("turnmill_validation_reward_mean", "Mean reward of the last validation's episodes"),
    "validation/episode_length": (
        "turnmill_validation_episode_length_turns",
        "Mean turns of the last validation's episodes",
    ),
}


@dataclass(frozen=True, slots=True)
class RunInfo:
    """Facts about a run that do not change during an attempt."""

    environment: str
    attempt: int = 1
    steps: int = 0
    checkpoint_every: int = 0
    max_failed_ratio: float = 0.0
    stall_timeout_seconds: float = 0.0
    gpus: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """Number of GPUs of the run, by role and accelerator."""


class RunMetrics:
    """The metrics of one run, in a registry of their own; every series has `labels`."""

    def __init__(
        self,
        info: RunInfo,
        *,
        labels: Mapping[str, str] | None = None,
        seconds_since_progress: Callable[[], float] = lambda: 0.0,
        allowed_silence: Callable[[], float | None] = lambda: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        # Without this every counter would add a `_created` series that no panel shows.
        prometheus_client.disable_created_metrics()
        self.registry = registry = LabelledRegistry(labels or {})
        self._environment = info.environment
        self._clock = clock
        self._allowed_silence = allowed_silence
        self._checkpoint_time = clock()
        self._server: WSGIServer | None = None

        self._episodes = Counter(
            "turnmill_episodes_total", "Episodes ended", ["environment", "stop_reason"], registry=registry
        )
        self._failures = Counter(
            "turnmill_episode_failures_total", "Episodes that something around them broke", ["cause"], registry=registry
        )
        self._turns = Counter("turnmill_turns_total", "Turns trained on", registry=registry)
        self._tokens = Counter("turnmill_tokens_total", "Tokens of these turns", ["kind"], registry=registry)
        self._step_seconds = Histogram(
            "turnmill_step_seconds", "Time a step took", buckets=STEP_SECONDS_BUCKETS, registry=registry
        )
        self._phase_seconds = Summary(
            "turnmill_phase_seconds", "Time a phase of a step took", ["phase"], registry=registry
        )
        self._gauges = {key: Gauge(name, help_, registry=registry) for key, (name, help_) in GAUGES.items()}
        self._part_seconds = Counter(
            "turnmill_step_part_seconds_total",
            "Time of steps by where it went; the parts sum to the steps",
            ["part"],
            registry=registry,
        )
        self._mismatches = Counter(
            "turnmill_token_mismatches_total",
            "Tokens learned from that the policy did not sample; must stay 0",
            registry=registry,
        )
        self._reward_quantiles = Gauge(
            "turnmill_reward_quantile",
            "Reward that this share of the step's episodes stays below",
            ["quantile"],
            registry=registry,
        )
        self._evicted = Counter(
            "turnmill_evicted_trajectories_total", "Trajectories dropped because they were too stale", registry=registry
        )
        self._set_run_info(info)
        Gauge(
            "turnmill_progress_age_seconds", "Time since anything in the run progressed", registry=registry
        ).set_function(seconds_since_progress)
        Gauge(
            "turnmill_checkpoint_age_seconds",
            "Time since the attempt's last checkpoint, or since its start without one: what a crash would cost",
            registry=registry,
        ).set_function(lambda: max(0.0, self._clock() - self._checkpoint_time))
        self._initialize_series()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def serve(self, port: int, *, all_interfaces: bool = False) -> int:
        """Serve `/metrics` from a thread; port 0 takes a free one. Returns the port."""
        address = "0.0.0.0" if all_interfaces else "127.0.0.1"
        try:
            self._server, _ = prometheus_client.start_http_server(port, address, self.registry)
        except OSError as error:
            message = f"metrics.port ({port}) cannot be served on {address}: {error.strerror}. Try 0 for any free port."
            raise OSError(error.errno, message) from error
        return int(self._server.server_port)

    def close(self) -> None:
        """Stop serving."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def observe_step(self, metrics: Mapping[str, float]) -> None:
        """Update the metrics from those of one step; unknown keys are ignored."""
        for key, value in metrics.items():
            if not isinstance(value, Real) or not math.isfinite(value):
                continue
            if key in self._gauges:
                self._gauges[key].set(value)
            else:
                self._observe(key, float(value))

    def observe_checkpoint(self) -> None:
        """Record that a checkpoint is complete."""
        self._checkpoint_time = self._clock()

    def _observe(self, key: str, value: float) -> None:
        group, _, name = key.rpartition("/")
        match group, name:
            case "turnmill/episodes", stop_reason:
                self._episodes.labels(self._environment, stop_reason).inc(value)
            case "turnmill/failures", cause:
                self._failures.labels(cause).inc(value)
            case "turnmill", "turns":
                self._turns.inc(value)
            case "turnmill", "prompt_tokens" | "response_tokens":
                self._tokens.labels(name.removesuffix("_tokens")).inc(value)
            case "timing_s", "step":
                self._step_seconds.observe(value)
            case "timing_s", phase if phase in PHASES:
                self._phase_seconds.labels(phase).observe(value)
                if phase == "save_checkpoint":
                    self.observe_checkpoint()
            case "turnmill/step_parts", part if part in PARTS:
                self._part_seconds.labels(part).inc(value)
            case "turnmill", "token_mismatches":
                self._mismatches.inc(value)
            case "turnmill/reward_quantile", share if share in REWARD_QUANTILES:
                self._reward_quantiles.labels(share).set(value)
            case "training/off_policy", "evicted_samples":
                self._evicted.inc(value)

    def _set_run_info(self, info: RunInfo) -> None:
        registry = self.registry
        Gauge("turnmill_attempt", "Number of the attempt, from 1", registry=registry).set(info.attempt)
        Gauge("turnmill_steps", "Steps the run is to take", registry=registry).set(info.steps)
        Gauge("turnmill_checkpoint_interval_steps", "Steps between the run's checkpoints", registry=registry).set(
            info.checkpoint_every
        )
        Gauge(
            "turnmill_failed_ratio_limit", "Share of failed episodes above which the run ends", registry=registry
        ).set(info.max_failed_ratio)
        Gauge(
            "turnmill_stall_timeout_seconds", "Time without progress after which the attempt fails", registry=registry
        ).set_function(lambda: self._allowed_silence() or info.stall_timeout_seconds)
        gpus = Gauge("turnmill_gpus", "GPUs that the run holds", ["role", "accelerator"], registry=registry)
        for (role, accelerator), count in info.gpus.items():
            gpus.labels(role, accelerator).set(count)

    def _initialize_series(self) -> None:
        """Create the series of closed label sets at zero: a rate over one that begins at 1 misses the first."""
        for stop_reason in STOP_REASONS:
            self._episodes.labels(self._environment, stop_reason)
        for cause in causes(EpisodeError):
            self._failures.labels(cause)
        for kind in ("prompt", "response"):
            self._tokens.labels(kind)
        for phase in PHASES:
            self._phase_seconds.labels(phase)
        for part in PARTS:
            self._part_seconds.labels(part)
        for share in REWARD_QUANTILES:
            self._reward_quantiles.labels(share).set(math.nan)
        # A mean that has not been measured yet is not zero.
        for gauge in self._gauges.values():
            gauge.set(math.nan)


def causes(error: type[EpisodeError]) -> set[str]:
    """Return the causes of an error class and of its subclasses."""
    return {error.cause}.union(*map(causes, error.__subclasses__()))


class LabelledRegistry(CollectorRegistry):
    """A registry that adds the same labels to every sample."""

    def __init__(self, labels: Mapping[str, str]) -> None:
        super().__init__()
        self._labels = dict(labels)

    def collect(self) -> Iterator[Metric]:
        """Yield every metric with the labels added."""
        for metric in super().collect():
            metric.samples = [sample._replace(labels={**self._labels, **sample.labels}) for sample in metric.samples]
            yield metric
