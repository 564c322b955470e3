"""What a command makes of a place, and which page it asks for."""

from dataclasses import dataclass
from urllib.parse import urljoin

from turnmill.tools.browser.commands import Command
from turnmill.tools.browser.page import Element, Page, Place, submission


class NotPossibleError(Exception):
    """A command that this page does not allow; the text is for the agent."""


@dataclass(frozen=True, slots=True)
class Request:
    """A page to fetch; with a body it is posted."""

    url: str
    body: str | None = None


def next_place(page: Page, place: Place, command: Command, window: int) -> tuple[Place, Request | None]:
    """The place on the same page, or the way to another page and what to ask for."""
    match command.name:
        case "click":
            return _click(page, place, command.element)
        case "type":
            return _type(page, place, command)
        case "goto":
            return _forth(page, place), Request(_address(page, command.text))
        case "go_back":
            return _turn(page, place, back=True)
        case "go_forward":
            return _turn(page, place, back=False)
        case "scroll":
            step = window if command.text == "down" else -window
            last = max(len(page.text) - 1, 0) // window * window
            return place.model_copy(update={"offset": min(max(place.offset + step, 0), last)}), None
        case _:
            return place, None


def _address(page: Page, text: str) -> str:
    try:
        return urljoin(page.url, text)
    except ValueError as error:
        raise NotPossibleError(f"{text[:200]!r} is no address.") from error


def _click(page: Page, place: Place, number: int) -> tuple[Place, Request | None]:
    element = _element(page, number)
    match element.kind:
        case "link":
            return _forth(page, place), Request(element.url)
        case "button":
            return _submit(page, place, element, number)
        case "checkbox":
            is_on = place.switched.get(number, element.checked)
            return place.model_copy(update={"switched": place.switched | {number: not is_on}}), None
        case "radio":
            others = {
                other: False
                for other, found in enumerate(page.elements, start=1)
                if found.kind == "radio" and (found.form, found.name) == (element.form, element.name)
            }
            return place.model_copy(update={"switched": place.switched | others | {number: True}}), None
        case _:
            return place, None


def _type(page: Page, place: Place, command: Command) -> tuple[Place, Request | None]:
    number, text = command.element, command.text
    element = _element(page, number)
    if element.kind == "combobox":
        values = [value for value, said in element.options if text in (said, value)]
        if not values:
            raise NotPossibleError(f"[{number}] offers {', '.join(repr(said) for _, said in element.options)}.")
        return place.model_copy(update={"filled": place.filled | {number: values[0]}}), None
    if element.kind != "textbox":
        raise NotPossibleError(f"[{number}] is a {element.kind}: nothing can be typed there.")
    filled = place.model_copy(update={"filled": place.filled | {number: text}})
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
    return _forth(page, place), Request(*submission(page, filled, element.form, first_button))


def _submit(page: Page, place: Place, button: Element, number: int) -> tuple[Place, Request | None]:
    if button.form < 0:
        return place, None
    return _forth(page, place), Request(*submission(page, place, button.form, number))


def _element(page: Page, number: int) -> Element:
    if not 1 <= number <= len(page.elements) or page.elements[number - 1].kind == "hidden":
        raise NotPossibleError(f"There is no [{number}] on this page.")
    return page.elements[number - 1]


def _forth(page: Page, place: Place) -> Place:
    return Place(back=[*place.back, page.url], cookies=place.cookies)


def _turn(page: Page, place: Place, *, back: bool) -> tuple[Place, Request]:
    behind, ahead = (place.back, place.forward) if back else (place.forward, place.back)
    if not behind:
        raise NotPossibleError("There is no page to go back to." if back else "There is no page to go forward to.")
    left, gone = behind[:-1], [*ahead, page.url]
    place = Place(back=left if back else gone, forward=gone if back else left, cookies=place.cookies)
    return place, Request(behind[-1])
