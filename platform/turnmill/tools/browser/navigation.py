"""Application of commands to the navigation state, with the page that they request."""

from dataclasses import dataclass
from urllib.parse import urljoin

from turnmill.tools.browser.commands import Command
from turnmill.tools.browser.page import Element, NavigationState, Page, submission


class CommandNotPossibleError(Exception):
    """The page does not allow the command; the message is for the agent."""


@dataclass(frozen=True, slots=True)
class Request:
    """A page to fetch, by POST if there is a body."""

    url: str
    body: str | None = None


def apply_command(
    page: Page, state: NavigationState, command: Command, window: int
) -> tuple[NavigationState, Request | None]:
    """Return the new state, and the request if the command leads to another page.

    Raises CommandNotPossibleError if the page does not allow the command.
    """
    match command.name:
        case "click":
            return _click(page, state, command.element)
        case "type":
            return _type(page, state, command)
        case "goto":
            return _advance(page, state), Request(_address(page, command.text))
        case "go_back":
            return _go_through_history(page, state, back=True)
        case "go_forward":
            return _go_through_history(page, state, back=False)
        case "scroll":
            step = window if command.text == "down" else -window
            last = max(len(page.text) - 1, 0) // window * window
            return state.model_copy(update={"offset": min(max(state.offset + step, 0), last)}), None
        case _:
            return state, None


def _address(page: Page, text: str) -> str:
    try:
        return urljoin(page.url, text)
    except ValueError as error:
        raise CommandNotPossibleError(f"{text[:200]!r} is no address.") from error


def _click(page: Page, state: NavigationState, number: int) -> tuple[NavigationState, Request | None]:
    element = _element(page, number)
    match element.kind:
        case "link":
            return _advance(page, state), Request(element.url)
        case "button":
            return _submit(page, state, element, number)
        case "checkbox":
            is_on = state.switched.get(number, element.checked)
            return state.model_copy(update={"switched": state.switched | {number: not is_on}}), None
        case "radio":
            others = {
                other: False
                for other, found in enumerate(page.elements, start=1)
                if found.kind == "radio" and (found.form, found.name) == (element.form, element.name)
            }
            return state.model_copy(update={"switched": state.switched | others | {number: True}}), None
        case _:
            return state, None


def _type(page: Page, state: NavigationState, command: Command) -> tuple[NavigationState, Request | None]:
    number, text = command.element, command.text
    element = _element(page, number)
    if element.kind == "combobox":
        values = [value for value, label in element.options if text in (label, value)]
        if not values:
            raise CommandNotPossibleError(
                f"[{number}] offers {', '.join(repr(label) for _, label in element.options)}."
            )
        return state.model_copy(update={"filled": state.filled | {number: values[0]}}), None
    if element.kind != "textbox":
        raise CommandNotPossibleError(f"[{number}] is a {element.kind}: nothing can be typed there.")
    filled = state.model_copy(update={"filled": state.filled | {number: text}})
    if not command.enters or element.form < 0:
        return filled, None
    first_button = next(
        (
            other
            for other, found in enumerate(page.elements, start=1)
            if found.kind == "button" and found.form == element.form
        ),
        None,
    )
    return _advance(page, state), Request(*submission(page, filled, element.form, first_button))


def _submit(page: Page, state: NavigationState, button: Element, number: int) -> tuple[NavigationState, Request | None]:
    if button.form < 0:
        return state, None
    return _advance(page, state), Request(*submission(page, state, button.form, number))


def _element(page: Page, number: int) -> Element:
    if not 1 <= number <= len(page.elements) or page.elements[number - 1].kind == "hidden":
        raise CommandNotPossibleError(f"There is no [{number}] on this page.")
    return page.elements[number - 1]


def _advance(page: Page, state: NavigationState) -> NavigationState:
    return NavigationState(back=[*state.back, page.url], cookies=state.cookies)


def _go_through_history(page: Page, state: NavigationState, *, back: bool) -> tuple[NavigationState, Request]:
    behind, ahead = (state.back, state.forward) if back else (state.forward, state.back)
    if not behind:
        raise CommandNotPossibleError(
            "There is no page to go back to." if back else "There is no page to go forward to."
        )
    left, gone = behind[:-1], [*ahead, page.url]
    state = NavigationState(back=left if back else gone, forward=gone if back else left, cookies=state.cookies)
    return state, Request(behind[-1])
