package gitops

// Flux's own controllers sync the operator from a registry of charts, and a team from a git server.

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// flux is an installation of Flux. Its controllers, a registry of charts and a git server are processes on this machine, and end with the
// test.
type flux struct {
	t          *testing.T
	repository *repository
	registry   string
}

// startFlux starts the programs of a folder. Their logs go to the folder logs.
func startFlux(t *testing.T, programs, logs string, repository *repository) *flux {
	t.Helper()
	addresses := freeAddresses(t, 2)
	f := &flux{t, repository, addresses[0]}
	files := addresses[1]
	start := func(program string, arguments ...string) {
		t.Helper()
		log, err := os.Create(filepath.Join(logs, filepath.Base(program)+".log"))
		if err != nil {
			t.Fatal(err)
		}
		command := exec.Command(program, arguments...)
		command.Env = append(os.Environ(), "RUNTIME_NAMESPACE=flux-system", "SOURCE_CONTROLLER_LOCALHOST="+files)
		command.Stdout, command.Stderr = log, log
		if err := command.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = command.Process.Kill()
			_ = command.Wait()
			_ = log.Close()
		})
	}
	// It replaces itself by the registry, so the process that is ended is the registry.
	start(root+"/release/registry.sh", f.registry, t.TempDir())
	start(filepath.Join(programs, "source-controller"), "--metrics-addr=0", "--health-addr=127.0.0.1:0", "--storage-path="+t.TempDir(),
		"--storage-addr="+files, "--storage-adv-addr="+files)
	for _, name := range []string{"kustomize-controller", "helm-controller"} {
		start(filepath.Join(programs, name), "--metrics-addr=0", "--health-addr=127.0.0.1:0")
	}
	until(t, "the registry answers", func() (bool, string) {
		answer, err := http.Get("http://" + f.registry + "/v2/")
		if err != nil {
			return false, err.Error()
		}
		_ = answer.Body.Close()
		return answer.StatusCode == http.StatusOK, answer.Status
	})
	return f
}

// freeAddresses are addresses of loopback on which nothing listens.
func freeAddresses(t *testing.T, number int) []string {
	t.Helper()
	var all []string
	for range number {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		// All are open at once, so that no two are equal.
		defer listener.Close()
		all = append(all, listener.Addr().String())
	}
	return all
}

// run runs a program with a text on its standard input, and fails with what it says.
func run(t *testing.T, input, program string, arguments ...string) string {
	t.Helper()
	command := exec.Command(program, arguments...)
	command.Stdin = strings.NewReader(input)
	said, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", program, arguments, err, said)
	}
	return strings.TrimSpace(string(said))
}

func kubectl(t *testing.T, arguments ...string) string {
	t.Helper()
	return run(t, "", "kubectl", arguments...)
}

// fluxObject reads an object in the namespace of the samples.
func fluxObject[T any](f *flux, kind, name string) T {
	f.t.Helper()
	var read T
	if err := json.Unmarshal([]byte(kubectl(f.t, "get", kind, name, "-n", "spillway-system", "-o", "json")), &read); err != nil {
		f.t.Fatal(err)
	}
	return read
}

// pushChart makes a version of the chart, and pushes it.
func (f *flux) pushChart(version string) {
	f.t.Helper()
	folder := f.t.TempDir()
	run(f.t, "", "helm", "package", root+"/charts/spillway", "--version", version, "--destination", folder)
	run(f.t, "", "helm", "push", filepath.Join(folder, "spillway-"+version+".tgz"), "oci://"+f.registry+"/charts", "--plain-http")
}

// apply applies a sample with the addresses of this test, and with changes: pairs of a text and what replaces it.
func (f *flux) apply(file string, changes ...string) {
	f.t.Helper()
	content, err := os.ReadFile(root + "/config/flux/" + file)
	if err != nil {
		f.t.Fatal(err)
	}
	text := string(content)
	for ; len(changes) > 0; changes = changes[2:] {
		if strings.Count(text, changes[0]) != 1 {
			f.t.Fatalf("%s must have %q once", file, changes[0])
		}
		text = strings.Replace(text, changes[0], changes[1], 1)
	}
	run(f.t, text, "kubectl", "apply", "-f", "-")
}

// applyOperator applies the sample of the operator, with more values of the chart.
func (f *flux) applyOperator(values string) {
	f.t.Helper()
	f.apply("operator.yaml", "url: oci://registry.example/charts/spillway", "insecure: true\n  url: oci://"+f.registry+"/charts/spillway",
		"repository: registry.example/spillway", "repository: localhost/spillway/spillway", `tag: "0.1.0"`, "tag: dev", "  values:\n", "  values:\n"+values)
}

