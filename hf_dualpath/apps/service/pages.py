"""The pages of the service: all from here, nothing from other sites."""

from functools import cache
from html import escape
from pathlib import Path

from ..style import STYLE


ASSETS = {"room.js": "text/javascript", "client.js": "text/javascript", "page.css": "text/css"}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


@cache
def asset(name: str) -> str:
    """A file of `web/`; the style begins with what the demo has too."""
    text = (Path(__file__).parent / "web" / name).read_text(encoding="utf-8")
    return STYLE + text if name == "page.css" else text


def docs_page(openapi: dict) -> str:
    """The OpenAPI description as a page to read; the whole of it is at /openapi.json."""
    parts = [f"<h1>{escape(openapi['info']['title'])}</h1><pre>{escape(openapi['info']['description'])}</pre>"]
    for path, methods in openapi["paths"].items():
        for method, operation in methods.items():
            parts.append(f"<h2><code>{method.upper()} {escape(path)}</code></h2>")
            parts.append(f"<p>{escape(operation.get('description', operation['summary']))}</p>")
            content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
            if "$ref" in content.get("schema", {}):
                schema = openapi["components"]["schemas"][content["schema"]["$ref"].split("/")[-1]]
                parts.append(fields_table(schema))
    parts.append('<p><a href="/openapi.json">openapi.json</a> · <a href="/v1/models">models</a></p>')
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f'<title>{escape(openapi["info"]["title"])}</title><link rel="stylesheet" href="/assets/page.css">'
        f'<main class="docs">{"".join(parts)}</main></html>'
    )


def fields_table(schema: dict) -> str:
    rows = "".join(
        f"<tr><td><code>{escape(name)}</code>{' (required)' if name in schema.get('required', ()) else ''}</td>"
        f"<td>{escape(field.get('description', ''))} {escape(str(field.get('examples', '')))}</td></tr>"
        for name, field in schema["properties"].items()
    )
    return f"<table>{rows}</table>"
