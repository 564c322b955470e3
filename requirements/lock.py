"""Pin what the images of operator and tool server need and what builds use, and write the hashes of all pins.

The versions come from cpu.txt, and those of builds from build.in. Needs the package index, and uv (variable UV).
"""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

from hashed import HASHES, pinned

FOLDER = Path(__file__).parent
# The oldest that images may have: some packages need others below 3.11.3.
PYTHON = "3.11.0"
EXTRAS = ("operator", "tool-server")
PINS = ("cpu", "cuda", "build", *EXTRAS)


def main() -> None:
    project = tomllib.loads((FOLDER.parent / "pyproject.toml").read_text())["project"]
    for extra in EXTRAS:
        wanted = [*project["dependencies"], *project["optional-dependencies"][extra]]
        compile_pins("\n".join(wanted), FOLDER / f"{extra}.txt")
    compile_pins((FOLDER / "build.in").read_text(), FOLDER / "build.txt")
    # In an environment of its own, so its versions need not be those of others.
    compile_pins(
        (FOLDER / "mutants" / "packages.in").read_text(), FOLDER / "mutants" / "packages.txt", "--generate-hashes"
    )
    pins: dict[str, str] = {}
    for name in PINS:
        for package, pin in pinned((FOLDER / f"{name}.txt").read_text()).items():
            if pins.setdefault(package, pin).partition("==")[2] != pin.partition("==")[2]:
                sys.exit(f"{name}.txt has {pin}, and another file {pins[package]}")
    compile_pins("\n".join(sorted(pins.values())), HASHES, "--no-deps", "--generate-hashes")


def compile_pins(wanted: str, output: Path, *options: str) -> None:
    command = [os.environ.get("UV", "uv"), "pip", "compile", "-", "--constraint", str(FOLDER / "cpu.txt")]
    command += ["--no-header", "--no-annotate", "--quiet", "--python-version", PYTHON, "--output-file", str(output)]
    subprocess.run([*command, *options], input=wanted, text=True, check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
