package gitops

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/argoproj/argo-cd/gitops-engine/v3/pkg/diff"
	"github.com/argoproj/argo-cd/gitops-engine/v3/pkg/sync/syncwaves"
	argov1 "github.com/argoproj/argo-cd/v3/pkg/apis/application/v1alpha1"
	"github.com/argoproj/argo-cd/v3/util/argo/normalizers"
	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

const (
	teamFolder = root + "/config/gitops/team"
	// finalizer makes Argo CD delete the objects of an Application with it.
	finalizer = "resources-finalizer.argocd.argoproj.io"
	// lastApplied is where `kubectl apply`, and Argo CD with it, keeps what it applied.
	lastApplied = "kubectl.kubernetes.io/last-applied-configuration"
)

// built are the objects of a folder, as kustomize makes them.
func built(t *testing.T, folder string) []*unstructured.Unstructured {
	t.Helper()
	made, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), folder)
	if err != nil {
		t.Fatal(err)
	}
	var all []*unstructured.Unstructured
	for _, resource := range made.Resources() {
		text, err := resource.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		object := &unstructured.Unstructured{}
		if err := object.UnmarshalJSON(text); err != nil {
			t.Fatal(err)
		}
		all = append(all, object)
	}
	return all
}

func TestTheTeamsFolderHoldsValidObjects(t *testing.T) {
	definitions := crds(t)
	var ours int
	for _, object := range built(t, teamFolder) {
		definition := definitions[object.GetKind()]
		if definition == nil {
			continue
		}
		ours++
		for _, refusal := range refusals(t, definition, object) {
			t.Errorf("%s/%s: %s", object.GetKind(), object.GetName(), refusal)
		}
		// A field that people set with kubectl or the plugin, and that Git has too, is taken back by each sync.
		for _, field := range []string{"replicas", "suspend", "force", "approvedEpoch"} {
			if _, found, _ := unstructured.NestedFieldNoCopy(object.Object, "spec", field); found {
				t.Errorf("%s/%s: spec.%s must not be in Git", object.GetKind(), object.GetName(), field)
			}
		}
	}
	if ours < 4 {
		t.Errorf("the folder has %d objects of ours", ours)
	}
}

// argoCRDs are the definitions of Argo CD's own kinds, from its module.
func argoCRDs(t *testing.T) map[string]*apiextensions.CustomResourceDefinition {
	t.Helper()
	folder, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/argoproj/argo-cd/v3").Output()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]*apiextensions.CustomResourceDefinition{}
	for kind, file := range map[string]string{"Application": "application-crd.yaml", "AppProject": "appproject-crd.yaml"} {
		text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(folder)), "manifests/crds", file))
		if err != nil {
			t.Fatal(err)
		}
		var crd apiextensionsv1.CustomResourceDefinition
		if err := yaml.Unmarshal(text, &crd); err != nil {
			t.Fatal(err)
		}
		internal := &apiextensions.CustomResourceDefinition{}
		if err := apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(&crd, internal, nil); err != nil {
			t.Fatal(err)
		}
		all[kind] = internal
	}
	return all
}

// strict reads an object into its type, and fails for a field that the type does not have.
func strict[T any](t *testing.T, object *unstructured.Unstructured) T {
	t.Helper()
	text, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	var typed T
	if err := yaml.UnmarshalStrict(text, &typed); err != nil {
		t.Fatalf("%s/%s: %v", object.GetKind(), object.GetName(), err)
	}
	return typed
}

func TestSamplesOfArgoCD(t *testing.T) {
	definitions := argoCRDs(t)
	files, err := filepath.Glob(argoFolder + "/apps/*.yaml")
	if err != nil || len(files) < 3 {
		t.Fatalf("%v %v", files, err)
	}
	applications, wave := map[string]argov1.Application{}, map[string]int{}
	var project argov1.AppProject
	for _, file := range append(files, argoFolder+"/root.yaml") {
		for _, object := range objects(t, file) {
			for _, refusal := range refusals(t, definitions[object.GetKind()], object) {
				t.Errorf("%s: %s", file, refusal)
			}
			wave[object.GetName()] = syncwaves.Wave(object)
			switch object.GetKind() {
			case "Application":
				applications[object.GetName()] = strict[argov1.Application](t, object)
			case "AppProject":
				project = strict[argov1.AppProject](t, object)
			}
		}
	}
	// Argo CD deletes the waves in reverse order, so the operator must come before the teams.
	if wave["spillway"] >= wave["team-demo"] {
		t.Errorf("the operator has wave %d, the team %d", wave["spillway"], wave["team-demo"])
	}
	for name, application := range applications {
		if !slices.Contains(application.Finalizers, finalizer) {
			t.Errorf("Application %s: without the finalizer its objects outlive it", name)
		}
		if path := application.Spec.Source.Path; path != "" {
			if _, err := os.Stat(filepath.Join(root, path)); err != nil {
				t.Errorf("Application %s: %v", name, err)
			}
		}
	}
	if err := project.ValidateProject(); err != nil {
		t.Error(err)
	}
	team := applications["team-demo"]
	if team.Spec.Project != project.Name || !project.IsSourcePermitted(*team.Spec.Source) {
		t.Errorf("the project %s does not permit the Application of its team", project.Name)
	}
	for _, object := range built(t, teamFolder) {
		namespaced := object.GetKind() != "Namespace"
		if !project.IsGroupKindNamePermitted(object.GroupVersionKind().GroupKind(), object.GetName(), namespaced) {
			t.Errorf("the project does not permit %s/%s", object.GetKind(), object.GetName())
		}
	}
	for _, kind := range []string{"Grant", "Agent", "ClusterBudget"} {
		if project.IsGroupKindNamePermitted(schema.GroupKind{Group: "spillway.dev", Kind: kind}, "x", kind != "ClusterBudget") {
			t.Errorf("the project permits a team to raise its limits with a %s", kind)
		}
	}
}

