//! The content of an Agent's pod. Starts no pod.

use super::*;
use crate::api::AgentSpec;

fn objects(extra: Value) -> (Agent, AgentPool) {
    let mut spec = json!({"type": "free", "agent": {"image": "x", "command": ["y"]}});
    if let (Some(spec), Value::Object(extra)) = (spec.as_object_mut(), extra) {
        spec.extend(extra);
    }
    let mut pool: AgentPool = serde_json::from_value(
        json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "AgentPool", "metadata": {"name": "p"}, "spec": spec}),
    )
    .expect("a pool");
    pool.metadata.uid = Some("pool-uid".into());
    let mut agent = Agent::new(
        "p-1",
        AgentSpec {
            pool_ref: Default::default(),
            display_name: None,
            sequence: None,
            parent_ref: None,
            manual: None,
            paused: None,
            resume_pause: None,
            tool_approvals: None,
            hibernated: None,
            resources: None,
            external: None,
        },
    );
    agent.metadata.uid = Some("agent-uid".into());
    (agent, pool)
}

fn supervised() -> Supervised {
    let peer = k8s_openapi::api::networking::v1::NetworkPolicyPeer::default();
    Supervised {
        gateway: "10.0.0.1:8443".into(),
        peer,
        port: 8443,
        controller: Default::default(),
        image: "spillway:dev".into(),
        pull_policy: "Never".into(),
        pull_secrets: Vec::new(),
        canaries: vec![],
        dns: Vec::new(),
    }
}

fn built(extra: Value) -> PodSpec {
    let (agent, pool) = objects(extra);
    pod(&agent, &pool, true, &supervised()).spec.expect("a spec")
}

#[test]
fn meets_pod_security_restricted_and_mounts_no_token() {
    let spec = built(json!({}));
    let walls = spec.security_context.expect("pod walls");
    assert_eq!((walls.run_as_non_root, walls.seccomp_profile.map(|profile| profile.type_)), (Some(true), Some("RuntimeDefault".into())));
    assert_eq!((spec.automount_service_account_token, spec.enable_service_links, spec.host_users), (Some(false), Some(false), Some(false)));
    let container = &spec.containers[0];
    let walls = container.security_context.as_ref().expect("container walls");
    assert_eq!((walls.allow_privilege_escalation, walls.read_only_root_filesystem), (Some(false), Some(true)));
    assert_eq!(walls.capabilities.as_ref().and_then(|all| all.drop.clone()), Some(vec!["ALL".into()]));
    for volume in spec.volumes.expect("volumes") {
        assert!(volume.secret.is_none(), "{}", volume.name);
        assert!(volume.empty_dir.is_none_or(|scratch| scratch.size_limit.is_some()), "{} has a size", volume.name);
    }
}

#[test]
fn the_secrets_for_the_image_of_the_sidecar_follow_those_of_the_pool() {
    let names = |pool: Value, own: &[&str]| {
        let (agent, pool) = objects(json!({"scheduling": {"imagePullSecrets": pool}}));
        let supervised = Supervised { pull_secrets: own.iter().map(|name| (*name).to_owned()).collect(), ..supervised() };
        let secrets = super::pod(&agent, &pool, true, &supervised).spec.expect("a spec").image_pull_secrets;
        secrets.map(|list| list.into_iter().map(|secret| secret.name).collect::<Vec<_>>())
    };
    assert_eq!(names(json!([]), &[]), None, "those of the ServiceAccount count");
    assert_eq!(names(json!([{"name": "team"}]), &[]), Some(vec!["team".into()]));
    assert_eq!(names(json!([]), &["operator"]), Some(vec!["operator".into()]));
    let both = names(json!([{"name": "team"}, {"name": "operator"}]), &["operator", "mirror"]);
    assert_eq!(both, Some(vec!["team".into(), "operator".into(), "mirror".into()]), "each once: the API server refuses a name twice");
}

