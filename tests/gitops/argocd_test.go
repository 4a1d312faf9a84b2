package gitops

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/argoproj/argo-cd/gitops-engine/v3/pkg/health"
	"github.com/argoproj/argo-cd/v3/util/lua"
	argosettings "github.com/argoproj/argo-cd/v3/util/settings"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"
)

const (
	argoFolder = root + "/config/argocd"
	argoPatch  = argoFolder + "/argocd-cm.yaml"
	argoValues = argoFolder + "/values.yaml"
)

// quiet are the kinds whose status changes all the time. A change of the status alone, without one of the health, is no reason
// for Argo CD to compare an Application again.
var quiet = []string{"AgentPool", "Agent", "WorkQueue", "WorkItem", "Budget", "ClusterBudget", "Breaker", "Toolset"}

// argoData are the settings for argocd-cm, from the scripts.
func argoData(t *testing.T) map[string]string {
	t.Helper()
	data := map[string]string{}
	for _, kind := range kinds {
		script, err := os.ReadFile(argoFolder + "/health/" + kind + ".lua")
		if err != nil {
			t.Fatal(err)
		}
		data["resource.customizations.health.spillway.dev_"+kind] = string(script)
	}
	for _, kind := range quiet {
		data["resource.customizations.ignoreResourceUpdates.spillway.dev_"+kind] = "jsonPointers:\n  - /status\n"
	}
	return data
}

// Both files hold the same settings: one for `kubectl patch`, one for the chart of Argo CD.
func TestArgoFilesHoldTheScripts(t *testing.T) {
	var settings bytes.Buffer
	data := argoData(t)
	for _, kind := range kinds {
		settings.WriteString(entry("resource.customizations.health.spillway.dev_"+kind, data))
	}
	for _, kind := range quiet {
		settings.WriteString(entry("resource.customizations.ignoreResourceUpdates.spillway.dev_"+kind, data))
	}
	head := "# Generated from config/argocd/health by `make gitops-write`. Do not edit.\n"
	patch := head + "# Spillway's settings for Argo CD, as a patch of its ConfigMap:\n#\n" +
		"#   kubectl -n argocd patch configmap argocd-cm --type merge --patch-file config/argocd/argocd-cm.yaml\n" +
		"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: argocd-cm\n  namespace: argocd\n  labels:\n    app.kubernetes.io/name: argocd-cm\n    app.kubernetes.io/part-of: argocd\ndata:\n" +
		indent(settings.String(), "  ")
	values := head + "# Spillway's settings for Argo CD, as values of its chart:\n#\n" +
		"#   helm upgrade argocd argo/argo-cd --namespace argocd --reuse-values --values config/argocd/values.yaml\n" +
		"configs:\n  cm:\n" + indent(settings.String(), "    ")
	generated(t, argoPatch, []byte(patch))
	generated(t, argoValues, []byte(values))

	var chart struct {
		Configs struct {
			CM map[string]string `json:"cm"`
		} `json:"configs"`
	}
	if err := yaml.UnmarshalStrict([]byte(values), &chart); err != nil {
		t.Fatal(err)
	}
	stored := argoConfigMap(t)
	for key, value := range data {
		if stored.Data[key] != value || chart.Configs.CM[key] != value {
			t.Errorf("%s: the files do not hold the script as it is", key)
		}
	}
	if len(stored.Data) != len(data) || len(chart.Configs.CM) != len(data) {
		t.Errorf("expected %d settings, got %d and %d", len(data), len(stored.Data), len(chart.Configs.CM))
	}
}

// entry is a setting as a YAML block.
func entry(key string, data map[string]string) string {
	return key + ": |\n" + indent(data[key], "  ")
}

func indent(text, by string) string {
	var all strings.Builder
	for line := range strings.Lines(text) {
		if strings.TrimSpace(line) != "" {
			all.WriteString(by)
		}
		all.WriteString(line)
	}
	return all.String()
}

func argoConfigMap(t *testing.T) *corev1.ConfigMap {
	t.Helper()
	text, err := os.ReadFile(argoPatch)
	if err != nil {
		t.Fatal(err)
	}
	var config corev1.ConfigMap
	if err := yaml.UnmarshalStrict(text, &config); err != nil {
		t.Fatal(err)
	}
	return &config
}

