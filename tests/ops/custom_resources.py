"""What our manifests may say of other people's resources, as their definitions (CRDs) and their pages document it.

Only what is used: monitoring.coreos.com/v1 as of prometheus-operator 0.80, keda.sh/v1alpha1 and its scaler
`redis-streams` as of KEDA 2.16. A field that is not here is a mistake, or has to be looked up and added.
"""

from typing import Any

Schema = dict[str, Any]


def _fields(required: str = "", **properties: Schema) -> Schema:
    """An object that has these fields and no others."""
    return {
        "type": "object", "properties": properties, "required": required.split(), "additionalProperties": False,
    }  # fmt: skip


def _several(items: Schema) -> Schema:
    return {"type": "array", "items": items, "minItems": 1}


def _with_spec(spec: Schema) -> Schema:
    return _fields("apiVersion kind metadata spec", apiVersion=_TEXT, kind=_TEXT, metadata=_METADATA, spec=spec)


_TEXT: Schema = {"type": "string", "minLength": 1}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_NUMBER_AS_TEXT: Schema = {"type": "string", "pattern": r"^\d+$"}
_DURATION: Schema = {"type": "string", "pattern": r"^(\d+h)?(\d+m)?(\d+s)?(\d+ms)?$", "minLength": 2}
_TEXTS: Schema = {"type": "object", "additionalProperties": _TEXT}
_METADATA = _fields("name", name=_TEXT, namespace=_TEXT, labels=_TEXTS)

_OPERATOR: Schema = {"enum": ["In", "NotIn", "Exists", "DoesNotExist"]}
_SELECTOR = _fields(
    matchLabels=_TEXTS, matchExpressions=_several(_fields("key operator", key=_TEXT, operator=_OPERATOR,
                                                          values=_several(_TEXT))),
)  # fmt: skip
_RELABELINGS = _several(_fields(sourceLabels=_several(_TEXT), targetLabel=_TEXT, replacement=_TEXT))
_AUTHORIZATION = _fields(credentials=_fields("key", name=_TEXT, key=_TEXT))
_RULE = _fields("expr", alert=_TEXT, expr=_TEXT, labels=_TEXTS, annotations=_TEXTS, **{"for": _DURATION})

SCHEMAS: dict[str, Schema] = {
    "monitoring.coreos.com/v1 ServiceMonitor": _with_spec(
        _fields("selector endpoints", selector=_SELECTOR, endpoints=_several(
            _fields(port=_TEXT, path=_TEXT, interval=_DURATION, authorization=_AUTHORIZATION, relabelings=_RELABELINGS)
        ))
    ),
    "monitoring.coreos.com/v1 PodMonitor": _with_spec(
        _fields("selector", selector=_SELECTOR, podMetricsEndpoints=_several(
            _fields(port=_TEXT, interval=_DURATION, relabelings=_RELABELINGS)
        ))
    ),
    "monitoring.coreos.com/v1 PrometheusRule": _with_spec(
        _fields(groups=_several(_fields("name", name=_TEXT, rules=_several(_RULE))))
    ),
    "keda.sh/v1alpha1 ScaledObject": _with_spec(
        _fields("scaleTargetRef triggers", scaleTargetRef=_fields("name", name=_TEXT), minReplicaCount=_COUNT,
                maxReplicaCount=_COUNT, triggers=_several(
            _fields("type metadata", type={"const": "redis-streams"}, authenticationRef=_fields("name", name=_TEXT),
                    metadata=_fields("address stream", address=_TEXT, stream=_TEXT, consumerGroup=_TEXT,
                                     lagCount=_NUMBER_AS_TEXT, activationLagCount=_NUMBER_AS_TEXT,
                                     usernameFromEnv=_TEXT))
        ))
    ),
    "keda.sh/v1alpha1 TriggerAuthentication": _with_spec(
        _fields(secretTargetRef=_several(_fields("parameter name key", parameter=_TEXT, name=_TEXT, key=_TEXT)))
    ),
}  # fmt: skip
"""By `apiVersion kind`."""
