package gitops

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/argoproj/argo-cd/gitops-engine/v3/pkg/health"
	"github.com/argoproj/argo-cd/v3/util/lua"
	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	"github.com/fluxcd/pkg/apis/kustomize"
	"github.com/fluxcd/pkg/runtime/cel"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

var write = flag.Bool("write", false, "write the generated files instead of comparing them")

// verdictsPage is the page with the table of verdicts.
const verdictsPage = root + "/docs/reference/gitops.md"

// expected is what a reader of the fixture wants to be told. argo: with config/argocd. kstatus: Flux without settings.
// flux: Flux with the healthCheckExprs of config/flux/team.yaml.
var expected = []struct {
	fixture, argo, message, kstatus, flux string
}{
	{"new AgentPool/coders", "Progressing", "the controller has not observed this generation yet", "InProgress", "InProgress"},
	{"new Agent/coders-7e951b6779", "Progressing", "the controller has not observed this generation yet", "InProgress", "InProgress"},
	{"new WorkQueue/bugs", "Progressing", "the controller has not observed this generation yet", "InProgress", "InProgress"},
	{"new WorkItem/fix-1", "Progressing", "the controller has not observed this generation yet", "InProgress", "InProgress"},
	{"new Budget/team", "Progressing", "the controller has not observed this generation yet", "InProgress", "InProgress"},
	{"new ClusterBudget/default", "Progressing", "the controller has not observed this generation yet", "InProgress", "InProgress"},
	{"new Grant/more", "Progressing", "the controller has not observed this generation yet", "InProgress", "InProgress"},
	{"new Breaker/coders", "Progressing", "the controller has not observed this generation yet", "InProgress", "InProgress"},
	{"new Toolset/deploy-tools", "Progressing", "the controller has not observed this generation yet", "InProgress", "InProgress"},
	{"progressing AgentPool/free", "Progressing", "Scaling: 0 of 2 agents are ready", "InProgress", "InProgress"},
	{"progressing AgentPool/early", "Progressing", "MissingReference: the spec names objects that this namespace does not have: WorkQueue/bugs. Create them, or remove their names from the spec", "InProgress", "InProgress"},
	{"progressing Agent/coders-7e951b6779", "Progressing", "PodPending: the agent's pod has not started yet", "InProgress", "InProgress"},
	{"progressing WorkItem/fix-1", "Progressing", "Leased", "Current", "InProgress"},
	{"progressing Budget/team", "Progressing", "Applying: ResourceQuota/spillway-team is being deleted, and is created again afterwards", "Current", "Current"},
	{"progressing Grant/more", "Progressing", "TargetMissing: Budget/team (spec.targetRef) does not exist. The Grant applies as soon as it exists", "Current", "InProgress"},
	{"progressing Breaker/coders", "Progressing", "CircuitHalfOpen: circuit work/coders is half open: a few tries test whether it works again; the last failure: TestsFail: WorkItem/fix-1, held by Agent/coders-7e951b6779", "Current", "Current"},
	{"progressing Toolset/deploy-tools", "Progressing", "Starting: the Service has no address yet", "InProgress", "InProgress"},
	{"ready AgentPool/coders", "Healthy", "AsDesired: the work in the queues sets the size to 2", "Current", "Current"},
	{"ready Agent/coders-7e951b6779", "Healthy", "Registered: the agent is registered and works", "Current", "Current"},
	{"ready WorkQueue/bugs", "Healthy", "Serving: agents get items from the queue", "Current", "Current"},
	{"ready WorkItem/fix-1", "Healthy", "Succeeded", "Current", "Current"},
	{"ready Budget/team", "Healthy", "Metered: calls are counted, and refused beyond the limits", "Current", "Current"},
	{"ready ClusterBudget/default", "Healthy", "Metered: calls are counted, and refused beyond the limits", "Current", "Current"},
	{"ready Grant/more", "Healthy", "Granted: 100000 tokens are added to the limit daily", "Current", "Current"},
	{"ready Breaker/coders", "Healthy", "Guarding: the Breaker guards AgentPool coders", "Current", "Current"},
	{"ready Toolset/deploy-tools", "Healthy", "Serving: the bridge serves 1 program", "Current", "Current"},
	{"scaled-to-zero AgentPool/coders", "Healthy", "NoWork: there is no eligible work in the queues", "Current", "Current"},
	{"scaled-to-zero AgentPool/switched-off", "Healthy", "ReplicasSet: spec.replicas sets the size to 0", "Current", "Current"},
	{"scaled-to-zero Agent/coders-7e951b6779", "Healthy", "Hibernated: there is no work for the agent, so it has no pod. It keeps its name and its volume, and gets a pod when there is work", "InProgress", "InProgress"},
	{"stalled AgentPool/coders", "Degraded", "CrashLoop: agents end soon after their start, so each new agent is created later than the one before. The last one that ended: coders-7e951b6779: container agent ended with exit code 127. Its log says why (kubectl spillway logs)", "Failed", "Failed"},
	{"stalled AgentPool/free", "Degraded", "ImagePull: free-7e951b6779: Back-off pulling image \"registry.example/agent:1\". Correct spec.agent.image or spec.scheduling.imagePullSecrets of the pool, and delete this Agent", "InProgress", "InProgress"},
	{"stalled Agent/coders-7e951b6779", "Degraded", "HeartbeatLost: the agent has not reported for 1800 s of served time", "InProgress", "InProgress"},
	{"stalled WorkQueue/bugs", "Degraded", "QueueFull: the queue has 1000 unfinished items and allows 1000 (spec.limits.maxPending)", "Current", "Current"},
	{"stalled WorkQueue/chores", "Degraded", "DeadLettersFull: the queue has 1000 dead letters and keeps 1000 (spec.deadLetters.max): each new one deletes the oldest; redrive or delete dead letters, or raise the limit", "Current", "Current"},
	{"stalled Budget/team", "Degraded", "ParentMissing: this Budget gives no tokens: Budget/division, which this Budget or a parent names in spec.parentRef, does not exist. Create it, or change spec.parentRef", "Failed", "Failed"},
	{"stalled ClusterBudget/second", "Degraded", "NamespaceTaken: ClusterBudget/default, which is older, already binds the namespace team", "Failed", "Failed"},
	{"stalled Grant/more", "Degraded", "NotPermitted: ClusterBudget/default is not part of this namespace: create the Grant in the namespace that Spillway runs in", "Current", "Failed"},
	{"stalled Breaker/coders", "Progressing", "NoPool: the Breaker guards no pool: these pools in spec.pools do not exist: AgentPool coders. Correct the names, or create the pools", "InProgress", "InProgress"},
	{"stalled Toolset/deploy-tools", "Degraded", "InvalidSpec: spec.egress.allow: *.example.com:443: List each host by its name", "InProgress", "Failed"},
	{"stalled Toolset/edited-tools", "Degraded", "InvalidDefinition: deploy.md: line 3: parameters: the parameter ref has no pattern. The bridge serves the last valid definitions, revision 6b1f2d3c", "Current", "Failed"},
	{"breaker-open Breaker/coders", "Degraded", "CircuitOpen: circuit work/coders is open until 2026-03-02T14:31:00Z; the last failure: TestsFail: WorkItem/fix-1, held by Agent/coders-7e951b6779", "Current", "Current"},
	{"breaker-open Breaker/reviewed", "Degraded", "ReviewRequired: circuit work/coders is open; a person must approve the next try: kubectl spillway breaker approve reviewed -n team; the last failure: TestsFail: WorkItem/fix-1, held by Agent/coders-7e951b6779", "Current", "Current"},
	{"breaker-open AgentPool/coders", "Degraded", "BreakerOpen: work circuit breaker open for coders (Breaker/coders); it is tried again at 2026-03-02T14:31:00Z; the last failure: TestsFail: WorkItem/fix-1, held by Agent/coders-7e951b6779", "Current", "Current"},
	{"breaker-open AgentPool/repaired", "Degraded", "BreakerOpen: work circuit breaker open for coders (Breaker/coders); it is tried again at 2026-03-02T14:31:00Z; the last failure: TestsFail: WorkItem/fix-1, held by Agent/coders-7e951b6779", "InProgress", "InProgress"},
	{"budget-spent Budget/team", "Healthy", "BudgetExhausted: the limit daily of 500000 tokens is spent: model calls are refused until 2026-03-03T00:00:00Z, or until spec.tokens.limits[daily].tokens is raised", "Current", "Current"},
	{"budget-spent Budget/nearly", "Healthy", "ThresholdReached: 80 % or more of the limit daily is spent", "Current", "Current"},
	{"budget-spent ClusterBudget/default", "Healthy", "BudgetExhausted: the limit daily of 1000000 tokens is spent: model calls are refused until 2026-03-03T00:00:00Z, or until spec.tokens.limits[daily].tokens is raised", "Current", "Current"},
	{"budget-spent AgentPool/coders", "Degraded", "BudgetExhausted: Budget/team in team: the limit daily of 500000 tokens has fewer tokens left than a call needs. It resets at 2026-03-03T00:00Z (window 2026-03-02). To continue earlier, raise spec.tokens.limits[daily].tokens of Budget/team or create a Grant", "Current", "Current"},
	{"budget-spent Agent/coders-7e951b6779", "Healthy", "Registered: the agent is registered and waits for work", "Current", "Current"},
	{"suspended WorkQueue/bugs", "Suspended", "Suspended: agents get no items from the queue (spec.suspend); new items are accepted", "Current", "Current"},
	{"suspended WorkItem/fix-1", "Suspended", "Suspended", "Current", "Current"},
	{"suspended WorkItem/restored", "Suspended", "Suspended, Restored", "Current", "InProgress"},
	{"suspended Agent/coders-7e951b6779", "Suspended", "PausedBySpec: spec.paused of the agent is true. Set it to false to resume the agent", "Current", "Current"},
	{"suspended Breaker/coders", "Suspended", "ForcedOpen: a person forced all circuits open (spec.force: Open); kubectl spillway breaker auto coders -n team ends that", "Current", "Current"},
	{"suspended Budget/team", "Healthy", "PausedByThreshold: a threshold of the limit daily pauses model calls until 2026-03-03T00:00:00Z, or until spec.tokens.limits[daily].tokens is raised", "Current", "Current"},
	{"spec-changed AgentPool/coders", "Progressing", "the controller has not observed this generation yet", "InProgress", "InProgress"},
	{"spec-changed WorkQueue/bugs", "Progressing", "the controller has not observed this generation yet", "InProgress", "InProgress"},
	{"spec-changed WorkItem/fix-1", "Progressing", "the controller has not observed this generation yet", "InProgress", "InProgress"},
	{"spec-changed Budget/team", "Progressing", "the controller has not observed this generation yet", "InProgress", "InProgress"},
	{"spec-changed Breaker/coders", "Progressing", "the controller has not observed this generation yet", "InProgress", "InProgress"},
	{"spec-changed Toolset/deploy-tools", "Progressing", "the controller has not observed this generation yet", "InProgress", "InProgress"},
	{"terminating AgentPool/coders", "Progressing", "Pending deletion; blocked by finalizers: foregroundDeletion", "Terminating", "Terminating"},
	{"terminating Agent/coders-7e951b6779", "Progressing", "Pending deletion; blocked by finalizers: spillway.dev/pod", "Terminating", "Terminating"},
	{"failed-item WorkItem/fix-1", "Degraded", "DeadLettered, TooManyFailures: the item failed 3 times (maxAttempts: 3). The last attempt: the tests fail. Correct the cause, then start the item again (kubectl spillway redrive)", "Current", "Failed"},
	{"failed-item WorkItem/refused", "Degraded", "Rejected, TypeNotAccepted: WorkQueue/bugs accepts only items of the types bug (spec.accepts.types)", "Current", "Failed"},
	{"failed-item WorkItem/cancelled", "Healthy", "Cancelled, CancelRequested: spec.cancelRequested is true", "Current", "Current"},
	{"failed-item WorkItem/dependent", "Degraded", "Cancelled, DependencyFailed: an item in spec.dependsOn ended without the required success", "Current", "Failed"},
	{"unknown Agent/coders-7e951b6779", "Unknown", "SilentWithMany: many agents of the same node or gateway are silent, and none of them is given up yet. Check the node and the gateways", "Current", "Current"},
	{"unknown AgentPool/coders", "Healthy", "WorkUnknown: the queues are being listed, so the amount of work is not known yet", "Current", "Current"},
	{"unknown AgentPool/of-another-version", "Unknown", "the status has no condition Ready, so another version of Spillway wrote it", "Current", "Current"},
	{"unknown Grant/of-another-version", "Unknown", "the status has no condition Applied, so another version of Spillway wrote it", "Current", "InProgress"},
}

