// Package validate checks the written bundle with the code of OLM itself: the validators of operator-framework/api, and the checks
// of a bundle's format and content of operator-registry, which run before a catalog takes a bundle.
//
// It reads the folder in OLM_BUNDLE, which `make bundle` writes: manifests/ and metadata/.
package validate

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/operator-framework/api/pkg/manifests"
	"github.com/operator-framework/api/pkg/operators/v1alpha1"
	"github.com/operator-framework/api/pkg/validation"
	validator "github.com/operator-framework/api/pkg/validation/interfaces"
	"github.com/operator-framework/operator-registry/pkg/lib/bundle"
	"github.com/sirupsen/logrus"
	"sigs.k8s.io/yaml"
)

const csvFile = "manifests/spillway.clusterserviceversion.yaml"

// removedEvents is a false warning: the rule is about events of events.k8s.io/v1, and the validator compares no group.
const removedEvents = `removed in v1.25. More info: https://kubernetes.io/docs/reference/using-api/deprecation-guide/#v1-25. Migrate the API(s) for events:`

// validators are those of operator-framework/api that judge a bundle, with the warnings that the bundle is known to cause.
var validators = []struct {
	name      string
	validator validator.Validator
	warnings  []string
}{
	{"ClusterServiceVersion", validation.ClusterServiceVersionValidator, nil},
	{"CustomResourceDefinition", validation.CustomResourceDefinitionValidator, nil},
	{"Bundle", validation.BundleValidator, nil},
	{"Object", validation.ObjectValidator, nil},
	{"GoodPractices", validation.GoodPracticesValidator, nil},
	{"AlphaDeprecatedAPIs", validation.AlphaDeprecatedAPIsValidator, []string{removedEvents}},
	// The project has no icon.
	{"OperatorHubV2", validation.OperatorHubV2Validator, []string{"csv.Spec.Icon not specified", removedEvents}},
	{"StandardCategories", validation.StandardCategoriesValidator, nil},
	{"StandardCapabilities", validation.StandardCapabilitiesValidator, nil},
}

func folder(t *testing.T) string {
	t.Helper()
	path := os.Getenv("OLM_BUNDLE")
	if path == "" {
		t.Fatal("OLM_BUNDLE is not set: run make olm")
	}
	return path
}

// judge returns the errors and the warnings of a validator on a bundle.
func judge(checks validator.Validator, path string) (failures, warnings []string) {
	loaded, err := manifests.GetBundleFromDir(path)
	if err != nil {
		return []string{err.Error()}, nil
	}
	for _, result := range checks.Validate(loaded.ObjectsToValidate()...) {
		for _, one := range result.Errors {
			failures = append(failures, one.Error())
		}
		for _, one := range result.Warnings {
			warnings = append(warnings, one.Error())
		}
	}
	return failures, warnings
}

// registry runs the checks of operator-registry. They print to nowhere.
func registry(path string) error {
	logger := logrus.New()
	logger.SetOutput(io.Discard)
	checks := bundle.NewImageValidator(nil, logrus.NewEntry(logger), "bundle-objects")
	if err := checks.ValidateBundleFormat(path); err != nil {
		return fmt.Errorf("format: %w", err)
	}
	if err := checks.ValidateBundleContent(filepath.Join(path, "manifests")); err != nil {
		return fmt.Errorf("content: %w", err)
	}
	return nil
}

func TestTheBundlePassesTheValidatorsOfOLM(t *testing.T) {
	path := folder(t)
	for _, one := range validators {
		t.Run(one.name, func(t *testing.T) {
			failures, warnings := judge(one.validator, path)
			for _, failure := range failures {
				t.Error(failure)
			}
			for _, warning := range warnings {
				if !slices.ContainsFunc(one.warnings, func(known string) bool { return strings.Contains(warning, known) }) {
					t.Error("warning:", warning)
				}
			}
			if len(warnings) < len(one.warnings) {
				t.Errorf("a known warning is gone; remove it from the list: %v", one.warnings)
			}
		})
	}
}

func TestTheBundlePassesTheChecksOfTheRegistry(t *testing.T) {
	if err := registry(folder(t)); err != nil {
		t.Error(err)
	}
}

