//! Randomness from the kernel: keys, and the jitter of retries.

use std::io;

use rustix::rand::{GetRandomFlags, getrandom};
use spillway_wire::text::hex;

/// 32 random bytes in hexadecimal.
pub fn key() -> io::Result<String> {
    let mut bytes = [0_u8; 32];
    let filled = getrandom(&mut bytes, GetRandomFlags::empty())?;
    if filled != bytes.len() {
        return Err(io::Error::other("the kernel gave too few random bytes"));
    }
    Ok(hex(&bytes))
}

/// Uniform in [0, 1). Without randomness it is 0.5, since the jitter of a retry need not be secret.
pub fn fraction() -> f64 {
    let mut bytes = [0_u8; 4];
    match getrandom(&mut bytes, GetRandomFlags::empty()) {
        Ok(4) => f64::from(u32::from_le_bytes(bytes)) / (f64::from(u32::MAX) + 1.0),
        Ok(_) | Err(_) => 0.5,
    }
}

/// Whether two secrets are the same. The time that it takes does not depend on where they differ.
pub fn same(one: &str, other: &str) -> bool {
    one.len() == other.len() && one.bytes().zip(other.bytes()).fold(0, |all, (a, b)| all | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_differ_and_are_long() {
        let (one, other) = (key().expect("a key"), key().expect("a key"));
        assert_eq!(one.len(), 64);
        assert!(!same(&one, &other) && same(&one, &one.clone()) && !same(&one, ""));
        assert!((0.0..1.0).contains(&fraction()));
    }
}
