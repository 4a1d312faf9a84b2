//! Which namespace the controller serves, as its options say.

/// The namespace that the controller serves, or none for all. OLM gives an empty text for all namespaces, and a list with
/// commas for several.
pub fn served_namespace(given: Option<String>) -> anyhow::Result<Option<String>> {
    match given {
        Some(names) if names.contains(',') => {
            anyhow::bail!("--namespace is {names}: a controller serves one namespace, or all of them (leave it empty)")
        }
        Some(name) if name.is_empty() => Ok(None),
        Some(_) | None => Ok(given),
    }
}

#[cfg(test)]
mod tests {
    use super::served_namespace;

    #[test]
    fn an_empty_namespace_means_all_and_a_list_is_refused() {
        assert_eq!(served_namespace(None).ok(), Some(None));
        assert_eq!(served_namespace(Some(String::new())).ok(), Some(None));
        assert_eq!(served_namespace(Some("team-a".into())).ok(), Some(Some("team-a".into())));
        let refused = served_namespace(Some("team-a,team-b".into())).expect_err("a list");
        assert!(refused.to_string().contains("team-a,team-b"), "{refused}");
    }
}
