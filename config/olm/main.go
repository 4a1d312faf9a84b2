// Command olm writes an OLM bundle (registry+v1) of Spillway. It renders the chart with helm, and sorts what it gets:
//
//   - the Deployments and the rights of their ServiceAccounts go into the ClusterServiceVersion;
//   - kinds that OLM carries become manifests of the bundle, without a namespace;
//   - all other objects go into extras.yaml, which a person applies.
//
// The bundle names no namespace, because OLM installs it into any. The chart is therefore rendered for a namespace of a made-up
// name, and a bundle that still contains that name is refused.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Options are the command's arguments.
type Options struct {
	// Root is the checkout.
	Root string
	// Out is the folder to write. It is replaced.
	Out string
	// Version is the version of the bundle and the tag of the image.
	Version string
	// Channel is the bundle's only channel.
	Channel string
	// Values are files of chart values, in helm's order.
	Values []string
	// Namespace is where OLM installs the bundle. Only extras.yaml depends on it.
	Namespace string
	// Scope is the one namespace that is served, or empty for all. Only extras.yaml depends on it.
	Scope string
}

// Names of namespaces that no person uses.
const (
	installPlaceholder = "olm-install-namespace"
	targetPlaceholder  = "olm-target-namespace"
)

func main() {
	options := Options{}
	flag.StringVar(&options.Root, "root", "../..", "checkout")
	flag.StringVar(&options.Out, "out", "../../target/olm", "folder to write; it is replaced")
	flag.StringVar(&options.Version, "version", "", "version of the bundle, and tag of the image (empty: the chart's appVersion)")
	flag.StringVar(&options.Channel, "channel", "candidate", "channel of the bundle")
	flag.StringVar(&options.Namespace, "namespace", "spillway-system", "namespace of the installation, for extras.yaml")
	flag.StringVar(&options.Scope, "scope", "", "the one namespace that is served, for extras.yaml (empty: all)")
	flag.Func("values", "file of chart values; may be repeated", func(file string) error {
		if file != "" {
			options.Values = append(options.Values, file)
		}
		return nil
	})
	flag.Parse()
	if err := run(options); err != nil {
		fmt.Fprintln(os.Stderr, "olm:", err)
		os.Exit(1)
	}
}

func run(options Options) error {
	files, err := generate(options)
	if err != nil {
		return err
	}
	if err := os.RemoveAll(options.Out); err != nil {
		return err
	}
	for name, content := range files {
		path := filepath.Join(options.Out, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, content, 0o644); err != nil {
			return err
		}
	}
	fmt.Printf("wrote %d files to %s\n", len(files), options.Out)
	return nil
}

// generate returns the files of the bundle, by their paths.
func generate(options Options) (map[string][]byte, error) {
	chart, err := readChart(options.Root)
	if err != nil {
		return nil, err
	}
	if options.Version == "" {
		options.Version = chart.AppVersion
	}
	all, err := render(options, installPlaceholder, "")
	if err != nil {
		return nil, err
	}
	one, err := render(options, installPlaceholder, targetPlaceholder)
	if err != nil {
		return nil, err
	}
	bundle, err := sortObjects(all, one)
	if err != nil {
		return nil, err
	}
	csv, err := clusterServiceVersion(options, chart, bundle)
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{}
	add := func(path string, object map[string]any) error {
		text, err := toYAML(object)
		if err != nil {
			return err
		}
		if strings.Contains(string(text), installPlaceholder) || strings.Contains(string(text), targetPlaceholder) {
			return fmt.Errorf("%s depends on the namespace of the installation, which a bundle does not know", path)
		}
		files[path] = text
		return nil
	}
	if err := add("bundle/manifests/spillway.clusterserviceversion.yaml", csv); err != nil {
		return nil, err
	}
	for _, object := range bundle.manifests {
		name := fmt.Sprintf("bundle/manifests/%s.%s.yaml", nameOf(object), strings.ToLower(kindOf(object)))
		if err := add(name, object); err != nil {
			return nil, err
		}
	}
	crds, err := readCRDs(options.Root)
	if err != nil {
		return nil, err
	}
	for _, crd := range crds {
		if err := add(fmt.Sprintf("bundle/manifests/%s.yaml", nameOf(crd)), crd); err != nil {
			return nil, err
		}
	}
	labels := [][2]string{
		{"operators.operatorframework.io.bundle.mediatype.v1", "registry+v1"},
		{"operators.operatorframework.io.bundle.manifests.v1", "manifests/"},
		{"operators.operatorframework.io.bundle.metadata.v1", "metadata/"},
		{"operators.operatorframework.io.bundle.package.v1", "spillway"},
		{"operators.operatorframework.io.bundle.channels.v1", options.Channel},
		{"operators.operatorframework.io.bundle.channel.default.v1", options.Channel},
	}
	annotations, dockerfile := "annotations:\n", "FROM scratch\n\n"
	for _, label := range labels {
		annotations += fmt.Sprintf("  %s: %s\n", label[0], label[1])
		dockerfile += fmt.Sprintf("LABEL %s=%s\n", label[0], label[1])
	}
	files["bundle/metadata/annotations.yaml"] = []byte(annotations)
	files["bundle.Dockerfile"] = []byte(dockerfile + "\nCOPY bundle/manifests /manifests/\nCOPY bundle/metadata /metadata/\n")

	extras, err := extraObjects(options)
	if err != nil {
		return nil, err
	}
	files["extras.yaml"] = extras
	return files, nil
}

// render runs `helm template` for an installation in namespace, which serves scope (empty: all namespaces).
func render(options Options, namespace, scope string) ([]map[string]any, error) {
	arguments := []string{
		// OLM runs no hooks of Helm.
		"template", "spillway", filepath.Join(options.Root, "charts/spillway"), "--no-hooks", "--namespace", namespace,
		"--set", "crds.install=false", "--set-string", "image.tag=" + options.Version,
	}
	for _, file := range options.Values {
		arguments = append(arguments, "--values", file)
	}
	// Last, so that no file of values overrides it: under OLM the OperatorGroup selects the namespace.
	arguments = append(arguments, "--set-string", "namespaceScope="+scope)
	text, err := helm(arguments)
	if err != nil {
		return nil, fmt.Errorf("helm template: %w", err)
	}
	objects, err := parse(text)
	if err != nil {
		return nil, fmt.Errorf("helm template: %w", err)
	}
	for _, object := range objects {
		cleanLabels(object, options.Version)
	}
	return objects, nil
}

// helm runs helm. The tests remember its answers, because they render the same charts again and again.
var helm = runHelm

func runHelm(arguments []string) ([]byte, error) {
	command := exec.Command("helm", arguments...)
	command.Stderr = os.Stderr
	return command.Output()
}
