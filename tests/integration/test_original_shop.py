"""The environment `webshop` against a server with the pages of the original."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs

import pytest

from turnmill import environments
from turnmill.core.errors import EnvironmentFailedError

SEARCH = """<div id="instruction-text"><h4>Instruction: <br>goal {goal}</h4></div>
<form method="post" action="/{session}">
<input id="search_input" name="search_query"/><button>Search</button></form>"""
RESULTS = """<h3>Results of {words}</h3><a class="product-link" href="/item_page/{session}/B01">B01</a>"""
ITEM = """<h2>A tent</h2><form method="post" action="/done/{session}"><button>Buy Now</button></form>"""
DONE = """<h3 id="reward">Your score<pre>0.5</pre></h3>"""


class Pages(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self._answer(None)

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        self._answer(parse_qs(self.rfile.read(length).decode()))

    def _answer(self, form: dict[str, list[str]] | None) -> None:
        first, *rest = self.path.strip("/").split("/")
        if form is not None and "search_query" in form:
            page = RESULTS.format(words=form["search_query"][0], session=first)
        elif first == "item_page":
            page = ITEM.format(session=rest[0])
        elif first == "done":
            page = DONE
        else:
            page = SEARCH.format(goal=first.rpartition("_")[2], session=first)
        body = page.encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Pages) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_purchase_follows_the_pages_of_the_shop(url):
    environment = environments.create("webshop", options={"url": url, "numGoals": 7})

    opening = environment.reset(seed=9)
    results = [environment.step(environment.match_action(answer)) for answer in ("search[a tent]", "click[b01]")]
    bought = environment.step("click[buy now]")

    assert opening == "Instruction: [SEP] goal 2 [SEP] Search\nAvailable actions: search[<content>]"
    assert results[0].observation == "Results of a tent [SEP] B01\nAvailable actions: click[b01]"
    assert results[1].observation == "A tent [SEP] Buy Now\nAvailable actions: click[buy now]"
    assert (bought.reward, bought.terminated) == (0.5, True)


def test_an_unreachable_shop_is_reported():
    environment = environments.create("webshop", options={"url": "http://127.0.0.1:9"})

    with pytest.raises(EnvironmentFailedError, match=r"options\.url: http://127\.0\.0\.1:9 returned no page"):
        environment.reset(0)
