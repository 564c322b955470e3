import pytest

from turnmill import environments
from turnmill.environments.webshop import WebShop
from turnmill.environments.webshop.catalogue import draw_goal, products
from turnmill.environments.webshop.original import read_page
from turnmill.environments.webshop.small_shop import find


def create(**options: object) -> WebShop:
    environment = environments.create("webshop", options=options)
    assert isinstance(environment, WebShop)
    return environment


def do(environment: WebShop, answer: str) -> str:
    action = environment.match_action(answer)
    assert action is not None, (answer, environment.page.actions)
    return environment.step(action).observation


@pytest.mark.parametrize("seed", range(20))
def test_the_product_of_a_goal_can_be_bought(seed):
    environment = create()
    opening = environment.reset(seed)
    goal = draw_goal(seed)

    do(environment, f"search[{goal.product.title}]")
    do(environment, f"click[{goal.product.number}]")
    for option in goal.options.values():
        page = do(environment, f"click[{option}]")
        assert f"{option} (chosen)" in page
    result = environment.step("click[buy now]")

    assert goal.instruction in opening
    assert opening.endswith("Available actions: search[<content>]")
    assert (result.reward, result.terminated, result.info["success"]) == (1.0, True, 1.0)


@pytest.mark.feature("GRL", "the other environments")
def test_the_reward_of_a_purchase_is_the_share_of_the_goal_that_it_fulfils():
    goal = draw_goal(3)
    others = [product for product in products().values() if product.category != goal.product.category]

    assert goal.reward(goal.product, goal.options) == 1.0
    assert goal.reward(goal.product, {}) == pytest.approx(3 / 5)
    assert goal.reward(others[0], {}) <= 0.1


def test_a_seed_determines_the_goal():
    instructions = [create().reset(seed) for seed in range(30)]

    assert instructions == [create().reset(seed) for seed in range(30)]
    assert len(set(instructions)) > 20


def test_results_are_shown_ten_to_a_page():
    environment = create()
    environment.reset(0)
    first = do(environment, "search[lightweight]")
    second = do(environment, "click[next >]")

    assert len(find("lightweight")) > 10
    assert f"Page 1 (Total results: {len(find('lightweight'))})" in first
    assert "click[< prev]" not in first
    assert "Page 2" in second
    assert do(environment, "click[< prev]") == first


def test_the_pages_of_a_product_keep_the_chosen_options():
    environment = create()
    environment.reset(0)
    do(environment, "search[teapot]")
    product = find("teapot")[0]
    do(environment, f"click[{product.number}]")
    chosen = do(environment, f"click[{product.options['color'][0]}]")

    features = do(environment, "click[features]")

    assert all(attribute in features for attribute in product.attributes)
    assert do(environment, "click[< prev]") == chosen
    assert "Search" in do(environment, "click[back to search]")


@pytest.mark.parametrize(
    "answer", ["search[]", "click[buy now]", "click[b0001]", "buy", "search tent", "search[tent", "", "click[[x]]"]
)
def test_an_action_that_the_page_does_not_offer_is_invalid_and_changes_nothing(answer):
    environment = create()
    opening = environment.reset(0)

    assert environment.match_action(answer) is None
    result = environment.step(environment.default_action)
    assert (result.observation, result.reward, result.terminated) == (opening, 0.0, False)


def test_another_search_is_possible_after_one_without_results():
    environment = create()
    environment.reset(0)

    assert "Total results: 0" in do(environment, "search[zeppelin]")
    assert "Search" in do(environment, "click[back to search]")


SEARCH_PAGE = """<html><head><title>no</title></head><body><div id="instruction-text">
<h4>Instruction: <br>a red tent</h4></div><form method="post" action="/abc">
<input id="search_input" name="search_query"/>
<button class="btn" type="submit">Search</button></form></body></html>"""
PRODUCT_PAGE = """<body><form method="post" action="/abc"><button>Back to Search</button></form>
<h4>color</h4><input type="radio" name="color" value="Red" data-url="/item/red"><label>Red</label>
<h4><a class="product-link" href="item_page/B01">B01</a></h5><h4>A tent</h5>
<form action="/done/abc"><button class="btn purchase">Buy Now</button></form>
<script>var x = "hidden";</script></body>"""
DONE_PAGE = """<h3 id="reward">Your score (min 0.0, max 1.0)<pre>0.75</pre></h3>"""


def test_pages_of_the_original_shop_are_parsed_into_text_and_links():
    search = read_page(SEARCH_PAGE, "http://shop/abc")
    product = read_page(PRODUCT_PAGE, "http://shop/results/")

    assert search.text == "Instruction: [SEP] a red tent [SEP] Search"
    assert (search.search_address, search.clickables) == ("http://shop/abc", {})
    assert product.clickables == {
        "back to search": "http://shop/abc",
        "red": "http://shop/item/red",
        "b01": "http://shop/results/item_page/B01",
        "buy now": "http://shop/done/abc",
    }
    assert "hidden" not in product.text
    assert read_page(DONE_PAGE, "http://shop/").reward == 0.75
