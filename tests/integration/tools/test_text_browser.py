"""The tool text_browser on a local site, with pages rendered in the sandbox."""

import gzip
import re
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from aiohttp import web

from support.web_site import Handler, WebSite
from turnmill.core.errors import ToolFailedError
from turnmill.sandboxes.fork import ForkSandbox
from turnmill.testing.tool_calls import Dialogue, make_tool

HOME = """<html><head><title>The Mill</title><style>p {color: red}</style></head><body>
<h1>Welcome</h1><p>We grind <a href="/grain">grain</a> and <a href="wheat.html"><b>wheat</b></a>.</p>
<a href="#top">top</a> <a href="javascript:void(0)">script</a> <a href="mailto:a@b.c">mail</a>
<form action="/search"><input type="hidden" name="lang" value="en"><input name="q" placeholder="Search">
<select name="in"><option value="1">Titles</option><option value="2" selected>Texts</option></select>
<label><input type="checkbox" name="exact"> exact</label><button>Go</button></form>
<form action="/order" method="post"><textarea name="note">as usual</textarea>
<input type="submit" name="how" value="fast"><input type="submit" name="how" value="slow"></form>
<script>document.write("written")</script></body></html>"""


def echo(request: web.Request) -> web.Response:
    return web.Response(text=f"<p>asked for {request.path_qs}</p>", content_type="text/html")


def caller(request: web.Request) -> web.Response:
    assert request.transport is not None
    port = request.transport.get_extra_info("peername")[1]
    return web.Response(text=f"<p>asked by {port}</p>", content_type="text/html")


def say(command: str) -> str:
    return f"<think>so</think>\n```{command}```"


@pytest_asyncio.fixture(loop_scope="session")
async def site() -> AsyncIterator[WebSite]:
    pages = {
        "/": HOME,
        "/grain": "<title>Grain</title><p>Grain is ground.</p><a href='/'>home</a>",
        "/search": echo,
        "/order": echo,
        "/who": caller,
    }
    async with WebSite(pages) as site:
        yield site


@pytest_asyncio.fixture(loop_scope="session")
async def new_browser(sandbox: ForkSandbox, site: WebSite):
    tools = []

    async def begin(**settings: str) -> Dialogue:
        settings = {"BROWSER_PRIVATE_ADDRESSES": "allow", **settings}
        tool = make_tool("text_browser", sandbox, **settings)
        await tool.start()
        tools.append(tool)
        return Dialogue(tool, {"url": f"{site.url}/", "question": "What is ground?"})

    yield begin
    for tool in tools:
        await tool.close()


pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.feature("verl-tool", "a text browser")
async def test_an_empty_action_shows_the_first_page_with_numbers_to_click_on(new_browser, site):
    browser = await new_browser()

    assert await browser.say("") == (
        f"<browser>Objective: What is ground?\n\nURL: {site.url}/\nObservation:\nThe Mill\n\n"
        "Welcome\n\nWe grind [1] link 'grain' and [2] link 'wheat'.\n\ntop script mail\n"
        "[4] textbox 'Search' [5] combobox 'in' options: 'Titles', 'Texts' [6] checkbox 'exact' exact [7] button 'Go'\n"
        "[8] textbox 'note' [9] button 'fast' [10] button 'slow'\n"
        "Parsed Previous Action:\nNone\n</browser>"
    )
    assert (browser.result.done, browser.result.valid) == (False, True)


@pytest.mark.feature("verl-tool", "a text browser")
async def test_links_are_followed_and_the_history_is_known_to_every_replica(new_browser):
    browser = await new_browser()

    assert "Grain is ground." in await browser.say(say("click [1]"))
    browser.tool = (await new_browser()).tool
    assert "Welcome" in await browser.say(say("go_back"))
    browser.tool = (await new_browser()).tool
    assert "Grain is ground." in await browser.say(say("go_forward"))
    assert "There is no page to go forward to." in await browser.say(say("go_forward"))
    assert not browser.result.valid


async def test_a_form_is_sent_with_typed_selected_and_checked_values(new_browser, site):
    browser = await new_browser()

    assert "[4] textbox 'Search' filled: 'a mill'" in await browser.say(say("type [4] [a mill] [0]"))
    assert "[5] combobox 'in' filled: '1'" in await browser.say(say("type [5] [Titles]"))
    assert "[6] checkbox 'exact' checked" in await browser.say(say("click [6]"))
    assert "asked for /search?lang=en&q=a+mill&in=1&exact=on" in await browser.say(say("click [7]"))
    await browser.say(say("go_back"))
    assert "asked for /search?lang=en&q=other&in=2" in await browser.say(say("type [4] [other] [1]"))


