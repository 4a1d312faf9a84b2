//! Which guarantees are enforced on a node, or why the program must not start there. Pure.

use spillway_wire::sandbox::{
    ABSTRACT_SOCKETS, AGENT_STRICT, LANDLOCK, POD_TIER, Requirement, SIGNALS, SandboxMode, SandboxSettings, SandboxUnavailable, TCP_PORTS,
    UnavailableReason,
};

use crate::kernel::{Kernel, Landlock};

/// The first version that limits every use of a file: earlier ones let a program truncate files.
const FILES_VERSION: u32 = 3;
/// The first version with TCP ports.
const PORTS_VERSION: u32 = 4;
/// The first version with signals and abstract sockets.
const SCOPES_VERSION: u32 = 6;

/// What is enforced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The version of Landlock to use.
    pub landlock: Option<u32>,
    /// Whether system calls are filtered.
    pub syscalls: bool,
    /// Whether only the sidecar's TCP ports can be used.
    pub sidecar_ports_only: bool,
}

/// Decides. A guarantee that is required and cannot be enforced ends in an error; one that is preferred is left out. In the mode Observe
/// nothing is enforced, whatever is required, but the pod must have the user namespace that its pool requires: it is not ours to enforce.
pub fn plan(settings: &SandboxSettings, kernel: &Kernel) -> Result<Plan, SandboxUnavailable> {
    let SandboxSettings { landlock, syscalls, sidecar_ports_only, readable: _, mode, user_namespace } = settings;
    if *user_namespace && !kernel.user_namespace {
        // An API server without the feature removes hostUsers from the pod without an error.
        let message = "the pod has no user namespace of its own, although its pool requires one: the API server has no feature \
                       UserNamespacesSupport (Kubernetes has it since 1.33), or it is off. Turn it on, or set \
                       spec.sandbox.isolation.userNamespace of the AgentPool to Preferred";
        return Err(SandboxUnavailable { reason: UnavailableReason::UserNamespaceMissing, message: message.to_owned() });
    }
    if *mode == SandboxMode::Observe {
        return Ok(Plan::NONE);
    }
    let version = match (landlock, version(kernel.landlock)) {
        (Requirement::Disabled, _) | (Requirement::Preferred, Err(_)) => None,
        (Requirement::Required, Err(unavailable)) => return Err(unavailable),
        (Requirement::Required | Requirement::Preferred, Ok(version)) => Some(version),
    };
    let has_ports = version.is_some_and(|version| version >= PORTS_VERSION);
    if *sidecar_ports_only && !has_ports && *landlock == Requirement::Required {
        let message = format!(
            "the node's Landlock has version {}, and limits on TCP ports need version {PORTS_VERSION} (Linux 6.7): use another node, or set \
             spec.sandbox.outputs.loopback of the AgentPool to Open",
            version.unwrap_or(0)
        );
        return Err(SandboxUnavailable { reason: UnavailableReason::LandlockTooOld, message });
    }
    let filters = match (syscalls, kernel.seccomp) {
        (Requirement::Disabled, _) | (Requirement::Preferred, false) => false,
        (Requirement::Required | Requirement::Preferred, true) => true,
        (Requirement::Required, false) => {
            let message = "the node's kernel has no seccomp filters: use another node, or set spec.sandbox.isolation.seccomp of the \
                           AgentPool to RuntimeDefault";
            return Err(SandboxUnavailable { reason: UnavailableReason::SeccompUnavailable, message: message.to_owned() });
        }
    };
    // Without the filter, TCP goes around Landlock: by MPTCP, and with data in the request of a connection.
    if *sidecar_ports_only && *landlock == Requirement::Required && !filters {
        let message = "limits on TCP ports need seccomp filters too: use another node, or set spec.sandbox.outputs.loopback of the AgentPool \
                       to Open";
        return Err(SandboxUnavailable { reason: UnavailableReason::SeccompUnavailable, message: message.to_owned() });
    }
    Ok(Plan { landlock: version, syscalls: filters, sidecar_ports_only: *sidecar_ports_only && has_ports })
}

