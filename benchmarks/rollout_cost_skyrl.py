"""SkyRL's `SkyRLGymGenerator` for `rollout_cost.py`, by a Python that has it: FOLDER SYSTEM SIZE, see the harness.

Its packages, without those of its engines and trainers; its release does not load in Python 3.11:

python3.12 -m venv .venv-skyrl && .venv-skyrl/bin/pip install torch==2.13.0 transformers==5.8.0 tokenizers==0.22.2 \
numpy==2.5.5 pandas==3.1.1 omegaconf==2.4.0 pydantic==2.14.4 loguru==0.7.3 tqdm==4.70.1 aiohttp==3.14.5 \
requests==2.34.2 func_timeout==4.3.5 && .venv-skyrl/bin/pip install --no-deps skyrl==0.3.0 skyrl-gym==0.4.0

`skyrl` has the settings that are SkyRL's defaults, by which tokens are appended and never made from text again.
`skyrl_tuned` calls the environment in the event loop (`max_env_workers` of 0) rather than in one of 32 threads.
"""

import json
from pathlib import Path
from typing import Any

import skyrl_gym
from rollout_cost_harness import ENDED, RESPONSE_TOKENS, Engine, Play, Played, Player, main, name_of
from skyrl.train.config import GeneratorConfig, SamplingParams, SkyRLGymConfig
from skyrl.train.generators.base import TrajectoryID
from skyrl.train.generators.skyrl_gym_generator import SkyRLGymGenerator
from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput
from transformers import AutoTokenizer

MAX_INPUT_TOKENS = 2**20


class Client:
    """SkyRL's client of inference engines, which makes the text of a response in the generator's process as well."""

    weight_version = 1

    def __init__(self, engine: Engine, tokenizer: Any) -> None:
        self._engine = engine
        self._tokenizer = tokenizer

    async def generate(self, batch: dict[str, Any], model: str | None = None) -> dict[str, Any]:
        """Return the next response of a trajectory."""
        (session_id,) = batch["session_ids"]
        ids = (await self._engine.respond(session_id)).ids.tolist()
        return {
            "responses": self._tokenizer.batch_decode([ids]),
            "response_ids": [ids],
            "stop_reasons": ["stop"],
            "response_logprobs": [self._engine.log_probs()],
        }

    async def finish_session(self, session_id: str) -> None:
        """Do nothing: there is no router."""


class LookUp(BaseTextEnv):
    """An environment that answers every call with the same text, until there is none."""

    def __init__(self, env_config: Any = None, extras: dict[str, Any] | None = None) -> None:
        super().__init__()
        self._text = (extras or {})["text"]

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """Answer."""
        _, _, call = action.partition("<tool_call>")
        if not call:
            return BaseTextEnvStepOutput(observations=[], reward=1.0, done=True, metadata={})
        json.loads(call.partition("</tool_call>")[0])
        observation = {"role": "user", "content": f"<tool_response>\n{self._text}\n</tool_response>"}
        return BaseTextEnvStepOutput(observations=[observation], reward=0.0, done=False, metadata={})


def prepare(engine: Engine, folder: Path, *, environments: SkyRLGymConfig) -> Play:
    """Return what plays a trajectory by a generator with these settings of its environments."""
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    skyrl_gym.register(id="look_up", entry_point=LookUp)
    settings = GeneratorConfig(
        max_turns=engine.turns,
        max_input_length=MAX_INPUT_TOKENS,
        sampling_params=SamplingParams(max_generate_length=RESPONSE_TOKENS),
    )
    generator = SkyRLGymGenerator(settings, environments, Client(engine, tokenizer), tokenizer)
    prompt = json.loads((folder / "tasks.jsonl").read_text())["prompt"]
    text = (folder / "observation.txt").read_text()
    sampling = {"max_tokens": RESPONSE_TOKENS, "temperature": 1.0, "top_p": 1.0, "logprobs": 1}

    async def play(number: int) -> Played:
        output = await generator.agent_loop(
            prompt,
            "look_up",
            {"text": text},
            RESPONSE_TOKENS,
            MAX_INPUT_TOKENS,
            sampling_params=sampling,
            trajectory_id=TrajectoryID(name_of(number), 0),
        )
        played = Played()
        played.add(output.prompt_ids, output.response_ids, output.loss_mask, output.rollout_logprobs)
        return played

    return play


def by_default(engine: Engine, folder: Path, run_dir: Path) -> Play:
    """Return what plays a trajectory with SkyRL's defaults."""
    return prepare(engine, folder, environments=SkyRLGymConfig())


def tuned(engine: Engine, folder: Path, run_dir: Path) -> Play:
    """Return what plays a trajectory without threads."""
    return prepare(engine, folder, environments=SkyRLGymConfig(max_env_workers=0))


if __name__ == "__main__":
    main({"skyrl": Player(ENDED, by_default), "skyrl_tuned": Player(ENDED, tuned)})