// ask makes a controller work on an object now, and not after its interval.
func (f *flux) ask(kind, name string) {
	f.t.Helper()
	kubectl(f.t, "annotate", "--overwrite", kind, name, "-n", "spillway-system", "reconcile.fluxcd.io/requestedAt="+time.Now().Format(time.RFC3339Nano))
}

// pushed commits and pushes, and makes Flux fetch it.
func (f *flux) pushed(subject string) {
	f.t.Helper()
	f.repository.push(subject)
	f.ask("gitrepository", "platform")
}

// untilKustomization waits until a Kustomization has tried the last commit with this result, and returns the message.
func (f *flux) untilKustomization(name string, ready metav1.ConditionStatus, reason string) string {
	f.t.Helper()
	head := "main@sha1:" + git(f.t, f.repository.checkout, "rev-parse", "HEAD")
	var message string
	until(f.t, fmt.Sprintf("Kustomization/%s is Ready=%s (%s) at %s", name, ready, reason, head), func() (bool, string) {
		kustomization := fluxObject[kustomizev1.Kustomization](f, "kustomization", name)
		condition := apimeta.FindStatusCondition(kustomization.Status.Conditions, "Ready")
		if condition == nil {
			return false, "no condition Ready"
		}
		message = condition.Message
		tried := kustomization.Status.LastAttemptedRevision == head && kustomization.Status.ObservedGeneration == kustomization.Generation
		return tried && condition.Status == ready && condition.Reason == reason,
			fmt.Sprintf("Ready=%s (%s) at %s: %s", condition.Status, condition.Reason, kustomization.Status.LastAttemptedRevision, message)
	})
	return message
}

func (f *flux) untilApplied(name string) {
	f.t.Helper()
	f.untilKustomization(name, metav1.ConditionTrue, "ReconciliationSucceeded")
}

// untilReleased waits until the HelmRelease is Ready with this version of the chart.
func (f *flux) untilReleased(version string) {
	f.t.Helper()
	until(f.t, "HelmRelease/spillway is Ready with the chart "+version, func() (bool, string) {
		release := fluxObject[helmv2.HelmRelease](f, "helmrelease", "spillway")
		last := release.Status.History.Latest()
		if last == nil {
			return false, fmt.Sprintf("no release: %v", release.Status.Conditions)
		}
		// A chart from a registry has the digest of its artifact as metadata of its version.
		is, _, _ := strings.Cut(last.ChartVersion, "+")
		ready := apimeta.IsStatusConditionTrue(release.Status.Conditions, "Ready") && release.Status.ObservedGeneration == release.Generation
		return ready && is == version, fmt.Sprintf("chart %s: %v", last.ChartVersion, release.Status.Conditions)
	})
}

// agents are the names of the agents that wait for work.
func (f *flux) agents() []string {
	f.t.Helper()
	said := kubectl(f.t, "get", "agents", "-n", "demo", "-o", `jsonpath={range .items[?(@.status.phase=="Idle")]}{.metadata.name}{" "}{end}`)
	names := strings.Fields(said)
	slices.Sort(names)
	return names
}

