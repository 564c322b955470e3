#!/bin/sh
# Writes what an image contains, as a software bill of materials in CycloneDX's JSON: the Python packages of an environment
# with their licences and dependencies, and Debian's packages.
#
# sbom.sh PYTHON FILE, from the root of the repository; cyclonedx-py is in /opt/build/bin, or in PATH.
set -eu
PATH="/opt/build/bin:$PATH"
cyclonedx-py environment --pyproject pyproject.toml --spec-version 1.6 --no-validate --output-reproducible \
  --output-file "$2" "$1"
python3 "$(dirname "$0")/debian_packages.py" "$2"
