"""The chart's Job for passwords, against a real API server and with the rights that the chart gives it."""

import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from support.api_server import ApiServer
from support.charts import TEAM
from support.programs import find_program

NAMES = ("team-a-store", "team-a-store-users", "team-a-tool-server")


@pytest.fixture(scope="module")
def job(server: ApiServer, tmp_path_factory: pytest.TempPathFactory):
    """Runs the Job's script as an account that has the Role of the chart."""
    helm = [str(find_program("helm")), "template", "team-a", str(TEAM), "--namespace=team-a"]
    options = ["--set=passwords.fromJob=true", "--show-only=templates/passwords.yaml"]
    rendered = subprocess.run([*helm, *options], capture_output=True, text=True, check=True).stdout
    objects = {(found["kind"], found["metadata"]["name"]): found for found in yaml.safe_load_all(rendered) if found}
    role = objects["Role", "team-a-passwords"]
    binding = objects["RoleBinding", "team-a-passwords"] | {
        "subjects": [{"kind": "User", "name": "nobody", "apiGroup": "rbac.authorization.k8s.io"}]
    }
    for found in (role, binding):
        found["metadata"]["namespace"] = "team-a"
    server.apply(role, binding)
    account = tmp_path_factory.mktemp("account")
    config = json.loads(server.kubeconfig.read_text())["clusters"][0]["cluster"]
    (account / "token").write_text("nobody")
    (account / "ca.crt").write_bytes(Path(config["certificate-authority"]).read_bytes())
    (container,) = objects["Job", "team-a-passwords-create"]["spec"]["template"]["spec"]["containers"]
    address = urlsplit(config["server"])
    environment = os.environ | {variable["name"]: variable["value"] for variable in container["env"]}
    environment |= {
        "SERVICE_ACCOUNT": str(account),
        "KUBERNETES_SERVICE_HOST": str(address.hostname),
        "KUBERNETES_SERVICE_PORT": str(address.port),
        "NAMESPACE": "team-a",
    }

    def run(action: str) -> str:
        command = [sys.executable, "-c", container["args"][0], action]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture(autouse=True)
def _no_secrets(server: ApiServer):
    yield
    server.kubectl("delete", "secret", "--all", "--namespace=team-a")


def data(server: ApiServer, name: str) -> dict[str, Any]:
    found: dict[str, Any] = server.get("secret", name, "team-a")["data"]
    return found


def test_every_secret_is_made_once_with_different_passwords_of_forty_letters_and_digits(server, job):
    output = job("create")
    first = {name: data(server, name) for name in NAMES}
    job("create")

    passwords = [base64.b64decode(value).decode() for values in first.values() for value in values.values()]
    assert len(set(passwords)) == 5
    assert all(len(password) == 40 and password.isalnum() for password in passwords)
    assert {name: data(server, name) for name in NAMES} == first
    assert not any(password in output for password in passwords)


def test_a_secret_of_an_earlier_release_keeps_its_passwords_gets_missing_ones_and_survives_the_upgrade(server, job):
    users = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "team-a-store-users", "namespace": "team-a"},
        "data": {"trainer": "dHJhaW5lcg=="},
    }
    server.apply(users)

    job("create")

    found = server.get("secret", "team-a-store-users", "team-a")
    assert found["data"]["trainer"] == "dHJhaW5lcg=="
    assert set(found["data"]) == {"trainer", "tool-server", "clean-up"}
    assert found["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


def test_the_secrets_of_a_release_are_deleted_with_it_and_others_are_not(server, job):
    server.kubectl("create", "secret", "generic", "mine", "--from-literal=a=b", "--namespace=team-a")
    job("create")

    job("delete")
    job("delete")

    assert [server.get("secret", name, "team-a") for name in NAMES] == [None] * 3
    assert server.get("secret", "mine", "team-a") is not None
