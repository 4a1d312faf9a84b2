//! The exact objects of a Toolset.

use super::*;
use k8s_openapi::api::networking::v1::NetworkPolicyPeer;
use serde_json::{Value, json};

fn toolset(more: Value) -> Toolset {
    let mut spec = json!({"image": "registry.example/tools:1", "definitions": [{"configMapRef": {"name": "deploy"}}], "allowedCommands": ["/usr/bin/git"]});
    spec.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    serde_json::from_value(json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "Toolset", "spec": spec,
        "metadata": {"name": "tools", "namespace": "team", "uid": "uid-1", "generation": 1}}))
    .expect("a Toolset")
}

fn supervised() -> Supervised {
    let peer = |name: &str| -> NetworkPolicyPeer {
        serde_json::from_value(json!({"podSelector": {"matchLabels": {"app": name}}})).expect("a peer")
    };
    Supervised {
        gateway: "10.0.0.1:443".into(),
        peer: peer("gateway"),
        port: 8443,
        controller: peer("controller"),
        image: "spillway:dev".into(),
        pull_policy: "Never".into(),
        pull_secrets: Vec::new(),
        canaries: vec![],
        dns: Vec::new(),
    }
}

fn labels() -> Value {
    json!({"app.kubernetes.io/name": "spillway-bridge", "app.kubernetes.io/instance": "tools", "app.kubernetes.io/managed-by": "spillway"})
}

fn selecting() -> Value {
    json!({"app.kubernetes.io/name": "spillway-bridge", "app.kubernetes.io/instance": "tools"})
}

fn metadata_of_all() -> Value {
    let owner = json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "Toolset", "name": "tools", "uid": "uid-1", "controller": true, "blockOwnerDeletion": true});
    json!({"name": "tools-toolset", "namespace": "team", "labels": labels(), "ownerReferences": [owner]})
}

/// The pod's spec.
fn pod(more: Value) -> Value {
    json!(deployment(&toolset(more), "deploy=uid-2", &supervised()))["spec"]["template"]["spec"].clone()
}

#[test]
fn the_account_has_no_token_and_is_made_only_if_none_is_named() {
    let own = service_account(&toolset(json!({})));
    assert_eq!(
        json!(own),
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata_of_all(), "automountServiceAccountToken": false})
    );
    let named = toolset(json!({"serviceAccountName": "deployer"}));
    assert_eq!((service_account(&named), account_name(&named).as_str()), (None, "deployer"));
}

#[test]
fn the_service_leads_to_the_bridge() {
    assert_eq!(
        json!(service(&toolset(json!({})))),
        json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata_of_all(),
            "spec": {"type": "ClusterIP", "selector": selecting(), "ports": [{"name": "https", "protocol": "TCP", "port": 443, "targetPort": 8444}]}})
    );
}

#[test]
fn only_gateways_and_the_controller_connect_to_the_bridge() {
    let mut known = NameAddresses::default();
    known.record("a.example", ["192.0.2.1".parse().expect("an address")], crate::cluster::clock::BootTime::default());
    let named = network_policy(&toolset(json!({})), &EgressTargets::Nothing, &known, &supervised());
    assert_eq!(json!(named.metadata.annotations), json!({"spillway.dev/addresses": "{\"a.example\":[\"192.0.2.1\"]}"}));
    assert_eq!(
        json!(network_policy(&toolset(json!({})), &EgressTargets::Everything, &NameAddresses::default(), &supervised())),
        json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata_of_all(),
            "spec": {"podSelector": {"matchLabels": selecting()}, "policyTypes": ["Ingress", "Egress"], "egress": [{}],
                "ingress": [{"ports": [{"protocol": "TCP", "port": 8444}],
                    "from": [{"podSelector": {"matchLabels": {"app": "gateway"}}}, {"podSelector": {"matchLabels": {"app": "controller"}}}]}]}})
    );
}

