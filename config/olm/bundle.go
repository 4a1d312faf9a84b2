package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

// Kinds of the chart that OLM installs from the manifests of a bundle. The checks in validate/ refuse all others.
var carriedKinds = []string{
	"ClusterRole", "ConfigMap", "NetworkPolicy", "PodDisruptionBudget", "Role", "RoleBinding", "Service", "ServiceMonitor",
}

// The samples that become examples in consoles, one of each kind, below config/samples.
var samples = []string{
	"agentpool-worker.yaml", "workqueues.yaml", "workitems.yaml", "codex/budget.yaml", "toolsets/message/toolset.yaml",
}

// Bundle is the sorted chart.
type Bundle struct {
	// deployments and the two sorts of permissions go into the ClusterServiceVersion. A permission is {serviceAccountName, rules}.
	deployments, clusterPermissions, permissions []any
	manifests                                    []map[string]any
}

// Sorter knows to which objects of a rendered chart the ClusterServiceVersion corresponds.
type Sorter struct {
	namespace, scope string
	// accounts are the ServiceAccounts of Deployments. roles are the ClusterRoles that are bound to them, with the account.
	accounts []string
	roles    map[string]string
}

type destination int

const (
	toVersion destination = iota
	toManifests
	toExtras
)

func newSorter(objects []map[string]any, namespace, scope string) Sorter {
	sorter := Sorter{namespace: namespace, scope: scope, roles: map[string]string{}}
	for _, object := range objects {
		if kindOf(object) == "Deployment" {
			sorter.accounts = append(sorter.accounts, text(object, "spec", "template", "spec", "serviceAccountName"))
		}
	}
	for _, object := range objects {
		if kindOf(object) != "ClusterRoleBinding" {
			continue
		}
		for _, subject := range list(object, "subjects") {
			if slices.Contains(sorter.accounts, text(subject, "name")) {
				sorter.roles[text(object, "roleRef", "name")] = text(subject, "name")
			}
		}
	}
	return sorter
}

func (sorter Sorter) destination(object map[string]any) destination {
	kind, namespace := kindOf(object), namespaceOf(object)
	switch {
	case kind == "Deployment",
		kind == "ServiceAccount" && slices.Contains(sorter.accounts, nameOf(object)),
		kind == "ClusterRole" && sorter.roles[nameOf(object)] != "",
		kind == "ClusterRoleBinding" && sorter.roles[text(object, "roleRef", "name")] != "",
		(kind == "Role" || kind == "RoleBinding") && sorter.scope != "" && namespace == sorter.scope:
		return toVersion
	case slices.Contains(carriedKinds, kind) && (namespace == "" || namespace == sorter.namespace):
		return toManifests
	default:
		return toExtras
	}
}

// sortObjects sorts the objects of a chart that serves all namespaces. With the same chart for one namespace it finds out which
// rights belong to the namespaces that are served: OLM grants `permissions` in these, or everywhere for all namespaces, and
// `clusterPermissions` always everywhere.
func sortObjects(all, one []map[string]any) (Bundle, error) {
	bundle := Bundle{}
	sorter := newSorter(all, installPlaceholder, "")
	for _, object := range all {
		switch sorter.destination(object) {
		case toManifests:
			bundle.manifests = append(bundle.manifests, withoutNamespace(object))
		case toExtras:
		case toVersion:
			if kindOf(object) == "Deployment" {
				deployment, err := deploymentSpec(object)
				if err != nil {
					return bundle, err
				}
				bundle.deployments = append(bundle.deployments, deployment)
			}
			if kindOf(object) == "ClusterRole" {
				if err := bundle.addPermissions(sorter.roles[nameOf(object)], object, scopedRole(one, nameOf(object))); err != nil {
					return bundle, err
				}
			}
		}
	}
	return bundle, nil
}

