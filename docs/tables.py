"""Writes the tables of the site that are made from the code itself."""

from pathlib import Path

from dda import _C


def markdown_table(header: list[str], rows: list[list[str]]) -> str:
    """Returns a Markdown table; a `|` inside a cell is escaped."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines
    )


def environment_table() -> str:
    """Returns one row for each variable of csrc/core/env.cpp."""
    rows = []
    for variable in _C.describe_env():
        values = variable["values"].replace("|", ", ") or "text"
        scope = "every rank alike" if variable["agreed"] else "each rank its own"
        default = f"`{variable['default']}`" if variable["default"] else "not set"
        rows.append([f"`{variable['name']}`", values, default, scope, variable["doc"]])
    return markdown_table(["variable", "values", "default", "set on", "meaning"], rows)


def write_tables(folder: Path) -> None:
    """Writes the tables as files under `folder` that pages include."""
    folder.mkdir(exist_ok=True)
    (folder / "environment.md").write_text(environment_table())