#[test]
fn the_profile_of_the_node_is_that_of_the_agents_container_alone() {
    let spec = built(json!({"sandbox": {"isolation": {"seccomp": "Localhost"}}, "scheduling": {"nodeSelector": {"disk": "ssd"}}}));
    let kind = |context: Option<&SecurityContext>| context.and_then(|context| Some(context.seccomp_profile.as_ref()?.type_.clone()));
    assert_eq!(kind(spec.containers[0].security_context.as_ref()).as_deref(), Some("Localhost"));
    let sidecar = &spec.init_containers.as_ref().expect("a sidecar")[0];
    assert_eq!(kind(sidecar.security_context.as_ref()), None, "the pod's");
    assert_eq!(spec.security_context.and_then(|pod| pod.seccomp_profile).map(|profile| profile.type_).as_deref(), Some("RuntimeDefault"));
    assert_eq!(spec.node_selector.map(|selector| selector.len()), Some(2));
    let other = built(json!({}));
    assert_eq!((kind(other.containers[0].security_context.as_ref()), other.node_selector), (None, None));
}

#[test]
fn the_environment_names_the_agent_and_its_folders() {
    let told = |name: &str, agent: &Agent, pool: &AgentPool| {
        let all = environment(agent, pool);
        let mut found = all.into_iter().filter(|one| one.name == name);
        let one = found.next().unwrap_or_else(|| panic!("{name} is not set"));
        assert!(found.next().is_none(), "{name} is set twice");
        one
    };
    let (mut agent, pool) = objects(json!({"type": "drone"}));
    agent.metadata.namespace = Some("team".into());
    let id = told("SPILLWAY_AGENT_ID", &agent, &pool);
    let source = id.value_from.and_then(|from| from.field_ref).map(|field| field.field_path);
    assert_eq!((source.as_deref(), id.value), (Some("metadata.uid"), None), "the pod's uid is the agent's identity: status.podRef.uid");
    for (name, value) in [
        ("SPILLWAY_AGENT_NAME", "p-1"),
        ("SPILLWAY_AGENT_TYPE", "drone"),
        ("SPILLWAY_POOL", "p"),
        ("SPILLWAY_DATA_DIR", "/spillway/data"),
        ("SPILLWAY_CONTAINER_MODE", "true"),
    ] {
        assert_eq!(told(name, &agent, &pool).value.as_deref(), Some(value), "{name}");
    }
    // Agents of one storage have the same hash, others not.
    let hash = |agent: &Agent, pool: &AgentPool| told("SPILLWAY_STORAGE_HASH", agent, pool).value.unwrap_or_default();
    let other = Agent { metadata: ObjectMeta { name: Some("p-2".into()), ..agent.metadata.clone() }, ..agent.clone() };
    let elsewhere = Agent { metadata: ObjectMeta { namespace: Some("other".into()), ..agent.metadata.clone() }, ..agent.clone() };
    let own = hash(&agent, &pool);
    assert!(own.len() == 16 && own.bytes().all(|byte| byte.is_ascii_hexdigit()), "{own}");
    assert_eq!(own, hash(&agent, &pool), "it stays as it is");
    assert_ne!(own, hash(&other, &pool), "each has its own empty folder");
    assert_ne!(own, hash(&elsewhere, &pool), "a namespace's storage is its own");
    let (_, shared) = objects(json!({"type": "drone", "workspace": {"claimName": "c"}}));
    assert_eq!(hash(&agent, &shared), hash(&other, &shared), "they share a volume");
    assert_ne!(hash(&agent, &shared), hash(&elsewhere, &shared));
}

/// tests/chart-live.sh has the API server judge it, with the controller's own policies in force.
#[test]
fn the_pod_that_the_chart_is_tested_with_is_up_to_date() {
    let file = json!({"path": "a", "configMapKeyRef": {"name": "c", "key": "k"}});
    let (agent, pool) = objects(json!({
        "mode": "Chat",
        "agent": {"image": "x", "command": ["y"], "files": [file], "env": [{"name": "A", "value": "b"}]},
        "workspace": {"volumeClaimTemplate": {"accessModes": ["ReadWriteOnce"]}},
    }));
    let made = format!("{:#}\n", json!(pod(&agent, &pool, true, &supervised())));
    assert!(made == include_str!("../../../tests/agent-pod.json"), "tests/agent-pod.json is not what is made:\n{made}");
}