// addPermissions splits the rules of a ClusterRole: those that it has also in a release for one namespace, and the others.
func (bundle *Bundle) addPermissions(account string, role, scoped map[string]any) error {
	always := list(scoped, "rules")
	if always == nil {
		return fmt.Errorf("a release for one namespace has no ClusterRole like %s", nameOf(role))
	}
	served := []any{}
	for _, rule := range list(role, "rules") {
		if !contains(always, rule) {
			served = append(served, rule)
		}
	}
	bundle.clusterPermissions = append(bundle.clusterPermissions, map[string]any{"serviceAccountName": account, "rules": always})
	if len(served) > 0 {
		bundle.permissions = append(bundle.permissions, map[string]any{"serviceAccountName": account, "rules": served})
	}
	return nil
}

// scopedRole is the ClusterRole of a release for one namespace. The chart puts the name of the namespace into its name.
func scopedRole(one []map[string]any, name string) map[string]any {
	suffix := strings.TrimPrefix(name, "spillway")
	for _, object := range one {
		if kindOf(object) == "ClusterRole" && nameOf(object) == "spillway-"+targetPlaceholder+suffix {
			return object
		}
	}
	return nil
}

// withoutNamespace leaves the namespace to OLM. A subject of a RoleBinding without a namespace is an account of the binding's own.
func withoutNamespace(object map[string]any) map[string]any {
	delete(object["metadata"].(map[string]any), "namespace")
	for _, subject := range list(object, "subjects") {
		if text(subject, "namespace") == installPlaceholder {
			delete(subject.(map[string]any), "namespace")
		}
	}
	return object
}

// deploymentSpec is a Deployment as a ClusterServiceVersion has it. Arguments take the namespace of the pod from its environment,
// and the controller takes the namespace that it serves from the annotation that OLM sets on its pod.
func deploymentSpec(deployment map[string]any) (map[string]any, error) {
	for _, container := range list(deployment, "spec", "template", "spec", "containers") {
		arguments := list(container, "args")
		for at, argument := range arguments {
			arguments[at] = strings.ReplaceAll(argument.(string), installPlaceholder, "$(POD_NAMESPACE)")
		}
		if len(arguments) == 0 || arguments[0] != "controller" {
			continue
		}
		variables := list(container, "env")
		if !slices.ContainsFunc(variables, func(one any) bool { return text(one, "name") == "POD_NAMESPACE" }) {
			return nil, fmt.Errorf("%s has no variable POD_NAMESPACE", describe(deployment))
		}
		served := map[string]any{"fieldRef": map[string]any{"fieldPath": "metadata.annotations['olm.targetNamespaces']"}}
		container.(map[string]any)["env"] = append(variables, map[string]any{"name": "SPILLWAY_NAMESPACE", "valueFrom": served})
	}
	return map[string]any{
		"name": nameOf(deployment), "label": inside(deployment, "metadata", "labels"), "spec": deployment["spec"],
	}, nil
}

// clusterServiceVersion completes csv.yaml.
func clusterServiceVersion(options Options, chart Chart, bundle Bundle) (map[string]any, error) {
	fixed, err := readAll(filepath.Join(options.Root, "config/olm/csv.yaml"))
	if err != nil {
		return nil, err
	}
	csv := fixed[0]
	images := relatedImages(bundle)
	examples, err := almExamples(options.Root)
	if err != nil {
		return nil, err
	}
	owned, err := ownedCRDs(options.Root)
	if err != nil {
		return nil, err
	}
	kubernetes, err := chart.minKubeVersion()
	if err != nil {
		return nil, err
	}
	metadata := csv["metadata"].(map[string]any)
	metadata["name"] = "spillway.v" + options.Version
	annotations := metadata["annotations"].(map[string]any)
	annotations["alm-examples"] = examples
	annotations["containerImage"] = text(images[0], "image")
	spec := csv["spec"].(map[string]any)
	spec["version"] = options.Version
	spec["minKubeVersion"] = kubernetes
	spec["relatedImages"] = images
	spec["customresourcedefinitions"] = map[string]any{"owned": owned}
	spec["install"] = map[string]any{
		"strategy": "deployment",
		"spec": map[string]any{
			"clusterPermissions": bundle.clusterPermissions,
			"permissions":        bundle.permissions,
			"deployments":        bundle.deployments,
		},
	}
	return csv, nil
}

