# Spillway's commands. `make` lists them. The two most important are `make demo` and `make test`.
.DEFAULT_GOAL := help
SHELL := /bin/bash

include e2e/cluster/make.mk

# The recipes expect build results below target/.
unexport CARGO_TARGET_DIR
HOST := $(shell rustc -vV 2>/dev/null | sed -n 's/^host: //p')
# Shipped and measured binaries have the profile `release`. The demo and the tests use `quick`, which builds in half the time.
PROFILE ?= release
BUILT = target/$(HOST)/$(PROFILE)
IMAGES := target/images
# Static, so that the image needs only the program. --target keeps the flag from build scripts.
STATIC := RUSTFLAGS="-C target-feature=+crt-static" cargo build --locked --target $(HOST)
# cargo-deny is built here when it is not on PATH.
TOOLS := $(or $(SPILLWAY_CACHE),$(HOME)/.cache/spillway)/tools
CARGO_DENY_VERSION := 0.20.2
# The documentation's site. Mermaid is one file of its npm package, which site/diagrams.js loads on pages with a diagram. So no
# preprocessor has to be built in Rust, we choose the version, and a reader's browser fetches nothing from other hosts.
MDBOOK_VERSION := 0.5.4
MERMAID_VERSION := 12.3.0
MERMAID_SHA256 := 336df803d87a38b70a01e736e666c8f7601d2ce42f5e47c8fafe5d721074b9a3
MERMAID := $(TOOLS)/mermaid-$(MERMAID_VERSION).min.js

# Every target with a description is a command, and no file.
.PHONY: $(shell sed -nE 's/^([a-z0-9-]+):.*[#][#] .*/\1/p' Makefile)

help: ## list the commands
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sort | sed -E 's/:.*## /\t/' | awk -F'\t' '{printf "  %-16s %s\n", $$1, $$2}'

demo: toolchain ## the main path: a cluster, the operator, Codex at work, running agents (about 20 minutes the first time, then two or three)
	@CLUSTER='$(CLUSTER)' e2e/demo.sh up

demo-down: ## remove what `make demo` made
	@CLUSTER='$(CLUSTER)' e2e/demo.sh down

test: toolchain cluster-packages fmt lint deny supply-chain unit h2spec e2e ## everything: format, lint, licences, advisories, supply chain, unit, property, the fuzz targets on their corpus, HTTP/2, fake API server, chart, real cluster
	@echo "all tests passed"

toolchain:
	@command -v cargo >/dev/null || { echo 'cargo is missing: install Rust with rustup (stable toolchain, 1.95 or newer)' >&2; exit 1; }
.PHONY: toolchain

# The recording shows a demo with everything built, so run `make demo` once before. Then run `make demo-down`: in a cluster that
# still runs, the items are done already.
recording: toolchain ## docs/images/demo.svg, an animation of the output of `make demo`; needs Python 3
	e2e/recording/record.py --svg docs/images/demo.svg --title 'make demo' -- make --no-print-directory demo

build: toolchain ## the static binaries (PROFILE=release, or quick)
	$(STATIC) --profile $(PROFILE) --package spillway --package spillway-pod --package kubectl-spillway --bins

# The demo agent needs Debian's static busybox. The cluster's build checks for that package.
images: build cluster-build ## the operator's image and the demo agent's, as archives in target/images
	e2e/images/build.sh --out $(IMAGES) --binary $(BUILT)/spillway spillway demo-agent

images-models: toolchain ## the scripted model server, as an archive in target/images
	$(STATIC) --profile quick --package spillway-model-server
	e2e/images/build.sh --out $(IMAGES) --model-server target/$(HOST)/quick/spillway-model-server model-server

images-git: toolchain ## the demo agent with git, as an archive in target/images
	e2e/images/build.sh --out $(IMAGES) git-agent

images-attacks: toolchain ## the demo agent with the attacks on the sandbox, as an archive in target/images
	$(STATIC) --profile quick --package spillway-sandbox --bin spillway-attacks
	e2e/images/build.sh --out $(IMAGES) --attacks target/$(HOST)/quick/spillway-attacks attack-agent

# Separate from the others, because Codex is a large package from npm. The demo omits it if npm cannot be reached.
images-codex: images-models ## Codex as an agent, as an archive in target/images
	e2e/images/build.sh --out $(IMAGES) codex-agent

