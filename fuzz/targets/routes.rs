//! Paths and queries of providers: a forwarded path has the same meaning for every server, and contains no key.
#![cfg_attr(fuzzing, no_main)]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: (&str, &str, &str)| {
    let (method, path, query) = text;
    let Some(route) = spillway_dialect::route(method, path, Some(query)) else { return };
    assert!(path.starts_with('/'), "{path}");
    assert!(path.bytes().all(|byte| byte.is_ascii_graphic() && !b"%?#\\\"<>".contains(&byte)), "{path}");
    assert!(!path.contains("//") && !path.split('/').any(|segment| matches!(segment, "." | "..")), "{path}");
    if let Some(sent) = &route.query {
        assert!(sent.len() <= query.len(), "{sent}");
        assert!(sent.split('&').all(|pair| !pair.to_ascii_lowercase().starts_with("key=")), "{sent}");
        assert!(sent.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#'), "{sent}");
    }
    assert!(route.model.as_ref().is_none_or(|model| !model.is_empty() && !model.contains('/')), "{:?}", route.model);
});
