"""Scripts and configurations of the originals: converted, and a step trained on a tiny model without a GPU."""

import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from originals_outcome import CHECKED, Outcome, chosen

from turnmill.cli.main import main as turnmill

PROGRAMS = [
    *(
        "awk",
        "basename",
        "cat",
        "cut",
        "date",
        "dirname",
        "echo",
        "grep",
        "head",
        "hostname",
        "mkdir",
        "mktemp",
        "nproc",
    ),
    *("printf", "pwd", "realpath", "sed", "seq", "shuf", "sort", "tail", "tee", "tr", "true", "uname", "wc"),
]
"""All that a script may start; there is no other program on its path."""

PRELUDE = r"""
enable -n kill exec . source eval
python3() { printf '%s\0' "$@" > "$CAPTURED.$BASHPID"; }
python() { python3 "$@"; }
mktemp() { command mktemp "$@" | tee -a "$MADE"; }
"""
"""What a script runs after: Python only writes down its arguments, and temporary files are removed in the end."""

MADE = "made"
"""File with the names of a script's temporary files."""

STEP_SECONDS = 1800


@dataclass(frozen=True)
class Scripts:
    """The scripts of a system, and the command that converts them."""

    system: str
    command: str
    files: Sequence[str]
    program: str
    """Word in the call that trains; others start servers."""


ALL = (
    Scripts("GRL", "grl", ("verl_quick_training_example.sh", "examples/*/*.sh"), "grl/train.py"),
    Scripts("Verlog", "verlog", ("examples/Verlog/*.sbatch",), "main_ppo"),
    Scripts("verl", "verl", ("examples/sglang_multiturn/*.sh", "examples/sglang_multiturn/*/*.sh"), "main_ppo"),
    Scripts("verl-tool", "verl-tool", ("examples/train/*/train*.sh",), "main_ppo"),
)


def outcomes(folder: Path, names: Sequence[str], scratch: Path, *, trains: bool) -> Iterator[Outcome]:
    """Yield what became of each script, and of each agent of GRL's; unless it trains, jobs are only checked."""
    for scripts in ALL:
        root = folder / scripts.system
        for file in sorted({file for pattern in scripts.files for file in root.glob(pattern)}):
            name = file.relative_to(root).as_posix()
            if chosen(name, names):
                yield _trained(scripts, root, name, scratch, trains=trains)
    for name, block in yaml.safe_load((folder / "GRL" / "configs" / "agents.yaml").read_text()).items():
        if chosen(f"configs/agents.yaml {name}", names):
            yield _agent(folder / "GRL", name, block, scratch, trains=trains)


def _trained(scripts: Scripts, root: Path, name: str, scratch: Path, *, trains: bool) -> Outcome:
    """Convert a script, and check the job or train a step."""
    with _copy(root, scratch) as copy:
        calls = _calls(copy, name)
        words = next((call for call in calls if any(scripts.program in word for word in call)), None)
        if words is None:
            return Outcome(scripts.system, name, "evaluated", "refused", ["It starts no training of this system."])
        job = scratch / "job.yaml"
        job.unlink(missing_ok=True)
        served = [call[call.index("--tool_type") + 1] for call in calls if "--tool_type" in call]
        tools = ["--tool-type", served[0]] if served and scripts.command == "verl-tool" else []
        command = ["convert", scripts.command, *tools, "--steps", "1", "--output", str(job), *words]
        code, said = _turnmill(*command, cwd=copy)
        sentences = [line.replace(f"{copy}/", "") for line in said if re.match(r"[A-Za-z_.]+: ", line)]
        if code or not job.exists():
            return Outcome(scripts.system, name, "converted", "fails", said[-3:])
        # What is wrong with the job is asked again, as it may be the data that are not on this machine.
        sentences = [line for line in sentences if not line.startswith("spec.")]
        shrunk = _shrunk(yaml.safe_load(job.read_text()), scratch)
        job.write_text(yaml.safe_dump(shrunk, sort_keys=False))
        return _tried(scripts.system, name, job, copy, sentences, trains=trains)


