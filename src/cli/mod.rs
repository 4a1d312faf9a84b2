//! The kubectl plugin.
