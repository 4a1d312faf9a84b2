//! Reads the query of a call, as strictly as a body is read.

use axum::extract::Query;
use axum::http::Uri;

use crate::wire::body::BoundedBody;
use crate::wire::{Code, Refusal};

/// Reads the query of `uri`. A missing query is read as an empty one.
pub fn read<T: BoundedBody>(uri: &Uri) -> Result<T, Refusal> {
    let Query(value) = Query::<T>::try_from_uri(uri).map_err(|error| {
        let text = error.body_text();
        let field = text.split('`').nth(1).unwrap_or("(query)").to_owned();
        Refusal::new(Code::InvalidBody, format!("the query is invalid: {text}")).field(field)
    })?;
    value.check().map_err(|(field, trouble)| Refusal::new(Code::InvalidBody, format!("{field}: {trouble}")).field(field))?;
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::follow::InboxQuery;

    #[test]
    fn what_a_query_may_not_say_is_refused_by_name() {
        let ask = |query: &str| read::<InboxQuery>(&format!("/agent/v1/inbox{query}").parse().expect("a uri"));
        assert_eq!(ask("?after=12&waitSeconds=3"), Ok(InboxQuery { after: Some("12".into()), wait_seconds: 3 }));
        assert_eq!(ask(""), Ok(InboxQuery::default()));
        for (query, field) in
            [("?aftre=12", "aftre"), ("?after=x", "after"), ("?waitSeconds=99", "waitSeconds"), ("?waitSeconds=x", "(query)")]
        {
            assert_eq!(ask(query).expect_err(query).field.as_deref(), Some(field), "{query}");
        }
    }
}
