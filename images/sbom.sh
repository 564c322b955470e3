#!/bin/sh
# Writes what an image contains, as a software bill of materials in CycloneDX's JSON: the Python packages of an environment
# with their licences and dependencies, and Debian's packages. What it needs for that goes into /opt/build.
#
# sbom.sh PYTHON FILE, from the root of the repository
set -eu
python3 requirements/hashed.py requirements/build.txt > build.txt
python3 -m venv /opt/build
/opt/build/bin/python -m pip install --quiet --no-cache-dir --no-compile --no-deps --require-hashes --requirement build.txt
/opt/build/bin/cyclonedx-py environment --pyproject pyproject.toml --spec-version 1.6 --no-validate --output-reproducible \
  --output-file "$2" "$1"
python3 "$(dirname "$0")/debian_packages.py" "$2"
