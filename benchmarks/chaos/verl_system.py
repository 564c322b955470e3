"""Plain verl: `verl.trainer.main_ppo` with its own agent loop for tools, on a machine without a GPU.

What a CPU needs comes from turnmill's platform package: verl's registry gets it there. Checkpoints, resuming and all
else are verl's; a loop of the shell starts it again when it fails, as often as turnmill's `retries`.
"""

import json
import shlex
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

import pyarrow
import pyarrow.parquet
from chaos.effects import TURNS
from chaos.measures import Played
from chaos.processes import find
from chaos.systems import GROUP_SIZE, TASKS_PER_STEP, Given
from chaos.turnmill_system import SYSTEM as TURNMILL

from turnmill.runs.preparation import process_environment

AGENT_LOOPS = """
- name: seeded
  _target_: chaos.verl_plugin.SeededToolAgentLoop
"""
TOOLS = """
tools:
  - class_name: chaos.verl_plugin.Count
    config: {type: native}
    tool_schema:
      type: function
      function: {name: count, description: Counts., parameters: {type: object, properties: {}, required: []}}
"""
ROLLOUT, ACTOR, REF = "actor_rollout_ref.rollout", "actor_rollout_ref.actor", "actor_rollout_ref.ref"


class Verl:
    """Plain verl."""

    name = "verl"
    parts: Mapping[str, str] = {
        "trainer": r"ray::TaskRunner",
        "engine": r"ray::vLLM\w*Server",
        "engine core": r"EngineCor",
        "agent loop": r"ray::AgentLoopWorker",
        "tool server": r"chaos\.tool_service",
        "Ray node": r"^raylet ",
        "Ray controller": r"^gcs_server ",
        "queue": r"ray::(TransferQueue|SimpleStorage)",
    }
    tool_server: Sequence[str] = (sys.executable, "-m", "chaos.tool_service", "{port}")
    model_server: Sequence[str] = ()
    starts_tool_server = False

    def version(self) -> str:
        """Return its version."""
        return metadata.version("verl")

    def serve_tools(self, store_url: str, logs: Path) -> str:
        """Return nothing: the benchmark starts the tool server."""
        return ""

    def prepare(self, folder: Path) -> None:
        """Make the model, the same as turnmill's."""
        TURNMILL.prepare(folder)

    def command(self, given: Given) -> tuple[list[str], Mapping[str, str]]:
        """Return a loop that starts verl until it ends well."""
        settings = " ".join(shlex.quote(f"{name}={value}") for name, value in self._settings(given).items())
        loop = (
            f"for attempt in $(seq 0 {given.retries}); do "
            f"{shlex.quote(sys.executable)} -m verl.trainer.main_ppo {settings} && exit 0; done; exit 1"
        )
        variables = process_environment("cpu") | {
            "VERL_USE_EXTERNAL_MODULES": "turnmill.training.verl.plugin,turnmill.training.verl.cpu.engines",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "CHAOS_TOOLS": given.tools_url,
        }
        return ["bash", "-c", loop], variables

    def processes(self, part: str) -> list[int]:
        """Return the processes of a kind."""
        return find(self.parts[part])

    def steps(self, folder: Path) -> int:
        """Return how many steps have written down what they learned from."""
        return len(list((folder / "rollouts").glob("*.jsonl")))

    def step_times(self, folder: Path) -> list[float]:
        """Return nothing: its own times are in its output alone."""
        return []

    def played(self, folder: Path) -> Mapping[str, Played]:
        """Return the trajectories that verl wrote down, task by task, in the order of their samples."""
        played = {}
        for path in (folder / "rollouts").glob("*.jsonl"):
            seen: dict[str, int] = {}
            for line in path.read_text().splitlines():
                row = json.loads(line)
                sample = seen[row["gts"]] = seen.get(row["gts"], -1) + 1
                played[f"{row['gts']}-{sample}"] = Played(row["score"])
        return played

    def name_of(self, trajectory: str) -> str:
        """Return the name, which is the agent loop's."""
        return trajectory

    def _settings(self, given: Given) -> dict[str, object]:
        folder = given.folder
        tasks = folder / "tasks.parquet"
        _write_tasks(tasks, given.steps * TASKS_PER_STEP)
        (folder / "agent_loops.yaml").write_text(AGENT_LOOPS)
        (folder / "tools.yaml").write_text(TOOLS)
        settings: dict[str, object] = {
            # Else it is in the folder from which the benchmark was started; that of the run may be full.
            "hydra.run.dir": Path(tempfile.gettempdir()) / "hydra",
            "algorithm.adv_estimator": "grpo",
            "data.train_files": tasks,
            "data.val_files": tasks,
            "data.train_batch_size": TASKS_PER_STEP,
            "data.max_prompt_length": 64,
            "data.max_response_length": 112,
            "data.shuffle": False,
            "data.dataloader_num_workers": 0,
            "actor_rollout_ref.model.path": TURNMILL.model(),
            "actor_rollout_ref.model.use_remove_padding": False,
            "actor_rollout_ref.model.enable_gradient_checkpointing": False,
            "+actor_rollout_ref.model.override_config.attn_implementation": "sdpa",
            f"{ACTOR}.ppo_mini_batch_size": TASKS_PER_STEP,
            f"{ACTOR}.use_dynamic_bsz": True,
            f"{ACTOR}.optim.lr": 1e-30,
            f"{ACTOR}.optim.weight_decay": 0,
            f"{ACTOR}.use_kl_loss": False,
            f"{ROLLOUT}.name": "vllm",
            f"{ROLLOUT}.mode": "async",
            f"{ROLLOUT}.n": GROUP_SIZE,
            f"{ROLLOUT}.dtype": "float32",
            f"{ROLLOUT}.tensor_model_parallel_size": 1,
            f"{ROLLOUT}.enforce_eager": True,
            f"+{ROLLOUT}.enable_sleep_mode": False,
            f"{ROLLOUT}.free_cache_engine": False,
            f"{ROLLOUT}.max_num_seqs": 64,
            f"{ROLLOUT}.max_model_len": 256,
            f"{ROLLOUT}.gpu_memory_utilization": 0.1,
            f"{ROLLOUT}.log_prob_use_dynamic_bsz": True,
            f"{REF}.log_prob_use_dynamic_bsz": True,
            f"{ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes": 16,
            f"+{ROLLOUT}.engine_kwargs.vllm.worker_extension_cls": (
                "turnmill.training.verl.cpu.vllm_worker.CpuWorkerExtension"
            ),
            f"{ROLLOUT}.agent.num_workers": 1,
            f"{ROLLOUT}.agent.default_agent_loop": "seeded",
            f"{ROLLOUT}.agent.agent_loop_config_path": folder / "agent_loops.yaml",
            f"{ROLLOUT}.multi_turn.enable": True,
            f"{ROLLOUT}.multi_turn.format": "anything",
            f"{ROLLOUT}.multi_turn.max_assistant_turns": TURNS + 1,
            f"{ROLLOUT}.multi_turn.tool_config_path": folder / "tools.yaml",
            "reward.num_workers": 1,
            "reward.custom_reward_function.path": Path(__file__).with_name("verl_plugin.py"),
            "reward.custom_reward_function.name": "compute_score",
            "transfer_queue.backend.SimpleStorage.num_data_storage_units": 1,
            "trainer.device": "cpu",
            "trainer.nnodes": 1,
            "trainer.n_gpus_per_node": 1,
            "trainer.logger": "[console]",
            "trainer.val_before_train": False,
            "trainer.test_freq": -1,
            "trainer.total_epochs": 1,
            "trainer.save_freq": 1,
            "trainer.max_actor_ckpt_to_keep": 1,
            "trainer.resume_mode": "auto",
            "trainer.default_local_dir": folder / "checkpoints",
            "trainer.rollout_data_dir": folder / "rollouts",
            "ray_kwargs.ray_init.num_cpus": 16,
            "++ray_kwargs.ray_init.num_gpus": 1,
            "+ray_kwargs.ray_init.include_dashboard": False,
        }
        for part in (ACTOR, REF):
            settings |= {
                f"{part}.strategy": "fsdp2",
                f"{part}.fsdp_config.strategy": "fsdp2",
                f"+{part}.fsdp_config.mixed_precision.param_dtype": "fp32",
                f"{part}.fsdp_config.dtype": "float32",
                f"{part}.fsdp_config.use_torch_compile": False,
            }
        return settings


def _write_tasks(file: Path, count: int) -> None:
    rows = [
        {
            "data_source": "chaos",
            "prompt": [{"role": "user", "content": f"{10 + number % 90}+{10 + number // 3 % 90}=?"}],
            "reward_model": {"style": "rule", "ground_truth": f"t{number // TASKS_PER_STEP}.{number}"},
            "extra_info": {"index": f"t{number // TASKS_PER_STEP}.{number}"},
        }
        for number in range(count)
    ]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file)


SYSTEM = Verl()
