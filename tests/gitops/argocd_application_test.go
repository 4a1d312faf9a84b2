package gitops

// One Application of Argo CD, by its engine: what its controller does with the samples of config/argocd.

import (
	"context"
	"errors"
	"fmt"
	"maps"
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
	"github.com/argoproj/argo-cd/gitops-engine/v3/pkg/utils/kube"
	"github.com/argoproj/argo-cd/gitops-engine/v3/pkg/utils/tracing"
	argov1 "github.com/argoproj/argo-cd/v3/pkg/apis/application/v1alpha1"
	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"
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
	source         argov1.ApplicationSource
	namespace      string
	repository     *repository
	config         *rest.Config
	engine         engine.GitOpsEngine
	cache          cache.ClusterCache
	client         dynamic.Interface
	healthOverride health.HealthOverride
}

// newApplication makes the Application of a sample.
func newApplication(t *testing.T, config *rest.Config, sample string, repository *repository) *application {
	t.Helper()
	text, err := os.ReadFile(root + "/config/argocd/apps/" + sample)
	if err != nil {
		t.Fatal(err)
	}
	var read argov1.Application
	if err := yaml.UnmarshalStrict(text, &read); err != nil {
		t.Fatal(err)
	}
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
	return &application{t, read.Name, *read.Spec.Source, read.Spec.Destination.Namespace, repository, config, made, clusters, client, argoSettings(t)}
}

// rendered are the objects of a chart, as Argo CD renders it.
func (a *application) rendered(chart string) []*unstructured.Unstructured {
	a.t.Helper()
	made := run(a.t, string(a.source.Helm.ValuesYAML()), "helm", "template", chart, "--name-template", a.source.Helm.ReleaseName, "--namespace", a.namespace,
		"--kube-version", a.cache.GetServerVersion(), "--include-crds", "--values", "-")
	all, err := kube.SplitYAML([]byte(made))
	if err != nil {
		a.t.Fatal(err)
	}
	return all
}

// target clones the repository and builds the folder. Each object gets Argo CD's mark. Hooks for the deletion of the Application are
// apart: a sync leaves them out.
func (a *application) target() (objects, deletionHooks []*unstructured.Unstructured, revision string) {
	a.t.Helper()
	clone := a.t.TempDir()
	git(a.t, clone, "clone", "--quiet", a.repository.url, ".")
	var all []*unstructured.Unstructured
	if folder := filepath.Join(clone, a.source.Path); a.source.Helm == nil {
		all = built(a.t, folder)
	} else {
		all = a.rendered(folder)
	}
	for _, object := range all {
		marks := object.GetAnnotations()
		if marks == nil {
			marks = map[string]string{}
		}
		marks[tracking] = a.name + ":" + object.GetKind() + "/" + object.GetName()
		object.SetAnnotations(marks)
		if marks["helm.sh/hook"] == "pre-delete" {
			deletionHooks = append(deletionHooks, object)
		} else {
			objects = append(objects, object)
		}
	}
	return objects, deletionHooks, git(a.t, clone, "rev-parse", "HEAD")
}

func (a *application) isManaged(resource *cache.Resource) bool {
	mark, _ := resource.Info.(string)
	return strings.HasPrefix(mark, a.name+":")
}

// sync brings the cluster to the state of the repository, with pruning. It ends as Argo CD's operation would: when every object is
// applied, and with waves when every object is Healthy.
func (a *application) sync(within time.Duration) ([]common.ResourceSyncResult, error) {
	a.t.Helper()
	target, _, revision := a.target()
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
	target, _, _ := a.target()
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
	target, _, _ := a.target()
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

// delete deletes the Application as Argo CD does: it creates the hooks for the deletion, waits until they are Healthy, deletes them, and then
// deletes all objects but the CustomResourceDefinitions. It creates hooks in no order, so here the Job comes before its rights.
func (a *application) delete() {
	a.t.Helper()
	kubectl := &kube.KubectlCmd{Log: logr.Discard(), Tracer: tracing.NopTracer{}}
	objects, hooks, _ := a.target()
	isJob := func(hook *unstructured.Unstructured) bool { return hook.GetKind() == "Job" }
	job := hooks[slices.IndexFunc(hooks, isJob)]
	hooks = append([]*unstructured.Unstructured{job}, slices.DeleteFunc(hooks, isJob)...)
	for index, hook := range hooks {
		if index == 2 {
			// The Job and its account are there, and the Job runs without rights.
			time.Sleep(10 * time.Second)
		}
		if _, err := kubectl.CreateResource(a.t.Context(), a.config, hook.GroupVersionKind(), hook.GetName(), hook.GetNamespace(), hook, metav1.CreateOptions{}); err != nil {
			a.t.Fatalf("creating the hook %s/%s: %v", hook.GetKind(), hook.GetName(), err)
		}
	}
	until(a.t, "the hooks are Healthy", func() (bool, string) {
		for _, hook := range hooks {
			live, err := kubectl.GetResource(a.t.Context(), a.config, hook.GroupVersionKind(), hook.GetName(), hook.GetNamespace())
			if err != nil {
				return false, err.Error()
			}
			if said, err := health.GetResourceHealth(live, a.healthOverride); err != nil || said != nil && said.Status != health.HealthStatusHealthy {
				return false, fmt.Sprint(hook.GetKind(), " ", said, err)
			}
		}
		return true, ""
	})
	live, err := a.cache.GetManagedLiveObjs(objects, a.isManaged)
	if err != nil {
		a.t.Fatal(err)
	}
	foreground := metav1.DeletePropagationForeground
	for _, object := range append(slices.Collect(maps.Values(live)), hooks...) {
		if object.GetKind() == "CustomResourceDefinition" {
			continue
		}
		err := kubectl.DeleteResource(a.t.Context(), a.config, object.GroupVersionKind(), object.GetName(), object.GetNamespace(), metav1.DeleteOptions{PropagationPolicy: &foreground})
		if err != nil && !apierrors.IsNotFound(err) {
			a.t.Fatalf("deleting %s/%s: %v", object.GetKind(), object.GetName(), err)
		}
	}
}