// The validators ignore fields that they do not know, so a misspelt one would be lost.
func TestTheClusterServiceVersionHasNoUnknownField(t *testing.T) {
	content, err := os.ReadFile(filepath.Join(folder(t), csvFile))
	if err != nil {
		t.Fatal(err)
	}
	csv := v1alpha1.ClusterServiceVersion{}
	if err := yaml.UnmarshalStrict(content, &csv); err != nil {
		t.Fatal(err)
	}
	modes := map[v1alpha1.InstallModeType]bool{}
	for _, mode := range csv.Spec.InstallModes {
		modes[mode.Type] = mode.Supported
	}
	for mode, supported := range map[v1alpha1.InstallModeType]bool{
		v1alpha1.InstallModeTypeAllNamespaces: true, v1alpha1.InstallModeTypeOwnNamespace: true,
		v1alpha1.InstallModeTypeSingleNamespace: true, v1alpha1.InstallModeTypeMultiNamespace: false,
	} {
		if value, given := modes[mode]; !given || value != supported {
			t.Errorf("install mode %s: %v, given: %v", mode, value, given)
		}
	}
}

// broken is a bundle with one fault, and the words of the refusal.
var broken = []struct {
	name, refusal string
	breaks        func(t *testing.T, path string)
}{
	{"no install modes", "install modes not found", func(t *testing.T, path string) {
		edit(t, path, csvFile, func(csv map[string]any) { delete(spec(csv), "installModes") })
	}},
	{"a version that is none", "", func(t *testing.T, path string) {
		edit(t, path, csvFile, func(csv map[string]any) { spec(csv)["version"] = "one" })
	}},
	{"an owned kind without its CustomResourceDefinition", "owned CRD", func(t *testing.T, path string) {
		if err := os.Remove(filepath.Join(path, "manifests/agents.spillway.dev.yaml")); err != nil {
			t.Fatal(err)
		}
	}},
	{"a kind that is not owned", "not defined in CSV", func(t *testing.T, path string) {
		edit(t, path, csvFile, func(csv map[string]any) {
			crds := spec(csv)["customresourcedefinitions"].(map[string]any)
			crds["owned"] = crds["owned"].([]any)[1:]
		})
	}},
	{"a kind that OLM does not carry", "ValidatingAdmissionPolicy is not supported type", func(t *testing.T, path string) {
		write(t, path, "manifests/policy.yaml", "apiVersion: admissionregistration.k8s.io/v1\nkind: ValidatingAdmissionPolicy\nmetadata: {name: x}\n")
	}},
	{"the ServiceAccount of a Deployment", "invalid service account found in bundle", func(t *testing.T, path string) {
		write(t, path, "manifests/account.yaml", "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: spillway}\n")
	}},
	{"no name of the package", "Missing annotation", func(t *testing.T, path string) {
		edit(t, path, "metadata/annotations.yaml", func(file map[string]any) {
			delete(file["annotations"].(map[string]any), "operators.operatorframework.io.bundle.package.v1")
		})
	}},
}

func spec(object map[string]any) map[string]any { return object["spec"].(map[string]any) }

func write(t *testing.T, path, name, content string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(path, name), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func edit(t *testing.T, path, name string, change func(map[string]any)) {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(path, name))
	if err != nil {
		t.Fatal(err)
	}
	object := map[string]any{}
	if err := yaml.Unmarshal(content, &object); err != nil {
		t.Fatal(err)
	}
	change(object)
	if content, err = yaml.Marshal(object); err != nil {
		t.Fatal(err)
	}
	write(t, path, name, string(content))
}

func TestBrokenBundlesAreRefused(t *testing.T) {
	for _, one := range broken {
		t.Run(one.name, func(t *testing.T) {
			path := t.TempDir()
			if err := os.CopyFS(path, os.DirFS(folder(t))); err != nil {
				t.Fatal(err)
			}
			one.breaks(t, path)
			refusals := []string{}
			for _, each := range validators {
				failures, _ := judge(each.validator, path)
				refusals = append(refusals, failures...)
			}
			if err := registry(path); err != nil {
				refusals = append(refusals, err.Error())
			}
			if len(refusals) == 0 {
				t.Fatal("was not refused")
			}
			said := strings.Join(refusals, "\n")
			if !strings.Contains(said, one.refusal) {
				t.Errorf("was refused for another reason than %q:\n%s", one.refusal, said)
			}
			t.Log(refusals[0])
		})
	}
}
