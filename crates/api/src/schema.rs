//! Schema fragments and rules that `schemars` cannot derive.

use kube::core::Rule;
use schemars::{Schema, SchemaGenerator, json_schema};

/// A rule that fields keep the value, or the absence, with which the object was created. It uses `has`, because the API server cannot bound
/// the cost of comparing optionals (`self.?x == oldSelf.?x`) and refuses such a rule.
pub(crate) fn immutable_fields_rule(fields: &[&str]) -> Rule {
    let parts: Vec<String> = fields
        .iter()
        .map(|field| format!("has(self.{field}) == has(oldSelf.{field}) && (!has(self.{field}) || self.{field} == oldSelf.{field})"))
        .collect();
    Rule::new(parts.join(" && "))
}

/// A rule that a counter only rises and is never removed.
pub(crate) fn never_decreases_rule(field: &str) -> Rule {
    Rule::new(format!("!has(oldSelf.{field}) || (has(self.{field}) && self.{field} >= oldSelf.{field})")).field_path(format!(".{field}"))
}

/// A rule that the parts of a command have at most `most` characters together.
pub(crate) fn command_length_rule(field: &str, most: usize) -> Rule {
    Rule::new(format!("!has(self.{field}) || self.{field}.map(part, part.size()).sum() <= {most}"))
        .message(format!("{field} must have at most {most} characters in all: put longer text into a file").as_str())
        .field_path(format!(".{field}"))
}

/// Removes the description of an enumeration. In an optional field, it would replace the description of the field.
pub(crate) fn without_enum_description(schema: &mut Schema) {
    schema.remove("description");
}

/// `status.conditions`: a list map by type, so that several writers can own one condition each.
pub(crate) fn conditions(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "description": "Current conditions, each with a reason and the generation that it describes.",
        "maxItems": 16,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": {
            "type": "object",
            "required": ["type", "status", "reason", "message", "lastTransitionTime"],
            "properties": {
                "type": {"type": "string", "maxLength": 64, "description": "Name of the condition."},
                "status": {"type": "string", "enum": ["True", "False", "Unknown"], "description": "True, False or Unknown."},
                "reason": {"type": "string", "minLength": 1, "maxLength": 64, "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
                           "description": "Reason, as one word for machines."},
                "message": {"type": "string", "maxLength": 32768, "description": "Reason, as text for people."},
                "lastTransitionTime": {"type": "string", "format": "date-time", "description": "When the status last changed."},
                "observedGeneration": {"type": "integer", "format": "int64", "minimum": 0,
                                       "description": "The metadata.generation that this condition describes."}
            }
        }
    })
}

/// The spec of a PersistentVolumeClaim as in Kubernetes, with bounds.
pub(crate) fn claim_spec(generator: &mut SchemaGenerator) -> Schema {
    let mut resources = resources(generator);
    resources.insert("description".to_owned(), "Size of the volume: requests.storage.".into());
    let mut selector = label_selector(generator);
    selector.insert("description".to_owned(), "Labels of the volumes that may be bound.".into());
    json_schema!({
        "type": "object",
        "properties": {
            "accessModes": {
                "type": "array", "maxItems": 4, "description": "Access modes of the volume.",
                "items": {"type": "string", "enum": ["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod"]}
            },
            "resources": resources,
            "storageClassName": {"type": "string", "maxLength": 253,
                                 "description": "StorageClass that provisions the volume. If unset, the default one; if empty, none."},
            "volumeMode": {"type": "string", "enum": ["Filesystem", "Block"],
                           "description": "Mode of the volume. Agents need Filesystem, which is the default."},
            "volumeAttributesClassName": {"type": "string", "maxLength": 253, "description": "VolumeAttributesClass of the volume."},
            "volumeName": {"type": "string", "maxLength": 253, "description": "PersistentVolume to bind. One volume serves one agent."},
            "selector": selector,
            "dataSource": {
                "type": "object", "required": ["kind", "name"],
                "description": "Source of the volume's content: a VolumeSnapshot or a PersistentVolumeClaim of the namespace.",
                "properties": reference(false)
            },
            "dataSourceRef": {
                "type": "object", "required": ["kind", "name"],
                "description": "Source of the volume's content: any object that a volume populator of the cluster supports.",
                "properties": reference(true)
            }
        }
    })
}

/// The fields of a reference to an object of any kind.
fn reference(namespaced: bool) -> serde_json::Value {
    let mut fields = serde_json::json!({
        "apiGroup": {"type": "string", "maxLength": 253, "description": "API group of the kind. Defaults to the core group."},
        "kind": {"type": "string", "minLength": 1, "maxLength": 63, "description": "Kind of the object."},
        "name": {"type": "string", "minLength": 1, "maxLength": 253, "description": "Name of the object."}
    });
    if namespaced {
        fields["namespace"] = serde_json::json!({"type": "string", "minLength": 1, "maxLength": 63,
            "description": "Namespace of the object. Defaults to that of the pool."});
    }
    fields
}

