//! Tokens over HTTP: create, list, revoke. The secret is in the answer to the creation and nowhere else.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::extract::rejection::JsonRejection;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use remuda_core::document::Collection;
use remuda_core::plane::PlaneEvent;
use serde_json::{Value, json};

use super::super::path::Path;
use super::super::{ApiError, Context};
use super::token_store::{BadToken, Entry, TOKENS_MAX};
use super::{AuditTarget, Role, Token, TokenRequest};

pub(in crate::http) async fn create(
    State(context): State<Context>,
    wanted: Result<Json<TokenRequest>, JsonRejection>,
) -> Result<Response, ApiError> {
    let Json(wanted) = wanted?;
    let (access, now) = (&context.access, context.plane.clock.now());
    let _serialised = access.changing.lock().await;
    if wanted.role != Role::Admin && !access.has_admin(now) {
        let message = "the first token must be an admin's: without one no token could be created or revoked. \
                       Make it with `remuda token create --role admin`";
        return Err(ApiError::new(StatusCode::CONFLICT, "no_admin", message));
    }
    if access.tokens().len() >= TOKENS_MAX {
        return Err(ApiError::invalid(format!("there are {TOKENS_MAX} tokens: revoke some first")));
    }
    let (token, secret) = Token::make(wanted, now)?;
    let document = token.document().map_err(|error| ApiError::invalid(error.to_string()))?;
    context.plane.request(PlaneEvent::PutDocument(Arc::new(document))).await?;
    let mut answer = token.shown(now);
    answer["token"] = secret.reveal().into();
    let target = AuditTarget(format!("{} ({} {})", token.name, token.role, token.id));
    access.change(|tokens| tokens.insert(token));
    let mut response = (StatusCode::CREATED, Json(answer)).into_response();
    response.extensions_mut().insert(target);
    Ok(response)
}

pub(in crate::http) async fn list(State(context): State<Context>) -> Json<Value> {
    let now = context.plane.clock.now();
    let shown = |entry: Arc<Entry>| {
        let mut shown = entry.token.shown(now);
        shown["used_at"] = entry.used_at().map(|at| at.to_string()).into();
        shown
    };
    let tokens: Vec<_> = context.access.tokens().all().into_iter().map(shown).collect();
    Json(json!({ "tokens": tokens, "is_open": context.access.is_open() }))
}

/// By id or name.
pub(in crate::http) async fn revoke(
    State(context): State<Context>,
    Path(which): Path<String>,
) -> Result<Response, ApiError> {
    let (access, now) = (&context.access, context.plane.clock.now());
    let _serialised = access.changing.lock().await;
    let all = access.tokens().all();
    let is_match = |entry: &&Arc<Entry>| entry.token.id == which || entry.token.name == which;
    let matching: Vec<_> = all.iter().filter(is_match).collect();
    let token = match matching[..] {
        [entry] => &entry.token,
        [] => {
            return Err(ApiError::not_found(format!(
                "there is no token {which:?}; `remuda token list` shows all"
            )));
        }
        [..] => {
            let ids: Vec<_> = matching.iter().map(|entry| entry.token.id.as_str()).collect();
            let message =
                format!("{} tokens are called {which:?}: name one by its id: {}", ids.len(), ids.join(", "));
            return Err(ApiError::new(StatusCode::CONFLICT, "ambiguous", message));
        }
    };
    let is_last_admin = token.role == Role::Admin
        && !token.has_expired(now)
        && access.admin.is_none()
        && access.tokens().admins(now) == 1;
    // Where no token is needed, the last one may be revoked: every caller is an admin then.
    let would_open = access.may_be_open && all.len() == 1;
    if is_last_admin && !would_open {
        let message = "this is the last admin: make another first, with `remuda token create --role admin`";
        return Err(ApiError::new(StatusCode::CONFLICT, "last_admin", message));
    }
    let id = token.id.clone();
    context
        .plane
        .request(PlaneEvent::DeleteDocument { collection: Collection::Token, id: id.clone() })
        .await?;
    access.change(|tokens| tokens.revoke(&id));
    let mut response = Json(json!({ "id": id, "name": token.name, "revoked": true })).into_response();
    response.extensions_mut().insert(AuditTarget(format!("{} ({} {})", token.name, token.role, token.id)));
    Ok(response)
}

impl From<BadToken> for ApiError {
    fn from(bad: BadToken) -> Self {
        match bad {
            BadToken::Unfit(why) => ApiError::invalid(why),
            BadToken::Rng(error) => error.into(),
        }
    }
}

impl From<remuda_net::secret::RngError> for ApiError {
    fn from(error: remuda_net::secret::RngError) -> Self {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", error.to_string())
    }
}
