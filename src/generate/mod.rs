//! Completion scripts, and generated files: the CRDs, for `kubectl apply` and for the chart, their reference, and the unsupported fields, as a
//! page and as a policy. One function returns their content. One command writes them, or checks that the committed
//! files are up to date.

mod reference;
mod unsupported;

use std::io::Write as _;
use std::path::Path;

use anyhow::{Context as _, bail};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;

use crate::api::crds;

/// A generated file: its path below the repository's root, and its content.
pub type File = (String, String);

/// Every generated file.
pub fn files() -> anyhow::Result<Vec<File>> {
    let mut files = Vec::new();
    for crd in crds::all() {
        let name = crd.metadata.name.clone().context("a CRD has a name")?;
        files.push((format!("crds/{name}.yaml"), header() + &yaml(&crd)?));
        files.push((format!("charts/spillway/templates/crds/{name}.yaml"), in_chart(&crd)?));
    }
    files.push(("docs/reference/api.md".to_owned(), reference::page(&crds::all())));
    files.push(("docs/reference/unsupported.md".to_owned(), unsupported::page()));
    files.push(("charts/spillway/templates/unsupportedpolicy.yaml".to_owned(), unsupported::policy(&header())));
    let listed: String = crds::all().into_iter().filter_map(|crd| crd.metadata.name).map(|name| format!("- {name}.yaml\n")).collect();
    let kustomization = format!("apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources:\n{listed}");
    files.push(("crds/kustomization.yaml".to_owned(), header() + &kustomization));
    Ok(files)
}

/// All CRDs as one stream of YAML documents.
pub fn crd_stream() -> anyhow::Result<String> {
    crds::all().iter().map(|crd| Ok(format!("---\n{}", yaml(crd)?))).collect()
}

/// Prints the completion script of a command line.
pub fn completion(shell: clap_complete::Shell, command: &mut clap::Command) -> anyhow::Result<()> {
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(shell, command, name, &mut script);
    std::io::stdout().write_all(&script).context("cannot print the script")
}

fn header() -> String {
    "# Generated from crates/api by `make generate`. Do not edit.\n".to_owned()
}

fn yaml(crd: &CustomResourceDefinition) -> anyhow::Result<String> {
    serde_saphyr::to_string(crd).context("a CRD does not serialize")
}

/// In the chart a CRD is a template, so that upgrades bring its changes, and is kept on uninstall, so that no team loses
/// its objects with the operator.
fn in_chart(crd: &CustomResourceDefinition) -> anyhow::Result<String> {
    let mut crd = crd.clone();
    crd.metadata.annotations.get_or_insert_default().insert("helm.sh/resource-policy".into(), "keep".into());
    let body = yaml(&crd)?;
    if body.contains("{{") {
        bail!("the CRD {} contains `{{{{`, which Helm would interpret as a template", crd.metadata.name.unwrap_or_default());
    }
    Ok(format!("{{{{- if .Values.crds.install }}}}\n{}{body}{{{{- end }}}}\n", header()))
}

/// Writes every generated file below `root`.
pub fn write(root: &Path) -> anyhow::Result<()> {
    for (path, content) in files()? {
        let path = root.join(path);
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).with_context(|| format!("cannot create the folder {}", folder.display()))?;
        }
        std::fs::write(&path, content).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// Fails if generated files below `root` are missing or differ, with their names.
pub fn check(root: &Path) -> anyhow::Result<()> {
    let mut stale = Vec::new();
    for (path, content) in files()? {
        match std::fs::read_to_string(root.join(&path)) {
            Ok(found) if found == content => {}
            Ok(_) => stale.push(format!("{path} differs")),
            Err(_) => stale.push(format!("{path} is missing")),
        }
    }
    if stale.is_empty() { Ok(()) } else { bail!("generated files are stale; run `make generate` and commit:\n  {}", stale.join("\n  ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_or_changed_file_fails_the_check_by_name() {
        let root = std::env::temp_dir().join(format!("spillway-generate-{}", std::process::id()));
        write(&root).expect("writes");
        check(&root).expect("what was written is what is checked");
        let (path, _) = files().expect("files").remove(0);
        std::fs::remove_file(root.join(&path)).expect("removes");
        let error = check(&root).expect_err("a missing file").to_string();
        std::fs::remove_dir_all(&root).expect("cleans up");
        assert!(error.contains(&format!("{path} is missing")), "{error}");
    }

    #[test]
    fn what_is_committed_is_what_the_code_says() {
        check(Path::new(env!("CARGO_MANIFEST_DIR"))).unwrap_or_else(|stale| panic!("{stale}"));
    }

    #[test]
    fn the_charts_crds_are_kept_on_uninstall() {
        let files = files().expect("files");
        let in_chart: Vec<_> = files.iter().filter(|(path, _)| path.starts_with("charts/spillway/templates/crds/")).collect();
        assert!(!in_chart.is_empty());
        for (path, content) in in_chart {
            assert!(content.contains("helm.sh/resource-policy: keep"), "{path}");
        }
    }
}