def _agent(root: Path, name: str, block: dict[str, Any], scratch: Path, *, trains: bool) -> Outcome:
    """Check a job, or train a step, with an agent of GRL's configuration, through the file that names all."""
    job = scratch / "job.yaml"
    with _copy(root, scratch) as copy:
        words = [f"rollout.{key}=[{name}]" for key in ("training", "validation")]
        words += ["rollout.validation_agent_group_num=[1]", "rollout.validation_agent_group_size=[1]"]
        command = ["convert", "grl", "--steps", "1", "--output", str(job), "--config-name", "base", *words]
        code, said = _turnmill(*command, cwd=copy)
        file = f"configs/base.yaml, configs/agents.yaml: {name}, {block['agent_type']}"
        if code:
            return Outcome("GRL", file, "converted", "fails", said[-3:])
        job.write_text(yaml.safe_dump(_shrunk(yaml.safe_load(job.read_text()), scratch), sort_keys=False))
        return _tried("GRL", file, job, copy, [], trains=trains)


def _tried(system: str, name: str, job: Path, copy: Path, sentences: list[str], *, trains: bool) -> Outcome:
    """Check a job and train a step with it."""
    code, said = _turnmill("check", str(job), cwd=copy)
    if code:
        problems = [line.replace(f"{copy}/", "") for line in said if line.startswith("spec.")]
        return Outcome(
            system, name, "converted", "refused" if problems else "fails", [*(problems or said[-3:]), *sentences]
        )
    if not trains:
        return Outcome(system, name, CHECKED, "works", sentences)
    run = job.with_name("run")
    shutil.rmtree(run, ignore_errors=True)
    # Not in the folder of the clone, whose verl Python would find there.
    command = [str(Path(sys.executable).with_name("turnmill")), "run", str(job), "--output", str(run)]
    ran = subprocess.run(command, cwd=job.parent, capture_output=True, text=True, timeout=STEP_SECONDS, check=False)
    metrics = run / "metrics.jsonl"
    if ran.returncode == 0 and metrics.exists() and metrics.read_text().strip():
        return Outcome(system, name, "converted; a step trained", "works", sentences)
    lines = [line for line in (ran.stdout + ran.stderr).splitlines() if line.strip()]
    return Outcome(system, name, "converted; a step trained", "fails", [f"exit code {ran.returncode}", *lines[-3:]])


def _turnmill(*arguments: str, cwd: Path) -> tuple[int, list[str]]:
    """Run a command in a folder; return its exit code and the lines that it printed."""
    os.environ.update({"COLUMNS": "2000", "NO_COLOR": "1"})
    with chdir(cwd), redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        code = turnmill([*arguments])
    said = (out.getvalue() + err.getvalue()).replace(f"{cwd}/", "")
    return code, [line for line in said.splitlines() if line.strip()]


@contextmanager
def _copy(root: Path, scratch: Path) -> Iterator[Path]:
    """Yield a copy of a clone: scripts write beside themselves."""
    copy, made = scratch / "copy", scratch / MADE
    shutil.copytree(root, copy, ignore=shutil.ignore_patterns(".git"), symlinks=True)
    try:
        yield copy
    finally:
        shutil.rmtree(copy)
        for name in made.read_text().split() if made.exists() else ():
            Path(name).unlink(missing_ok=True)
        made.unlink(missing_ok=True)


def _calls(copy: Path, name: str) -> list[list[str]]:
    """Evaluate a script and return the arguments of its calls of Python."""
    programs = copy.with_name("programs")
    programs.mkdir(exist_ok=True)
    for program in PROGRAMS:
        if (found := shutil.which(program)) and not (programs / program).exists():
            (programs / program).symlink_to(found)
    prelude = copy.with_name("prelude.sh")
    prelude.write_text(PRELUDE)
    for before in copy.parent.glob("call.*"):
        before.unlink()
    environment = {"PATH": str(programs), "HOME": str(copy), "BASH_ENV": str(prelude)}
    subprocess.run(
        [str(shutil.which("bash")), str(copy / name)],
        cwd=copy,
        # Temporary files are in /tmp: scripts make a folder `tmp` for what they name `$(pwd)$(mktemp)`.
        env={**environment, "CAPTURED": str(copy.with_name("call")), "MADE": str(copy.with_name(MADE))},
        capture_output=True,
        stdin=subprocess.DEVNULL,
        timeout=120,
        check=False,
    )
    return [file.read_text().rstrip("\0").split("\0") for file in sorted(copy.parent.glob("call.*"))]


