//! Small building blocks of the crates that perform IO: outgoing HTTP (`http_client`), server-sent events (`sse`), secrets
//! (`secret`) and what children see of them (`hidden_environment`, `job_environment`), private addresses that may be called
//! (`private_target`), the clock (`clock`), terminal output (`terminal`) and untrusted text made safe to print (`text`).

pub mod clock;
pub mod hidden_environment;
pub mod http_client;
pub mod job_environment;
pub mod private_target;
pub mod secret;
pub mod sse;
pub mod terminal;
pub mod text;
mod variable_names;
