//! `GET /metrics`. What the plane counts is written where the plane is; the rest is read here.

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};

use super::super::{ApiError, Context};
use crate::metrics::{Page, table, write_plane, write_process};
use crate::tasks::TaskState;

const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

pub(in crate::http) async fn metrics(State(context): State<Context>) -> Result<Response, ApiError> {
    let mut page = context.plane.read(write_plane).await?;
    context.plane.stats.write(&mut page);
    write_server(&mut page, &context);
    write_connections(&mut page, &context);
    context.http_counts.write(&mut page);
    context.webhook_stats.write(&mut page);
    context.alerts.stats.write(&mut page);
    write_process(&mut page);
    Ok(([(header::CONTENT_TYPE, CONTENT_TYPE)], page.into_text()).into_response())
}

fn write_server(page: &mut Page, context: &Context) {
    page.single(&table::STORE_RESERVE, u8::from(context.store.has_reserve()));
    let tasks = context.tasks.statuses();
    let mut up = page.family(&table::TASK_UP);
    for task in &tasks {
        up.sample([task.name], u8::from(task.state == TaskState::Running));
    }
    let mut restarts = page.family(&table::TASK_RESTARTS);
    for task in &tasks {
        restarts.sample([task.name], task.restarts);
    }
    let mut ends = page.family(&table::CERTIFICATE_ENDS);
    if let Some(tls) = &context.access.tls {
        ends.sample([], tls.ends_at().as_millis() / 1000);
    }
}

fn write_connections(page: &mut Page, context: &Context) {
    let places = context.access.places.status();
    let mut open = page.family(&table::CONNECTIONS);
    for class in ["clients", "workers", "admins", "without_request"] {
        open.sample([class], places[class]["open"].as_u64().unwrap_or(0));
    }
    let mut refused = page.family(&table::CONNECTIONS_REFUSED);
    for (reason, count) in places["refused"].as_object().into_iter().flatten() {
        refused.sample([reason.as_str()], count.as_u64().unwrap_or(0));
    }
    let streams = context.streams_max.saturating_sub(context.streams.available_permits());
    page.family(&table::LISTENERS).sample(["sse"], streams).sample(["comfyui"], context.comfyui.clients());
}