images-packages: toolchain ## the demo agent with npm, pip, cargo and go, as an archive in target/images
	e2e/images/build.sh --out $(IMAGES) packages-agent

docker-images: toolchain ## build every Dockerfile, start each image's program, compare with `make images`; the engine and the base images are made here if there are none (PROFILE=quick: faster)
	e2e/docker/images

kind-image: ## the node image of kind clusters, from this machine's programs (BACKEND=kind makes it by itself)
	e2e/docker/engine up
	e2e/kind/node-image

kind-howto: ## run the commands of docs/how-to/kind.md, with base images and a node image from this machine
	@e2e/way-in.sh '`make kind-howto`: kind, with Docker' e2e/kind/howto.sh

docker-down: ## end the Docker engine that docker-images and BACKEND=kind started; its images stay in target/docker
	e2e/docker/engine down

load: images ## load the images into the local cluster's node
	$(CLUSTER) load $(IMAGES)/spillway.tar $(IMAGES)/demo-agent.tar

generate: ## write the generated files (CRDs, the chart's CRDs, their reference)
	cargo run --quiet --locked --bin spillway -- crds --write .

generated: ## fail if a generated file is missing or stale (a unit test checks it too)
	cargo run --quiet --locked --bin spillway -- crds --check .

fmt: ## fail if the code is not formatted
	cargo fmt --all --check

# --all-targets omits test targets that `cargo test` does not run by default, so e2e has a line of its own.
lint: prose ## clippy, warnings are errors; the sentences of the documentation
	cargo clippy --workspace --all-targets --all-features --locked -- -D warnings
	cargo clippy --workspace --test e2e --all-features --locked -- -D warnings

prose: $(TOOLS)/bin/vale ## check every Markdown page against the rules for sentences (tests/prose/styles)
	@VALE="$(TOOLS)/bin/vale" tests/prose.sh --test
	@VALE="$(TOOLS)/bin/vale" tests/prose.sh

# A program in Go, pinned by its module, like h2spec below. One of its parsers is in C, so it needs cc, as linking Rust does.
$(TOOLS)/bin/vale: tests/prose/go.mod tests/prose/go.sum
	@echo "building vale (once; some minutes)"
	cd tests/prose && PATH="$$PATH:/usr/local/go/bin" go build -ldflags='-s -w' -o "$@" github.com/vale-cli/vale/v3/cmd/vale

pre-commit: toolchain ## the checks that take less than a minute on a built checkout: format, clippy of changed packages, syntax of scripts, documentation
	@tests/pre-commit.sh

deny: $(TOOLS)/bin/cargo-deny ## licences, sources and banned dependencies; advisories, if the RustSec database can be fetched (it says so if not)
	PATH="$(TOOLS)/bin:$$PATH" cargo deny --all-features check bans licenses sources
	tests/advisories.sh --test
	@PATH="$(TOOLS)/bin:$$PATH" tests/advisories.sh

supply-chain: ## fail if a dependency, or its version, is not in supply-chain/reviewed.txt, or if a lock file is stale
	tests/supply-chain.sh --test
	@tests/supply-chain.sh
	@tests/locks.sh

# One release: binaries, packages, image and chart, signed and checked. VERSION is that of Cargo.toml.
release: toolchain release-tools ## a dry run of a release: VERSION=x.y.z; result in target/release-VERSION, image and chart in a registry of this machine (docs/how-to/release.md)
	release/run.sh "$(VERSION)"

release-push: toolchain release-tools ## push image and chart of target/release-VERSION to REGISTRY, sign and verify them there
	release/push.sh "$(VERSION)"
	release/verify.sh "$(VERSION)"

release-test: toolchain release-tools ## install what `make release` pushed, by `helm install oci://`, into a local cluster of its own, and run agents there
	@CLUSTER='$(CLUSTER)' e2e/way-in.sh '`make release-test`: Helm, from a registry (`oci://`)' release/test.sh "$(VERSION)"

RELEASE_PACKAGES := rpm zip unzip help2man man-db ruby jq curl python3-venv busybox-static gcc-aarch64-linux-gnu libc6-dev-arm64-cross \
	gcc-mingw-w64-x86-64 qemu-user-static
release-packages: ## install the Debian packages that `make release` needs
	apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(RELEASE_PACKAGES) > /dev/null

release-tools: $(addprefix $(TOOLS)/bin/,regctl registry krew cosign helm cargo-sbom)

