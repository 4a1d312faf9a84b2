//! The advice on the sandbox of an agent's program: data alone. [`advice`](super) decides which advice applies.

use super::Advice;
use super::Advice::{Do, Nothing};
use crate::api::conditions::reasons;

const NO_LANDLOCK_ADVICE: &str = "select nodes whose kernel has Landlock (Linux 6.2 or newer; no gVisor) with spec.scheduling of pool {pool}, or set spec.sandbox.isolation.landlock to Preferred";

/// The reasons of `SandboxEnforced`, with their advice. `{agent}`, `{pool}` and `{namespace}` stand for names.
pub(super) const SANDBOX_ADVICE: &[(&str, Advice)] = &[
    (
        reasons::POD_WALLS_ONLY,
        Nothing(
            "only the pod isolates the program (NetworkPolicy, seccomp RuntimeDefault, no privileges): spec.sandbox.isolation of pool {pool} disables the sandbox, or the node has neither Landlock nor seccomp filters. With Required and AgentStrict no program starts without them",
        ),
    ),
    (reasons::ENFORCED, Nothing("the sandbox of the program is in force")),
    (
        reasons::SANDBOX_DEGRADED,
        Nothing(
            "the program runs without the guarantees that the message names: its node does not have them, or spec.sandbox.isolation of pool {pool} disables them. Linux 6.12 or newer has all of them. spec.preflight.requireSandbox: true gives no work to agents that lack one",
        ),
    ),
    (
        reasons::SANDBOX_OBSERVED,
        Nothing(
            "the sandbox counts what it would refuse, and refuses nothing. When the list stays empty, remove spec.sandbox.isolation.mode of pool {pool}: agents that are made later are confined",
        ),
    ),
    (reasons::LANDLOCK_NOT_BUILT, Do(NO_LANDLOCK_ADVICE)),
    (
        reasons::LANDLOCK_NOT_ENABLED,
        Do(
            "add landlock to the kernel parameter lsm= of the node, select other nodes (spec.scheduling of pool {pool}), or set spec.sandbox.isolation.landlock to Preferred",
        ),
    ),
    (reasons::LANDLOCK_REFUSED, Do(NO_LANDLOCK_ADVICE)),
    (reasons::LANDLOCK_TOO_OLD, Do(NO_LANDLOCK_ADVICE)),
    (
        reasons::SECCOMP_UNAVAILABLE,
        Do("select other nodes (spec.scheduling of pool {pool}), or set spec.sandbox.isolation.seccomp to RuntimeDefault"),
    ),
    (
        reasons::USER_NAMESPACE_MISSING,
        Do(
            "use an API server with the feature UserNamespacesSupport (on by default since Kubernetes 1.33), or set spec.sandbox.isolation.userNamespace of pool {pool} to Preferred",
        ),
    ),
    (
        reasons::SANDBOX_NOT_PREPARED,
        Do(
            "the pod cannot prepare its sandbox, as the message says. If it cannot read the settings, controller and pod have different versions: delete the agent (`kubectl spillway rm {agent} -n {namespace}`), and its pool makes another one",
        ),
    ),
    (
        reasons::WALLS_NOT_ENFORCED,
        Nothing("the agent runs outside the cluster, where nothing isolates its program. spec.external of pool {pool} allows that"),
    ),
];