#[test]
fn the_deployment_of_the_least_toolset() {
    let walls =
        json!({"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "runAsNonRoot": true, "capabilities": {"drop": ["ALL"]}});
    let install = json!({
        "name": "install", "image": "spillway:dev", "imagePullPolicy": "Never",
        "command": ["/bin/spillway", "bridge", "install", "/spillway/bin"],
        "resources": {"limits": {"cpu": "500m", "memory": "64Mi", "ephemeral-storage": "64Mi"}, "requests": {"cpu": "5m", "memory": "16Mi", "ephemeral-storage": "16Mi"}},
        "securityContext": walls,
        "volumeMounts": [{"name": "bin", "mountPath": "/spillway/bin"}],
    });
    let bridge = json!({
        "name": "bridge", "image": "registry.example/tools:1",
        "command": ["/spillway/bin/spillway", "bridge", "--definitions", "/spillway/definitions", "--listen", "0.0.0.0:8444",
            "--gateway-ca", "/spillway/ca/ca.crt", "--identity-token", "/spillway/identity/token", "--health-listen", "0.0.0.0:8080",
            "--allow", "/usr/bin/git", "--max-seconds", "300", "--work-folder", "/spillway/work", "--log-format", "json", "--require-sandbox"],
        "ports": [{"name": "bridge", "containerPort": 8444, "protocol": "TCP"}, {"name": "http", "containerPort": 8080, "protocol": "TCP"}],
        "readinessProbe": {"httpGet": {"path": "/readyz", "port": "http"}, "periodSeconds": 5, "timeoutSeconds": 5},
        "livenessProbe": {"httpGet": {"path": "/livez", "port": "http"}, "periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 6},
        "resources": {"limits": {"cpu": "1", "memory": "1Gi", "ephemeral-storage": "4Gi"}, "requests": {"cpu": "50m", "memory": "64Mi", "ephemeral-storage": "64Mi"}},
        "securityContext": walls,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": "bin", "mountPath": "/spillway/bin", "readOnly": true},
            {"name": "definitions", "mountPath": "/spillway/definitions", "readOnly": true},
            {"name": "ca", "mountPath": "/spillway/ca", "readOnly": true},
            {"name": "identity", "mountPath": "/spillway/identity", "readOnly": true},
            {"name": "work", "mountPath": "/spillway/work"},
            {"name": "tmp", "mountPath": "/tmp"},
        ],
    });
    let template = json!({
        "metadata": {"labels": labels(), "annotations": {"kubectl.kubernetes.io/default-container": "bridge", "spillway.dev/definitions": "deploy=uid-2"}},
        "spec": {
            "initContainers": [install],
            "containers": [bridge],
            "serviceAccountName": "tools-toolset",
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "terminationGracePeriodSeconds": 40,
            "securityContext": {"runAsNonRoot": true, "runAsUser": 10003, "runAsGroup": 10003, "fsGroup": 10003,
                "fsGroupChangePolicy": "OnRootMismatch", "seccompProfile": {"type": "RuntimeDefault"}},
            "volumes": [
                {"name": "bin", "emptyDir": {"sizeLimit": "128Mi"}},
                {"name": "definitions", "projected": {"sources": [{"configMap": {"name": "deploy"}}]}},
                {"name": "ca", "configMap": {"name": "spillway-ca"}},
                {"name": "identity", "projected": {"defaultMode": 0o440,
                    "sources": [{"serviceAccountToken": {"audience": "spillway.dev/bridge", "expirationSeconds": 3600, "path": "token"}}]}},
                {"name": "work", "emptyDir": {"sizeLimit": "2Gi"}},
                {"name": "tmp", "emptyDir": {"sizeLimit": "1Gi"}},
            ],
        },
    });
    assert_eq!(
        json!(deployment(&toolset(json!({})), "deploy=uid-2", &supervised())),
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata_of_all(), "spec": {
            "replicas": 1, "revisionHistoryLimit": 3, "strategy": {"type": "Recreate"}, "selector": {"matchLabels": selecting()}, "template": template}})
    );
}

