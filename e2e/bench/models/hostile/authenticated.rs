//! Attacks by agents of a namespace: each call carries a token that the API server accepts.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::{FutureExt as _, StreamExt as _, stream};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::Frame;
use hyper::header::HeaderName;
use hyper::{Method, Request};
use serde_json::json;
use tokio::task::JoinSet;

use super::super::provider;
use super::attacker::{Attack, Attacker};

/// All attacks of this module.
pub const ATTACKS: [(&str, Attack); 13] = [
    ("agents send bodies of nothing but brackets", |attacker| brackets(attacker).boxed()),
    ("agents have such bodies counted, which is free", |attacker| counted_brackets(attacker).boxed()),
    ("agents send bodies of 30 MiB that never end", |attacker| slow_bodies(attacker).boxed()),
    ("agents send whole bodies of 20 MiB", |attacker| large_bodies(attacker).boxed()),
    ("agents call a model whose answers never end", |attacker| endless_answers(attacker).boxed()),
    ("agents do not read their streams", |attacker| unread_streams(attacker).boxed()),
    ("agents leave their calls at once", |attacker| abandoned_calls(attacker).boxed()),
    ("agents invent models that are out of order", |attacker| invented_models(attacker).boxed()),
    ("agents make calls that the provider refuses", |attacker| refused_calls(attacker).boxed()),
    ("agents steer the provider by headers", |attacker| steering_headers(attacker).boxed()),
    ("agents send a million blanks", |attacker| blanks(attacker).boxed()),
    ("agents hold all the long polls they can", |attacker| long_polls(attacker).boxed()),
    ("agents submit the largest items they can", |attacker| large_items(attacker).boxed()),
];

/// Calls that each agent has under way: some more than a gateway accepts of one agent.
const AT_ONCE: usize = 20;
const MIB: usize = 1024 * 1024;
/// Pause after a refusal.
const PAUSE: Duration = Duration::from_millis(20);

type Sent = BoxBody<Bytes, Infallible>;

fn whole(bytes: impl Into<Bytes>) -> Sent {
    Full::new(bytes.into()).boxed()
}

/// Each agent repeats the request that `make` returns for the agent's number and a counter, each time on a new
/// connection.
async fn repeat<F>(attacker: Arc<Attacker>, make: F) -> anyhow::Result<()>
where
    F: Fn(&Attacker, usize, usize) -> anyhow::Result<Request<Sent>> + Clone + Send + Sync + 'static,
{
    let mut tasks = JoinSet::new();
    for task in 0..attacker.tokens.len() * AT_ONCE {
        let (attacker, make, agent) = (attacker.clone(), make.clone(), task / AT_ONCE);
        tasks.spawn(async move {
            for number in 0.. {
                let calling = async {
                    let mut sender = attacker.first(attacker.agent(agent)).await?;
                    let answer = sender.send_request(make(&attacker, agent, task << 32 | number)?).await;
                    attacker.answered(&answer);
                    answer?.into_body().collect().await?;
                    anyhow::Ok(())
                };
                if calling.await.is_err() {
                    attacker.count("calls cut");
                }
                tokio::time::sleep(PAUSE).await;
            }
        });
    }
    tasks.join_all().await;
    Ok(())
}