#[test]
fn clients_find_the_first_model_api_of_their_protocol_and_no_key() {
    let entry = |name: &str, dialect: &str| json!({"name": name, "dialect": dialect, "origin": "https://models.example.org"});
    let (_, pool) = objects(json!({"models": [
        entry("gpt", "OpenAIResponses"), entry("claude", "Anthropic"), entry("other", "OpenAIChat"), entry("again", "Anthropic"),
    ]}));
    let text = |value: &str| value.to_owned();
    let expected = [
        ("ANTHROPIC_BASE_URL", text("http://127.0.0.1:4101/claude")),
        ("ANTHROPIC_API_KEY", text(PLACEHOLDER_KEY)),
        ("OPENAI_BASE_URL", text("http://127.0.0.1:4101/gpt/v1")),
        ("OPENAI_API_KEY", text(PLACEHOLDER_KEY)),
    ];
    assert_eq!(model_variables(&pool), expected);
    assert_eq!(model_variables(&objects(json!({})).1), []);
}

#[test]
fn the_token_and_the_journal_are_the_sidecars_alone() {
    let spec = built(json!({}));
    let link = &spec.init_containers.as_ref().expect("a sidecar")[0];
    let mounted = |container: &Container| -> Vec<(String, bool)> {
        let mounts = container.volume_mounts.iter().flatten();
        mounts.map(|mount| (mount.name.clone(), mount.read_only == Some(true))).filter(|(name, _)| name.starts_with("spillway-")).collect()
    };
    let own = |name: &str, read_only: bool| (name.to_owned(), read_only);
    assert_eq!(mounted(&spec.containers[0]), [own("spillway-data", false), own("spillway-bin", true), own("spillway-run", true)]);
    assert!(mounted(link).contains(&own("spillway-token", true)) && mounted(link).contains(&own("spillway-journal", false)));
    assert_eq!(link.restart_policy.as_deref(), Some("Always"), "a native sidecar");
    let uid = |container: &Container| container.security_context.as_ref().and_then(|walls| walls.run_as_user);
    assert_eq!((uid(link), uid(&spec.containers[0])), (Some(LINK_UID), None), "the agent's is the pod's");
}

#[test]
fn only_pools_with_changesets_have_a_mirror_and_only_the_agents_container_mounts_it() {
    let extra =
        |driver: &str| json!({"workspace": {"git": {"remote": "https://git.example.com/a"}}, "sandbox": {"changeset": {"driver": driver}}});
    let mirrors = |spec: &PodSpec| -> (Vec<String>, Vec<String>) {
        let sizes = spec.volumes.iter().flatten().filter(|volume| volume.name == "spillway-mirror");
        let sizes =
            sizes.map(|volume| volume.empty_dir.clone().and_then(|scratch| scratch.size_limit).map_or(String::new(), |size| size.0));
        let all = spec.containers.iter().chain(spec.init_containers.iter().flatten());
        let mounts = all.flat_map(|container| container.volume_mounts.iter().flatten().map(move |mount| (&container.name, mount)));
        let mounts = mounts.filter(|(_, mount)| mount.name == "spillway-mirror" && mount.read_only.is_none());
        (sizes.collect(), mounts.map(|(container, mount)| format!("{container} {}", mount.mount_path)).collect())
    };
    assert_eq!(mirrors(&built(extra("Git"))), (vec!["8Gi".to_owned()], vec!["agent /spillway/mirror".to_owned()]));
    assert_eq!(mirrors(&built(extra("None"))), (vec![], vec![]));
}

#[test]
fn the_volume_of_a_folder_is_the_sidecars_alone() {
    let extra = json!({"workspace": {"folder": {"claimName": "data", "path": "site"}}, "sandbox": {"changeset": {"driver": "Copy"}}});
    let spec = built(extra);
    let claims: Vec<String> =
        spec.volumes.iter().flatten().filter_map(|volume| Some(volume.persistent_volume_claim.as_ref()?.claim_name.clone())).collect();
    assert_eq!(claims, ["data"]);
    let of = |container: &Container, name: &str| {
        let mounts = container.volume_mounts.iter().flatten();
        mounts.filter(|mount| mount.name == name).map(|mount| mount.mount_path.clone()).collect::<Vec<_>>()
    };
    let link = &spec.init_containers.as_ref().expect("a sidecar")[0];
    assert_eq!((of(link, "spillway-folder"), of(&spec.containers[0], "spillway-folder")), (vec!["/spillway/volume".to_owned()], vec![]));
    assert_eq!(of(&spec.containers[0], "spillway-mirror"), ["/spillway/mirror"], "for the manifest of the copy");
    let variables = link.env.iter().flatten().map(|one| (one.name.as_str(), one.value.as_deref().unwrap_or_default()));
    assert!(variables.clone().any(|one| one == ("SPILLWAY_FOLDER", "data/site")), "{:?}", variables.collect::<Vec<_>>());
    let memory = |spec: &PodSpec| spec.init_containers.as_ref()?[0].resources.as_ref()?.limits.as_ref()?.get("memory").cloned();
    assert_eq!(memory(&spec).map(|memory| memory.0).as_deref(), Some("128Mi"));
    assert_eq!(memory(&built(json!({}))).map(|memory| memory.0).as_deref(), Some("48Mi"));
}

