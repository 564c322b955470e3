"""`python -m turnmill.observability.dashboards FOLDER` writes all dashboards there and deletes other JSON files."""

import sys
from pathlib import Path

from turnmill.observability import atomic_files
from turnmill.observability.dashboards.boards import BOARDS
from turnmill.observability.dashboards.grafana import to_json


def main(folder: Path) -> None:
    """Write the dashboards."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {folder / f"{board.name}.json": to_json(board) for board in BOARDS}
    for path in set(folder.glob("*.json")) - set(files):
        path.unlink()
    for path, text in files.items():
        atomic_files.write_text(path, text)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