#[test]
fn each_field_of_the_spec_is_in_the_pod() {
    let long = "c".repeat(63);
    let pod = pod(json!({
        "definitions": [{"configMapRef": {"name": "deploy"}}, {"configMapRef": {"name": "drafts"}, "mutable": true}],
        "serviceAccountName": "deployer",
        "credentials": [{"name": "git-token", "secretRef": {"name": "git"}}, {"name": long, "secretRef": {"name": "db"}, "key": "pass.word"}],
        "resources": {"limits": {"memory": "64Mi"}},
        "maxExecutionSeconds": 900,
        "allowedCommands": ["/usr/bin/git", "/opt/tools/*"],
        "audit": {"sink": "PersistentVolumeClaim", "claimName": "audit"},
    }));
    assert_eq!((&pod["serviceAccountName"], &pod["automountServiceAccountToken"]), (&json!("deployer"), &json!(true)));
    let bridge = &pod["containers"][0];
    let words: Vec<&str> = bridge["command"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let words = words.join(" ");
    for part in [
        "--allow /usr/bin/git --allow /opt/tools/*",
        "--credential git-token=/spillway/credentials/git-token/token",
        &format!("--credential {long}=/spillway/credentials/{long}/pass.word"),
        "--service-account /var/run/secrets/kubernetes.io/serviceaccount",
        "--max-seconds 900",
        "--audit-file /spillway/audit/audit.jsonl",
    ] {
        assert!(words.contains(part), "{part}: {words}");
    }
    assert_eq!(bridge["resources"]["limits"]["memory"], "64Mi");
    let volume = |name: &str| pod["volumes"].as_array().into_iter().flatten().find(|volume| volume["name"] == name).cloned();
    let mounted = |name: &str| bridge["volumeMounts"].as_array().into_iter().flatten().find(|mount| mount["name"] == name).cloned();
    assert_eq!(
        volume("definitions"),
        Some(
            json!({"name": "definitions", "projected": {"sources": [{"configMap": {"name": "deploy"}}, {"configMap": {"name": "drafts"}}]}})
        )
    );
    assert_eq!(
        volume("credential-0"),
        Some(
            json!({"name": "credential-0", "secret": {"secretName": "git", "defaultMode": 0o440, "items": [{"key": "token", "path": "token"}]}})
        )
    );
    assert_eq!(
        volume("credential-1").map(|volume| volume["secret"]["items"].clone()),
        Some(json!([{"key": "pass.word", "path": "pass.word"}]))
    );
    assert_eq!(
        mounted("credential-1"),
        Some(json!({"name": "credential-1", "mountPath": format!("/spillway/credentials/{long}"), "readOnly": true}))
    );
    assert_eq!(volume("audit"), Some(json!({"name": "audit", "persistentVolumeClaim": {"claimName": "audit"}})));
    assert_eq!(mounted("audit"), Some(json!({"name": "audit", "mountPath": "/spillway/audit"})));
    let stdout = super::deployment(&toolset(json!({"audit": {"sink": "Stdout"}})), "deploy=uid-2", &supervised());
    assert!(!json!(stdout).to_string().contains("audit"));
}

#[test]
fn an_mcp_server_is_fronted_by_our_own_image_alone() {
    let spec = json!({"upstream": {"url": "https://mcp.example.com/mcp", "credentialsRef": {"name": "tracker.key", "key": "api"}, "tools": [{"name": "search"}]}});
    let toolset: Toolset = serde_json::from_value(json!({"apiVersion": "spillway.dev/v1alpha1", "kind": "Toolset", "spec": spec,
        "metadata": {"name": "tools", "namespace": "team", "uid": "uid-1", "generation": 1}}))
    .expect("a Toolset");
    let pod = json!(deployment(&toolset, "", &supervised()))["spec"]["template"]["spec"].clone();
    assert_eq!(pod["initContainers"], Value::Null);
    let container = &pod["containers"][0];
    assert_eq!((&container["image"], &container["imagePullPolicy"]), (&json!("spillway:dev"), &json!("Never")));
    let config = r#"{"credentialsRef":{"name":"upstream"},"tools":[{"name":"search"}],"url":"https://mcp.example.com/mcp"}"#;
    let words: Vec<&str> = container["command"].as_array().expect("words").iter().filter_map(Value::as_str).collect();
    assert_eq!(words[..2], ["/bin/spillway", "bridge"]);
    let after = |option: &str| words.iter().position(|word| *word == option).and_then(|at| words.get(at + 1).copied());
    assert_eq!(after("--credential"), Some("upstream=/spillway/credentials/upstream/api"));
    let told: Value = serde_json::from_str(after("--upstream-config").expect("the upstream")).expect("JSON");
    assert_eq!(told, serde_json::from_str::<Value>(config).expect("JSON"));
    assert!(!words.iter().any(|word| ["--definitions", "--work-folder", "--require-sandbox", "--allow"].contains(word)), "{words:?}");
    let volumes: Vec<&str> = pod["volumes"].as_array().expect("volumes").iter().filter_map(|volume| volume["name"].as_str()).collect();
    assert_eq!(volumes, ["ca", "identity", "credential-0"]);
    assert_eq!(pod["volumes"][2]["secret"]["secretName"], "tracker.key");
    let mounts = container["volumeMounts"].as_array().expect("mounts");
    assert!(mounts.iter().all(|mount| mount["readOnly"] == true) && mounts.len() == 3, "{mounts:?}");
}