// judgement is what the tools say about a fixture.
type judgement struct {
	argo    *health.HealthStatus
	kstatus *status.Result
	flux    status.Status
}

// judge asks Argo CD with its settings, and Flux with and without its expressions.
func judge(t *testing.T, settings lua.ResourceHealthOverrides, exprs []kustomize.CustomHealthCheck, object *unstructured.Unstructured) judgement {
	t.Helper()
	argo, err := health.GetResourceHealth(object, settings)
	if err != nil {
		t.Fatalf("Argo CD about %s/%s: %v", object.GetKind(), object.GetName(), err)
	}
	if argo == nil {
		t.Fatalf("Argo CD has no health check for %s", object.GetKind())
	}
	kstatus, err := status.Compute(object)
	if err != nil {
		t.Fatal(err)
	}
	flux := kstatus.Status
	for _, check := range exprs {
		if check.APIVersion != object.GetAPIVersion() || check.Kind != object.GetKind() {
			continue
		}
		evaluator, err := cel.NewStatusEvaluator(&check.HealthCheckExpressions)
		if err != nil {
			t.Fatalf("healthCheckExprs of %s: %v", check.Kind, err)
		}
		result, err := evaluator.Evaluate(context.Background(), object)
		if err != nil {
			t.Fatalf("Flux about %s/%s: %v", object.GetKind(), object.GetName(), err)
		}
		flux = result.Status
	}
	return judgement{argo, kstatus, flux}
}

