//! Landlock's rules for a [`Plan`] and its grants, as a file descriptor of the kernel that a process can put on itself.

use std::os::fd::OwnedFd;

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, CompatLevel, Compatible as _, NetPort, PathBeneath, PathFd, PathFdError, Ruleset,
    RulesetAttr as _, RulesetCreated, RulesetCreatedAttr as _, RulesetError, Scope,
};

use crate::grants::{Access, Grant};
use crate::plan::Plan;

/// The newest version whose limits we use. A newer kernel enforces the same.
const NEWEST: u32 = 7;

/// The rules could not be made.
#[derive(Debug, thiserror::Error)]
pub enum RulesError {
    /// The kernel refused them.
    #[error("Landlock refused the rules: {0}")]
    Ruleset(#[from] RulesetError),
    /// A granted path exists, and cannot be opened.
    #[error("cannot open a path that the program may use: {0}")]
    Path(#[from] PathFdError),
    /// The kernel has no Landlock after all.
    #[error("the kernel made no Landlock ruleset")]
    Nothing,
}

/// Makes the rules of a plan that uses Landlock. `ports` are the only TCP ports that may be connected to, if the plan limits them.
pub fn ruleset(plan: &Plan, version: u32, grants: &[Grant], ports: &[u16]) -> Result<OwnedFd, RulesError> {
    let abi = ABI::from(i32::try_from(version.min(NEWEST)).unwrap_or(0));
    // The version was asked for before: everything that it has must work.
    let mut ruleset = Ruleset::default().set_compatibility(CompatLevel::HardRequirement).handle_access(AccessFs::from_all(abi))?;
    if plan.sidecar_ports_only {
        ruleset = ruleset.handle_access(AccessNet::BindTcp | AccessNet::ConnectTcp)?;
    }
    let scopes = Scope::from_all(abi);
    if !scopes.is_empty() {
        ruleset = ruleset.scope(scopes)?;
    }
    let mut created = ruleset.create()?;
    for grant in grants {
        created = add(created, abi, grant)?;
    }
    if plan.sidecar_ports_only {
        for port in ports {
            created = created.add_rule(NetPort::new(*port, AccessNet::ConnectTcp))?;
        }
    }
    Option::<OwnedFd>::from(created).ok_or(RulesError::Nothing)
}

fn add(created: RulesetCreated, abi: ABI, Grant { path, access }: &Grant) -> Result<RulesetCreated, RulesError> {
    // A dangling link grants nothing either.
    let Ok(found) = std::fs::metadata(path) else { return Ok(created) };
    let wanted = match access {
        Access::List => AccessFs::ReadDir.into(),
        Access::Read => AccessFs::from_read(abi),
        Access::Device => AccessFs::from_all(abi) & (AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::ReadDir | AccessFs::IoctlDev),
        Access::Write => AccessFs::from_all(abi) & !(AccessFs::MakeChar | AccessFs::MakeBlock),
    };
    let wanted = if found.is_dir() { wanted } else { wanted & AccessFs::from_file(abi) };
    Ok(created.add_rule(PathBeneath::new(PathFd::new(path)?, wanted))?)
}