/// A call whose body has as many brackets as a parser may have to keep.
fn bracket_body() -> Bytes {
    let brackets = "[],".repeat(MIB / 3);
    Bytes::from(format!(r#"{{"model":"{}","max_tokens":1,"messages":[],"x":[{brackets}[]]}}"#, provider::WHOLE))
}

async fn brackets(attacker: Arc<Attacker>) -> anyhow::Result<()> {
    let body = bracket_body();
    repeat(attacker, move |attacker, agent, _| attacker.call(agent, whole(body.clone()))).await
}

async fn counted_brackets(attacker: Arc<Attacker>) -> anyhow::Result<()> {
    let body = bracket_body();
    repeat(attacker, move |attacker, agent, _| {
        attacker.request(agent, Method::POST, "/models/first/v1/messages/count_tokens", whole(body.clone()))
    })
    .await
}

async fn slow_bodies(attacker: Arc<Attacker>) -> anyhow::Result<()> {
    repeat(attacker, |attacker, agent, _| {
        let head = format!(r#"{{"model":"{}","messages":[{{"role":"user","content":""#, provider::WHOLE);
        let filling = Bytes::from(vec![b'x'; 64 * 1024]);
        let parts = stream::iter(std::iter::once(Bytes::from(head)).chain((0..30 * 16).map(move |_| filling.clone())));
        let body = StreamBody::new(parts.map(|part| Ok(Frame::data(part))).chain(stream::pending()));
        attacker.call(agent, BoxBody::new(body))
    })
    .await
}

async fn large_bodies(attacker: Arc<Attacker>) -> anyhow::Result<()> {
    let body = provider::body(provider::WHOLE, 20 * MIB);
    repeat(attacker, move |attacker, agent, _| attacker.call(agent, whole(body.clone()))).await
}

async fn endless_answers(attacker: Arc<Attacker>) -> anyhow::Result<()> {
    let body = provider::body(provider::ENDLESS, 1024);
    repeat(attacker, move |attacker, agent, _| attacker.call(agent, whole(body.clone()))).await
}

async fn unread_streams(attacker: Arc<Attacker>) -> anyhow::Result<()> {
    let mut tasks = JoinSet::new();
    let body = provider::body(provider::STREAM, 1024);
    for task in 0..attacker.tokens.len() * AT_ONCE {
        let (attacker, body, agent) = (attacker.clone(), body.clone(), task / AT_ONCE);
        tasks.spawn(async move {
            loop {
                let calling = async {
                    let mut sender = attacker.first(attacker.agent(agent)).await?;
                    let answer = sender.send_request(attacker.call(agent, whole(body.clone()))?).await;
                    attacker.answered(&answer);
                    let _unread = answer?;
                    tokio::time::sleep(Duration::from_secs(120)).await;
                    anyhow::Ok(())
                };
                let _ = calling.await;
                tokio::time::sleep(PAUSE).await;
            }
        });
    }
    tasks.join_all().await;
    Ok(())
}

async fn abandoned_calls(attacker: Arc<Attacker>) -> anyhow::Result<()> {
    let mut tasks = JoinSet::new();
    let body = provider::body(provider::STREAM, 256 * 1024);
    for task in 0..attacker.tokens.len() * AT_ONCE {
        let (attacker, body, agent) = (attacker.clone(), body.clone(), task / AT_ONCE);
        tasks.spawn(async move {
            loop {
                let calling = async {
                    let mut sender = attacker.first(attacker.agent(agent)).await?;
                    let answer = sender.send_request(attacker.call(agent, whole(body.clone()))?);
                    let _ = tokio::time::timeout(PAUSE, answer).await;
                    attacker.count("calls left");
                    anyhow::Ok(())
                };
                let _ = calling.await;
                tokio::time::sleep(PAUSE).await;
            }
        });
    }
    tasks.join_all().await;
    Ok(())
}

async fn invented_models(attacker: Arc<Attacker>) -> anyhow::Result<()> {
    repeat(attacker, |attacker, agent, number| attacker.call(agent, whole(provider::body(&format!("{}-{number:x}", provider::DOWN), 1024))))
        .await
}

async fn refused_calls(attacker: Arc<Attacker>) -> anyhow::Result<()> {
    let body = provider::body(provider::REFUSED, 1024);
    repeat(attacker, move |attacker, agent, _| attacker.call(agent, whole(body.clone()))).await
}

async fn steering_headers(attacker: Arc<Attacker>) -> anyhow::Result<()> {
    let body = provider::body(provider::WHOLE, 1024);
    repeat(attacker, move |attacker, agent, _| {
        let mut call = attacker.call(agent, whole(body.clone()))?;
        for name in provider::STEERING {
            call.headers_mut().insert(HeaderName::from_static(name), "usageMetadata.promptTokenCount".parse()?);
        }
        Ok(call)
    })
    .await
}

async fn blanks(attacker: Arc<Attacker>) -> anyhow::Result<()> {
    let blanks = " ".repeat(MIB);
    let text = format!(r#"{{"model":"{}","max_tokens":1,{blanks}"messages":[{{"role":"user","content":"a"}}]}}"#, provider::WHOLE);
    let body = Bytes::from(text);
    repeat(attacker, move |attacker, agent, _| attacker.call(agent, whole(body.clone()))).await
}

async fn long_polls(attacker: Arc<Attacker>) -> anyhow::Result<()> {
    repeat(attacker, |attacker, agent, _| attacker.request(agent, Method::GET, "/agent/v1/wanted?after=1000000", whole(Bytes::new()))).await
}

async fn large_items(attacker: Arc<Attacker>) -> anyhow::Result<()> {
    repeat(attacker, |attacker, agent, _| {
        let item = json!({"queue": "work", "payload": "x".repeat(250 * 1024)});
        attacker.request(agent, Method::POST, "/agent/v1/work", whole(item.to_string()))
    })
    .await
}
