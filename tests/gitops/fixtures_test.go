// Package gitops judges objects of Spillway's kinds with the code of Argo CD and Flux.
package gitops

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	schemacel "k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	structuralpruning "k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"sigs.k8s.io/yaml"
)

// root is the checkout.
const root = "../.."

// states are the files of fixtures, in the order of the table in the documentation.
var states = []string{
	"new", "progressing", "ready", "scaled-to-zero", "stalled", "breaker-open", "budget-spent", "suspended", "spec-changed",
	"terminating", "failed-item", "unknown",
}

// kinds are all of Spillway's kinds.
var kinds = []string{"AgentPool", "Agent", "WorkQueue", "WorkItem", "Budget", "ClusterBudget", "Grant", "Breaker", "Toolset"}

// madeUp are the fixtures that no version of Spillway writes. They stand for an unknown version.
const madeUp = "of-another-version"

// fixture is one object in one state.
type fixture struct {
	state string
	*unstructured.Unstructured
}

// title names a fixture in the tables: STATE KIND/NAME.
func (f fixture) title() string {
	return f.state + " " + f.GetKind() + "/" + f.GetName()
}

// fixtures reads all of them, in the order of states.
func fixtures(t *testing.T) []fixture {
	t.Helper()
	found, err := filepath.Glob("fixtures/*.yaml")
	if err != nil || len(found) != len(states) {
		t.Fatalf("fixtures must have one file for each of the %d states: %v %v", len(states), found, err)
	}
	var all []fixture
	for _, state := range states {
		for _, object := range objects(t, "fixtures/"+state+".yaml") {
			all = append(all, fixture{state, object})
		}
	}
	return all
}

// objects reads the objects of a file as the API server would return them: integers are int64.
func objects(t *testing.T, path string) []*unstructured.Unstructured {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var all []*unstructured.Unstructured
	for documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text))); ; {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		converted, err := yaml.YAMLToJSONStrict(document)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		if bytes.Equal(bytes.TrimSpace(converted), []byte("null")) {
			continue
		}
		object := &unstructured.Unstructured{}
		if err := object.UnmarshalJSON(converted); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		all = append(all, object)
	}
}

// crds reads the CustomResourceDefinitions of the checkout, by kind.
func crds(t *testing.T) map[string]*apiextensions.CustomResourceDefinition {
	t.Helper()
	files, err := filepath.Glob(root + "/crds/*.spillway.dev.yaml")
	if err != nil || len(files) != len(kinds) {
		t.Fatalf("expected the CRDs of %d kinds, found %v (%v)", len(kinds), files, err)
	}
	all := map[string]*apiextensions.CustomResourceDefinition{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var crd apiextensionsv1.CustomResourceDefinition
		if err := yaml.UnmarshalStrict(text, &crd); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		apiextensionsv1.SetDefaults_CustomResourceDefinition(&crd)
		internal := &apiextensions.CustomResourceDefinition{}
		if err := apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(&crd, internal, nil); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		all[internal.Spec.Names.Kind] = internal
	}
	return all
}

// refusals are the API server's reasons for refusing an object of ours: its schema, its CEL rules, and unknown fields.
func refusals(t *testing.T, crd *apiextensions.CustomResourceDefinition, object *unstructured.Unstructured) []string {
	t.Helper()
	props := crd.Spec.Validation
	if props == nil {
		props = crd.Spec.Versions[0].Schema
	}
	validator, _, err := validation.NewSchemaValidator(props.OpenAPIV3Schema)
	if err != nil {
		t.Fatal(err)
	}
	structural, err := structuralschema.NewStructural(props.OpenAPIV3Schema)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, refusal := range validation.ValidateCustomResource(nil, object.Object, validator) {
		all = append(all, refusal.Error())
	}
	rules := schemacel.NewValidator(structural, true, celconfig.PerCallLimit)
	broken, _ := rules.Validate(context.Background(), nil, structural, object.Object, nil, celconfig.RuntimeCELCostBudget)
	for _, refusal := range broken {
		all = append(all, refusal.Error())
	}
	options := structuralschema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true}
	for _, path := range structuralpruning.PruneWithOptions(object.DeepCopy().Object, structural, true, options) {
		all = append(all, "unknown field "+path)
	}
	return all
}

func TestFixturesAreObjectsThatTheAPIServerTakes(t *testing.T) {
	definitions := crds(t)
	seen := map[string]bool{}
	for _, fixture := range fixtures(t) {
		if seen[fixture.title()] {
			t.Errorf("%s: the same object is there twice", fixture.title())
		}
		seen[fixture.title()] = true
		definition := definitions[fixture.GetKind()]
		if definition == nil {
			t.Fatalf("%s: there is no CRD of this kind", fixture.title())
		}
		for _, refusal := range refusals(t, definition, fixture.Unstructured) {
			t.Errorf("%s: %s", fixture.title(), refusal)
		}
	}
	for _, state := range []string{"new", "ready"} {
		for _, kind := range kinds {
			if !slices.ContainsFunc(fixtures(t), func(f fixture) bool { return f.state == state && f.GetKind() == kind }) {
				t.Errorf("no %s is in the state %s", kind, state)
			}
		}
	}
}

func TestTheCheckOfFixturesCanFail(t *testing.T) {
	definitions := crds(t)
	for path, value := range map[string]any{
		"spec.scaling.max": int64(-1), "status.phase": "Idle", "spec.type": "No Type", "status.observedGeneration": "1",
	} {
		pool := fixtures(t)[0].DeepCopy()
		if err := unstructured.SetNestedField(pool.Object, value, strings.Split(path, ".")...); err != nil {
			t.Fatal(err)
		}
		if refusals(t, definitions["AgentPool"], pool) == nil {
			t.Errorf("%s: %v is accepted", path, value)
		}
	}
}

// The conditions and reasons of the fixtures are names in the code, so a renamed one cannot stay in a fixture.
func TestFixturesHaveConditionsThatTheControllersWrite(t *testing.T) {
	var names string
	for _, path := range []string{"crates/api/src/conditions.rs", "crates/conversion/src/work/status.rs", "crates/policy/src/work/item.rs"} {
		text, err := os.ReadFile(filepath.Join(root, path))
		if err != nil {
			t.Fatal(err)
		}
		names += string(text)
	}
	for _, fixture := range fixtures(t) {
		if fixture.GetName() == madeUp {
			continue
		}
		conditions, _, err := unstructured.NestedSlice(fixture.Object, "status", "conditions")
		if err != nil {
			t.Fatal(err)
		}
		for _, one := range conditions {
			condition := one.(map[string]any)
			for _, field := range []string{"type", "reason"} {
				if name := condition[field].(string); !strings.Contains(names, `"`+name+`"`) {
					t.Errorf("%s: no constant has the %s %s", fixture.title(), field, name)
				}
			}
			observed, _, _ := unstructured.NestedInt64(fixture.Object, "status", "observedGeneration")
			if condition["observedGeneration"] != observed {
				t.Errorf("%s: %s has another observedGeneration than the status", fixture.title(), condition["type"])
			}
		}
	}
}
