"""Compare pinned packages with the advisories of the Python Packaging Advisory Database, by pip-audit.

Usage: audit.py PINS... ; prints the advisories. Exit code 1 if there are any, 2 if nothing could be compared.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from hashed import pinned

TIMEOUT_SECONDS = 20


def main(*files: str) -> int:
    pins = {name: pin for file in files for name, pin in pinned(Path(file).read_text()).items()}
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as requirements:
        requirements.write("\n".join(pins.values()))
        requirements.flush()
        command = [sys.executable, "-m", "pip_audit", "--no-deps", "--disable-pip", "--progress-spinner", "off"]
        command += ["--timeout", str(TIMEOUT_SECONDS), "--format", "json", "--requirement", requirements.name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except ValueError:
        return not_audited((done.stderr.strip() or "no answer").rsplit("\n", 1)[-1])
    skipped = [f"{package['name']}: {package['skip_reason']}" for package in packages if "skip_reason" in package]
    if len(skipped) == len(packages):
        return not_audited(skipped[0] if skipped else "no answer")
    found = [
        f"{package['name']} {package['version']}: {advisory['id']}, mended in {', '.join(advisory['fix_versions'])}"
        for package in packages
        for advisory in package.get("vulns", ())
    ]
    print("\n".join([*skipped, *found]))
    print(f"{len(packages) - len(skipped)} of {len(pins)} packages were compared: {len(found)} advisories.")
    return 1 if found else 0


def not_audited(reason: str) -> int:
    print(f"Nothing was audited: the index of advisories could not be read ({reason}).", file=sys.stderr)
    print("Run `make audit` on a machine that reaches it, before every release.", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
