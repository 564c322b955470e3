"""Make the Secrets of a team that do not exist, with random passwords, and add missing keys; or delete them.

Run by a hook of the chart. What exists is never changed, so it may run any number of times.
"""

import base64
import json
import os
import secrets
import ssl
import string
import sys
import urllib.error
import urllib.request
from pathlib import Path

ACCOUNT = Path(os.environ.get("SERVICE_ACCOUNT", "/var/run/secrets/kubernetes.io/serviceaccount"))
LETTERS, LENGTH = string.ascii_letters + string.digits, 40
# `helm uninstall` and an upgrade that no longer renders them leave them alone.
KEEP = {"helm.sh/resource-policy": "keep"}


def request(verb, path, body=None):
    """Send a request to the API server and return its answer; None if there is no such object."""
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    address = f"[{host}]" if ":" in host else host
    kind = "application/merge-patch+json" if verb == "PATCH" else "application/json"
    headers = {"Authorization": f"Bearer {(ACCOUNT / 'token').read_text()}", "Content-Type": kind}
    url = f"https://{address}:{port}/api/v1/namespaces/{os.environ['NAMESPACE']}/secrets{path}"
    data = None if body is None else json.dumps(body).encode()
    sent = urllib.request.Request(url, data=data, headers=headers, method=verb)
    context = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    try:
        with opener.open(sent, timeout=30) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return None
        sys.exit(f"{verb} {url}: {error.code} {error.read().decode(errors='replace')[:500]}")


def random_values(keys):
    """Return a random password for each key, as Secrets have them."""
    passwords = {key: "".join(secrets.choice(LETTERS) for _ in range(LENGTH)) for key in keys}
    return {key: base64.b64encode(password.encode()).decode() for key, password in passwords.items()}


def create(name, keys, labels):
    """Create a Secret, or add the keys that it lacks."""
    found = request("GET", f"/{name}")
    if found is None:
        metadata = {"name": name, "labels": labels, "annotations": KEEP}
        body = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": metadata,
            "type": "Opaque",
            "data": random_values(keys),
        }
        request("POST", "", body)
        print(f"{name}: created")
        return
    missing = [key for key in keys if key not in (found.get("data") or {})]
    request("PATCH", f"/{name}", {"metadata": {"annotations": KEEP}, "data": random_values(missing)})
    print(f"{name}: kept" + (f", added {', '.join(missing)}" if missing else ""))


def main():
    wanted, labels = json.loads(os.environ["SECRETS"]), json.loads(os.environ["LABELS"])
    for name, keys in wanted.items():
        if sys.argv[1:] == ["delete"]:
            request("DELETE", f"/{name}")
            print(f"{name}: deleted")
        else:
            create(name, keys, labels)


main()