// argoSettings are the health checks as Argo CD's own settings manager reads them from the ConfigMap.
func argoSettings(t *testing.T) lua.ResourceHealthOverrides {
	t.Helper()
	overrides, err := settingsManager(t, argoConfigMap(t)).GetResourceOverrides()
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range kinds {
		override, found := overrides["spillway.dev/"+kind]
		if !found || override.HealthLua == "" {
			t.Fatalf("Argo CD finds no health check for %s in %s", kind, argoPatch)
		}
		if override.UseOpenLibs {
			t.Fatalf("the script of %s needs Lua's libraries, which Argo CD does not open by default", kind)
		}
	}
	return overrides
}

// settingsManager is Argo CD's, over a server that has this ConfigMap and nothing else.
func settingsManager(t *testing.T, config *corev1.ConfigMap) *argosettings.SettingsManager {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(answer http.ResponseWriter, request *http.Request) {
		answer.Header().Set("Content-Type", "application/json")
		query := request.URL.Query()
		if query.Get("sendInitialEvents") != "" {
			http.Error(answer, "this server streams no lists", http.StatusBadRequest)
			return
		}
		if query.Get("watch") != "" {
			answer.WriteHeader(http.StatusOK)
			answer.(http.Flusher).Flush()
			<-request.Context().Done()
			return
		}
		var list any
		switch {
		case strings.HasSuffix(request.URL.Path, "/configmaps"):
			list = corev1.ConfigMapList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMapList"}, ListMeta: metav1.ListMeta{ResourceVersion: "1"}, Items: []corev1.ConfigMap{*config}}
		case strings.HasSuffix(request.URL.Path, "/secrets"):
			list = corev1.SecretList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "SecretList"}, ListMeta: metav1.ListMeta{ResourceVersion: "1"}}
		default:
			t.Errorf("Argo CD asks for %s", request.URL)
			http.NotFound(answer, request)
			return
		}
		if err := json.NewEncoder(answer).Encode(list); err != nil {
			t.Error(err)
		}
	}))
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	return argosettings.NewSettingsManager(t.Context(), client, config.Namespace)
}

// The exclusion of items is a choice of the platform, so it is a file of its own.
func TestTheExclusionExcludesItemsAlone(t *testing.T) {
	text, err := os.ReadFile(argoFolder + "/exclusions.yaml")
	if err != nil {
		t.Fatal(err)
	}
	config := argoConfigMap(t)
	config.Data["resource.exclusions"] = string(text)
	filter, err := settingsManager(t, config).GetResourcesFilter()
	if err != nil {
		t.Fatal(err)
	}
	var excluded []string
	for _, kind := range kinds {
		if filter.IsExcludedResource("spillway.dev", kind, "https://kubernetes.default.svc") {
			excluded = append(excluded, kind)
		}
	}
	if fmt.Sprint(excluded) != "[WorkItem]" {
		t.Errorf("excluded: %v", excluded)
	}
	if len(filter.ResourceExclusions) == 0 || slices.ContainsFunc([]string{"Pod", "Deployment"}, func(kind string) bool { return filter.IsExcludedResource("", kind, "") }) {
		t.Errorf("exclusions: %v", filter.ResourceExclusions)
	}
}

// A parent waits for its children: an Application that was not compared yet is not Healthy.
func TestHealthOfApplications(t *testing.T) {
	text, err := os.ReadFile(argoFolder + "/applications.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var config corev1.ConfigMap
	if err := yaml.UnmarshalStrict(text, &config); err != nil {
		t.Fatal(err)
	}
	overrides, err := settingsManager(t, &config).GetResourceOverrides()
	if err != nil {
		t.Fatal(err)
	}
	for want, status := range map[health.HealthStatusCode]map[string]any{
		health.HealthStatusProgressing: nil,
		health.HealthStatusHealthy:     {"health": map[string]any{"status": "Healthy"}},
		health.HealthStatusDegraded:    {"health": map[string]any{"status": "Degraded"}},
	} {
		application := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "argoproj.io/v1alpha1", "kind": "Application", "metadata": map[string]any{"name": "x"},
		}}
		if status != nil {
			application.Object["status"] = status
		}
		said, err := health.GetResourceHealth(application, lua.ResourceHealthOverrides(overrides))
		if err != nil || said == nil || said.Status != want {
			t.Errorf("%v: %v %v, wanted %s", status, said, err, want)
		}
	}
}