/// The tolerations of a pod as in Kubernetes, at most 16.
pub(crate) fn tolerations(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array", "maxItems": 16,
        "items": {
            "type": "object",
            "properties": {
                "key": {"type": "string", "maxLength": 317,
                        "description": "Key of the taint. If empty, with operator Exists, all taints match."},
                "operator": {"type": "string", "enum": ["", "Exists", "Equal", "Lt", "Gt"],
                             "description": "Relation of the taint's value to `value`. Defaults to Equal."},
                "value": {"type": "string", "maxLength": 63, "description": "Value of the taint."},
                "effect": {"type": "string", "enum": ["", "NoSchedule", "PreferNoSchedule", "NoExecute"],
                           "description": "Effect of the taint. If unset, all effects match."},
                "tolerationSeconds": {"type": "integer", "format": "int64",
                                      "description": "Seconds for which a taint NoExecute is tolerated. If unset, forever."}
            }
        }
    })
}

/// A rule that bounds the keys of a map, because a schema cannot. The key of a label has at most 63 characters, and its prefix 253, with a
/// slash between them. The name of a resource has the same limits.
fn key_length_rule() -> serde_json::Value {
    serde_json::json!({
        "rule": "self.all(key, key.size() <= 317)",
        "message": "keys must have at most 317 characters"
    })
}

/// At most 16 labels to match. The value of a label has at most 63 characters.
pub(crate) fn labels(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object", "maxProperties": 16,
        "additionalProperties": {"type": "string", "maxLength": 63},
        "x-kubernetes-validations": [key_length_rule()]
    })
}

/// A label selector as in Kubernetes, with bounds.
pub(crate) fn label_selector(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "properties": {
            "matchLabels": {
                "type": "object", "maxProperties": 16, "description": "Labels that must have exactly these values.",
                "additionalProperties": {"type": "string", "maxLength": 63},
                "x-kubernetes-validations": [key_length_rule()]
            },
            "matchExpressions": {
                "type": "array", "maxItems": 16, "description": "Further requirements; all must hold.",
                "items": {
                    "type": "object",
                    "required": ["key", "operator"],
                    "properties": {
                        "key": {"type": "string", "minLength": 1, "maxLength": 317, "description": "Key of the label."},
                        "operator": {"type": "string", "enum": ["In", "NotIn", "Exists", "DoesNotExist"],
                                     "description": "Relation of the label's value to `values`."},
                        "values": {"type": "array", "maxItems": 32, "items": {"type": "string", "maxLength": 63},
                                   "description": "Values for In and NotIn. They must be absent for the other operators."}
                    },
                    "x-kubernetes-validations": [{
                        "rule": "(self.operator in ['In', 'NotIn']) == (has(self.values) && self.values.size() > 0)",
                        "message": "values are needed for In and NotIn and must be absent for Exists and DoesNotExist",
                        "fieldPath": ".values"
                    }]
                }
            }
        }
    })
}

/// A quantity that is not negative. A number is accepted as well, because people write `cpu: 2`.
pub(crate) fn quantity(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "x-kubernetes-int-or-string": true,
        "maxLength": 32,
        "x-kubernetes-validations": [{
            "rule": "isQuantity(string(self)) && !quantity(string(self)).isLessThan(quantity('0'))",
            "message": "must be a quantity of 0 or more, such as 500m, 2 or 4Gi"
        }]
    })
}

/// At most 16 quantities, by the name of the resource.
pub(crate) fn quantities(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "object", "maxProperties": 16, "additionalProperties": quantity(generator),
        "x-kubernetes-validations": [key_length_rule()]})
}

/// `requests` and `limits` of a container. Claims of dynamic resources are not offered, because nothing here could bound them.
pub(crate) fn resources(generator: &mut SchemaGenerator) -> Schema {
    let mut requests = quantities(generator);
    requests.insert("description".to_owned(), "Requested amounts, by resource name.".into());
    let mut limits = quantities(generator);
    limits.insert("description".to_owned(), "Maximum amounts, by resource name.".into());
    json_schema!({
        "type": "object",
        "properties": {"requests": requests, "limits": limits},
        "x-kubernetes-validations": [{
            "rule": "!has(self.requests) || !has(self.limits) || self.requests.all(name, !(name in self.limits) || !quantity(string(self.requests[name])).isGreaterThan(quantity(string(self.limits[name]))))",
            "message": "requests must not be greater than limits",
            "fieldPath": ".requests"
        }]
    })
}
