# Prints what an API schema of Kubernetes (swagger.json, in $swagger) does not have of the objects in the input: kinds, fields,
# required fields. Kinds of other groups, such as Spillway's own, are passed over. tests/chart-kubernetes.sh calls it.
def schemas: $swagger[0].definitions;

def of_type($path; $schema):
    if $schema["$ref"] then of_type($path; schemas[$schema["$ref"][("#/definitions/" | length):]])
    elif . == null then empty
    elif $schema.properties then
        if type != "object" then "\($path): an object is expected"
        else
            ($schema.required // [])[] as $name | select(has($name) | not) | "\($path).\($name): required"
        end,
        if type != "object" then empty
        else
            to_entries[] | .key as $name
            | if $schema.properties[$name] then .value | of_type("\($path).\($name)"; $schema.properties[$name])
              else "\($path).\($name): there is no such field" end
        end
    elif $schema.additionalProperties and type == "object" then
        to_entries[] | .key as $name | .value | of_type("\($path).\($name)"; $schema.additionalProperties)
    elif $schema.items and type == "array" then
        to_entries[] | .key as $index | .value | of_type("\($path)[\($index)]"; $schema.items)
    elif $schema.type == "array" then "\($path): a list is expected"
    elif $schema.type == "boolean" and type != "boolean" then "\($path): true or false is expected"
    elif $schema.type == "integer" and type != "number" then "\($path): a number is expected"
    else empty end;

def kinds: [schemas | to_entries[] | .key as $name | .value["x-kubernetes-group-version-kind"][]? | {key: "\(.group)/\(.version)/\(.kind)", value: $name}] | from_entries;

kinds as $kinds
| [inputs | if .kind == "List" then .items[] else . end] as $objects
| if $objects == [] then "there are no objects" else empty end,
  ($objects[]
    | (.apiVersion | if contains("/") then . else "/" + . end) as $version
    | "\($version)/\(.kind)" as $kind
    | if $kinds[$kind] then of_type("\(.kind) \(.metadata.name)"; schemas[$kinds[$kind]])
      elif $version | test("^(/|[a-z]+/|[a-z.]+\\.k8s\\.io/)") then "\(.kind) \(.metadata.name): there is no kind \($kind)"
      else empty end)
