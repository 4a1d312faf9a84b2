//! The sandbox of an agent's program, as the controller tells the pod.

use serde::{Deserialize, Serialize};

/// The environment variable with [`SandboxSettings`] as JSON, in both containers of a pod.
pub const SANDBOX_VARIABLE: &str = "SPILLWAY_SANDBOX";
/// The tier of a program with the isolation of its pod alone.
pub const POD_TIER: &str = "Pod";
/// The guarantee that only granted files can be used.
pub const LANDLOCK: &str = "Landlock";
/// The guarantee that only the TCP ports of the sidecar can be used, if the pool asks for it.
pub const TCP_PORTS: &str = "TcpPorts";
/// The guarantee that signals reach only processes of the program.
pub const SIGNALS: &str = "Signals";
/// The guarantee that abstract unix sockets reach only processes of the program.
pub const ABSTRACT_SOCKETS: &str = "AbstractSockets";
/// The guarantee that only the system calls of Spillway's policy can be made.
pub const AGENT_STRICT: &str = "AgentStrict";

/// How strongly a guarantee is required.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Requirement {
    /// The program does not run without it.
    Required,
    /// It is used where the node can.
    #[default]
    Preferred,
    /// It is not used.
    Disabled,
}

/// Why a node cannot enforce what a pool requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum UnavailableReason {
    /// The kernel was built without Landlock, or it is none of Linux (gVisor).
    LandlockNotBuilt,
    /// The kernel has Landlock, and did not enable it.
    LandlockNotEnabled,
    /// A seccomp profile of the node refuses Landlock's system calls.
    LandlockRefused,
    /// The kernel's Landlock lacks limits that the pool requires.
    LandlockTooOld,
    /// The kernel has no filters of system calls.
    SeccompUnavailable,
    /// The sandbox could not be prepared, although the kernel can enforce it.
    SandboxNotPrepared,
}

impl UnavailableReason {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::LandlockNotBuilt,
        Self::LandlockNotEnabled,
        Self::LandlockRefused,
        Self::LandlockTooOld,
        Self::SeccompUnavailable,
        Self::SandboxNotPrepared,
    ];

    /// The reason of the condition `SandboxEnforced`.
    pub const fn condition_reason(self) -> &'static str {
        match self {
            Self::LandlockNotBuilt => "LandlockNotBuilt",
            Self::LandlockNotEnabled => "LandlockNotEnabled",
            Self::LandlockRefused => "LandlockRefused",
            Self::LandlockTooOld => "LandlockTooOld",
            Self::SeccompUnavailable => "SeccompUnavailable",
            Self::SandboxNotPrepared => "SandboxNotPrepared",
        }
    }
}

/// A sandbox that a pool requires, and that the node cannot enforce: the program does not start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SandboxUnavailable {
    /// The reason.
    pub reason: UnavailableReason,
    /// What is wrong, and what to do.
    pub message: String,
}

impl SandboxUnavailable {
    /// The most characters of a message.
    pub const MAX_MESSAGE_CHARS: usize = 1024;
}

/// What the sandbox must do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SandboxSettings {
    /// Limits on files, ports, signals and abstract sockets, by Landlock.
    #[serde(default)]
    pub landlock: Requirement,
    /// Limits on system calls, by seccomp.
    #[serde(default)]
    pub syscalls: Requirement,
    /// Only the sidecar's TCP ports can be used.
    #[serde(default)]
    pub sidecar_ports_only: bool,
    /// Folders whose files the program may read and execute, in addition to those of the image.
    #[serde(default)]
    pub readable: Vec<String>,
}

impl SandboxSettings {
    /// No sandbox.
    pub fn disabled() -> Self {
        Self { landlock: Requirement::Disabled, syscalls: Requirement::Disabled, sidecar_ports_only: false, readable: Vec::new() }
    }
}