// TestFlux needs a cluster with the images of `make images`, whose kubeconfig is in KUBECONFIG: e2e/gitops.sh flux.
func TestFlux(t *testing.T) {
	programs := os.Getenv("FLUX_PROGRAMS")
	if programs == "" {
		t.Skip("FLUX_PROGRAMS is not set: make e2e-flux sets it")
	}
	kubectl(t, "apply", "--server-side", "-f", os.Getenv("FLUX_CRDS"))
	repository := newRepository(t)
	repository.copyFolder("config/gitops/team")
	repository.copyFolder("crds")
	repository.push("a team")
	f := startFlux(t, programs, os.Getenv("FLUX_LOGS"), repository)

	// The operator from its chart, and a team from its folder. Every object of the team is Ready, also a pool without work.
	f.pushChart("0.1.0")
	f.applyOperator("")
	f.untilReleased("0.1.0")
	f.apply("source.yaml", "https://git.example.com/platform/spillway.git", repository.url)
	f.apply("team.yaml")
	f.untilApplied("team-demo")

	// People scale the pool and submit work. No sync takes that back.
	kubectl(t, "scale", "agentpool/worker", "-n", "demo", "--replicas=2")
	twoIdle := func() (bool, string) { names := f.agents(); return len(names) == 2, fmt.Sprint(names) }
	until(t, "two agents are idle", twoIdle)
	run(t, bugItem, "kubectl", "apply", "-n", "demo", "-f", "-")
	kubectl(t, "wait", "workitem/fix-1", "-n", "demo", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=3m")
	until(t, "both agents are idle again", twoIdle)
	names := f.agents()
	generation := kubectl(t, "get", "agentpool/worker", "-n", "demo", "-o", "jsonpath={.metadata.generation}")
	repository.change("config/gitops/team/agentpool.yaml", "max: 3", "max: 4")
	f.pushed("a larger pool")
	f.untilApplied("team-demo")
	if now := kubectl(t, "get", "agentpool/worker", "-n", "demo", "-o", "jsonpath={.metadata.generation}"); now == generation {
		t.Errorf("the commit did not change the pool: generation %s", now)
	}
	if replicas := kubectl(t, "get", "agentpool/worker", "-n", "demo", "-o", "jsonpath={.spec.replicas}"); replicas != "2" {
		t.Errorf("a sync took spec.replicas back: %s", replicas)
	}

	// A wrong object fails the Kustomization at once, and names itself. The commit that removes it removes the object.
	if err := os.WriteFile(filepath.Join(repository.checkout, "config/gitops/team/toolset.yaml"), []byte(wrongToolset), 0o644); err != nil {
		t.Fatal(err)
	}
	repository.change("config/gitops/team/kustomization.yaml", "  - agentpool.yaml\n", "  - agentpool.yaml\n  - toolset.yaml\n")
	f.pushed("a wrong toolset")
	if message := f.untilKustomization("team-demo", metav1.ConditionFalse, "HealthCheckFailed"); !strings.Contains(message, "Toolset/demo/wrong") {
		t.Errorf("the message does not name the Toolset: %s", message)
	}
	repository.change("config/gitops/team/kustomization.yaml", "  - toolset.yaml\n", "")
	f.pushed("no toolset")
	f.untilApplied("team-demo")
	if left := kubectl(t, "get", "toolsets", "-n", "demo", "-o", "name"); left != "" {
		t.Errorf("left after pruning: %s", left)
	}

	// A new version of the chart, and drift of the operator. The agents stay.
	f.pushChart("0.1.1")
	f.ask("ocirepository", "spillway")
	f.untilReleased("0.1.1")
	replicas := func() string {
		return kubectl(t, "get", "deployment/spillway", "-n", "spillway-system", "-o", "jsonpath={.spec.replicas}")
	}
	wanted := replicas()
	kubectl(t, "scale", "deployment/spillway", "-n", "spillway-system", "--replicas=0")
	f.ask("helmrelease", "spillway")
	until(t, "the drift is corrected", func() (bool, string) { is := replicas(); return is == wanted, is })
	kubectl(t, "rollout", "status", "deployment/spillway", "-n", "spillway-system", "--timeout=3m")
	until(t, "the same agents are idle", func() (bool, string) {
		is := f.agents()
		return slices.Equal(is, names), fmt.Sprintf("%v, were %v", is, names)
	})

	// The order of docs/how-to/flux.md: the team, then the operator. The CRDs stay.
	kubectl(t, "delete", "kustomization/team-demo", "-n", "spillway-system", "--timeout=3m")
	if left := kubectl(t, "get", "namespace/demo", "--ignore-not-found", "-o", "name"); left != "" {
		t.Errorf("left after the Kustomization: %s", left)
	}
	kubectl(t, "delete", "helmrelease/spillway", "-n", "spillway-system", "--timeout=3m")
	if left := kubectl(t, "get", "deployments", "-n", "spillway-system", "-o", "name"); left != "" {
		t.Errorf("left after the HelmRelease: %s", left)
	}
	kubectl(t, "get", "crd", "agentpools.spillway.dev")

	// The CRDs apart from the release
	f.apply("crds.yaml")
	f.untilApplied("spillway-crds")
	f.applyOperator("    crds: {install: false}\n")
	f.untilReleased("0.1.1")
	kubectl(t, "delete", "helmrelease/spillway", "-n", "spillway-system", "--timeout=3m")
	kubectl(t, "get", "crd", "agentpools.spillway.dev")
}

const bugItem = `apiVersion: spillway.dev/v1alpha1
kind: WorkItem
metadata:
  name: fix-1
spec:
  queueRef: {name: bugs}
  type: bug
  payload: "1 step: the login button does nothing"
`

// wrongToolset names many hosts by a pattern, which the controller refuses.
const wrongToolset = `apiVersion: spillway.dev/v1alpha1
kind: Toolset
metadata:
  name: wrong
spec:
  image: registry.example/tools:1
  definitions: [{configMapRef: {name: deploy}}]
  allowedCommands: [/usr/bin/git]
  egress: {mode: AllowList, allow: ["*.example.com:443"]}
`
