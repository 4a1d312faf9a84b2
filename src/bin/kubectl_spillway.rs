//! b.
fn main() {}
