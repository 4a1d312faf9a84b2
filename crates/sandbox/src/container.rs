//! The sandbox of a container, from the settings that its controller gave and what the kernel can enforce.

use std::path::{Path, PathBuf};

use spillway_wire::agent::Sandbox as Report;
use spillway_wire::sandbox::{OBSERVED_TIER, Requirement, SandboxMode, SandboxSettings, SandboxUnavailable, UnavailableReason};

use crate::Sandbox;
use crate::grants::{Container, Grant, grants};
use crate::kernel::Kernel;
use crate::plan::{Plan, plan};
use crate::policy::Network;

/// The settings in the value of the variable. Settings that cannot be read are none of Spillway's: nothing starts.
pub fn settings(value: &str) -> Result<SandboxSettings, SandboxUnavailable> {
    serde_json::from_str(value).map_err(|error| not_prepared(format!("the settings of the sandbox cannot be read: {error}")))
}

/// What is in force, for the agent's status. Without settings it is the isolation of the pod alone.
pub fn report(value: Option<&str>, kernel: &Kernel) -> Report {
    let decided = value.map(settings).transpose().and_then(|settings| {
        let settings = settings.unwrap_or_else(SandboxSettings::disabled);
        plan(&settings, kernel).map(|plan| (plan, settings))
    });
    let (plan, settings, unavailable) = match decided {
        Ok((plan, settings)) => (plan, settings, None),
        Err(unavailable) => (Plan::NONE, SandboxSettings::disabled(), Some(unavailable)),
    };
    let missing = plan.missing(&settings).into_iter().map(str::to_owned).collect();
    let tier = if settings.mode == SandboxMode::Observe { OBSERVED_TIER.to_owned() } else { plan.tier() };
    Report { tier, missing, unavailable }
}

/// The sandbox for a program that may read and execute `readable`, beside its image, and write to `writable`. `ports`: the only TCP
/// ports that it may connect to, if the settings limit them.
pub fn prepare(
    settings: &SandboxSettings,
    kernel: &Kernel,
    readable: &[PathBuf],
    writable: &[PathBuf],
    ports: &[u16],
) -> Result<Sandbox, SandboxUnavailable> {
    let plan = plan(settings, kernel)?;
    let grants = plan.landlock.map(|_| granted(settings, readable, writable, &[])).transpose()?;
    Sandbox::prepare(&plan, &grants.unwrap_or_default(), ports).map_err(|error| not_prepared(error.to_string()))
}

/// The sandbox for a program that runs outside of containers. It may read and execute all files but mounted ones and `closed`, which are
/// paths without links, and write to `folder`.
pub fn prepare_outside(
    settings: &SandboxSettings,
    kernel: &Kernel,
    closed: &[PathBuf],
    folder: &Path,
) -> Result<Sandbox, SandboxUnavailable> {
    let plan = plan(settings, kernel)?;
    let grants = plan.landlock.map(|_| granted(settings, &[], &[folder.to_owned()], closed)).transpose()?;
    Sandbox::prepare(&plan, &grants.unwrap_or_default(), &[]).map_err(|error| not_prepared(error.to_string()))
}

/// What the sandbox of these settings would refuse: see [`prepare`].
pub fn observation(
    settings: &SandboxSettings,
    kernel: &Kernel,
    readable: &[PathBuf],
    writable: &[PathBuf],
) -> Result<Observation, SandboxUnavailable> {
    // It enforces nothing, and says whether the pod is one in which the program may start.
    plan(settings, kernel)?;
    let network = if settings.sidecar_ports_only { Network::Sidecar } else { Network::Pod };
    Ok(Observation {
        network: Some(network).filter(|_| settings.syscalls != Requirement::Disabled),
        grants: (settings.landlock != Requirement::Disabled).then(|| granted(settings, readable, writable, &[])).transpose()?,
    })
}

/// What a sandbox would refuse.
#[derive(Clone, Debug)]
pub struct Observation {
    /// The policy of system calls. None: it refuses none.
    pub network: Option<Network>,
    /// The files that it opens. None: it opens all.
    pub grants: Option<Vec<Grant>>,
}

fn granted(
    settings: &SandboxSettings,
    readable: &[PathBuf],
    writable: &[PathBuf],
    closed: &[PathBuf],
) -> Result<Vec<Grant>, SandboxUnavailable> {
    let container = Container::read_without(closed).map_err(|error| not_prepared(error.to_string()))?;
    let readable: Vec<PathBuf> = readable.iter().cloned().chain(settings.readable.iter().map(PathBuf::from)).collect();
    Ok(grants(&container, &readable, writable))
}

fn not_prepared(what: String) -> SandboxUnavailable {
    // A longer message would be refused, and the agent would be silent.
    let message = what.chars().take(SandboxUnavailable::MAX_MESSAGE_CHARS).collect();
    SandboxUnavailable { reason: UnavailableReason::SandboxNotPrepared, message }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::Landlock;

    const FULL: Kernel = Kernel { landlock: Landlock::Version(7), seccomp: true, user_namespace: false };
    const BARE: Kernel = Kernel { landlock: Landlock::NotBuilt, ..FULL };

    #[test]
    fn the_report_says_what_is_in_force_and_never_more() {
        let of = |value, kernel| {
            let Report { tier, missing, unavailable } = report(value, kernel);
            (tier, missing.join(" "), unavailable.map(|unavailable| unavailable.reason))
        };
        let all = "Landlock Signals AbstractSockets AgentStrict";
        assert_eq!(of(Some("{}"), &FULL), ("Landlock-7".into(), String::new(), None));
        assert_eq!(of(Some("{}"), &BARE), ("AgentStrict".into(), "Landlock Signals AbstractSockets".into(), None));
        assert_eq!(of(None, &FULL), ("Pod".into(), all.into(), None), "an older controller gives no settings");
        let observed = r#"{"landlock": "Required", "mode": "Observe"}"#;
        assert_eq!(of(Some(observed), &BARE), ("Observed".into(), all.into(), None));
        let namespace = r#"{"mode": "Observe", "userNamespace": true}"#;
        assert_eq!(of(Some(namespace), &FULL), ("Pod".into(), all.into(), Some(UnavailableReason::UserNamespaceMissing)));
        let required = r#"{"landlock": "Required"}"#;
        assert_eq!(of(Some(required), &BARE), ("Pod".into(), all.into(), Some(UnavailableReason::LandlockNotBuilt)));
        for strange in ["", "x", r#"{"landlock": "Maybe"}"#, r#"{"unknown": 1}"#] {
            assert_eq!(of(Some(strange), &FULL), ("Pod".into(), all.into(), Some(UnavailableReason::SandboxNotPrepared)), "{strange}");
        }
    }

    #[test]
    fn a_long_trouble_is_told_too() {
        let strange = format!(r#"{{"{}": 1}}"#, "x".repeat(10_000));
        let message = settings(&strange).expect_err("an unknown field").message;
        assert_eq!(message.chars().count(), SandboxUnavailable::MAX_MESSAGE_CHARS);
    }

    #[test]
    fn a_sandbox_without_anything_is_one_too() {
        let sandbox = prepare(&SandboxSettings::disabled(), &BARE, &[], &[], &[]).expect("nothing to prepare");
        let mut command = std::process::Command::new("true");
        sandbox.confine(&mut command);
        assert!(command.status().expect("it runs").success());
    }
}
