"""A page as an agent sees it, and the navigation state on it; both are stored between turns."""

from typing import Literal
from urllib.parse import urlencode, urlsplit, urlunsplit

from pydantic import BaseModel, ConfigDict, Field

ElementKind = Literal["link", "textbox", "checkbox", "radio", "combobox", "button", "hidden"]


class Element(BaseModel):
    """An element to click or to fill in; elements are numbered in order from 1."""

    model_config = ConfigDict(extra="forbid")

    kind: ElementKind
    label: str = ""
    url: str = ""
    """Target of a link."""

    form: int = -1
    """Index of its form; -1 without one."""

    name: str = ""
    value: str = ""
    checked: bool = False
    options: list[tuple[str, str]] = []
    """Values and texts of the options of a combobox."""

    def marker(self, number: int) -> str:
        """Return the marker of the element in the text of the page."""
        return f"[{number}] {self.kind} '{self.label}'"


class Form(BaseModel):
    """The target and method of a form."""

    model_config = ConfigDict(extra="forbid")

    url: str
    posts: bool = False


class Page(BaseModel):
    """Text and elements of a page."""

    model_config = ConfigDict(extra="forbid")

    url: str
    title: str = ""
    text: str = ""
    elements: list[Element] = []
    forms: list[Form] = []


class NavigationState(BaseModel):
    """The agent's input on a page, its history and its cookies."""

    model_config = ConfigDict(extra="forbid")

    offset: int = 0
    filled: dict[int, str] = {}
    """Text typed into an element or option chosen in it, by its number."""

    switched: dict[int, bool] = {}
    """Checkboxes and radio buttons that were checked or cleared."""

    back: list[str] = []
    forward: list[str] = []
    cookies: list[tuple[str, str, str, str]] = Field(default=[], max_length=100)
    """Name, value, domain and path of each cookie."""


def submission(page: Page, state: NavigationState, form: int, clicked: int | None) -> tuple[str, str | None]:
    """Return the address to which a form is submitted, and the body for POST."""
    fields = urlencode(_fields(page, state, form, clicked))
    if page.forms[form].posts:
        return page.forms[form].url, fields
    return urlunsplit(urlsplit(page.forms[form].url)._replace(query=fields, fragment="")), None


def _fields(page: Page, state: NavigationState, form: int, clicked: int | None) -> list[tuple[str, str]]:
    fields = []
    for number, element in enumerate(page.elements, start=1):
        if element.form != form or not element.name or element.kind == "link":
            continue
        if element.kind == "button" and number != clicked:
            continue
        if element.kind in ("checkbox", "radio") and not state.switched.get(number, element.checked):
            continue
        fields.append((element.name, state.filled.get(number, element.value)))
    return fields