/// The version to use, or why there is none.
fn version(landlock: Landlock) -> Result<u32, SandboxUnavailable> {
    let because = |reason, what: String| {
        let message = format!("{what}: use another node, or set spec.sandbox.isolation.landlock of the AgentPool to Preferred");
        Err(SandboxUnavailable { reason, message })
    };
    match landlock {
        Landlock::Version(version) if version >= FILES_VERSION => Ok(version),
        Landlock::Version(version) => because(
            UnavailableReason::LandlockTooOld,
            format!("the node's Landlock has version {version}, and limits on all uses of files need version {FILES_VERSION} (Linux 6.2)"),
        ),
        Landlock::NotBuilt => {
            because(UnavailableReason::LandlockNotBuilt, "the node's kernel has no Landlock (gVisor has none)".to_owned())
        }
        Landlock::NotEnabled => because(
            UnavailableReason::LandlockNotEnabled,
            "the node's kernel has Landlock, and did not enable it (add landlock to the kernel's parameter lsm=)".to_owned(),
        ),
        Landlock::Refused(error) => because(
            UnavailableReason::LandlockRefused,
            format!("a seccomp profile of the node refuses Landlock's system calls (error {error}); update the container runtime"),
        ),
    }
}

impl Plan {
    /// Nothing is enforced.
    pub const NONE: Self = Self { landlock: None, syscalls: false, sidecar_ports_only: false };

    /// The name of the isolation, for people.
    pub fn tier(&self) -> String {
        match (self.landlock, self.syscalls) {
            (Some(version), true) => format!("Landlock-{version}"),
            (Some(version), false) => format!("Landlock-{version}-without-AgentStrict"),
            (None, true) => AGENT_STRICT.to_owned(),
            (None, false) => POD_TIER.to_owned(),
        }
    }

    /// The guarantees that are not in force, whatever the pool asked for. Limits on TCP ports count only in a pool that wants them.
    pub fn missing(&self, settings: &SandboxSettings) -> Vec<&'static str> {
        let scopes = self.landlock.is_some_and(|version| version >= SCOPES_VERSION);
        let all = [
            (LANDLOCK, self.landlock.is_some()),
            (TCP_PORTS, (self.sidecar_ports_only && self.syscalls) || !settings.sidecar_ports_only),
            (SIGNALS, scopes),
            (ABSTRACT_SOCKETS, scopes),
            (AGENT_STRICT, self.syscalls),
        ];
        all.into_iter().filter(|(_, enforced)| !enforced).map(|(name, _)| name).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(landlock: Requirement, syscalls: Requirement, sidecar_ports_only: bool) -> SandboxSettings {
        SandboxSettings { landlock, syscalls, sidecar_ports_only, ..SandboxSettings::default() }
    }

    const FULL: Kernel = Kernel { landlock: Landlock::Version(7), seccomp: true, user_namespace: true };

    #[test]
    fn a_kernel_that_can_all_misses_nothing() {
        for requirement in [Requirement::Required, Requirement::Preferred] {
            let settings = settings(requirement, requirement, true);
            let plan = plan(&settings, &FULL).expect("a plan");
            assert_eq!((plan.tier().as_str(), plan.missing(&settings).len()), ("Landlock-7", 0));
        }
    }

    #[test]
    fn each_kernel_that_cannot_has_a_reason_and_a_way_out() {
        let kernels = [
            (Landlock::NotBuilt, UnavailableReason::LandlockNotBuilt),
            (Landlock::NotEnabled, UnavailableReason::LandlockNotEnabled),
            (Landlock::Refused(1), UnavailableReason::LandlockRefused),
            (Landlock::Version(2), UnavailableReason::LandlockTooOld),
        ];
        for (landlock, reason) in kernels {
            let kernel = Kernel { landlock, ..FULL };
            let refused = plan(&settings(Requirement::Required, Requirement::Preferred, false), &kernel).expect_err("refused");
            assert_eq!(refused.reason, reason);
            assert!(refused.message.contains("spec.sandbox.isolation.landlock"), "{refused:?}");
            let weak = settings(Requirement::Preferred, Requirement::Preferred, false);
            let plan = plan(&weak, &kernel).expect("it runs with less");
            assert_eq!((plan.tier().as_str(), plan.missing(&weak)), ("AgentStrict", vec![LANDLOCK, SIGNALS, ABSTRACT_SOCKETS]));
        }
        let kernel = Kernel { seccomp: false, ..FULL };
        let refused = plan(&settings(Requirement::Required, Requirement::Required, false), &kernel).expect_err("refused");
        assert_eq!(refused.reason, UnavailableReason::SeccompUnavailable);
    }

