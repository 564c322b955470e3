"""What a rollout costs beside generation: agent loops with an engine that answers at once, by canned tokens.

OMP_NUM_THREADS=1 .venv/bin/python benchmarks/rollout_cost.py [--sizes 64x10 64x40 64x128] [--rounds 5]
    [--skyrl PYTHON] [--verifiers PYTHON]
OMP_NUM_THREADS=1 .venv/bin/python benchmarks/rollout_cost.py --sizes 4096x10 --delay 20 --rounds 3   # lag
OMP_NUM_THREADS=1 .venv/bin/python benchmarks/rollout_cost.py --sizes 65536x10 --at-once 1024 --rounds 1   # memory

Systems: verl's `ToolAgentLoop` in verl's own worker, and turnmill's agents `multi_turn` and `tool`, each with a tool in
the same process, with one behind HTTP (`_http`), and with Ray and verl's queue (`_queue`), beside verl's with the same;
its agents `verlog` and `grl` in an environment (`rollout_cost_environments.py`); SkyRL's generator and verifiers'
`ToolEnv`, each by a PYTHON of a virtual environment of its own (`rollout_cost_skyrl.py` and `rollout_cost_verifiers.py`
say how it is made); what is left out is not measured. Each is measured in a process of its own, in an order that
changes with every round; a cell is the median of the rounds. Responses have 200 tokens, observations 64. Rows of verl,
SkyRL and verifiers are recorded nowhere; turnmill writes its log of trajectories. The engine alone is measured as well:
no system can be faster. Every turn must be played, every trained token sampled, and the rows of all rounds the same;
those of `multi_turn` must be verl's. Rows are kept until the end, as numbers of four and eight bytes. All trajectories
are in flight at once, or as many as `--at-once` says: what `maxConcurrentTrajectories` is in a job, where it is 1,024
by default.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rollout_cost_harness import NUM_RESPONSES, OBSERVATION_TOKENS, RESPONSE_TOKENS
from runs import table

ROOT = Path(__file__).parents[1]
SYSTEMS = {
    "engine": "verl",
    "verl": "verl",
    "multi_turn": "verl",
    "tool": "verl",
    "verlog": "environments",
    "grl": "environments",
    "verl_http": "http",
    "multi_turn_http": "http",
    "tool_http": "http",
    "verl_queue": "queue",
    "multi_turn_queue": "queue",
    "tool_queue": "queue",
    "skyrl": "skyrl",
    "skyrl_tuned": "skyrl",
    "verifiers": "verifiers",
    "verifiers_renderer": "verifiers",
}
"""The script of each system, `rollout_cost_*.py`."""

COLUMNS = {
    "turns_per_cpu_second": "turns/CPU s",
    "cpu_ms_per_turn": "CPU ms/turn",
    "turns_per_second": "turns/s",
    "lag_p99_ms": "lag p99 ms",
    "trajectory_p50_s": "trajectory p50 s",
    "trajectory_p99_s": "p99 s",
    "memory_mib": "MiB",
    "kib_written_per_trajectory": "KiB written",
}
"""What is measured, by the name in the results, with its head in the table. Written is what is in files at the end, for
each trajectory."""

VOCABULARY = 32_000
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
PARTS_OF_CALLS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
"""Tokens of their own in Qwen3's tokenizer."""

TEMPLATE = """
{%- if tools %}{{- '<|im_start|>system\\nAnswer the question. You may call these functions:\\n<tools>' }}
{%- for tool in tools %}{{- '\\n' + tool | tojson }}{% endfor %}
{{- '\\n</tools>\\nCall one as <tool_call>{"name": ..., "arguments": ...}</tool_call>.<|im_end|>\\n' }}{% endif %}
{%- for message in messages %}
{%- if message.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{% endif %}
{{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{% endif %}
{%- else %}
{{- '<|im_start|>' + message.role + '\\n' + message.content }}
{%- for call in message.tool_calls or [] %}
{{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' + call.function.arguments | tojson + '}\\n' }}
{{- '</tool_call>' }}{% endfor %}
{{- '<|im_end|>\\n' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}
"""
"""A template like those of Qwen's models."""

CALL = '<tool_call>\n{"name": "look_up", "arguments": {"name": "page %d"}}\n</tool_call>'
TOOL = '''
from pathlib import Path

from verl.tools.function_tool import function_tool

TEXT = Path(__file__).with_name("observation.txt").read_text()


@function_tool
def look_up(name: str):
    """Return the text of a page.

    Args:
        name: The name of the page.
    """
    return TEXT
'''