# $(call go_tool,FOLDER,PACKAGE): a static program in Go, from a package that the module in FOLDER pins
go_tool = cd $(1) && PATH="$$PATH:/usr/local/go/bin" CGO_ENABLED=0 go build -trimpath -ldflags='-s -w' -o "$@" $(2)

# Programs in Go, pinned by their modules. cosign takes a quarter of an hour on two cores.
GO_TOOL_regctl := github.com/regclient/regclient/cmd/regctl
GO_TOOL_registry := github.com/distribution/distribution/v3/cmd/registry
GO_TOOL_krew := sigs.k8s.io/krew/cmd/krew
GO_TOOL_cosign := github.com/sigstore/cosign/v3/cmd/cosign
$(addprefix $(TOOLS)/bin/,regctl registry krew cosign): $(TOOLS)/bin/%: release/tools/%/go.mod release/tools/%/go.sum
	@echo "building $* (once)"
	$(call go_tool,release/tools/$*,$(GO_TOOL_$*))

# The version that the cluster has
$(TOOLS)/bin/helm: e2e/cluster/mods/kubernetes/go.mod e2e/cluster/mods/kubernetes/go.sum
	cd e2e/cluster/mods/kubernetes && PATH="$$PATH:/usr/local/go/bin" CGO_ENABLED=0 go build -trimpath -tags selinux,notest,grpcnotrace -ldflags='-s -w' -o "$@" helm.sh/helm/v3/cmd/helm

CARGO_SBOM_VERSION := 0.10.0
$(TOOLS)/bin/cargo-sbom:
	@echo "building cargo-sbom $(CARGO_SBOM_VERSION) (once; some minutes)"
	cargo install --quiet --locked --root $(TOOLS) cargo-sbom@$(CARGO_SBOM_VERSION)

$(TOOLS)/bin/cargo-deny:
	@echo "building cargo-deny $(CARGO_DENY_VERSION), unoptimised, which it is fast enough for (once; some minutes)"
	cargo install --debug --quiet --locked --root $(TOOLS) cargo-deny@$(CARGO_DENY_VERSION)

# Most of these tests wait, so two cores carry four at a time.
unit: toolchain ## unit, property, CEL, fake-API-server and documentation tests
	RUST_TEST_THREADS=$${RUST_TEST_THREADS:-4} cargo test --workspace --locked --no-fail-fast
	tests/docs.sh
	release/notes.sh --test

# Of the whole workspace, like the unit tests: for one package alone Cargo would build it again with other features.
h2spec: toolchain $(TOOLS)/bin/h2spec ## conformance of the gateway's listener with HTTP/2
	H2SPEC="$(TOOLS)/bin/h2spec" cargo test --workspace --locked --test protocol h2spec

# A program in Go, pinned by its module. The cluster's build needs Go too.
$(TOOLS)/bin/h2spec: tests/h2spec/go.mod tests/h2spec/go.sum
	cd tests/h2spec && PATH="$$PATH:/usr/local/go/bin" go build -o "$@" github.com/summerwind/h2spec/cmd/h2spec

# Rendered from the chart, so nothing of it is committed. helm is that of PATH, or the one that the local cluster built. A command in
# the cluster's network could not fetch Go's modules.
OLM_PATH = $$PATH:$(dir $(lastword $(wildcard $(dir $(TOOLS))build/helm-*/helm))):/usr/local/go/bin
bundle: ## an OLM bundle in target/olm; VERSION=0.1.0, VALUES=file of chart values, NAMESPACE= and SCOPE= for its extras.yaml
	@PATH="$(OLM_PATH)"; command -v helm > /dev/null || { echo 'helm is not on PATH. Install it, or build that of the local cluster: e2e/cluster/cluster build' >&2; exit 1; }
	cd config/olm && PATH="$(OLM_PATH)" go run . -version "$(VERSION)" -values "$(abspath $(VALUES))" -namespace "$(or $(NAMESPACE),spillway-system)" -scope "$(SCOPE)"

# The validators need some hundred packages in Go: minutes the first time, then seconds.
olm: bundle ## check the OLM bundle with OLM's own validators, and compare it with the chart
	cd config/olm && PATH="$(OLM_PATH)" OLM_BUNDLE="$(CURDIR)/target/olm/bundle" go test -count=1 -v ./...