func TestSamplesOfFlux(t *testing.T) {
	files, err := filepath.Glob(root + "/config/flux/*.yaml")
	if err != nil || len(files) < 4 {
		t.Fatalf("%v %v", files, err)
	}
	seen := map[string]int{}
	for _, file := range files {
		for _, object := range objects(t, file) {
			seen[object.GetKind()]++
			switch object.GroupVersionKind().String() {
			case "kustomize.toolkit.fluxcd.io/v1, Kind=Kustomization":
				kustomization := strict[kustomizev1.Kustomization](t, object)
				if _, err := os.Stat(filepath.Join(root, kustomization.Spec.Path)); err != nil {
					t.Errorf("Kustomization %s: %v", kustomization.Name, err)
				}
			case "source.toolkit.fluxcd.io/v1, Kind=GitRepository":
				strict[sourcev1.GitRepository](t, object)
			case "source.toolkit.fluxcd.io/v1, Kind=OCIRepository":
				strict[sourcev1.OCIRepository](t, object)
			case "helm.toolkit.fluxcd.io/v2, Kind=HelmRelease":
				strict[helmv2.HelmRelease](t, object)
			case "/v1, Kind=Namespace":
			default:
				t.Errorf("%s: unexpected %s", file, object.GroupVersionKind())
			}
		}
	}
	for _, kind := range []string{"Kustomization", "GitRepository", "OCIRepository", "HelmRelease"} {
		if seen[kind] == 0 {
			t.Errorf("no sample has a %s", kind)
		}
	}
}

// What people and the API server change is no difference for Argo CD: a field that is not in Git, a default of the CRD, and a field
// of the list ignoreDifferences.
func TestDifferences(t *testing.T) {
	var ignored []argov1.ResourceIgnoreDifferences
	for _, object := range objects(t, argoFolder+"/apps/team.yaml") {
		ignored = strict[argov1.Application](t, object).Spec.IgnoreDifferences
	}
	with, err := normalizers.NewIgnoreNormalizer(ignored, nil, normalizers.IgnoreNormalizerOpts{})
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		kind        string
		git, live   map[string]any
		plain, with bool
	}{
		"kubectl scale, not in Git":  {"AgentPool", nil, map[string]any{"replicas": int64(4)}, false, false},
		"kubectl scale, in Git":      {"AgentPool", map[string]any{"replicas": int64(2)}, map[string]any{"replicas": int64(4)}, true, false},
		"scaling by hand":            {"AgentPool", map[string]any{"mode": "Work"}, map[string]any{"mode": "Chat"}, true, true},
		"pause, not in Git":          {"WorkQueue", nil, map[string]any{"suspend": true}, false, false},
		"pause, in Git":              {"WorkQueue", map[string]any{"suspend": false}, map[string]any{"suspend": true}, true, false},
		"a circuit forced, in Git":   {"Breaker", map[string]any{"force": "Closed"}, map[string]any{"force": "Open"}, true, false},
		"an approval, not in Git":    {"Breaker", nil, map[string]any{"approvedEpoch": int64(3)}, false, false},
		"a limit raised by hand":     {"Budget", map[string]any{"mode": "Enforce"}, map[string]any{"mode": "Observe"}, true, true},
		"a default of the CRD alone": {"Toolset", nil, map[string]any{"audit": map[string]any{"sink": "Stdout"}}, false, false},
	} {
		config := object(test.kind, test.git)
		applied, err := json.Marshal(config)
		if err != nil {
			t.Fatal(err)
		}
		live := config.DeepCopy()
		live.SetAnnotations(map[string]string{lastApplied: string(applied)})
		for field, value := range test.live {
			if err := unstructured.SetNestedField(live.Object, value, "spec", field); err != nil {
				t.Fatal(err)
			}
		}
		for normalizer, want := range map[diff.Normalizer]bool{diff.GetNoopNormalizer(): test.plain, with: test.with} {
			result, err := diff.Diff(t.Context(), config.DeepCopy(), live.DeepCopy(), diff.WithNormalizer(normalizer))
			if err != nil {
				t.Fatal(err)
			}
			if result.Modified != want {
				t.Errorf("%s: a difference: %v, ignored: %v", name, result.Modified, normalizer == with)
			}
		}
	}
}

// object is a small object of a kind, as Git has it.
func object(kind string, spec map[string]any) *unstructured.Unstructured {
	all := map[string]any{"mode": "Work"}
	if kind != "AgentPool" {
		all = map[string]any{}
	}
	for field, value := range spec {
		all[field] = value
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "spillway.dev/v1alpha1", "kind": kind, "metadata": map[string]any{"name": "x", "namespace": "demo"}, "spec": all,
	}}
}
