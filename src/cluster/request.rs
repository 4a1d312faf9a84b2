//! The verb and the resource of a request to the API server, from its method and path.

/// The verb and the resource of a request, as the audit log names them.
pub fn describe(method: &http::Method, uri: &http::Uri) -> (&'static str, String) {
    let parts: Vec<&str> = uri.path().trim_matches('/').split('/').collect();
    let rest = match parts.as_slice() {
        ["api", _, rest @ ..] | ["apis", _, _, rest @ ..] => rest,
        _ => &[],
    };
    let (resource, named) = match rest {
        ["namespaces", _, resource, rest @ ..] => (Some(*resource), rest),
        [resource, rest @ ..] => (Some(*resource), rest),
        [] => (None, rest),
    };
    let resource = match (resource, named) {
        (Some(resource), [_, subresource, ..]) => format!("{resource}/{subresource}"),
        (Some(resource), _) => resource.to_owned(),
        (None, _) => "discovery".to_owned(),
    };
    let watching = uri.query().is_some_and(|query| query.contains("watch=true"));
    let verb = match *method {
        http::Method::GET if watching => "watch",
        http::Method::GET if named.is_empty() => "list",
        http::Method::GET => "get",
        http::Method::POST => "create",
        http::Method::PUT => "update",
        http::Method::PATCH => "patch",
        http::Method::DELETE => "delete",
        _ => "other",
    };
    (verb, resource)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_named_as_the_audit_log_names_them() {
        let cases = [
            ("GET", "/api/v1/namespaces/a/pods?watch=true", ("watch", "pods")),
            ("GET", "/api/v1/nodes", ("list", "nodes")),
            ("GET", "/api/v1/nodes/n", ("get", "nodes")),
            ("POST", "/api/v1/namespaces/a/pods", ("create", "pods")),
            ("PATCH", "/apis/spillway.dev/v1alpha1/namespaces/a/agents/b/status", ("patch", "agents/status")),
            ("PUT", "/apis/coordination.k8s.io/v1/namespaces/a/leases/l", ("update", "leases")),
            ("GET", "/apis", ("list", "discovery")),
        ];
        for (method, uri, expected) in cases {
            let (verb, resource) = describe(&method.parse().expect("method"), &uri.parse().expect("uri"));
            assert_eq!((verb, resource.as_str()), expected, "{method} {uri}");
        }
    }
}
