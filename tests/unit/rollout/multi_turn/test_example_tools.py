"""The tools that come with agents of the type `multi_turn`."""

from collections.abc import Sequence

import pytest
from verl.tools.schemas import OpenAIFunctionToolSchema

from turnmill.rollout.multi_turn.example_tools.calculator import calculator
from turnmill.rollout.multi_turn.example_tools.search import SearchTool

SEARCH = {"type": "function", "function": {"name": "search", "description": "Searches.", "parameters": {
    "type": "object", "properties": {"query": {"type": "string"}}, "required": []}}}  # fmt: skip


@pytest.mark.parametrize(
    ("expression", "answer"),
    [
        ("42*17", "714"), ("7 - 12", "-5"), ("-3+-4", "-7"), ("3--4", "7"), ("6/2", "no sum"), ("1+2+3", "no sum"),
        ("1234567890+1", "no sum"),
    ],
)  # fmt: skip
def test_the_calculator_answers_one_sum_of_two_whole_numbers(expression: str, answer: str):
    assert calculator(expression) == answer


class Library(SearchTool):
    """Finds one document for each query, in memory."""

    async def _retrieve(self, queries: Sequence[str]) -> list[list[str]]:
        return [[f"About {query}\n{query}!"] for query in queries]


async def test_the_policy_reads_found_documents_in_their_own_letters():
    schema = OpenAIFunctionToolSchema.model_validate(SEARCH)
    tool = Library({"retrieval_service_url": "http://library"}, schema)

    response, _, _ = await tool.execute("", {"query": "漢字"})

    assert response.text == '{"result": "Doc 1(Title: About 漢字) 漢字!"}'
