//! Quantities of Kubernetes: no text gives a wrong number or an overflow, and equal numbers are equal.
#![cfg_attr(fuzzing, no_main)]

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use libfuzzer_sys::fuzz_target;
use spillway_api::quantity::{is_same_quantity, nanos, units};

fuzz_target!(|text: &str| {
    let quantity = Quantity(text.to_owned());
    let number = nanos(&quantity);
    assert!(is_same_quantity(&quantity, &quantity));
    let Some(number) = number else { return };
    let whole = units(&quantity);
    assert!(number <= 0 || whole == u64::MAX || i128::from(whole) >= number / 1_000_000_000, "{text}: {number}");
    // A plain number has its usual value.
    if let Ok(plain) = text.trim().parse::<u32>() {
        assert_eq!(number, i128::from(plain) * 1_000_000_000);
    }
});
