package gitops

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/argoproj/argo-cd/gitops-engine/v3/pkg/health"
	"github.com/argoproj/argo-cd/gitops-engine/v3/pkg/sync/syncwaves"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"
)

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

	// The operator from its chart, with the image of this checkout, and a team from its folder.
	repository := newRepository(t)
	repository.copyFolder("config/gitops/team")
	repository.copyFolder("charts/spillway")
	repository.push("the operator and a team")

	operator := newApplication(t, config, "operator.yaml", repository)
	if err := operator.source.Helm.SetValuesString(`image: {repository: localhost/spillway/spillway, tag: dev}`); err != nil {
		t.Fatal(err)
	}
	// CreateNamespace=true of the sample
	kubectl(t, "create", "namespace", operator.namespace)
	operator.mustSync()
	operator.untilVerdict("Deployment/spillway", "Healthy", "Current")
	if differ := operator.outOfSync(); len(differ) > 0 {
		t.Errorf("the operator is out of sync: %v", differ)
	}

	// A pool without work: Healthy at zero.
	team := newApplication(t, config, "team.yaml", repository)
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

	// The pool is back with agents, and the Application of the operator is deleted first, against the order of the page. The hook of the chart
	// ends the agents before.
	repository.change("config/gitops/team/kustomization.yaml", "resources:\n", "resources:\n  - agentpool.yaml\n")
	// Without waves: the Breaker of wave 0 would wait for its pool.
	repository.change("config/gitops/team/agentpool.yaml", "{argocd.argoproj.io/sync-wave: \"1\"}", "{}")
	repository.push("the pool again")
	team.mustSync()
	kubectl(t, "scale", "agentpool/worker", "--replicas=2", "--namespace=demo")
	until(t, "the pool has agents again", func() (bool, string) {
		agents := agentNames(team)
		return len(agents) == 2, fmt.Sprint(agents)
	})
	operator.delete()
	if agents := agentNames(team); len(agents) > 0 {
		t.Errorf("agents are left without an operator: %v", agents)
	}
	kubectl(t, "delete", "namespace", "demo", operator.namespace, "--timeout=2m")
}

func agentNames(a *application) []string {
	var all []string
	for _, agent := range a.list("agents", "demo") {
		all = append(all, agent.GetName())
	}
	slices.Sort(all)
	return all
}

func wavesOf(a *application) []int {
	target, _, _ := a.target()
	var all []int
	for _, object := range target {
		all = append(all, syncwaves.Wave(object))
	}
	slices.Sort(all)
	return slices.Compact(all)
}
