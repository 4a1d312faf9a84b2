//! Schema fragments and rules that `schemars` cannot derive.

use kube::core::Rule;
use schemars::{Schema, SchemaGenerator, json_schema};

/// Fields that keep what they were created with, absence included. Written with `has` because the API server cannot
/// bound the cost of comparing optionals (`self.?x == oldSelf.?x`) and refuses such a rule.
pub(crate) fn unchanged(fields: &[&str]) -> Rule {
    let parts: Vec<String> = fields
        .iter()
        .map(|field| format!("has(self.{field}) == has(oldSelf.{field}) && (!has(self.{field}) || self.{field} == oldSelf.{field})"))
        .collect();
    Rule::new(parts.join(" && "))
}

/// A counter that only rises and is never taken away.
pub(crate) fn never_falls(field: &str) -> Rule {
    Rule::new(format!("!has(oldSelf.{field}) || (has(self.{field}) && self.{field} >= oldSelf.{field})")).field_path(format!(".{field}"))
}

/// The parts of a command have together at most so many characters.
pub(crate) fn short_command(field: &str, most: usize) -> Rule {
    Rule::new(format!("!has(self.{field}) || self.{field}.map(part, part.size()).sum() <= {most}"))
        .message(format!("{field} must have at most {most} characters in all: put longer text into a file").as_str())
        .field_path(format!(".{field}"))
}

/// Takes the words of an enumeration away: where a field of it is optional, they would stand in the place of the field's own.
pub(crate) fn described_where_it_is_used(schema: &mut Schema) {
    schema.remove("description");
}

/// `status.conditions`: a list map by type, so that several writers can own one condition each.
pub(crate) fn conditions(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "description": "What holds now, each with a reason and the generation it speaks of.",
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
                           "description": "Why, as one word for machines."},
                "message": {"type": "string", "maxLength": 32768, "description": "Why, in words for people."},
                "lastTransitionTime": {"type": "string", "format": "date-time", "description": "When the status last changed."},
                "observedGeneration": {"type": "integer", "format": "int64", "minimum": 0,
                                       "description": "The metadata.generation this condition speaks of."}
            }
        }
    })
}

/// The spec of a PersistentVolumeClaim as Kubernetes has it, bounded.
pub(crate) fn claim_spec(generator: &mut SchemaGenerator) -> Schema {
    let mut resources = resources(generator);
    resources.insert("description".to_owned(), "How large the volume is: requests.storage.".into());
    let mut selector = label_selector(generator);
    selector.insert("description".to_owned(), "Volumes that may be bound, by their labels.".into());
    json_schema!({
        "type": "object",
        "properties": {
            "accessModes": {
                "type": "array", "maxItems": 4, "description": "How nodes may mount the volume.",
                "items": {"type": "string", "enum": ["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod"]}
            },
            "resources": resources,
            "storageClassName": {"type": "string", "maxLength": 253,
                                 "description": "StorageClass that makes the volume; unset: the default one; empty: none."},
            "volumeMode": {"type": "string", "enum": ["Filesystem", "Block"], "description": "Agents work in a Filesystem, which is the default."},
            "volumeAttributesClassName": {"type": "string", "maxLength": 253, "description": "VolumeAttributesClass of the volume."},
            "volumeName": {"type": "string", "maxLength": 253, "description": "PersistentVolume that is bound; one volume serves one agent."},
            "selector": selector,
            "dataSource": {
                "type": "object", "required": ["kind", "name"],
                "description": "What the volume is filled from: a VolumeSnapshot or a PersistentVolumeClaim of the namespace.",
                "properties": reference(false)
            },
            "dataSourceRef": {
                "type": "object", "required": ["kind", "name"],
                "description": "What the volume is filled from: any object that a volume populator of the cluster knows.",
                "properties": reference(true)
            }
        }
    })
}

/// The fields of a reference to an object of any kind.
fn reference(namespaced: bool) -> serde_json::Value {
    let mut fields = serde_json::json!({
        "apiGroup": {"type": "string", "maxLength": 253, "description": "API group of the kind; unset: the core group."},
        "kind": {"type": "string", "minLength": 1, "maxLength": 63, "description": "Kind of the object."},
        "name": {"type": "string", "minLength": 1, "maxLength": 253, "description": "Name of the object."}
    });
    if namespaced {
        fields["namespace"] = serde_json::json!({"type": "string", "minLength": 1, "maxLength": 63,
            "description": "Namespace of the object; unset: that of the pool."});
    }
    fields
}

/// The tolerations of a pod as Kubernetes has them, at most 16.
pub(crate) fn tolerations(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array", "maxItems": 16,
        "items": {
            "type": "object",
            "properties": {
                "key": {"type": "string", "maxLength": 317, "description": "Key of the taint; empty: all, with operator Exists."},
                "operator": {"type": "string", "enum": ["", "Exists", "Equal", "Lt", "Gt"],
                             "description": "How the taint's value relates to the value. Default Equal."},
                "value": {"type": "string", "maxLength": 63, "description": "Value of the taint."},
                "effect": {"type": "string", "enum": ["", "NoSchedule", "PreferNoSchedule", "NoExecute"],
                           "description": "Effect of the taint; unset: all."},
                "tolerationSeconds": {"type": "integer", "format": "int64",
                                      "description": "How long a taint NoExecute is tolerated; unset: for ever."}
            }
        }
    })
}

/// Keys of a map are bounded by a rule alone: a schema cannot say how long they may be. A label's key is 63 characters at
/// most, its prefix 253, with a slash between them; so is the name of a resource.
fn short_keys() -> serde_json::Value {
    serde_json::json!({
        "rule": "self.all(key, key.size() <= 317)",
        "message": "keys must have at most 317 characters"
    })
}

/// Labels to match: at most 16 of them. A label's value is 63 characters at most.
pub(crate) fn labels(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object", "maxProperties": 16,
        "additionalProperties": {"type": "string", "maxLength": 63},
        "x-kubernetes-validations": [short_keys()]
    })
}

/// A label selector as Kubernetes has it, bounded.
pub(crate) fn label_selector(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "properties": {
            "matchLabels": {
                "type": "object", "maxProperties": 16, "description": "Labels that must have exactly these values.",
                "additionalProperties": {"type": "string", "maxLength": 63},
                "x-kubernetes-validations": [short_keys()]
            },
            "matchExpressions": {
                "type": "array", "maxItems": 16, "description": "Further requirements; all must hold.",
                "items": {
                    "type": "object",
                    "required": ["key", "operator"],
                    "properties": {
                        "key": {"type": "string", "minLength": 1, "maxLength": 317, "description": "Key of the label."},
                        "operator": {"type": "string", "enum": ["In", "NotIn", "Exists", "DoesNotExist"],
                                     "description": "How the label's value relates to the values."},
                        "values": {"type": "array", "maxItems": 32, "items": {"type": "string", "maxLength": 63},
                                   "description": "Values for In and NotIn; none for the others."}
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

/// A quantity that is not negative. A number is taken as well, because `cpu: 2` is what people write.
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

/// Quantities by the name of the resource, at most 16.
pub(crate) fn quantities(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "object", "maxProperties": 16, "additionalProperties": quantity(generator),
        "x-kubernetes-validations": [short_keys()]})
}

/// `requests` and `limits` of a container. Claims of dynamic resources are not offered: nothing here could bound them.
pub(crate) fn resources(generator: &mut SchemaGenerator) -> Schema {
    let mut requests = quantities(generator);
    requests.insert("description".to_owned(), "What a node must have free.".into());
    let mut limits = quantities(generator);
    limits.insert("description".to_owned(), "What may be used at most.".into());
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
