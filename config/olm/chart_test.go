package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// These tests compare what OLM makes of the bundle with what the chart renders. They need helm.

const version = "9.8.7"

func init() {
	answers := map[string][]byte{}
	helm = func(arguments []string) ([]byte, error) {
		key := strings.Join(arguments, " ")
		if _, known := answers[key]; !known {
			answer, err := runHelm(arguments)
			if err != nil {
				return nil, err
			}
			answers[key] = answer
		}
		return answers[key], nil
	}
}

// Resources without a namespace: a Role gives no right to them.
var clusterScoped = []string{"nodes", "namespaces", "clusterbudgets", "clusterbudgets/status", "tokenreviews"}

func options(namespace, scope string) Options {
	return Options{Root: "../..", Version: version, Channel: "candidate", Namespace: namespace, Scope: scope}
}

func rendered(t *testing.T, namespace, scope string) []map[string]any {
	t.Helper()
	objects, err := render(options(namespace, scope), namespace, scope)
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

// files returns the manifests of the bundle and the extras for an installation.
func files(t *testing.T, namespace, scope string) (manifests, extras []map[string]any) {
	t.Helper()
	written, err := generate(options(namespace, scope))
	if err != nil {
		t.Fatal(err)
	}
	for path, content := range written {
		manifest := strings.HasPrefix(path, "bundle/manifests/")
		if !manifest && path != "extras.yaml" {
			continue
		}
		objects, err := parse(content)
		if err != nil {
			t.Fatal(path, err)
		}
		if manifest {
			manifests = append(manifests, objects...)
		} else {
			extras = objects
		}
	}
	return manifests, extras
}

func find(objects []map[string]any, kind, name string) map[string]any {
	at := slices.IndexFunc(objects, func(one map[string]any) bool { return kindOf(one) == kind && nameOf(one) == name })
	if at < 0 {
		return nil
	}
	return objects[at]
}

func csvOf(t *testing.T, manifests []map[string]any) map[string]any {
	t.Helper()
	csv := find(manifests, "ClusterServiceVersion", "spillway.v"+version)
	if csv == nil {
		t.Fatal("the bundle has no ClusterServiceVersion")
	}
	return csv
}

// add writes the rights of rules as lines: account, namespace (* for all), what, verb.
func add(rights map[string]bool, account, namespace string, rules []any) {
	strings := func(rule any, field string) []string {
		values := []string{}
		for _, value := range list(rule, field) {
			values = append(values, value.(string))
		}
		return values
	}
	for _, rule := range rules {
		names := strings(rule, "resourceNames")
		if len(names) == 0 {
			names = []string{"*"}
		}
		for _, group := range strings(rule, "apiGroups") {
			for _, resource := range strings(rule, "resources") {
				if namespace != "*" && slices.Contains(clusterScoped, resource) {
					continue
				}
				for _, name := range names {
					for _, verb := range strings(rule, "verbs") {
						rights[fmt.Sprintf("%s %s %s/%s/%s %s", account, namespace, group, resource, name, verb)] = true
					}
				}
			}
		}
	}
}

// boundRights are the rights that roles and bindings give to ServiceAccounts. Objects without a namespace are in namespace.
func boundRights(rights map[string]bool, objects []map[string]any, namespace string) {
	for _, binding := range objects {
		scope := "*"
		if kindOf(binding) == "RoleBinding" {
			if scope = namespaceOf(binding); scope == "" {
				scope = namespace
			}
		} else if kindOf(binding) != "ClusterRoleBinding" {
			continue
		}
		role := find(objects, text(binding, "roleRef", "kind"), text(binding, "roleRef", "name"))
		for _, subject := range list(binding, "subjects") {
			if text(subject, "kind") == "ServiceAccount" {
				add(rights, text(subject, "name"), scope, list(role, "rules"))
			}
		}
	}
}

func chartRights(t *testing.T, namespace, scope string) map[string]bool {
	rights := map[string]bool{}
	boundRights(rights, rendered(t, namespace, scope), namespace)
	return rights
}

// olmRights are the rights after OLM has installed the bundle in namespace with an OperatorGroup for scope (empty: all
// namespaces), and a person has applied the extras. OLM makes a Role of `permissions` in its own namespace, copies it into those
// of the OperatorGroup, and for all namespaces makes a ClusterRole of it, which also reads namespaces.
func olmRights(t *testing.T, namespace, scope string) map[string]bool {
	manifests, extras := files(t, namespace, scope)
	rights := map[string]bool{}
	strategy := inside(csvOf(t, manifests), "spec", "install", "spec")
	for _, permission := range list(strategy, "clusterPermissions") {
		add(rights, text(permission, "serviceAccountName"), "*", list(permission, "rules"))
	}
	for _, permission := range list(strategy, "permissions") {
		account, rules := text(permission, "serviceAccountName"), list(permission, "rules")
		if scope != "" {
			add(rights, account, namespace, rules)
			add(rights, account, scope, rules)
			continue
		}
		add(rights, account, "*", append(rules, map[string]any{
			"apiGroups": []any{""}, "resources": []any{"namespaces"}, "verbs": []any{"get", "list", "watch"},
		}))
	}
	boundRights(rights, manifests, namespace)
	boundRights(rights, extras, namespace)
	return rights
}

// difference lists the rights of left that right lacks.
func difference(left, right map[string]bool) []string {
	missing := []string{}
	for line := range left {
		if !right[line] {
			missing = append(missing, line)
		}
	}
	slices.Sort(missing)
	return missing
}

func TestRightsInAllNamespacesAreThoseOfTheChart(t *testing.T) {
	chart, olm := chartRights(t, "spillway-system", ""), olmRights(t, "spillway-system", "")
	if len(chart) < 50 {
		t.Fatalf("only %d rights were read from the chart", len(chart))
	}
	if missing := difference(chart, olm); len(missing) > 0 {
		t.Errorf("OLM gives less:\n%s", strings.Join(missing, "\n"))
	}
	added := []string{"spillway * /namespaces/* get"}
	if more := difference(olm, chart); !slices.Equal(more, added) {
		t.Errorf("OLM gives more than %v:\n%s", added, strings.Join(more, "\n"))
	}
}

func TestRightsInItsOwnNamespaceAreThoseOfTheChart(t *testing.T) {
	chart, olm := chartRights(t, "team-a", "team-a"), olmRights(t, "team-a", "team-a")
	if missing := difference(chart, olm); len(missing) > 0 {
		t.Errorf("OLM gives less:\n%s", strings.Join(missing, "\n"))
	}
	if more := difference(olm, chart); len(more) > 0 {
		t.Errorf("OLM gives more:\n%s", strings.Join(more, "\n"))
	}
}

func TestRightsInAnotherNamespaceAreThoseOfTheChartAndTheSameInItsOwn(t *testing.T) {
	chart, olm := chartRights(t, "spillway-system", "team-a"), olmRights(t, "spillway-system", "team-a")
	if missing := difference(chart, olm); len(missing) > 0 {
		t.Errorf("OLM gives less:\n%s", strings.Join(missing, "\n"))
	}
	more := difference(olm, chart)
	if len(more) == 0 {
		t.Error("OLM gives no rights in its own namespace: update docs/how-to/olm.md")
	}
	for _, line := range more {
		if !chart[strings.Replace(line, "spillway spillway-system ", "spillway team-a ", 1)] {
			t.Errorf("OLM gives more: %s", line)
		}
	}
}

// withoutArguments removes the arguments of a Deployment's container that begin with a text, and says how many these were.
func withoutArguments(spec any, prefix string) int {
	removed := 0
	for _, container := range list(spec, "template", "spec", "containers") {
		fields := container.(map[string]any)
		before := list(container, "args")
		after := slices.DeleteFunc(slices.Clone(before), func(one any) bool { return strings.HasPrefix(one.(string), prefix) })
		removed += len(before) - len(after)
		fields["args"] = after
	}
	return removed
}

// asInPod replaces what the kubelet replaces, and returns the variable of the served namespace.
func asInPod(spec any, namespace string) (served any) {
	for _, container := range list(spec, "template", "spec", "containers") {
		arguments := list(container, "args")
		for at, argument := range arguments {
			arguments[at] = strings.ReplaceAll(argument.(string), "$(POD_NAMESPACE)", namespace)
		}
		fields := container.(map[string]any)
		fields["env"] = slices.DeleteFunc(slices.Clone(list(container, "env")), func(one any) bool {
			if text(one, "name") == "SPILLWAY_NAMESPACE" {
				served = inside(one, "valueFrom", "fieldRef", "fieldPath")
				return true
			}
			return false
		})
	}
	return served
}

func TestDeploymentsAreThoseOfTheChart(t *testing.T) {
	for _, scope := range []string{"", "team-a", "spillway-system"} {
		manifests, _ := files(t, "spillway-system", scope)
		deployments := list(csvOf(t, manifests), "spec", "install", "spec", "deployments")
		chart := rendered(t, "spillway-system", scope)
		if len(deployments) != 2 {
			t.Fatalf("%d Deployments", len(deployments))
		}
		for _, deployment := range deployments {
			name, spec := text(deployment, "name"), inside(deployment, "spec")
			expected := inside(find(chart, "Deployment", name), "spec")
			served := asInPod(spec, "spillway-system")
			if name == "spillway" {
				// The controller reads it from the variable, and ignores the ClusterBudget where it is set: src/controller/served_namespace.rs.
				if served != "metadata.annotations['olm.targetNamespaces']" {
					t.Errorf("%s takes the served namespace from %v", name, served)
				}
				if scope != "" {
					if withoutArguments(expected, "--namespace="+scope) != 1 || withoutArguments(spec, "--cluster-budget=") != 1 {
						t.Errorf("%s for %s: other arguments than expected", name, scope)
					}
				}
			} else if served != nil {
				t.Errorf("%s is told a namespace", name)
			}
			if !same(spec, expected) {
				left, _ := toYAML(spec.(map[string]any))
				right, _ := toYAML(expected.(map[string]any))
				t.Errorf("%s for %q differs from the chart's:\n%s\n--- the chart's:\n%s", name, scope, left, right)
			}
		}
	}
}

// everyNamespace replaces the selector of one namespace, for which a bundle has to select all of them.
func everyNamespace(value any, namespace string) any {
	switch fields := value.(type) {
	case map[string]any:
		for name, inner := range fields {
			if name == "namespaceSelector" && text(inner, "matchLabels", "kubernetes.io/metadata.name") == namespace {
				inner = map[string]any{}
			}
			fields[name] = everyNamespace(inner, namespace)
		}
	case []any:
		for at, inner := range fields {
			fields[at] = everyNamespace(inner, namespace)
		}
	}
	return value
}

func TestNoObjectOfTheChartIsLost(t *testing.T) {
	for _, scope := range []string{"", "team-a", "spillway-system"} {
		manifests, extras := files(t, "spillway-system", scope)
		strategy := inside(csvOf(t, manifests), "spec", "install", "spec")
		for _, object := range rendered(t, "spillway-system", scope) {
			kind, name := kindOf(object), nameOf(object)
			if extra := find(extras, kind, name); extra != nil && namespaceOf(extra) == namespaceOf(object) {
				if !same(extra, object) {
					t.Errorf("%s of the extras differs from the chart's", describe(object))
				}
				continue
			}
			if scope != "" && kind == "ClusterRole" {
				name = strings.Replace(name, "spillway-"+scope, "spillway", 1)
				object["metadata"].(map[string]any)["name"] = name
			}
			manifest := find(manifests, kind, name)
			switch {
			case manifest != nil:
				object = withoutNames(object)
				if scope != "" && kind == "NetworkPolicy" {
					everyNamespace(object, scope)
				}
				if !same(manifest, object) {
					t.Errorf("%s of the bundle differs from the chart's", describe(object))
				}
			case kind == "Deployment", kind == "ServiceAccount" && accountOf(strategy, name):
			case isRights(kind):
				// Rights are compared by the tests above.
			default:
				t.Errorf("%s is neither in the bundle nor in the extras (served: %q)", describe(object), scope)
			}
		}
	}
}

func withoutNames(object map[string]any) map[string]any {
	delete(object["metadata"].(map[string]any), "namespace")
	for _, subject := range list(object, "subjects") {
		if kindOf(object) == "RoleBinding" {
			delete(subject.(map[string]any), "namespace")
		}
	}
	return object
}

func accountOf(strategy any, name string) bool {
	return slices.ContainsFunc(list(strategy, "deployments"), func(one any) bool {
		return text(one, "spec", "template", "spec", "serviceAccountName") == name
	})
}

func isRights(kind string) bool {
	return slices.Contains([]string{"ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"}, kind)
}

func write(t *testing.T, file, content string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestValuesThatDependOnTheNamespaceAreRefused(t *testing.T) {
	file := t.TempDir() + "/values.yaml"
	write(t, file, "gateway: {modelOrigins: [{origin: https://models."+installPlaceholder+".svc}]}\n")
	bad := options("spillway-system", "")
	bad.Values = []string{file}
	if _, err := generate(bad); err == nil || !strings.Contains(err.Error(), "depends on the namespace of the installation") {
		t.Errorf("was not refused: %v", err)
	}
}

func TestValuesReachTheBundle(t *testing.T) {
	file := t.TempDir() + "/values.yaml"
	write(t, file, "image: {repository: registry.example/spillway}\nreplicaCount: 1\nsandbox: {nodeProfile: {enabled: true}}\n")
	good := options("spillway-system", "")
	good.Values = []string{file}
	written, err := generate(good)
	if err != nil {
		t.Fatal(err)
	}
	csv := string(written["bundle/manifests/spillway.clusterserviceversion.yaml"])
	if !strings.Contains(csv, "containerImage: registry.example/spillway:"+version) || strings.Contains(csv, "spillway/spillway:") {
		t.Error("the image of the values is not everywhere in the ClusterServiceVersion")
	}
	if written["bundle/manifests/spillway.poddisruptionbudget.yaml"] != nil {
		t.Error("a PodDisruptionBudget for one controller")
	}
	if !strings.Contains(string(written["extras.yaml"]), "kind: DaemonSet") {
		t.Error("the DaemonSet of the profile is not among the extras")
	}
}
