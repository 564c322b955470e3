"""The pages for users of another system name only what exists in turnmill and cover the other system's names."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from turnmill.cli.main import app
from turnmill.core.lookup import import_object
from turnmill.environments import registry as environments
from turnmill.jobs.job import JobSpec
from turnmill.jobs.settings import Settings
from turnmill.jobs.values import fields_by_alias, tag_of, variants_of
from turnmill.tools import registry as tools

ROOT = Path(__file__).parents[2]
PAGES = {path.stem: path for path in sorted((ROOT / "docs" / "coming-from").glob("*.md"))}

AGENTS = {"verl-tool": "tool", "verlog": "verlog", "verl": "multi_turn", "grl": "grl"}
"""The agent type that a page is about; its fields are those of `agent`."""

ENVIRONMENTS = ("babyai", "crafter", "sokoban", "tetris", "blocksworld", "maths", "webshop", "bird")
"""Environments with options that the pages may name."""

SECTIONS = tuple(fields_by_alias(JobSpec))

THERE = {
    "verl-tool": """
        enable_agent max_turns max_start_length max_prompt_length max_response_length max_obs_length max_action_length
        tool_server_url n truncate_obs_side truncate_response_side rolling_with_prompt call_tool_first min_turns
        action_stop_tokens additional_eos_token_ids mask_observations force_finish_for_last_turn enable_mtrl mtrl_role
        mtrl_sep turn_end_token max_concurrent_trajectories val_max_turns train_max_response_length
        val_max_response_length max_model_len assistant_role rollout_mode mask_overlong_loss enable_tqdm
        tool_call_timeout tool_call_max_retries over_sampling retokenization mask_void_traj logprobs close_traj_time
        trainer.rollout_data_dir trainer.validation_data_dir --tool_type --host --port --workers_per_tool
        --max_concurrent_requests --request_timeout --thread_pool_size --use_tqdm --log_level --done_if_invalid
        --use_ray --enable_hashing --log_interval --uvi_workers --router_workers --log_directory eval_service base
        finish python_code ipython_code python_oj bash_terminal sql search_retrieval google_search bing_search
        serp_search piston sandbox_fusion text_browser pixel_reasoner audio_crop mcp_interface get_usage_inst
        parse_action conduct_action get_observations aget_observations load_env save_env update_env has_env delete_env
    """,
    "verlog": """
        envs.n_rollouts envs.format_penalty envs.binary_reward envs.captioner.type envs.captioner.max_text_history
        envs.captioner.max_cot_history envs.captioner.max_image_history data.max_prompt_length
        data.max_response_length data.train_batch_size algorithm.token_gamma algorithm.token_lam algorithm.step_gamma
        algorithm.step_lam trainer.critic_warmup trainer.critic_warmup_step critic.highlight_first
        critic.highlight_ratio algorithm.use_kl_in_reward algorithm.kl_ctrl.kl_coef algorithm.kl_ctrl.type target_kl
        horizon critic.cliprange_value trainer.render render_path trainer.balance_batch val-rewards val-success
        val-traj_length behavior/valid_action_ratio behavior/plan_length behavior/backtrack_length
    """,
    "grl": """
        rollout.train rollout.training rollout.validation rollout.agent_group_num rollout.agent_group_size
        rollout.validation_agent_group_num rollout.validation_agent_group_size rollout.validation_seed
        rollout.use_turn_scores rollout.reward_normalization.grouping method rollout.rollout_filter_ratio
        rollout.rollout_filter_type rollout.truncation rollout.num_prompt_threads rollout.num_env_threads
        rollout.show_tqdm agent_type agent_config.max_turns agent_config.max_actions_all_turns max_actions_per_turn
        agent_config.max_tokens agent_config.format_penalty agent_config.enable_think
        agent_config.use_think_answer_token agent_config.action_separator agent_config.system_prompt prompt env_config
        env_config.grid_vocab trainer.total_training_steps trainer.total_epochs trainer.test_freq
        trainer.validation_steps trainer.save_freq train/<key> val-env/<key> AgentTrainer init_workers fit
        register_agent get_agent_cls SokobanAgent SyncMultiTurnRollout DummyRewardManager
    """,
    "verl": """
        rollout.name rollout.mode rollout.multi_turn rollout.multi_turn.enable rollout.tool_kwargs.tools_config_file
        rollout.multi_turn.tool_config_path rollout.multi_turn.function_tool_path rollout.multi_turn.format
        rollout.multi_turn.max_assistant_turns max_user_turns rollout.multi_turn.max_parallel_calls
        rollout.multi_turn.max_tool_response_length rollout.multi_turn.tool_response_truncate_side
        rollout.multi_turn.use_inference_chat_template rollout.multi_turn.tokenization_sanity_check_mode
        rollout.agent.default_agent_loop rollout.agent.agent_loop_config_path rollout.agent.agent_loop_manager_class
        data.return_multi_modal_inputs tools_kwargs.<tool>.create_kwargs tool_selection agent_name
    """,
}
"""Every parameter, flag, tool and metric that the systems' own documents and scripts name."""