func TestVerdicts(t *testing.T) {
	settings, exprs := argoSettings(t), fluxExpressions(t)
	all := fixtures(t)
	rest := map[string]bool{}
	for _, fixture := range all {
		rest[fixture.title()] = true
	}
	for _, want := range expected {
		index := slices.IndexFunc(all, func(f fixture) bool { return f.title() == want.fixture })
		if index < 0 {
			t.Errorf("%s: no such fixture", want.fixture)
			continue
		}
		delete(rest, want.fixture)
		got := judge(t, settings, exprs, all[index].Unstructured)
		said := fmt.Sprintf("{%q, %q, %q, %q, %q}", want.fixture, got.argo.Status, got.argo.Message, got.kstatus.Status, got.flux)
		if said != fmt.Sprintf("{%q, %q, %q, %q, %q}", want.fixture, want.argo, want.message, want.kstatus, want.flux) {
			t.Errorf("got\n\t%s,\nwanted\n\t{%q, %q, %q, %q, %q}", said, want.fixture, want.argo, want.message, want.kstatus, want.flux)
		}
	}
	for title := range rest {
		t.Errorf("%s: no verdict is expected", title)
	}
}

// Health must not hide what a person has to do, and must not invent it.
func TestArgoAndOurConditionsAgree(t *testing.T) {
	settings := argoSettings(t)
	for _, fixture := range fixtures(t) {
		argo, err := health.GetResourceHealth(fixture.Unstructured, settings)
		if err != nil {
			t.Fatal(err)
		}
		observed, _, _ := unstructured.NestedInt64(fixture.Object, "status", "observedGeneration")
		current := observed == fixture.GetGeneration()
		if !current && argo.Status != health.HealthStatusProgressing {
			t.Errorf("%s: not observed, and %s", fixture.title(), argo.Status)
		}
		if current && fixture.GetDeletionTimestamp() == nil && conditionStatus(fixture.Unstructured, "Stalled") == "True" && argo.Status != health.HealthStatusDegraded {
			t.Errorf("%s: Stalled, and %s", fixture.title(), argo.Status)
		}
		if current && conditionStatus(fixture.Unstructured, "Ready") == "False" && argo.Status == health.HealthStatusHealthy && fixture.GetKind() != "Agent" {
			t.Errorf("%s: not Ready, and Healthy", fixture.title())
		}
	}
}