// relatedImages are the images that the Deployments name. That of agents' sidecars is in a variable.
func relatedImages(bundle Bundle) []any {
	images := []any{}
	add := func(name, image string) {
		if image != "" && !slices.ContainsFunc(images, func(one any) bool { return text(one, "image") == image }) {
			images = append(images, map[string]any{"name": name, "image": image})
		}
	}
	for _, deployment := range bundle.deployments {
		for _, container := range list(deployment, "spec", "template", "spec", "containers") {
			add("spillway", text(container, "image"))
			for _, variable := range list(container, "env") {
				if text(variable, "name") == "SPILLWAY_AGENT_IMAGE" {
					add("sidecar", text(variable, "value"))
				}
			}
		}
	}
	return images
}

// ownedCRDs describes each kind with the first words of its schema.
func ownedCRDs(root string) ([]any, error) {
	crds, err := readCRDs(root)
	if err != nil {
		return nil, err
	}
	owned := []any{}
	for _, crd := range crds {
		kind := text(crd, "spec", "names", "kind")
		for _, version := range list(crd, "spec", "versions") {
			description := text(version, "schema", "openAPIV3Schema", "description")
			if description == "" {
				return nil, fmt.Errorf("the schema of %s has no description", nameOf(crd))
			}
			owned = append(owned, map[string]any{
				"name": nameOf(crd), "version": text(version, "name"), "kind": kind,
				"displayName": words(kind), "description": description,
			})
		}
	}
	return owned, nil
}

// words writes a kind in words: AgentPool becomes "Agent pool".
func words(kind string) string {
	written := ""
	for at, letter := range kind {
		if at > 0 && letter >= 'A' && letter <= 'Z' {
			written += " " + strings.ToLower(string(letter))
		} else {
			written += string(letter)
		}
	}
	return written
}

// almExamples is one example of each kind, as JSON.
func almExamples(root string) (string, error) {
	files := []string{}
	for _, sample := range samples {
		files = append(files, filepath.Join(root, "config/samples", sample))
	}
	objects, err := readAll(append(files, filepath.Join(root, "config/olm/examples.yaml"))...)
	if err != nil {
		return "", err
	}
	examples, kinds := []any{}, []string{}
	for _, object := range objects {
		if !strings.HasPrefix(text(object, "apiVersion"), "spillway.dev/") || slices.Contains(kinds, kindOf(object)) {
			continue
		}
		kinds = append(kinds, kindOf(object))
		delete(object["metadata"].(map[string]any), "namespace")
		examples = append(examples, object)
	}
	written, err := json.MarshalIndent(examples, "", "  ")
	return string(written), err
}

// extraObjects are the objects that OLM does not carry, for one installation.
func extraObjects(options Options) ([]byte, error) {
	objects, err := render(options, options.Namespace, options.Scope)
	if err != nil {
		return nil, err
	}
	served := "all namespaces"
	if options.Scope != "" {
		served = "namespace " + options.Scope
	}
	written := bytes.NewBufferString(fmt.Sprintf("# What OLM does not carry of Spillway %s, for an installation in namespace %s that serves %s:\n"+
		"#   kubectl apply --server-side -f extras.yaml\n", options.Version, options.Namespace, served))
	sorter := newSorter(objects, options.Namespace, options.Scope)
	for _, object := range objects {
		if sorter.destination(object) != toExtras {
			continue
		}
		document, err := toYAML(object)
		if err != nil {
			return nil, err
		}
		written.WriteString("---\n")
		written.Write(document)
	}
	return written.Bytes(), nil
}
