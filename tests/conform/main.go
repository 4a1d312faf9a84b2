// Writes JSON schemas for kubeconform, in the place of a list of published ones: Kubernetes' own, from the description of its API, and
// those of CustomResourceDefinitions. They are strict: a field that the API does not know is an error, as with server-side validation.
//
// Usage: conform SWAGGER OUT CRD.yaml...
package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

const refPrefix = "#/definitions/"

type schema = map[string]any

func main() {
	if len(os.Args) < 3 {
		fail(fmt.Errorf("usage: conform SWAGGER OUT CRD.yaml..."))
	}
	out := os.Args[2]
	kinds, err := kubernetes(os.Args[1], out)
	fail(err)
	for _, file := range os.Args[3:] {
		more, err := custom(file, out)
		if err != nil {
			fail(fmt.Errorf("%s: %w", file, err))
		}
		kinds += more
	}
	fmt.Printf("%d schemas\n", kinds)
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "conform:", err)
		os.Exit(1)
	}
}

// kubernetes writes a schema for each kind of the API, with all definitions that it uses.
func kubernetes(swagger, out string) (int, error) {
	text, err := os.ReadFile(swagger)
	if err != nil {
		return 0, err
	}
	var api struct {
		Definitions map[string]schema `json:"definitions"`
	}
	if err := json.Unmarshal(text, &api); err != nil {
		return 0, err
	}
	for name, definition := range api.Definitions {
		api.Definitions[name] = definition
		switch {
		case strings.HasSuffix(name, ".IntOrString"):
			api.Definitions[name] = schema{"type": []any{"string", "integer"}}
		case strings.HasSuffix(name, ".Quantity"):
			api.Definitions[name] = schema{"type": []any{"string", "number"}}
		default:
			strict(definition)
		}
	}
	written := 0
	for name, definition := range api.Definitions {
		kinds, _ := definition["x-kubernetes-group-version-kind"].([]any)
		// Definitions of many groups are no objects of their own: DeleteOptions, WatchEvent.
		if len(kinds) != 1 {
			continue
		}
		kind := kinds[0].(schema)
		used := map[string]any{}
		collect(name, api.Definitions, used)
		document := schema{"$ref": refPrefix + name, "definitions": used}
		if err := write(out, kind["group"].(string), kind["version"].(string), kind["kind"].(string), document); err != nil {
			return written, err
		}
		written++
	}
	return written, nil
}

// collect adds a definition, and those that it refers to.
func collect(name string, all map[string]schema, used map[string]any) {
	if _, known := used[name]; known {
		return
	}
	used[name] = all[name]
	references(all[name], func(other string) { collect(other, all, used) })
}

func references(value any, found func(string)) {
	switch value := value.(type) {
	case schema:
		if ref, ok := value["$ref"].(string); ok {
			found(strings.TrimPrefix(ref, refPrefix))
		}
		for inner := range maps.Values(value) {
			references(inner, found)
		}
	case []any:
		for inner := range slices.Values(value) {
			references(inner, found)
		}
	}
}

// custom writes a schema for each version of each CustomResourceDefinition of a file.
func custom(file, out string) (int, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	written := 0
	for document := range strings.SplitSeq("\n"+string(text), "\n---") {
		var crd struct {
			Kind string
			Spec struct {
				Group    string
				Names    struct{ Kind string }
				Versions []struct {
					Name   string
					Schema struct {
						OpenAPIV3Schema schema `json:"openAPIV3Schema"`
					}
				}
			}
		}
		if err := yaml.Unmarshal([]byte(document), &crd); err != nil {
			return written, err
		}
		if crd.Kind != "CustomResourceDefinition" {
			continue
		}
		for _, version := range crd.Spec.Versions {
			root := version.Schema.OpenAPIV3Schema
			structural(root)
			if properties, ok := root["properties"].(schema); ok {
				properties["metadata"] = schema{"type": "object"}
				properties["apiVersion"] = schema{"type": "string"}
				properties["kind"] = schema{"type": "string"}
			}
			if err := write(out, crd.Spec.Group, version.Name, crd.Spec.Names.Kind, root); err != nil {
				return written, err
			}
			written++
		}
	}
	return written, nil
}

// strict closes an object with named fields.
func strict(value schema) {
	_, named := value["properties"]
	_, open := value["additionalProperties"]
	if named && !open && value["x-kubernetes-preserve-unknown-fields"] != true {
		value["additionalProperties"] = false
	}
}

// structural makes plain JSON schemas of a CustomResourceDefinition's.
func structural(value any) {
	switch value := value.(type) {
	case schema:
		if value["x-kubernetes-int-or-string"] == true {
			value["type"] = []any{"string", "integer"}
			delete(value, "anyOf")
		}
		if kind, ok := value["type"].(string); ok && value["nullable"] == true {
			value["type"] = []any{kind, "null"}
		}
		if value["type"] == "object" {
			strict(value)
		}
		for inner := range maps.Values(value) {
			structural(inner)
		}
	case []any:
		for inner := range slices.Values(value) {
			structural(inner)
		}
	}
}

// write stores a schema where kubeconform looks for it. It takes the version of the core group for its name.
func write(out, group, version, kind string, document schema) error {
	if group == "" {
		group = version
	}
	folder := filepath.Join(out, group)
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	text, err := json.Marshal(document)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(folder, strings.ToLower(kind)+"_"+version+".json"), text, 0o644)
}
