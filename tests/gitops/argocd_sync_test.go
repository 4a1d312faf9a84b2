package gitops

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/argoproj/argo-cd/gitops-engine/v3/pkg/cache"
	"github.com/argoproj/argo-cd/gitops-engine/v3/pkg/diff"
	"github.com/argoproj/argo-cd/gitops-engine/v3/pkg/engine"
	"github.com/argoproj/argo-cd/gitops-engine/v3/pkg/health"
	"github.com/argoproj/argo-cd/gitops-engine/v3/pkg/sync"
	"github.com/argoproj/argo-cd/gitops-engine/v3/pkg/sync/common"
	"github.com/argoproj/argo-cd/gitops-engine/v3/pkg/sync/syncwaves"
	"github.com/argoproj/argo-cd/gitops-engine/v3/pkg/utils/kube"
	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	// tracking marks an object of an Application, as Argo CD does.
	tracking = "argocd.argoproj.io/tracking-id"
	// attempt is how long the engine works on one sync before it begins anew.
	attempt = 20 * time.Second
)

// application syncs one folder of a repository with Argo CD's engine.
type application struct {
	t              *testing.T
	name           string
	path           string
	namespace      string
	repository     *repository
	engine         engine.GitOpsEngine
	cache          cache.ClusterCache
	client         dynamic.Interface
	healthOverride health.HealthOverride
}

func newApplication(t *testing.T, config *rest.Config, name, path, namespace string, repository *repository) *application {
	t.Helper()
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	clusters := cache.NewClusterCache(config, cache.SetLogr(logr.Discard()),
		cache.SetPopulateResourceInfoHandler(func(object *unstructured.Unstructured, _ bool) (any, bool) {
			mark := object.GetAnnotations()[tracking]
			return mark, mark != ""
		}))
	made := engine.NewEngine(config, clusters, engine.WithLogr(logr.Discard()))
	stop, err := made.Run()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	return &application{t, name, path, namespace, repository, made, clusters, client, argoSettings(t)}
}

// target clones the repository and builds the folder. Each object gets Argo CD's mark.
func (a *application) target() ([]*unstructured.Unstructured, string) {
	a.t.Helper()
	clone := a.t.TempDir()
	git(a.t, clone, "clone", "--quiet", a.repository.url, ".")
	all := built(a.t, filepath.Join(clone, a.path))
	for _, object := range all {
		marks := object.GetAnnotations()
		if marks == nil {
			marks = map[string]string{}
		}
		marks[tracking] = a.name + ":" + object.GetKind() + "/" + object.GetName()
		object.SetAnnotations(marks)
	}
	return all, git(a.t, clone, "rev-parse", "HEAD")
}

func (a *application) isManaged(resource *cache.Resource) bool {
	mark, _ := resource.Info.(string)
	return strings.HasPrefix(mark, a.name+":")
}

// sync brings the cluster to the state of the repository, with pruning. It ends as Argo CD's operation would: when every object is
// applied, and with waves when every object is Healthy.
func (a *application) sync(within time.Duration) ([]common.ResourceSyncResult, error) {
	a.t.Helper()
	target, revision := a.target()
	context, cancel := context.WithTimeout(a.t.Context(), within)
	defer cancel()
	return a.engine.Sync(context, target, a.isManaged, revision, a.namespace, sync.WithPrune(true), sync.WithPruneLast(true),
		sync.WithServerSideApply(true), sync.WithServerSideApplyManager("argocd-controller"), sync.WithHealthOverride(a.healthOverride),
		sync.WithSkipDryRunOnMissingResource(true), sync.WithLogr(logr.Discard()))
}

// mustSync syncs, and fails if an object was not applied. Between waves the engine judges the objects as they were at its beginning. So it
// begins anew after a while, as Argo CD's controller does after each change of an object.
func (a *application) mustSync() {
	a.t.Helper()
	results, err := a.sync(attempt)
	for end := time.Now().Add(patience); errors.Is(err, context.DeadlineExceeded) && time.Now().Before(end); {
		results, err = a.sync(attempt)
	}
	if err != nil {
		a.t.Fatalf("syncing %s: %v: %v", a.name, err, results)
	}
	for _, result := range results {
		if result.Status != common.ResultCodeSynced && result.Status != common.ResultCodePruned {
			a.t.Fatalf("syncing %s: %s is %s: %s", a.name, result.ResourceKey.String(), result.Status, result.Message)
		}
	}
}

