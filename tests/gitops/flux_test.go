package gitops

import (
	"testing"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/kustomize"
)

// fluxChecks is the sample with the expressions.
const fluxChecks = root + "/config/flux/team.yaml"

// fluxExpressions are the healthCheckExprs that a Kustomization or a HelmRelease takes.
func fluxExpressions(t *testing.T) []kustomize.CustomHealthCheck {
	t.Helper()
	for _, object := range objects(t, fluxChecks) {
		if checks := strict[kustomizev1.Kustomization](t, object).Spec.HealthCheckExprs; len(checks) > 0 {
			return checks
		}
	}
	t.Fatalf("%s has no expressions", fluxChecks)
	return nil
}