async def test_lone_surrogates_are_replaced_by_question_marks(new_browser):
    browser = await new_browser()

    assert "[4] textbox 'Search' filled: 'a?'" in await browser.say(say("type [4] [a\ud800] [0]"))
    assert "asked for /search?lang=en&q=a%3F&in=2" in await browser.say(say("click [7]"))


async def test_a_posted_form_names_the_button_that_was_clicked(new_browser, site):
    browser = await new_browser()

    await browser.say(say("click [10]"))

    assert site.requests[-1] == ("POST", "/order", "note=as+usual&how=slow")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("dance", "The action is invalid, please retry"),
        ("click [99]", "There is no [99] on this page."),
        ("click [3]", "There is no [3] on this page."),
        ("type [1] [x]", "[1] is a link: nothing can be typed there."),
        ("type [5] [Names]", "[5] offers 'Titles', 'Texts'."),
        ("goto [ftp://127.0.0.1/x]", "'ftp://127.0.0.1/x' is no address that can be visited."),
        ("goto [http://nowhere.invalid/]", "There is no host nowhere.invalid."),
        ("go_back", "There is no page to go back to."),
    ],
)
async def test_an_invalid_command_is_reported_and_the_page_is_unchanged(new_browser, command, message):
    browser = await new_browser()

    observation = await browser.say(say(command))

    assert f"Parsed Previous Action:\n{message}\n" in observation
    assert "Welcome" in observation
    assert not browser.result.valid


async def test_stop_ends_the_trajectory_and_clears_its_state(new_browser):
    browser = await new_browser()
    await browser.say("")

    assert await browser.say(say("stop [grain]")) == ""
    assert (browser.result.done, browser.result.valid) == (True, True)
    assert browser.state == {}


async def test_a_long_page_is_read_by_scrolling(new_browser, site):
    site.pages["/long"] = "".join(f"<p>line {number}</p>" for number in range(100))
    browser = await new_browser(BROWSER_WINDOW_CHARACTERS="200")

    first = await browser.say(say(f"goto [{site.url}/long]"))
    second = await browser.say(say("scroll [down]"))

    assert "line 0\n" in first
    assert "(characters 0 to 200 of 888)" in first
    assert "(characters 200 to 400 of 888)" in second
    assert await browser.say(say("scroll [up]")) == first.replace(f"goto [{site.url}/long]", "scroll [up]")


async def test_a_page_that_is_not_found_is_an_observation(new_browser):
    browser = await new_browser()

    assert "(The server answered 404.)\nNot here." in await browser.say(say("click [2]"))
    assert browser.result.valid


async def test_other_files_are_shown_if_they_are_text(new_browser, site):
    site.pages["/data"] = lambda request: web.json_response({"a": 1})
    site.pages["/file"] = lambda request: web.Response(body=b"\0" * 9, content_type="application/pdf")
    browser = await new_browser()

    assert '{"a": 1}' in await browser.say(say("goto [/data]"))
    assert "(A file of type application/pdf with 9 bytes; it has no text to show.)" in await browser.say(
        say("goto [/file]")
    )


async def test_cookies_are_kept_per_trajectory_on_every_replica(new_browser, site):
    def remember(request: web.Request) -> web.Response:
        answer = web.Response(text=f"<p>you are {request.cookies.get('name', 'new')}</p>", content_type="text/html")
        answer.set_cookie("name", "known")
        return answer

    site.pages["/who"] = remember
    browser, other = await new_browser(), await new_browser()
    assert "you are new" in await browser.say(say("goto [/who]"))
    other.tool = browser.tool = (await new_browser()).tool

    assert "you are known" in await browser.say(say("goto [/who]"))
    assert "you are new" in await other.say(say("goto [/who]"))


async def test_private_addresses_are_refused_unless_they_are_allowed(new_browser, site):
    browser = await new_browser()
    await browser.say("")
    browser.tool = (await new_browser(BROWSER_PRIVATE_ADDRESSES="")).tool
    port = site.url.rpartition(":")[2]
    num_requests = len(site.requests)

    for host in ("127.0.0.1", "localhost", "[::1]", "0x7f000001", "169.254.169.254", "[::ffff:10.0.0.1]", "0"):
        assert "is no public address." in await browser.say(say(f"goto [http://{host}:{port}/grain]"))
    assert len(site.requests) == num_requests


async def test_a_redirect_is_checked_like_any_request(new_browser, site):
    def away(request: web.Request) -> web.Response:
        return web.Response(status=302, headers={"location": f"{site.url.replace('127.0.0.1', 'localhost')}/grain"})

    site.pages["/away"] = away
    browser = await new_browser(BROWSER_HOSTS="127.0.0.1, example.org")

    assert "localhost may not be visited here." in await browser.say(say("goto [/away]"))
    assert site.requests[-1][1] == "/away"


