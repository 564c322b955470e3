"""The tool `text_browser`: shows web pages as text, with numbered elements."""

import re
from collections.abc import Mapping
from email.message import Message
from typing import ClassVar

from pydantic import ValidationError

from turnmill.core.errors import ToolFailedError
from turnmill.sandboxes.base import MIB, Function, Limits, SandboxTask
from turnmill.tools import settings
from turnmill.tools.base import Tool, ToolCall, ToolContext, ToolResult
from turnmill.tools.browser.commands import USAGE, fenced_command, parse_command
from turnmill.tools.browser.fetch import FetchedPage, Fetcher, PageUnavailableError
from turnmill.tools.browser.navigation import CommandNotPossibleError, Request, apply_command
from turnmill.tools.browser.page import NavigationState, Page
from turnmill.tools.code_blocks import encodable
from turnmill.tools.registry import register
from turnmill.tools.sandboxed.packing import pack
from turnmill.trajectories.base import Change

INVALID = "The action is invalid, please retry"
_PAGE, _NAVIGATION = "page", "place"
_MAX_HISTORY = 50
_MAX_PAGE_BYTES = 8 * MIB


@register
class TextBrowser(Tool):
    """A browser without scripts that stores page, input, history and cookies of a trajectory."""

    name: ClassVar[str] = "text_browser"
    stateful: ClassVar[bool] = True
    requires: ClassVar[tuple[str, ...]] = ("httpx", "inscriptis")

    def __init__(self, context: ToolContext) -> None:
        super().__init__(context)
        values = context.settings
        self._fetcher = Fetcher(values)
        self._start_url = settings.text(values, "BROWSER_START_URL", "")
        self._window = settings.count(values, "BROWSER_WINDOW_CHARACTERS", 4000, least=200)
        self._max_characters = settings.count(values, "BROWSER_MAX_PAGE_CHARACTERS", 200_000, least=1000)
        self._seconds = settings.number(values, "BROWSER_RENDER_SECONDS", 10, least=0.1)

    async def start(self) -> None:
        """Open the connections."""
        await self._fetcher.start()

    async def close(self) -> None:
        """Close the connections."""
        await self._fetcher.close()

    def usage(self) -> str:
        """Return one line on how to call it."""
        return USAGE

    def parse(self, action: str) -> str | None:
        """Return the command after a thought; an empty action requests the page."""
        return fenced_command(action)

    async def call(self, call: ToolCall) -> ToolResult:
        """Execute the command, on the start page if there is no page yet."""
        if _PAGE in call.state:
            page = Page.model_validate_json(call.state[_PAGE])
            navigation = NavigationState.model_validate_json(call.state[_NAVIGATION])
        else:
            page, navigation = await self._first_page(call.extra)
        command, message, valid = parse_command(call.parsed), call.parsed or "None", True
        if command is not None and command.name == "stop":
            return ToolResult("", done=True, change=Change(forget=True))
        before = page
        try:
            if command is None:
                raise CommandNotPossibleError(INVALID)
            moved, request = apply_command(page, navigation, command, self._window)
            page, navigation = (page, moved) if request is None else await self._visit(request, moved)
        except (CommandNotPossibleError, PageUnavailableError) as error:
            message, valid = str(error), False
        written = {_NAVIGATION: navigation.model_dump_json(exclude_defaults=True).encode()}
        if page is not before or _PAGE not in call.state:
            written[_PAGE] = page.model_dump_json(exclude_defaults=True).encode()
        text = f"<browser>Objective: {call.extra.get('question', '')}\n\n{self._format_page(page, navigation)}"
        text = encodable(f"{text}Parsed Previous Action:\n{message}\n</browser>")
        return ToolResult(text, valid=valid, change=Change(written=written))

    async def _first_page(self, extra: Mapping[str, object]) -> tuple[Page, NavigationState]:
        url = str(extra.get("url") or self._start_url)
        if not url:
            raise ToolFailedError(
                "text_browser: there is no first page: send extra_fields.url, or set BROWSER_START_URL."
            )
        try:
            return await self._visit(Request(url), NavigationState())
        except PageUnavailableError as error:
            raise ToolFailedError(f"text_browser: the first page {url} cannot be shown: {error}") from error

    async def _visit(self, request: Request, navigation: NavigationState) -> tuple[Page, NavigationState]:
        fetched = await self._fetcher.fetch(request.url, request.body, navigation.cookies)
        page = await self._render(fetched)
        back, forward = navigation.back[-_MAX_HISTORY:], navigation.forward[-_MAX_HISTORY:]
        return page, NavigationState(back=back, forward=forward, cookies=list(fetched.cookies))

    async def _render(self, fetched: FetchedPage) -> Page:
        kind, charset = _media_type(fetched.content_type)
        if kind not in ("text/html", "application/xhtml+xml"):
            return Page(url=fetched.url, text=self._decode(kind, charset, fetched.content))
        argument = {
            "html": fetched.content,
            "url": fetched.url.encode(),
            "charset": charset.encode(),
            "max_characters": str(self._max_characters).encode(),
        }
        function = Function("turnmill.tools.sandboxed.page_renderer:run", pack(argument))
        limits = Limits(seconds=self._seconds, cpu_seconds=int(self._seconds) + 1)
        outcome = await self.context.sandbox.run(SandboxTask(function, limits=limits))
        try:
            page = Page.model_validate_json((outcome.value or b"")[:_MAX_PAGE_BYTES])
        except ValidationError as error:
            raise PageUnavailableError(f"The page {fetched.url} cannot be shown as text.") from error
        notes = [f"(The server answered {fetched.status}.)"] if fetched.status >= 400 else []
        notes += ["(The page is cut: it is too large.)"] if fetched.is_cut else []
        return page.model_copy(update={"url": fetched.url, "text": "\n".join([*notes, page.text])})

    def _decode(self, kind: str, charset: str, content: bytes) -> str:
        if not kind.startswith("text/") and kind not in ("application/json", "application/xml"):
            return f"(A file of type {kind} with {len(content):,} bytes; it has no text to show.)"
        try:
            return content.decode(charset or "utf-8", "replace")[: self._max_characters]
        except LookupError:
            return content.decode("utf-8", "replace")[: self._max_characters]

    def _format_page(self, page: Page, navigation: NavigationState) -> str:
        """Return address, title, and the text within the window."""
        end = min(navigation.offset + self._window, len(page.text))
        shown = page.text[navigation.offset : end]
        for number, text in navigation.filled.items():
            mark = page.elements[number - 1].marker(number)
            shown = shown.replace(mark, f"{mark} filled: '{text}'", 1)
        for number, is_on in navigation.switched.items():
            mark = page.elements[number - 1].marker(number)
            shown = shown.replace(mark, f"{mark} {'checked' if is_on else 'cleared'}", 1)
        more = f"\n(characters {navigation.offset} to {end} of {len(page.text)})" if len(shown) < len(page.text) else ""
        title = f"{page.title}\n\n" if page.title else ""
        return f"URL: {page.url}\nObservation:\n{title}{shown}{more}\n"


def _media_type(header: str) -> tuple[str, str]:
    message = Message()
    message["content-type"] = header
    return message.get_content_type(), re.sub(r"[^\w.:-]", "", message.get_content_charset() or "")
