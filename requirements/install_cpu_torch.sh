#!/bin/sh
# Installs the CPU build of torch. Package indexes have the CUDA build under the same name and version, which cannot be
# imported without CUDA's libraries; so uv takes it from PyTorch's own index of CPU builds, or pip from a folder or an
# index that its configuration names (PIP_FIND_LINKS, PIP_INDEX_URL) where that one cannot be reached.
#
# install_cpu_torch.sh PYTHON, the interpreter of the environment to install into; uv and pip must be in PATH or beside it.
set -eu
python=$1
PATH="$(dirname "$python"):$PATH"
torch=torch==2.13.0

uv pip install --quiet --python "$python" --no-deps --torch-backend cpu "$torch" 2> /dev/null \
  || pip --python "$python" install --quiet --disable-pip-version-check --no-compile --no-deps "$torch"
if ! "$python" -c 'import sys; from importlib.metadata import version; sys.exit("+cpu" not in version("torch"))'; then
  echo "$torch is not the build for CPUs: PyTorch's index of CPU builds could not be reached." >&2
  echo "Put the wheel into a folder and name it in PIP_FIND_LINKS, or install for GPUs (DEVICE=cuda)." >&2
  exit 1
fi