#[test]
fn the_supervisor_starts_the_program_and_passes_on_what_the_pool_lists() {
    let words = |extra| built(extra).containers[0].command.clone().expect("a command").join(" ");
    assert_eq!(words(json!({})), "/spillway/bin/spillway-agent agent --home /home/agent/home -- y");
    let extra = json!({"mode": "Chat", "agent": {"image": "x", "command": ["sh", "-c", "a b"], "env": [{"name": "A", "value": "1"}]}});
    assert_eq!(words(extra), "/spillway/bin/spillway-agent agent --pass A --tty --home /home/agent/home -- sh -c a b");
}

#[test]
fn limits_are_always_set_and_what_is_set_is_kept() {
    let resources =
        built(json!({"agent": {"image": "x", "command": ["y"], "resources": {"limits": {"memory": "64Mi"}, "requests": {"cpu": "5m"}}}}))
            .containers[0]
            .resources
            .clone()
            .expect("resources");
    let (limits, requests) = (resources.limits.expect("limits"), resources.requests.expect("requests"));
    assert_eq!((limits["memory"].0.as_str(), limits["cpu"].0.as_str(), requests["cpu"].0.as_str()), ("64Mi", "1", "5m"));
    assert!(!requests.contains_key("memory"), "a default request of 128Mi would be above the limit that was set");
}

#[test]
fn files_are_copied_below_home_or_the_workspace() {
    let file = |path: &str| json!({"path": path, "configMapKeyRef": {"name": "c", "key": "k"}});
    let spec =
        built(json!({"agent": {"image": "x", "command": ["y"], "files": [file(".codex/config.toml"), file("workspace/AGENTS.md")]}}));
    let container = &spec.containers[0];
    let words = container.command.clone().expect("a command").join(" ");
    assert_eq!(
        words,
        "/spillway/bin/spillway-agent agent --home /home/agent/home --file /spillway/files/0/content \
         /home/agent/home/.codex/config.toml --file /spillway/files/1/content /workspace/AGENTS.md -- y"
    );
    let mounts = container.volume_mounts.iter().flatten().filter(|mount| mount.name.starts_with("file-"));
    let mounts: Vec<_> = mounts.map(|mount| (mount.mount_path.as_str(), mount.read_only, mount.sub_path.as_deref())).collect();
    assert_eq!(mounts, [("/spillway/files/0", Some(true), None), ("/spillway/files/1", Some(true), None)]);
    let home = container.env.iter().flatten().find(|variable| variable.name == "HOME").and_then(|home| home.value.as_deref());
    assert_eq!(home, Some(HOME_DIR), "the folder that the supervisor makes");
}

#[test]
fn a_chat_agent_has_a_terminal() {
    let container = &built(json!({"mode": "Chat"})).containers[0];
    assert_eq!((container.stdin, container.tty), (Some(true), Some(true)));
    assert_eq!(built(json!({})).containers[0].tty, None);
}

#[test]
fn an_agent_made_by_hand_gets_finalizer_owner_and_labels() {
    let (agent, pool) = objects(json!({}));
    let patch = adoption_patch(&agent, Some(&pool));
    assert_eq!(patch["metadata"]["finalizers"], json!([names::AGENT_FINALIZER]));
    assert_eq!(patch["metadata"]["ownerReferences"][0]["uid"], "pool-uid");
    assert_eq!(patch["metadata"]["labels"][names::TYPE_LABEL], "free");
    let mut half = agent.clone();
    half.metadata.finalizers = Some(vec![names::AGENT_FINALIZER.into()]);
    assert_eq!(adoption_patch(&half, Some(&pool))["metadata"]["finalizers"], json!([names::AGENT_FINALIZER]), "once");
}