// live reads an object of ours. nil: there is none.
func (a *application) live(resource, namespace, name string) *unstructured.Unstructured {
	a.t.Helper()
	kind := schema.GroupVersionResource{Group: "spillway.dev", Version: "v1alpha1", Resource: resource}
	found, err := a.client.Resource(kind).Namespace(namespace).Get(a.t.Context(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		a.t.Fatal(err)
	}
	return found
}

// list reads all objects of ours in a namespace.
func (a *application) list(resource, namespace string) []unstructured.Unstructured {
	a.t.Helper()
	kind := schema.GroupVersionResource{Group: "spillway.dev", Version: "v1alpha1", Resource: resource}
	found, err := a.client.Resource(kind).Namespace(namespace).List(a.t.Context(), metav1.ListOptions{})
	if err != nil {
		a.t.Fatal(err)
	}
	return found.Items
}

// judged are the verdicts about each managed object: Argo CD's, and kstatus' own.
func (a *application) judged() map[string]string {
	a.t.Helper()
	target, _ := a.target()
	live, err := a.cache.GetManagedLiveObjs(target, a.isManaged)
	if err != nil {
		a.t.Fatal(err)
	}
	all := map[string]string{}
	for key, object := range live {
		argo, err := health.GetResourceHealth(object, a.healthOverride)
		if err != nil {
			a.t.Fatal(err)
		}
		flux, err := status.Compute(object)
		if err != nil {
			a.t.Fatal(err)
		}
		said := "no check"
		if argo != nil {
			said = string(argo.Status) + " (" + argo.Message + ")"
		}
		all[key.Kind+"/"+key.Name] = said + ", " + string(flux.Status)
	}
	return all
}

// untilVerdict waits until both tools judge an object so.
func (a *application) untilVerdict(object, argo, flux string) {
	a.t.Helper()
	until(a.t, object+" is "+argo+" and "+flux, func() (bool, string) {
		said := a.judged()[object]
		return strings.HasPrefix(said, argo+" (") && strings.HasSuffix(said, ", "+flux), said
	})
}

// outOfSync are the managed objects that differ from Git, by a three-way comparison.
func (a *application) outOfSync() []string {
	a.t.Helper()
	target, _ := a.target()
	managed, err := a.cache.GetManagedLiveObjs(target, a.isManaged)
	if err != nil {
		a.t.Fatal(err)
	}
	result := sync.Reconcile(target, managed, a.namespace, a.cache)
	compared, err := diff.DiffArray(a.t.Context(), result.Target, result.Live, diff.WithLogr(logr.Discard()))
	if err != nil {
		a.t.Fatal(err)
	}
	var all []string
	for index, one := range compared.Diffs {
		if one.Modified && result.Target[index] != nil {
			key := kube.GetResourceKey(result.Target[index])
			all = append(all, key.String())
		}
	}
	return all
}

// TestSync needs a cluster with the images of `make images`, whose kubeconfig is in GITOPS_KUBECONFIG: e2e/gitops.sh.
func TestSync(t *testing.T) {
	path := os.Getenv("GITOPS_KUBECONFIG")
	if path == "" {
		t.Skip("GITOPS_KUBECONFIG is not set: make e2e-gitops sets it")
	}
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		t.Fatal(err)
	}
	config.QPS, config.Burst = 100, 200

	// The operator and the team, each from its folder in Git. The operator's folder names the image of this checkout.
	repository := newRepository(t)
	repository.copyFolder("config/gitops/team")
	repository.copyFolder("config/default")
	repository.copyFolder("crds")
	overlay := filepath.Join(repository.checkout, "operator")
	if err := os.MkdirAll(overlay, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(overlay, "kustomization.yaml"), []byte(operatorOverlay), 0o644); err != nil {
		t.Fatal(err)
	}
	repository.push("the operator and a team")

	operator := newApplication(t, config, "spillway", "operator", "spillway-system", repository)
	operator.mustSync()
	until(t, "the operator is Healthy", func() (bool, string) {
		said := operator.judged()["Deployment/spillway"]
		return strings.HasPrefix(said, "Healthy (") && strings.HasSuffix(said, ", Current"), said
	})

	// A pool without work: Healthy at zero.
	team := newApplication(t, config, "team-demo", "config/gitops/team", "demo", repository)
	team.mustSync()
	for _, object := range []string{"AgentPool/worker", "WorkQueue/bugs", "Budget/default", "Breaker/workers"} {
		team.untilVerdict(object, "Healthy", "Current")
	}

	// People scale the pool, and agents come. Neither is a difference, and a sync leaves both.
	scale := []byte(`{"spec":{"replicas":2}}`)
	pools := team.client.Resource(schema.GroupVersionResource{Group: "spillway.dev", Version: "v1alpha1", Resource: "agentpools"}).Namespace("demo")
	if _, err := pools.Patch(t.Context(), "worker", types.MergePatchType, scale, metav1.PatchOptions{FieldManager: "kubectl-scale"}); err != nil {
		t.Fatal(err)
	}
	until(t, "two agents are Healthy", func() (bool, string) {
		var said []string
		for _, agent := range team.list("agents", "demo") {
			verdict, err := health.GetResourceHealth(&agent, team.healthOverride)
			if err != nil {
				t.Fatal(err)
			}
			said = append(said, string(verdict.Status))
		}
		return slices.Equal(said, []string{"Healthy", "Healthy"}), fmt.Sprint(said)
	})
	team.untilVerdict("AgentPool/worker", "Healthy", "Current")
	names := agentNames(team)
	if differ := team.outOfSync(); len(differ) > 0 {
		t.Errorf("out of sync after scaling: %v", differ)
	}
	team.mustSync()
	if after := agentNames(team); !slices.Equal(after, names) {
		t.Errorf("a sync replaced agents %v by %v", names, after)
	}
	if replicas, _, _ := unstructured.NestedInt64(team.live("agentpools", "demo", "worker").Object, "spec", "replicas"); replicas != 2 {
		t.Errorf("a sync took spec.replicas back: %d", replicas)
	}

	// A commit changes the spec, and its generation is applied.
	before := team.live("agentpools", "demo", "worker").GetGeneration()
	repository.change("config/gitops/team/agentpool.yaml", "max: 3", "max: 4")
	repository.push("a larger pool")
	team.mustSync()
	if now := team.live("agentpools", "demo", "worker").GetGeneration(); now <= before {
		t.Errorf("the generation is %d, and was %d", now, before)
	}
	team.untilVerdict("AgentPool/worker", "Healthy", "Current")

	// With waves, a suspended queue holds the sync. Without waves it does not.
	repository.change("config/gitops/team/workqueue.yaml", "spec:", "spec:\n  suspend: true")
	repository.push("suspend the queue")
	team.mustSync()
	team.untilVerdict("WorkQueue/bugs", "Suspended", "Current")
	repository.change("config/gitops/team/agentpool.yaml", "metadata:", "metadata:\n  annotations: {"+"argocd.argoproj.io/sync-wave: \"1\"}")
	repository.push("waves")
	if waves := wavesOf(team); !slices.Equal(waves, []int{0, 1}) {
		t.Fatalf("waves: %v", waves)
	}
	if _, err := team.sync(15 * time.Second); err == nil {
		t.Error("a sync with waves did not wait for the suspended queue")
	}
	repository.change("config/gitops/team/workqueue.yaml", "suspend: true", "suspend: false")
	repository.push("resume the queue")
	team.mustSync()
	team.untilVerdict("WorkQueue/bugs", "Healthy", "Current")

	// The pool leaves Git: pruning ends its agents, while the operator runs.
	repository.change("config/gitops/team/kustomization.yaml", "  - agentpool.yaml\n", "")
	repository.push("no pool")
	team.mustSync()
	until(t, "the pool and its agents are gone", func() (bool, string) {
		agents := team.list("agents", "demo")
		return team.live("agentpools", "demo", "worker") == nil && len(agents) == 0, fmt.Sprintf("%d agents", len(agents))
	})
}

// operatorOverlay is the operator with the image that was loaded into the cluster.
const operatorOverlay = `apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [../config/default]
images: [{name: spillway/spillway, newName: localhost/spillway/spillway, newTag: dev}]
replacements:
  - source: {kind: Deployment, name: spillway, fieldPath: "spec.template.spec.containers.[name=controller].image"}
    targets:
      - select: {kind: Deployment, name: spillway}
        fieldPaths: ["spec.template.spec.containers.[name=controller].env.[name=SPILLWAY_AGENT_IMAGE].value"]
`

func agentNames(a *application) []string {
	var all []string
	for _, agent := range a.list("agents", "demo") {
		all = append(all, agent.GetName())
	}
	slices.Sort(all)
	return all
}

func wavesOf(a *application) []int {
	target, _ := a.target()
	var all []int
	for _, object := range target {
		all = append(all, syncwaves.Wave(object))
	}
	slices.Sort(all)
	return slices.Compact(all)
}