async def test_a_page_that_takes_too_long_to_render_is_an_observation(new_browser, site):
    rows = "<tr>" + "<td>x</td>" * 100 + "</tr>"
    site.pages["/table"] = f"<table>{rows * 4000}</table>"
    browser = await new_browser(BROWSER_RENDER_SECONDS="0.5")

    assert "cannot be shown as text." in await browser.say(say("goto [/table]"))
    assert "Grain is ground." in await browser.say(say("click [1]"))


async def test_a_too_large_page_is_cut_with_a_notice(new_browser, site):
    site.pages["/large"] = "<p>word</p>" * 10_000
    browser = await new_browser(BROWSER_MAX_PAGE_BYTES="2000")

    assert "(The page is cut: it is too large.)\nword" in await browser.say(say("goto [/large]"))


@pytest.mark.parametrize("status", [500, 503, 429])
async def test_an_error_status_of_a_site_fails_the_call_or_is_an_observation_as_set(new_browser, site, status):
    site.pages["/broken"] = lambda request: web.Response(status=status)
    browser, lenient = await new_browser(), await new_browser(BROWSER_ON_FAILURE="text")

    with pytest.raises(ToolFailedError, match=f"/broken failed: it answered {status}"):
        await browser.say(say("goto [/broken]"))
    assert f"The page cannot be reached: it answered {status}." in await lenient.say(say("goto [/broken]"))


async def test_a_timeout_of_a_site_fails_the_call(new_browser, site):
    browser = await new_browser(BROWSER_TIMEOUT_SECONDS="0.3")
    await browser.say("")
    site.may_answer.clear()

    with pytest.raises(ToolFailedError, match="/grain failed"):
        await browser.say(say("click [1]"))


async def test_a_first_page_that_is_forbidden_or_missing_fails_the_call(new_browser):
    browser = await new_browser(BROWSER_PRIVATE_ADDRESSES="refuse")
    with pytest.raises(ToolFailedError, match=r"the first page .* cannot be shown: 127.0.0.1 is no public address"):
        await browser.say("")

    browser.extra = {}
    with pytest.raises(ToolFailedError, match="set BROWSER_START_URL"):
        await browser.say("")


@pytest.mark.parametrize(
    ("action", "parsed"),
    [
        ("", ""),
        ("<think>a</think>\n```click [1]```", "click [1]"),
        ("<think>a</think>```\nscroll [down]\n``` and more", "scroll [down]"),
        ("```click [1]```", None),
        ("<think>a</think> click [1]", None),
    ],
)
async def test_a_command_is_parsed_from_a_fence_after_a_thought(action, parsed):
    assert make_tool("text_browser").parse(action) == parsed


async def test_trajectories_share_no_connection(new_browser, site):
    first = await new_browser()
    first.extra["url"] = f"{site.url}/who"
    second = Dialogue(first.tool, dict(first.extra), trajectory_id="other")

    observation = [re.search(r"asked by (\d+)", await browser.say("")) for browser in (first, second)]

    assert observation[0] is not None
    assert observation[1] is not None
    assert observation[0][1] != observation[1][1]


def compressed(layers: int, encoding: str) -> Handler:
    body = b"<p>word</p>" * 1000
    for _ in range(layers):
        body = gzip.compress(body)
    return lambda request: web.Response(body=body, headers={"content-encoding": encoding}, content_type="text/html")


async def test_pages_are_requested_without_encoding_and_one_layer_of_it_is_undone(new_browser, site):
    accepted = []

    def page(request: web.Request) -> web.StreamResponse:
        accepted.append(request.headers["accept-encoding"])
        return compressed(1, "gzip")(request)

    site.pages["/gzip"] = page
    browser = await new_browser()

    assert "word" in await browser.say(say("goto [/gzip]"))
    assert accepted == ["identity"]


async def test_stacked_encodings_are_refused_as_an_observation(new_browser, site):
    site.pages["/nested"] = compressed(3, "gzip, gzip, gzip")
    browser = await new_browser()

    assert "The page is encoded as 'gzip, gzip, gzip', which is not read here." in await browser.say(
        say("goto [/nested]")
    )
    assert browser.result.valid is False


async def test_the_body_of_a_redirect_is_not_read(new_browser, site):
    def away(request: web.Request) -> web.StreamResponse:
        headers = {"location": "/grain", "content-encoding": "gzip, gzip"}
        return web.Response(status=302, headers=headers, body=b"no gzip at all")

    site.pages["/away"] = away
    browser = await new_browser()

    assert "Grain is ground." in await browser.say(say("goto [/away]"))
