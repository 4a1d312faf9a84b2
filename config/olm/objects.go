package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// Chart is what the bundle says of the chart.
type Chart struct {
	AppVersion  string `json:"appVersion"`
	KubeVersion string `json:"kubeVersion"`
}

func readChart(root string) (Chart, error) {
	chart := Chart{}
	text, err := os.ReadFile(filepath.Join(root, "charts/spillway/Chart.yaml"))
	if err != nil {
		return chart, err
	}
	return chart, yaml.Unmarshal(text, &chart)
}

// minKubeVersion is the chart's lowest version of Kubernetes, as major.minor.patch.
func (chart Chart) minKubeVersion() (string, error) {
	version, found := strings.CutPrefix(chart.KubeVersion, ">=")
	version = strings.TrimSuffix(version, "-0")
	if !found || strings.Count(version, ".") != 2 || strings.ContainsAny(version, " <>=|,-") {
		return "", fmt.Errorf("kubeVersion %q of the chart is not written as >=MAJOR.MINOR.PATCH-0", chart.KubeVersion)
	}
	return version, nil
}

// readCRDs returns the CustomResourceDefinitions in crds/, in the order of their names.
func readCRDs(root string) ([]map[string]any, error) {
	files, err := filepath.Glob(filepath.Join(root, "crds/*.spillway.dev.yaml"))
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("no CustomResourceDefinition in %s", filepath.Join(root, "crds"))
	}
	slices.Sort(files)
	return readAll(files...)
}

// readAll returns the objects of YAML files.
func readAll(files ...string) ([]map[string]any, error) {
	objects := []map[string]any{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		some, err := parse(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		objects = append(objects, some...)
	}
	return objects, nil
}

// parse returns the objects of a stream of YAML documents. Documents that contain only comments are none.
func parse(text []byte) ([]map[string]any, error) {
	objects := []map[string]any{}
	// A line of three dashes ends a document. In a block of text such a line would be indented.
	for _, document := range bytes.Split(append([]byte("\n"), text...), []byte("\n---\n")) {
		object := map[string]any{}
		if err := yaml.Unmarshal(document, &object); err != nil {
			return nil, err
		}
		if len(object) > 0 {
			objects = append(objects, object)
		}
	}
	return objects, nil
}

func toYAML(object map[string]any) ([]byte, error) { return yaml.Marshal(object) }

// inside returns the value at a path of fields, or nil.
func inside(object any, path ...string) any {
	for _, field := range path {
		fields, _ := object.(map[string]any)
		object = fields[field]
	}
	return object
}

func text(object any, path ...string) string {
	value, _ := inside(object, path...).(string)
	return value
}

func list(object any, path ...string) []any {
	value, _ := inside(object, path...).([]any)
	return value
}

func kindOf(object any) string      { return text(object, "kind") }
func nameOf(object any) string      { return text(object, "metadata", "name") }
func namespaceOf(object any) string { return text(object, "metadata", "namespace") }

// describe names an object in messages.
func describe(object any) string {
	if namespace := namespaceOf(object); namespace != "" {
		return fmt.Sprintf("%s %s/%s", kindOf(object), namespace, nameOf(object))
	}
	return fmt.Sprintf("%s %s", kindOf(object), nameOf(object))
}

// same says whether two values are the same JSON.
func same(left, right any) bool {
	a, errA := json.Marshal(left)
	b, errB := json.Marshal(right)
	return errA == nil && errB == nil && bytes.Equal(a, b)
}

// contains says whether a list has a value that is the same JSON.
func contains(values []any, value any) bool {
	return slices.ContainsFunc(values, func(one any) bool { return same(one, value) })
}

// cleanLabels removes Helm's labels, because Helm does not manage what OLM installs, and sets the version.
func cleanLabels(object map[string]any, version string) {
	labels, _ := inside(object, "metadata", "labels").(map[string]any)
	delete(labels, "helm.sh/chart")
	if labels["app.kubernetes.io/managed-by"] == "Helm" {
		delete(labels, "app.kubernetes.io/managed-by")
	}
	if _, has := labels["app.kubernetes.io/version"]; has {
		labels["app.kubernetes.io/version"] = version
	}
}