// A script sees objects of other versions and of a broken store. It must give a verdict, and no error.
func TestScriptsNeedNothingOfAnObject(t *testing.T) {
	settings := argoSettings(t)
	for _, kind := range kinds {
		for name, status := range map[string]any{
			"no status":           nil,
			"an empty status":     map[string]any{},
			"observed alone":      map[string]any{"observedGeneration": int64(1)},
			"bare conditions":     map[string]any{"observedGeneration": int64(1), "conditions": []any{map[string]any{"type": "Ready", "status": "True"}, map[string]any{}}},
			"a strange phase":     map[string]any{"observedGeneration": int64(1), "phase": "Sleeping", "conditions": []any{map[string]any{"type": "Ready", "status": "False", "reason": "New"}}},
			"nothing to say":      map[string]any{"observedGeneration": int64(1), "conditions": []any{map[string]any{"type": "Stalled", "status": "True"}, map[string]any{"type": "Applied", "status": "False"}, map[string]any{"type": "Tripped", "status": "True"}, map[string]any{"type": "Ready", "status": "False"}}},
			"empty conditions":    map[string]any{"observedGeneration": int64(1), "conditions": []any{}},
			"conditions are null": map[string]any{"observedGeneration": int64(1), "conditions": nil},
		} {
			object := &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": "spillway.dev/v1alpha1", "kind": kind, "metadata": map[string]any{"name": "x", "generation": int64(1)},
			}}
			if status != nil {
				object.Object["status"] = status
			}
			verdict, err := health.GetResourceHealth(object, settings)
			if err != nil || verdict == nil || verdict.Status == "" {
				t.Errorf("%s with %s: %v, %v", kind, name, verdict, err)
				continue
			}
			if verdict.Message == "" {
				t.Errorf("%s with %s: %s without a message", kind, name, verdict.Status)
			}
		}
	}
}

