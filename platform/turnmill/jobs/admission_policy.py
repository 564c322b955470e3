"""Generator of the policy by which the API server refuses jobs that break rules across their sections.

These rules are no part of the custom resource's schema, since the API server would judge them with every update of a
status, which then takes it three times as long: for each field that a rule reads it lists all fields of the section.
"""

import json
import re
from typing import Any

from turnmill.jobs.rules import FIXED, RULES

_IS_NEW = "request.operation == 'CREATE'"
_HAS = re.compile(r"has\(([\w.]+)\)")
_SELF, _OLD_SELF = re.compile(r"\bself\b"), re.compile(r"\boldSelf\b")


def admission_policy(plural: str, group: str) -> list[dict[str, Any]]:
    """Return the manifests of the policy that refuses jobs which break rules across sections, and of its binding."""
    api, metadata = "admissionregistration.k8s.io/v1", {"name": f"{plural}.{group}"}
    matched = {"apiGroups": [group], "apiVersions": ["*"], "operations": ["CREATE", "UPDATE"], "resources": [plural]}
    policy = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [matched]},
        # A job from before a rule is left alone, so that its finalizer can still be removed.
        "matchConditions": [{"name": "spec-has-changed", "expression": f"{_IS_NEW} || object.spec != oldObject.spec"}],
        "variables": [{"name": "broken", "expression": _broken_rules()}],
        "validations": [
            {
                "expression": "variables.broken.size() == 0",
                "messageExpression": "variables.broken.join('; ')",
                "reason": "Invalid",
            }
        ],
    }
    binding = {"policyName": metadata["name"], "validationActions": ["Deny"]}
    return [
        {"apiVersion": api, "kind": "ValidatingAdmissionPolicy", "metadata": metadata, "spec": policy},
        {"apiVersion": api, "kind": "ValidatingAdmissionPolicyBinding", "metadata": dict(metadata), "spec": binding},
    ]


def _broken_rules() -> str:
    """Return the list, in CEL, of the sentences of all rules that a job breaks."""
    rules = [(rule.validation, f"spec.{rule.path}: {rule.message}") for rule in RULES]
    rules += [(f"{_IS_NEW} || {f.validation}", f"spec.{f.path}: {f.sentence}") for f in FIXED]
    choices = [f"  {_of_request(rule)} ? '' : {json.dumps(sentence)}" for rule, sentence in rules]
    return "[\n" + ",\n".join(choices) + "\n].filter(sentence, sentence != '')"


def _of_request(rule: str) -> str:
    """Return a rule on `self`, the spec, as a rule on the object of a request, in which fields may be null."""
    given = _HAS.sub(r"(has(\1) && \1 != null)", rule)
    # A word that CEL reserves is a key there.
    given = re.sub(r"has\(([\w.]+)\.__(\w+)__\)", r"'\2' in \1", given)
    given = re.sub(r"\.__(\w+)__", r"['\1']", given)
    return f"({_OLD_SELF.sub('oldObject.spec', _SELF.sub('object.spec', given))})"