# Not part of `make test`: the first run compiles Argo CD's and Flux's libraries, which takes minutes. They need Go 1.27, which an
# older Go gets as a module. -count=1, because Go's cache of results does not see files outside of the module.
GITOPS_TEST = cd tests/gitops && PATH="$$PATH:/usr/local/go/bin" GOTOOLCHAIN=auto go test -count=1
gitops: ## Argo CD's and Flux's own verdicts on objects of ours, and their samples (needs Go)
	$(GITOPS_TEST) .

gitops-write: ## write the settings for Argo CD and the page of verdicts
	$(GITOPS_TEST) -run '^TestArgoFilesHoldTheScripts$$' . -write
	$(GITOPS_TEST) -run '^TestThePageHasTheVerdicts$$' . -write

# Needs rustup, and PyPI for a C compiler for macOS and Windows, so it is not part of `make test`.
cli-portable: toolchain ## the plugin and its tests, compiled for macOS and Windows; PLATFORMS="x86_64-apple-darwin ..." for some only
	tests/portable/run.sh $(PLATFORMS)

fuzz: toolchain ## run each fuzz target for FUZZ_SECONDS (60), two at a time, from the corpus in fuzz/corpus
	fuzz/run.sh

fuzz-night: export FUZZ_SECONDS ?= 3600
fuzz-night: fuzz ## run each fuzz target for an hour

# One in a hundred thousand histories of the ledger once lost tokens, so a normal run can miss such a fault.
properties-night: export PROPTEST_CASES ?= 1000000
properties-night: toolchain ## the properties of the state machines, over PROPTEST_CASES (1000000) random histories each, about an hour
	cargo test --package spillway-policy --lib --locked

e2e: PROFILE = quick
e2e: images images-git images-attacks $(TOOLS)/bin/kubeconform $(TOOLS)/bin/conform ## the chart and the whole system on real clusters of their own, which are removed if all tests pass
	@CLUSTER='$(CLUSTER)' e2e/test.sh

e2e-night: export E2E_LONG = 1
e2e-night: e2e ## the same, with the tests that take long

e2e-kubernetes: PROFILE = quick
e2e-kubernetes: images images-git images-attacks ## the chart and a short list of tests on each version of Kubernetes (VERSIONS="1.34 1.35"); WRITE=1: results into docs/reference/kubernetes.md
	@CLUSTER='$(CLUSTER)' e2e/kubernetes.sh $(if $(WRITE),--write) $(VERSIONS)

e2e-codex: PROFILE = quick
e2e-codex: images images-codex ## Codex mends a repository, and its item becomes a branch of a git server; a cluster of its own; needs npm
	@CLUSTER='$(CLUSTER)' e2e/one-test.sh codex codex-agent.tar

e2e-packages: PROFILE = quick
e2e-packages: images images-packages ## npm, pip, cargo and go get packages through the allow list; a cluster of its own; needs their registries
	@CLUSTER='$(CLUSTER)' e2e/one-test.sh packages packages-agent.tar

e2e-artifacts: PROFILE = quick
e2e-artifacts: images ## a file of a gigabyte goes to a bucket of a real S3 server and back; a cluster of its own
	@CLUSTER='$(CLUSTER)' UP=--s3 e2e/one-test.sh artifacts demo-agent.tar

e2e-issues: PROFILE = quick
e2e-issues: images ## issues of a real Gitea become items, and are answered; a cluster of its own; builds Gitea once
	@CLUSTER='$(CLUSTER)' UP=--gitea e2e/one-test.sh issues demo-agent.tar

chart-lifecycle: PROFILE = quick
chart-lifecycle: images ## a release of the chart from install to uninstall, with agents at work, by Helm 3 and Helm 4; a cluster of its own
	@CLUSTER='$(CLUSTER)' e2e/way-in.sh '`make chart-lifecycle`: Helm 3 and Helm 4' e2e/chart-lifecycle.sh

# Needs helm and kubectl on PATH, as in `e2e/cluster/cluster run make chart-conform`.
chart-conform: $(TOOLS)/bin/kubeconform $(TOOLS)/bin/conform ## every object of the chart and of config/ under kubeconform, without a server
	KUBECONFORM="$(TOOLS)/bin/kubeconform" CONFORM="$(TOOLS)/bin/conform" tests/chart-conform.sh