def main() -> None:
    """Measure every system at every size, and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=["64x10", "64x40", "64x128"], help="trajectories x turns")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, help="all whose Python is known, by default")
    parser.add_argument("--skyrl", metavar="PYTHON", help="a Python with skyrl==0.3.0")
    parser.add_argument("--verifiers", metavar="PYTHON", help="a Python with verifiers==0.3.1")
    parser.add_argument("--delay", type=float, default=0.0, help="seconds of a generation, at most")
    parser.add_argument("--at-once", type=int, help="trajectories in flight at a time")
    parser.add_argument("--profile", type=Path, help="a file for cProfile, with one system and one size")
    given = parser.parse_args()
    own = dict.fromkeys(("verl", "environments", "http", "queue"), sys.executable)
    pythons = own | {"skyrl": given.skyrl, "verifiers": given.verifiers}
    systems = given.systems or [system for system, script in SYSTEMS.items() if pythons[script]]
    for system in systems:
        if not pythons[SYSTEMS[system]]:
            parser.error(f"{system} is measured by a Python that has it: give --{SYSTEMS[system]} PYTHON.")
    options = ["--delay", str(given.delay)]
    options += ["--profile", str(given.profile)] if given.profile else []
    options += ["--at-once", str(given.at_once)] if given.at_once else []
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder))
        found: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
        for number in range(given.rounds):
            for size in given.sizes:
                for system in systems[:: 1 if number % 2 else -1]:
                    python = pythons[SYSTEMS[system]]
                    found[size, system].append(measured(python, system, folder, size, *options))
            # After every round: what is measured stays known if a later round is interrupted.
            print(report(given.sizes, systems, found), flush=True)


def measured(python: str, system: str, folder: str, size: str, *options: str) -> dict[str, Any]:
    """Measure a system at a size in a process of its own."""
    script = Path(__file__).with_name(f"rollout_cost_{SYSTEMS[system]}.py")
    environment = dict(os.environ)
    if python != sys.executable:
        environment.pop("PYTHONPATH", None)
    ended = subprocess.run(
        [python, str(script), folder, system, size, *options],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env=environment,
    )
    return dict(json.loads(ended.stdout.splitlines()[-1]))


def report(sizes: Sequence[str], systems: Sequence[str], found: dict[tuple[str, str], list[dict[str, Any]]]) -> str:
    """Return the medians of the rounds, checked, as a table."""
    lines = []
    for size, system in itertools.product(sizes, systems):
        rounds = found[size, system]
        assert all(each["missing_turns"] == each["foreign_tokens"] == 0 for each in rounds), (size, system, rounds)
        digests = {each["digest"] for each in rounds}
        assert len(digests) == 1, f"{size}, {system}: the rounds have different rows"
        lane = system.rpartition("_")[2]
        verl = found[size, f"verl_{lane}" if lane in ("http", "queue") else "verl"]
        if system.startswith("multi_turn") and verl:
            assert digests == {each["digest"] for each in verl}, f"{size}: rows that are not verl's"
        values = [statistics.median(each[column] for each in rounds) for column in COLUMNS]
        peers = [each["turns_per_cpu_second"] for each in verl]
        ratio = values[0] / statistics.median(peers) if peers else 1.0
        lines.append(
            (size, system, f"{values[0]:,.0f}", f"{ratio:.2f}", *(f"{value:.3g}" for value in values[1:]),
             min(digests)[:8])
        )  # fmt: skip
    first, *others = COLUMNS.values()
    return table(("size", "system", first, "verl's", *others, "rows"), lines)


# ---- model and tasks ----


def write_model(folder: Path) -> None:
    """Write a tokenizer made from texts of the repository, and the canned texts."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import Qwen2Config, Qwen2Tokenizer

    texts = [path.read_text() for pattern in ("docs/**/*.md", "platform/**/*.py", "tests/**/*.py")
             for path in sorted(ROOT.glob(pattern))]  # fmt: skip
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trained.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=VOCABULARY, initial_alphabet=alphabet, show_progress=False)
    )
    model = json.loads(trained.to_str())["model"]
    tokenizer = Qwen2Tokenizer(
        vocab=model["vocab"],
        merges=[tuple(merge) for merge in model["merges"]],
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        extra_special_tokens=list(SPECIAL),
        chat_template=TEMPLATE,
    )
    tokenizer.save_pretrained(folder / "model")
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1}
    sizes["max_position_embeddings"] = 2**17
    Qwen2Config(vocab_size=len(tokenizer), architectures=["Qwen2ForCausalLM"], **sizes).save_pretrained(
        folder / "model"
    )
    prose = (ROOT / "docs" / "architecture.md").read_text() + (ROOT / "docs" / "tool-agent.md").read_text()
    words = tokenizer.encode(" ".join(prose.replace("`", "").replace("|", "").split()), add_special_tokens=False)
    # In the order of the harness: ENDED, CUT, QWEN3.
    canned = [_canned(tokenizer, words, end=end) for end in ("<|im_end|>", "")]
    texts = {kind: [tokenizer.decode(ids, skip_special_tokens=True) for ids in canned[0][kind]] for kind in canned[0]}
    (folder / "texts.json").write_text(json.dumps(texts))
    (folder / "observation.txt").write_text(tokenizer.decode(words[:OBSERVATION_TOKENS]))
    (folder / "tool.py").write_text(TOOL)
    task = {"prompt": [{"role": "user", "content": "Which page says how a tool is called? Look pages up."}],
            "reward_model": {"ground_truth": ""}}  # fmt: skip
    (folder / "tasks.jsonl").write_text(json.dumps(task) + "\n")
    like_qwen3(tokenizer)
    tokenizer.save_pretrained(folder / "qwen3")
    canned.append(_canned(tokenizer, words, end="<|im_end|>"))
    (folder / "canned.json").write_text(json.dumps(canned))


def like_qwen3(tokenizer: Any) -> None:
    """Give a tokenizer the tokens that Qwen3's has."""
    tokenizer.add_tokens(list(PARTS_OF_CALLS))
    # As Qwen3's has none: verifiers' renderer takes an unknown token for a missing one.
    tokenizer.unk_token = None


def _canned(tokenizer: Any, words: Sequence[int], *, end: str) -> dict[str, list[list[int]]]:
    """Return responses that end with a call, and some that are answers."""
    canned: dict[str, list[list[int]]] = {"calls": [], "answers": []}
    for number in range(NUM_RESPONSES):
        for kind, tail in (("calls", CALL % number + end), ("answers", "<|im_end|>")):
            tail_ids = tokenizer.encode(tail, add_special_tokens=False)
            start = number * RESPONSE_TOKENS % (len(words) - RESPONSE_TOKENS)
            canned[kind].append([*words[start : start + RESPONSE_TOKENS - len(tail_ids)], *tail_ids])
    return canned


if __name__ == "__main__":
    main()
