"""What the processes of a run import; on a GPU they start one by one, since CUDA does not outlive a fork."""

EARLY = ("torch", "transformers", "tensordict", "vllm.entrypoints.openai.api_server")
# With Ray, which reads some variables when it is imported.
LATE = (
    "turnmill.training.zygote.ray_ids",
    "turnmill.training.trainer",
    "turnmill.rollout.manager",
    "turnmill.rollout.turn_loop",
    "turnmill.rollout.tool_agent.manager",
    "turnmill.rollout.episode_manager",
    "turnmill.rollout.grl.manager",
    "turnmill.training.trajectory_trainer",
    "turnmill.training.grl.trainer",
    "turnmill.training.weight_transfer",
    "turnmill.training.verl_cpu.workers",
    "turnmill.training.verl_cpu.vllm_worker",
    "verl.workers.rollout.vllm_rollout.vllm_async_server",
    "vllm.v1.worker.cpu_worker",
)
