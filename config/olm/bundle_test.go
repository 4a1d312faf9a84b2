package main

import (
	_ "github.com/operator-framework/api/pkg/manifests"
	_ "github.com/operator-framework/api/pkg/operators/v1alpha1"
	_ "github.com/operator-framework/api/pkg/validation"
	_ "github.com/operator-framework/operator-registry/pkg/lib/bundle"

	_ "sigs.k8s.io/yaml"
)