    #[test]
    fn older_versions_miss_what_came_later() {
        let wide = settings(Requirement::Required, Requirement::Required, false);
        let narrow = settings(Requirement::Required, Requirement::Required, true);
        let of = |version| Kernel { landlock: Landlock::Version(version), ..FULL };
        assert_eq!(plan(&wide, &of(3)).expect("a plan").missing(&wide), [SIGNALS, ABSTRACT_SOCKETS]);
        assert_eq!(plan(&narrow, &of(3)).expect_err("no ports").reason, UnavailableReason::LandlockTooOld);
        assert_eq!(plan(&narrow, &of(4)).expect("a plan").missing(&narrow), [SIGNALS, ABSTRACT_SOCKETS]);
        let preferred = settings(Requirement::Preferred, Requirement::Required, true);
        assert_eq!(plan(&preferred, &of(3)).expect("a plan").missing(&preferred), [TCP_PORTS, SIGNALS, ABSTRACT_SOCKETS]);
        assert_eq!(plan(&wide, &of(99)).expect("a plan").missing(&wide), [""; 0]);
    }

    #[test]
    fn ports_need_the_filter() {
        let kernel = Kernel { seccomp: false, ..FULL };
        let required = settings(Requirement::Required, Requirement::Preferred, true);
        assert_eq!(plan(&required, &kernel).expect_err("refused").reason, UnavailableReason::SeccompUnavailable);
        let preferred = settings(Requirement::Preferred, Requirement::Preferred, true);
        assert_eq!(plan(&preferred, &kernel).expect("a plan").missing(&preferred), [TCP_PORTS, AGENT_STRICT]);
        assert!(plan(&settings(Requirement::Required, Requirement::Preferred, false), &kernel).is_ok());
    }

    #[test]
    fn a_sandbox_that_observes_enforces_nothing_whatever_the_kernel_can() {
        for kernel in [FULL, Kernel { landlock: Landlock::NotBuilt, seccomp: false, user_namespace: false }] {
            let settings = SandboxSettings { mode: SandboxMode::Observe, ..settings(Requirement::Required, Requirement::Required, true) };
            let plan = plan(&settings, &kernel).expect("it runs");
            assert_eq!((plan, plan.missing(&settings).len()), (Plan::NONE, 5));
        }
    }

    #[test]
    fn a_user_namespace_that_is_required_must_be_there_in_each_mode() {
        let without = Kernel { user_namespace: false, ..FULL };
        for mode in [SandboxMode::Enforce, SandboxMode::Observe] {
            let required = SandboxSettings { user_namespace: true, mode, ..SandboxSettings::default() };
            let refused = plan(&required, &without).expect_err("refused");
            assert_eq!(refused.reason, UnavailableReason::UserNamespaceMissing);
            assert!(refused.message.contains("spec.sandbox.isolation.userNamespace"), "{refused:?}");
            assert!(plan(&required, &FULL).is_ok());
            assert!(plan(&SandboxSettings { user_namespace: false, ..required }, &without).is_ok());
        }
    }

    #[test]
    fn every_guarantee_that_is_disabled_is_missing() {
        let none = settings(Requirement::Disabled, Requirement::Disabled, true);
        let plan = plan(&none, &FULL).expect("a plan");
        assert_eq!(plan.tier(), "Pod");
        assert_eq!(plan.missing(&none), [LANDLOCK, TCP_PORTS, SIGNALS, ABSTRACT_SOCKETS, AGENT_STRICT]);
    }
}
