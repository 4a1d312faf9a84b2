//! The sandbox of an agent's program, as the controller tells the pod.

use serde::{Deserialize, Serialize};

use crate::body::at_most;

/// The environment variable with [`SandboxSettings`] as JSON, in both containers of a pod.
pub const SANDBOX_VARIABLE: &str = "SPILLWAY_SANDBOX";
/// The tier of a program with the isolation of its pod alone.
pub const POD_TIER: &str = "Pod";
/// The tier of a program whose sandbox only counts.
pub const OBSERVED_TIER: &str = "Observed";
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
    /// The pod has no user namespace of its own.
    UserNamespaceMissing,
    /// The sandbox could not be prepared, although the kernel can enforce it.
    SandboxNotPrepared,
}

impl UnavailableReason {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::LandlockNotBuilt,
        Self::LandlockNotEnabled,
        Self::LandlockRefused,
        Self::LandlockTooOld,
        Self::SeccompUnavailable,
        Self::UserNamespaceMissing,
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
            Self::UserNamespaceMissing => "UserNamespaceMissing",
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

    pub(crate) fn check(&self, field: &'static str) -> Result<(), (&'static str, String)> {
        at_most(field, &self.message, Self::MAX_MESSAGE_CHARS)
    }
}

/// Whether the sandbox refuses what its settings do not allow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum SandboxMode {
    /// It refuses, and counts refused system calls.
    #[default]
    Enforce,
    /// It refuses nothing, and counts what it would refuse.
    Observe,
}

impl SandboxMode {
    fn is_enforce(&self) -> bool {
        *self == Self::Enforce
    }
}

/// What the sandbox refused to the processes of an agent, or would have refused in the mode Observe. The counts begin with the pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SandboxRefusals {
    /// System calls that failed with EPERM, or would have.
    #[serde(default)]
    pub system_calls: u64,
    /// Uses of files. They are counted only in the mode Observe.
    #[serde(default)]
    pub files: u64,
    /// Names of the system calls, and the files as `read PATH` or `write PATH`, as far as there is space.
    #[serde(default)]
    pub uses: Vec<String>,
}

impl SandboxRefusals {
    /// The most entries of `uses`.
    pub const MAX_USES: usize = 16;
    /// The most characters of an entry.
    pub const MAX_USE_CHARS: usize = 256;

    /// Whether nothing was refused.
    pub fn is_nothing(&self) -> bool {
        (self.system_calls, self.files) == (0, 0)
    }

    pub(crate) fn check(&self) -> Result<(), (&'static str, String)> {
        if self.uses.len() > Self::MAX_USES {
            return Err(("refused.uses", format!("must have at most {} entries, but has {}", Self::MAX_USES, self.uses.len())));
        }
        self.uses.iter().try_for_each(|one| at_most("refused.uses", one, Self::MAX_USE_CHARS))
    }
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
    /// Whether it refuses, or only counts. The field is left out for Enforce, because an older pod does not know it.
    #[serde(default, skip_serializing_if = "SandboxMode::is_enforce")]
    pub mode: SandboxMode,
    /// The pod must have a user namespace of its own. The field is left out for false, because an older pod does not know it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub user_namespace: bool,
}

/// What an item requires of the sandbox of its program, beyond the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ItemSandbox {
    /// Limits by Landlock.
    #[serde(default)]
    pub landlock: bool,
    /// Limits on system calls.
    #[serde(default)]
    pub syscalls: bool,
    /// Only the sidecar's TCP ports can be used.
    #[serde(default)]
    pub sidecar_ports_only: bool,
}

impl ItemSandbox {
    /// Whether the sandbox of the pool is enough.
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

impl SandboxSettings {
    /// The settings for an item. They are never wider than these.
    pub fn narrowed(self, item: ItemSandbox) -> Self {
        let ItemSandbox { landlock, syscalls, sidecar_ports_only } = item;
        // The limits on ports need both parts.
        let required = |asked: bool, own: Requirement| if asked || sidecar_ports_only { Requirement::Required } else { own };
        Self {
            landlock: required(landlock, self.landlock),
            syscalls: required(syscalls, self.syscalls),
            sidecar_ports_only: self.sidecar_ports_only || sidecar_ports_only,
            ..self
        }
    }

    /// No sandbox.
    pub fn disabled() -> Self {
        Self { landlock: Requirement::Disabled, syscalls: Requirement::Disabled, ..Self::default() }
    }
}