def _shrunk(data: dict[str, Any], scratch: Path) -> dict[str, Any]:
    """Give a job the model, data, hardware, lengths and batches of a small machine; all else stays."""
    spec = data["spec"]
    spec["model"] = {"path": str(_model(scratch / "model"))}
    # Megatron cannot be replaced by another engine: its settings would have no meaning.
    engine = spec.get("resources", {}).get("train", {}).get("engine")
    spec["resources"] = {"device": "cpu", **({"train": {"engine": engine}} if engine else {})}
    spec.pop("tracking", None)
    # FSDP shards on GPUs alone; without them it is FSDP2. Lengths follow from the agent's.
    spec["verl"] = {
        name: value
        for name, value in spec.get("verl", {}).items()
        if not name.endswith((".strategy", ".rollout.max_model_len"))
    }
    agent, training, algorithm = spec["agent"], spec["training"], spec["algorithm"]
    training |= {"steps": 1, "checkpointEvery": 1, "validation": {"episodes": 0}, "maxFailedRatio": 1}
    if agent["type"] == "verlog":
        agent |= {"maxTurns": 3, "maxPromptTokens": 1024, "maxResponseTokens": 16}
        spec["environment"] |= {"count": 2}
        training |= {"turnsPerStep": 4}
        algorithm |= {"minibatchTurns": 4, "criticWarmup": {"batches": 1, "steps": 1}}
        return data
    algorithm.pop("minibatchTasks", None)
    algorithm.pop("criticWarmupSteps", None)
    # Two tasks of a model with random weights may never have different rewards.
    algorithm.pop("dynamicSampling", None)
    if agent["type"] == "grl":
        agent |= {"agentGroupNum": [2], "agentGroupSize": [2], "rolloutFilterRatio": 1}
        agent |= {"maxPromptLength": 3072, "maxResponseLength": 16}
        for name in ("validationAgentGroupNum", "validationAgentGroupSize", "validation"):
            agent.pop(name, None)
        for each in agent["agents"]:
            # Without files, an environment has a few tasks of its own.
            for name in ("path", "validationPath", "databases"):
                each.get("envConfig", {}).pop(name, None)
    else:
        agent |= {"groupSize": 2, "maxPromptLength": 1024, "maxResponseLength": 64}
        agent |= {name: 16 for name in ("maxActionLength", "maxObsLength") if name in agent}
        agent.pop("maxStartLength", None)
        agent.pop("valMaxResponseLength", None)
        options = spec["environment"].get("options", {})
        rows = scratch / "rows.jsonl"
        rows.write_text("\n".join(json.dumps(_row(number)) for number in range(4)))
        spec["environment"]["options"] = {**options, "path": str(rows)}
        spec["environment"]["options"].pop("validationPath", None)
        training |= {"tasksPerStep": 2}
    return data


def _row(number: int) -> dict[str, Any]:
    """Return a row in the format of the originals' preparation of GSM8K."""
    answer = {"create_kwargs": {"ground_truth": str(number + 1)}}
    return {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "user", "content": f"What is {number} + 1?"}],
        "reward_model": {"style": "rule", "ground_truth": str(number + 1)},
        "extra_info": {"index": number, "tools_kwargs": {"calc_gsm8k_reward": answer}},
        "agent_name": "tool_agent",
    }


TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@cache
def _model(folder: Path) -> Path:
    """Make a model of two small layers, with random weights and a tokenizer of bytes."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=1024, special_tokens=special, initial_alphabet=alphabet)
    tokenizer.train([str(file) for file in sorted((Path(__file__).parents[1] / "docs").glob("*.md"))], trainer)
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    wrapped.chat_template = TEMPLATE
    wrapped.save_pretrained(folder)
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2}
    config = Qwen2Config(
        vocab_size=len(wrapped),
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=8192,
        eos_token_id=wrapped.eos_token_id,
        pad_token_id=wrapped.pad_token_id,
        **sizes,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)
    return folder