# Programs in Go, pinned by their module: kubeconform, and ours that makes schemas for it.
$(TOOLS)/bin/kubeconform: tests/conform/go.mod tests/conform/go.sum
	cd tests/conform && PATH="$$PATH:/usr/local/go/bin" go build -o "$@" github.com/yannh/kubeconform/cmd/kubeconform

$(TOOLS)/bin/conform: tests/conform/go.mod tests/conform/go.sum tests/conform/main.go
	cd tests/conform && PATH="$$PATH:/usr/local/go/bin" go build -o "$@" .

e2e-gitops: PROFILE = quick
e2e-gitops: images ## Argo CD's engine syncs the operator and a team from a git server; a cluster of its own
	@CLUSTER='$(CLUSTER)' e2e/way-in.sh '`make e2e-gitops`: Argo CD (its engine)' e2e/gitops.sh argocd

# Each controller is a module of its own, because they need different versions of the same modules.
FLUX := source-controller kustomize-controller helm-controller
$(addprefix $(TOOLS)/bin/,$(FLUX)): $(TOOLS)/bin/%: tests/gitops/controllers/%/go.mod tests/gitops/controllers/%/go.sum
	@echo "building $* (once; some minutes)"
	$(call go_tool,tests/gitops/controllers/$*,github.com/fluxcd/$*)

e2e-flux: PROFILE = quick
e2e-flux: images $(addprefix $(TOOLS)/bin/,registry $(FLUX)) ## Flux's controllers sync the operator from a registry and a team from a git server; a cluster of its own
	@CLUSTER='$(CLUSTER)' e2e/way-in.sh '`make e2e-flux`: Flux' e2e/gitops.sh flux

clients: PROFILE = quick
clients: images images-codex ## real clients (Codex, the official SDKs of models and of MCP, the conformance suite of MCP, the programs of config/samples/toolsets): against the scripted model server, a bridge, in the sandbox of a laptop, and through Spillway on a cluster; needs npm, PyPI and root
	tests/clients/codex.sh
	MODEL_SERVER=target/$(HOST)/quick/spillway-model-server POD_BINARY=target/$(HOST)/quick/spillway-agent tests/clients/run.sh
	tests/clients/bridge.sh target/$(HOST)/quick/spillway
	tests/clients/samples.sh target/$(HOST)/quick/spillway
	tests/clients/laptop.sh target/$(HOST)/quick
	@CLUSTER='$(CLUSTER)' tests/clients/cluster.sh

bench: images ## the benchmarks of docs/benchmarks.md, on a cluster of their own
	@CLUSTER='$(CLUSTER)' e2e/bench/run.sh

# The same build as in run.sh, so that nothing is built twice.
bench-ledger: toolchain ## the benchmarks that need no cluster: holds and settles in process, and calls of a bridge
	$(STATIC) --release --package spillway --package spillway-bench --bins
	env -u KUBECONFIG target/$(HOST)/release/spillway-bench ledger bridge

# mdBook empties the folder first. The links are checked last, with those to the crates' pages.
docs: toolchain $(TOOLS)/bin/mdbook $(MERMAID) ## the documentation as a site, in target/site, with the crates' Rust documentation; SITE_ONLY=1 without that; needs npm and Python 3
	$(TOOLS)/bin/mdbook build
	cp $(MERMAID) target/site/mermaid.min.js
ifneq ($(SITE_ONLY),1)
	RUSTDOCFLAGS="-D warnings" cargo doc --no-deps --workspace --locked
	cp -r target/doc target/site/rust
endif
	python3 site/check.py target/site

# Only the default feature `search`: we use neither its server nor its watcher.
$(TOOLS)/bin/mdbook:
	@echo "building mdbook $(MDBOOK_VERSION) (once; some minutes)"
	cargo install --quiet --locked --root $(TOOLS) --no-default-features --features search mdbook@$(MDBOOK_VERSION)

$(MERMAID):
	@mkdir -p $(TOOLS)
	folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && \
	    npm pack --silent --pack-destination "$$folder" mermaid@$(MERMAID_VERSION) > /dev/null && \
	    tar -xzf "$$folder/mermaid-$(MERMAID_VERSION).tgz" -C "$$folder" package/dist/mermaid.min.js && \
	    echo "$(MERMAID_SHA256)  $$folder/package/dist/mermaid.min.js" | sha256sum --check --quiet && \
	    mv "$$folder/package/dist/mermaid.min.js" "$@"