// The documentation has the verdicts that the tools give, not those that are expected.
func TestThePageHasTheVerdicts(t *testing.T) {
	settings, exprs := argoSettings(t), fluxExpressions(t)
	var page bytes.Buffer
	page.WriteString("<!-- Generated by `make gitops-write`. Do not edit. -->\n# Health for Argo CD and Flux\n\n")
	fmt.Fprintf(&page, "The health of Spillway's objects as Argo CD (%s) and Flux (kstatus of cli-utils %s) judge it, by their own code. ",
		version(t, "github.com/argoproj/argo-cd/v3"), version(t, "github.com/fluxcd/cli-utils"))
	page.WriteString("Each row is an object of [tests/gitops/fixtures](../../tests/gitops/fixtures) with a status that the controllers write. ")
	page.WriteString("Argo CD uses the scripts in [config/argocd/health](../../config/argocd/health). ")
	page.WriteString("*kstatus* is Flux without settings. *Flux* is Flux with the expressions in [config/flux/team.yaml](../../config/flux/team.yaml).\n\n")
	page.WriteString("How to use them: [Argo CD](../how-to/argocd.md), [Flux](../how-to/flux.md).\n\n")
	page.WriteString("| state | object | Argo CD | kstatus | Flux | message in Argo CD |\n|---|---|---|---|---|---|\n")
	for _, fixture := range fixtures(t) {
		got := judge(t, settings, exprs, fixture.Unstructured)
		fmt.Fprintf(&page, "| %s | %s `%s` | %s | %s | %s | %s |\n", strings.ReplaceAll(fixture.state, "-", " "), fixture.GetKind(), fixture.GetName(),
			got.argo.Status, got.kstatus.Status, got.flux, cell(got.argo.Message))
	}
	generated(t, verdictsPage, page.Bytes())
}

// cell is text in a cell of a Markdown table.
func cell(text string) string {
	return strings.NewReplacer("|", "\\|", "*", "\\*", "<", "\\<", "\n", " ", "[", "\\[").Replace(text)
}

// generated compares a file with its contents, or writes them.
func generated(t *testing.T, path string, contents []byte) {
	t.Helper()
	if *write {
		if err := os.WriteFile(path, contents, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	stored, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(stored, contents) {
		t.Errorf("%s is stale: run `make gitops-write`", strings.TrimPrefix(path, root+"/"))
	}
}

// version is the version of a module in go.mod.
func version(t *testing.T, module string) string {
	t.Helper()
	text, err := os.ReadFile("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) >= 2 && fields[0] == module {
			return fields[1]
		}
	}
	t.Fatalf("go.mod does not name %s", module)
	return ""
}

func conditionStatus(object *unstructured.Unstructured, kind string) string {
	conditions, _, _ := unstructured.NestedSlice(object.Object, "status", "conditions")
	for _, condition := range conditions {
		if condition := condition.(map[string]any); condition["type"] == kind {
			return condition["status"].(string)
		}
	}
	return ""
}
