//! How a request of MCP ended, in one word, for logs and metrics.

use axum::http::{HeaderMap, StatusCode};
use spillway_bridge::answer::Status;

use crate::wire::tools::TOOL_STATUS_HEADER;

/// The outcome of a request that ran no program.
const ANSWERED: &str = "answered";
/// The outcome of a request that the bridge refused before it read a call, such as one with a wrong origin.
const REFUSED: &str = "refused";
/// The outcome of a request that the bridge answered.
pub fn of_answer(status: StatusCode, headers: &HeaderMap) -> &'static str {
    let told = headers.get(TOOL_STATUS_HEADER).and_then(|status| status.to_str().ok());
    match told {
        // `status` in the answer of the tool `execute`.
        Some(told) => Status::ALL.into_iter().map(Status::label).find(|status| *status == told).unwrap_or(REFUSED),
        None if status.is_success() => ANSWERED,
        None => REFUSED,
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn each_status_of_a_bridge_is_an_outcome() {
        let mut headers = HeaderMap::new();
        assert_eq!(of_answer(StatusCode::OK, &headers), ANSWERED);
        assert_eq!(of_answer(StatusCode::FORBIDDEN, &headers), REFUSED);
        for status in Status::ALL {
            headers.insert(TOOL_STATUS_HEADER, HeaderValue::from_static(status.label()));
            assert_eq!(of_answer(StatusCode::OK, &headers), status.label());
            assert_eq!(serde_json::json!(status), serde_json::json!(status.label()));
        }
        headers.insert(TOOL_STATUS_HEADER, HeaderValue::from_static("another"));
        assert_eq!(of_answer(StatusCode::OK, &headers), REFUSED);
    }
}
