//! Scenarios of Pulsar's Rust client: `scenarios pulsar://host:port topic-that-is-partly-acknowledged`.
//! Prints a result line of JSON for each.

use std::time::Duration;

use futures::{future::try_join_all, TryStreamExt};
use pulsar::{
    consumer::InitialPosition, message::proto::command_subscribe::SubType, producer, Consumer, ConsumerOptions,
    Error, Pulsar, TokioExecutor,
};

const WAIT: Duration = Duration::from_secs(60);
const QUIET: Duration = Duration::from_millis(500);

type Client = Pulsar<TokioExecutor>;

fn topic(name: &str) -> String {
    format!("persistent://public/default/rust-{name}")
}

async fn publish(client: &Client, name: &str, count: u32) -> Result<(), Error> {
    let options = producer::ProducerOptions { batch_size: Some(count), ..Default::default() };
    let mut producer = client.producer().with_topic(topic(name)).with_options(options).build().await?;
    let mut receipts = Vec::new();
    for n in 0..count {
        let payload = format!("m{n}").into_bytes();
        receipts.push(producer.send_non_blocking(producer::Message { payload, ..Default::default() }).await?);
    }
    if count > 1 {
        producer.send_batch().await?; // of a producer with batches of one it is an error
    }
    try_join_all(receipts).await?;
    Ok(())
}

async fn subscribe(client: &Client, name: &str, kind: SubType, queue: u32) -> Result<Consumer<Vec<u8>, TokioExecutor>, Error> {
    client
        .consumer()
        .with_topic(topic(name))
        .with_subscription("s")
        .with_subscription_type(kind)
        .with_batch_size(queue)
        .with_options(ConsumerOptions { initial_position: InitialPosition::Earliest, ..Default::default() })
        .build()
        .await
}

/// Receives and acknowledges what comes until nothing comes for a while.
async fn receive(consumer: &mut Consumer<Vec<u8>, TokioExecutor>, first: Duration) -> Result<Vec<String>, Error> {
    let mut found = Vec::new();
    let mut wait = first;
    while let Ok(next) = tokio::time::timeout(wait, consumer.try_next()).await {
        let Some(message) = next? else { break };
        consumer.ack(&message).await?;
        found.push(String::from_utf8_lossy(&message.payload.data).into_owned());
        wait = QUIET;
    }
    Ok(found)
}

fn numbered(count: u32) -> Vec<String> {
    (0..count).map(|n| format!("m{n}")).collect()
}

fn result(scenario: &str, ok: bool, detail: String) {
    println!("{}", serde_json::json!({"scenario": scenario, "ok": ok, "detail": detail}));
}

async fn run(url: &str, partly: &str) -> Result<(), Error> {
    let client: Client = Pulsar::builder(url, TokioExecutor).build().await?;

    publish(&client, "plain", 1).await?;
    let mut consumer = subscribe(&client, "plain", SubType::Exclusive, 100).await?;
    let found = receive(&mut consumer, WAIT).await?;
    result("produce_consume", found == numbered(1), format!("{found:?}"));

    publish(&client, "batch", 60).await?;
    let mut consumer = subscribe(&client, "batch", SubType::Exclusive, 100).await?;
    let found = receive(&mut consumer, WAIT).await?;
    result("batching", found == numbered(60), format!("{found:?}"));

    let mut shares = Vec::new();
    let mut consumers = Vec::new();
    for _ in 0..3 {
        consumers.push(subscribe(&client, "shared", SubType::Shared, 1).await?);
    }
    publish(&client, "shared", 60).await?;
    tokio::time::sleep(QUIET).await;
    for consumer in &mut consumers {
        shares.push(receive(consumer, QUIET).await?.len());
    }
    shares.sort();
    result("divided_batches", shares == [0, 0, 60], format!("{shares:?}"));

    let mut consumer = subscribe(&client, partly, SubType::Shared, 100).await?;
    let found = receive(&mut consumer, WAIT).await?;
    result("batch_index_ack", found == numbered(60), format!("{found:?}"));
    Ok(())
}

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let Err(error) = run(&arguments[1], &arguments[2]).await {
        eprintln!("{error}");
        std::process::exit(1);
    }
    std::process::exit(0);
}
