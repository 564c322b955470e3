"""Add Debian's packages of this image to a software bill of materials in CycloneDX's JSON.

Usage: debian_packages.py FILE
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

FORMAT = "${binary:Package}\t${Version}\t${Architecture}\n"


def component(name: str, version: str, architecture: str) -> dict[str, str]:
    name = name.partition(":")[0]
    purl = f"pkg:deb/debian/{quote(name, safe='')}@{quote(version, safe='')}?arch={architecture}"
    return {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}


def main(file: str) -> None:
    bill = json.loads(Path(file).read_text())
    if shutil.which("dpkg-query"):
        command = ["dpkg-query", "--show", "--showformat", FORMAT]
        listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        bill["components"] += [component(*line.split("\t")) for line in sorted(listed.splitlines())]
    Path(file).write_text(json.dumps(bill, indent=2) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
