"""Paths of the machine that untrusted code may see: system, Python and permitted packages."""

import importlib.util
import os
import sys
import sysconfig
from collections.abc import Iterable

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
CONFIGURATION = tuple(
    f"/etc/{name}"
    for name in (
        "alternatives",
        "bash.bashrc",
        "ca-certificates",
        "gai.conf",
        "group",
        "host.conf",
        "hosts",
        "inputrc",
        "ld.so.cache",
        "ld.so.conf",
        "ld.so.conf.d",
        "locale.alias",
        "localtime",
        "magic",
        "mime.types",
        "nsswitch.conf",
        "os-release",
        "passwd",
        "pki",
        "profile",
        "protocols",
        "resolv.conf",
        "services",
        "ssl/certs",
        "ssl/openssl.cnf",
        "terminfo",
        "timezone",
    )
)
ZERO, FULL = "/dev/zero", "/dev/full"
DEVICES = ("/dev/null", ZERO, FULL, "/dev/random", "/dev/urandom")


def readable_paths(packages: Iterable[str]) -> list[str]:
    """Return the existing paths that the system, Python and permitted packages need, folders before what is in them."""
    python = [sys.base_prefix, sys.base_exec_prefix, sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")]
    paths = [*SYSTEM, *CONFIGURATION, *map(os.path.realpath, python), *_package_paths(packages)]
    return [path for path in dict.fromkeys(paths) if os.path.lexists(path)]


def _package_paths(packages: Iterable[str]) -> list[str]:
    paths = []
    for name in packages:
        spec = importlib.util.find_spec(name)
        if spec is None:
            continue
        for folder in spec.submodule_search_locations or ([spec.origin] if spec.origin else []):
            # Wheels put shared libraries beside the package.
            paths += [os.path.realpath(folder), os.path.realpath(f"{folder}.libs")]
    return paths


def list_only_paths(packages: Iterable[str]) -> list[str]:
    """Return the folders that contain these packages: imports list them, and read nothing else there."""
    return [path for path in dict.fromkeys(map(os.path.dirname, _package_paths(packages))) if os.path.isdir(path)]
