"""Rendering of a web page as text with numbered elements; it runs in the sandbox, as pages are untrusted."""

import contextlib
import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urldefrag, urljoin, urlsplit

from turnmill.tools.sandboxed.packing import unpack

# If they are missing, the tool reports it when the server starts.
with contextlib.suppress(ImportError):
    import lxml.html
    from inscriptis import Inscriptis
    from inscriptis.css_profiles import CSS_PROFILES
    from inscriptis.model.config import ParserConfig

_MAX_LABEL = 100
_MAX_ELEMENTS = 2000
_MAX_OPTIONS = 200
_MAX_ADDRESS = 2000
_TEXT_TYPES = ("text", "search", "email", "url", "tel", "number", "password", "date", "time")
_BUTTON_TYPES = ("submit", "image")
_UNSEEN = "//script | //style | //noscript | //template | //svg | //*[@hidden] | //comment()"


def run(argument: bytes) -> bytes:
    """Render the part `html`, fetched from the address in the part `url`; return a page of `browser.page` as JSON."""
    parts = unpack(argument)
    url, most = parts["url"].decode(), int(parts["max_characters"])
    page = render(parts["html"], url, parts["charset"].decode() or None)
    page["text"] = page["text"][:most]
    return json.dumps(page).encode()


def render(html: bytes, url: str, charset: str | None) -> dict[str, Any]:
    """Render a page; empty if there is no text."""
    page: dict[str, Any] = {"url": url, "title": "", "text": "", "elements": [], "forms": []}
    try:
        tree = lxml.html.document_fromstring(html, parser=_parser(charset))
    except (lxml.etree.ParserError, ValueError):
        return page
    for unseen in tree.xpath(_UNSEEN):
        unseen.drop_tree()
    page["title"] = _label(tree.findtext(".//title"))
    base = _joined(url, next(iter(tree.xpath("//base/@href")), ""))
    forms = list(tree.iter("form"))
    page["forms"] = [_form(form, base) for form in forms]
    places = {form: number for number, form in enumerate(forms)}
    for node in list(tree.iter("a", "input", "textarea", "select", "button")):
        # Elements inside another replaced element no longer exist.
        around = list(node.iterancestors())
        found = _element(node, base, url) if tree in around else None
        if found is not None and len(page["elements"]) < _MAX_ELEMENTS:
            found["form"] = next((places[outer] for outer in around if outer in places), -1)
            page["elements"].append(found)
            _replace(node, found, len(page["elements"]))
    for form in forms:
        form.tag = "div"
    page["text"] = re.sub(r"\n{3,}", "\n\n", _text(tree)).strip("\n")
    return page


def _parser(charset: str | None) -> Any:
    with contextlib.suppress(LookupError):
        return lxml.html.HTMLParser(encoding=charset)
    return lxml.html.HTMLParser()


def _text(tree: Any) -> str:
    # The other profile indents a block by the blocks around it.
    lines = Inscriptis(tree, ParserConfig(css=CSS_PROFILES["strict"])).get_text().splitlines()
    return "\n".join(line.rstrip() for line in lines)


def _form(form: Any, base: str) -> dict[str, Any]:
    return {
        "url": urldefrag(_joined(base, form.get("action") or "")).url,
        "posts": (form.get("method") or "").lower() == "post",
    }


def _element(node: Any, base: str, url: str) -> dict[str, Any] | None:
    """Return the element of a node; None if agents cannot use it."""
    if "disabled" in node.attrib:
        return None
    if node.tag == "a":
        return _link(node, base, url)
    given = {"name": node.get("name") or "", "value": node.get("value") or "", "label": _named(node)}
    if node.tag == "select":
        return given | _choice(node)
    if node.tag == "textarea":
        return given | {"kind": "textbox", "value": node.text_content()}
    kind = (node.get("type") or ("submit" if node.tag == "button" else "text")).lower()
    if kind in _BUTTON_TYPES:
        text = _label(node.text_content()) if node.tag == "button" else ""
        return given | {"kind": "button", "label": text or given["value"] or given["label"] or "submit"}
    if node.tag == "button":
        return None
    if kind in ("checkbox", "radio"):
        value = node.get("value", "on")
        return given | {"kind": kind, "checked": "checked" in node.attrib, "value": value}
    if kind == "hidden":
        return given | {"kind": "hidden", "label": ""}
    return given | {"kind": "textbox"} if kind in _TEXT_TYPES else None


def _link(node: Any, base: str, url: str) -> dict[str, Any] | None:
    target = _joined(base, (node.get("href") or "#").strip())
    if not target.startswith(("http://", "https://")) or len(target) > _MAX_ADDRESS:
        return None
    if urldefrag(target).url == urldefrag(url).url:
        return None
    alternatives = (node.text_content(), _named(node), *node.xpath(".//img/@alt"), urlsplit(target).path)
    return {"kind": "link", "url": target, "label": next(filter(None, map(_label, alternatives)), "")}


def _joined(base: str, address: str) -> str:
    """Resolve an address against the base; an invalid one becomes the base itself."""
    try:
        return urljoin(base, address)
    except ValueError:
        return base


def _choice(node: Any) -> dict[str, Any]:
    nodes = list(node.iter("option"))[:_MAX_OPTIONS]
    options = [(option.get("value", _label(option.text)), _label(option.text)) for option in nodes]
    chosen = [option[0] for option, of in zip(options, nodes, strict=True) if "selected" in of.attrib]
    return {"kind": "combobox", "options": options, "value": (chosen or [value for value, _ in options] or [""])[0]}


def _named(node: Any) -> str:
    names = ("aria-label", "placeholder", "title", "name")
    return next((label for name in names if (label := _label(node.get(name)))), "")


def _label(text: str | None) -> str:
    return " ".join((text or "").split())[:_MAX_LABEL]


def _replace(node: Any, element: dict[str, Any], number: int) -> None:
    """Replace a node by its text for the agent."""
    tail = node.tail
    node.clear()
    node.tag, node.tail = "span", tail
    if element["kind"] != "hidden":
        text = " ".join(_text_of(element, number))
        node.text = text if element["kind"] == "link" else f" {text} "


def _text_of(element: dict[str, Any], number: int) -> Iterator[str]:
    yield f"[{number}] {element['kind']} '{element['label']}'"
    if element["kind"] == "combobox":
        yield "options: " + ", ".join(repr(text) for _, text in element["options"][:50])