def rows(page: str) -> Iterator[list[str]]:
    """Return the rows of all tables of a page as cells."""
    for line in PAGES[page].read_text().splitlines():
        if line.startswith("| "):
            yield [cell.strip() for cell in line.replace("\\|", "¦").strip("|").split("|")]


def here(page: str) -> list[str]:
    """Return the names in code in the second columns of a page's tables."""
    return [name for row in rows(page) for name in re.findall(r"`([^`]+)`", row[1])]


def has_field(model: type[Settings], names: list[str]) -> bool:
    """Return True if a path leads to a field of the section."""
    name, *rest = names
    field = fields_by_alias(model).get(name)
    if field is None or not rest:
        return field is not None
    return any(has_field(variant, rest) for variant in variants_of(field))


def is_field(path: str, agent: str) -> bool:
    """Return True if a job of that agent has the field; `path: word` names a type as well."""
    path, _, word = path.partition(": ")
    section, *rest = path.split(".")
    if path.startswith("environment.options."):
        return any(rest[1] in fields_by_alias(environments.find(name).Settings) for name in ENVIRONMENTS) or rest[
            1
        ] in (
            "path",
            "reward",
        )
    variants = variants_of(fields_by_alias(JobSpec)[section])
    if section == "agent":
        variants = tuple(variant for variant in variants if tag_of(variant) == agent)
    if word and rest == ["type"]:
        return any(tag_of(variant) == word for variant in variants)
    return not rest or any(has_field(variant, rest) for variant in variants)


def flags(command: str) -> set[str]:
    """Return the flags of one of turnmill's commands."""
    parameters = typer.main.get_command(app).commands[command].params
    return {name for parameter in parameters for name in (*parameter.opts, *parameter.secondary_opts)}


def exists(name: str, agent: str) -> bool:
    """Return True if a name exists in turnmill; text that does not have the form of a name is accepted."""
    if name.split(".")[0].split(":")[0] in SECTIONS:
        return is_field(name, agent)
    if name.startswith("--"):
        return name.split()[0] in flags("tool-server")
    if name.startswith("turnmill "):
        return name.split()[1] in typer.main.get_command(app).commands
    if name.startswith("turnmill."):
        return import_object(":".join(name.rsplit(".", 1))) is not None
    if name.startswith(("turnmill/", "validation/")):
        return re.split(r"/<|/\w+@N", name)[0] in SOURCES
    if re.fullmatch(r"[A-Z]+_[A-Z_]+", name):
        return f"`{name}`" in (ROOT / "docs" / "tools.md").read_text()
    return True


SOURCES = "\n".join(path.read_text() for path in (ROOT / "platform" / "turnmill").rglob("*.py"))


@pytest.mark.parametrize("page", PAGES)
def test_a_page_names_only_existing_fields_flags_and_tools(page):
    named = here(page)

    assert len(named) > 20
    assert [name for name in named if not exists(name, AGENTS[page])] == []


@pytest.mark.parametrize("page", PAGES)
def test_a_page_covers_every_name_of_the_other_system(page):
    named = {name for row in rows(page) for name in re.findall(r"`([^`]+)`", row[0])}

    assert [name for name in THERE[page].split() if name not in named] == []


def test_tools_taken_over_from_verl_tool_keep_their_names():
    kept = [row for row in rows("verl-tool") if row[0] == row[1] and "_" in row[0]]

    assert {row[0].strip("`") for row in kept} >= {"pixel_reasoner", "audio_crop", "text_browser", "sandbox_fusion"}
    assert {row[0].strip("`") for row in kept} <= set(tools.names())


@pytest.mark.parametrize(
    "name", ["agent.maxTurn", "agent.memory.turns", "--tool-kind", "turnmill sing", "turnmill/nothing", "PISTON_URI"]
)
def test_an_unknown_name_is_detected(name):
    assert not exists(name, "verlog")


@pytest.mark.parametrize("page", PAGES)
def test_the_links_of_a_page_resolve(page):
    links = re.findall(r"\]\(([^)#]+)", PAGES[page].read_text())

    assert [link for link in links if not (PAGES[page].parent / link).exists()] == []
