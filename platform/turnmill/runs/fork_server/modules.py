"""Modules to import before processes of a run are forked; not used with GPUs, as CUDA does not support forks."""

EARLY = ("torch", "transformers", "tensordict", "vllm.entrypoints.openai.api_server")
# Imported with Ray, which reads some variables at import.
LATE = (
    "turnmill.runs.fork_server.patch_ray",
    "turnmill.training.trainers.turn",
    "turnmill.rollout.verlog.turn_loop_worker",
    "turnmill.rollout.verlog.turn_loop",
    "turnmill.rollout.tool_agent.worker",
    "turnmill.rollout.verlog.episode_loop_worker",
    "turnmill.rollout.grl.worker",
    "turnmill.training.trainers.trajectory",
    "turnmill.training.grl.trainer",
    "turnmill.training.verl.weight_transfer",
    "turnmill.training.verl.workers",
    "turnmill.training.verl.cpu.vllm_worker",
    "verl.workers.rollout.vllm_rollout.vllm_async_server",
    "vllm.v1.worker.cpu_worker",
)
