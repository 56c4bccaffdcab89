//! Join tokens: how a rented machine proves which one it is. Each is derived from the machine's name and a secret of the
//! deployment, so that none has to be stored: a plane that was killed between ordering a machine and recording it still
//! accepts the token its predecessor gave out. They are good for joining alone, and the core decides how often.

use std::fmt;
use std::sync::{Arc, OnceLock};

use remuda_core::document::{Collection, Document};
use remuda_core::id::{Hash, MachineId};
use serde_json::value::to_raw_value;

use remuda_net::secret::{RngError, Secret, constant_time_eq, random_hex};

const PREFIX: &str = "rmj_";
/// The secret's id among the stored tokens; no token has such an id, and no list of tokens shows it.
pub(crate) const KEY_ID: &str = ".join";
const KEY_BYTES: usize = 32;
/// The block size of SHA-256.
const BLOCK: usize = 64;

/// The secret that all join tokens of a deployment are derived from.
#[derive(Clone)]
pub struct JoinKey(Secret);

impl fmt::Debug for JoinKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JoinKey(***)")
    }
}

impl JoinKey {
    pub fn draw() -> Result<JoinKey, RngError> {
        random_hex(KEY_BYTES).map(|drawn| JoinKey(Secret::new(drawn)))
    }

    pub(crate) fn restore(document: &Document) -> Option<JoinKey> {
        let text: String = serde_json::from_str(document.body.get()).ok()?;
        (text.len() == 2 * KEY_BYTES).then(|| JoinKey(Secret::new(text)))
    }

    pub fn document(&self) -> serde_json::Result<Document> {
        Ok(Document {
            collection: Collection::Token,
            id: KEY_ID.to_owned(),
            tenant: None,
            index_key: String::new(),
            expires_at: None,
            body: to_raw_value(self.0.reveal())?.into(),
        })
    }

    /// The join token of a machine.
    pub fn token(&self, machine: &MachineId) -> Secret {
        Secret::new(format!("{PREFIX}{machine}_{}", self.sign(machine)))
    }

    /// The machine that a join token belongs to.
    pub(crate) fn machine(&self, token: &Secret) -> Option<MachineId> {
        let (name, signature) = token.reveal().strip_prefix(PREFIX)?.rsplit_once('_')?;
        let (machine, signature) = (name.parse().ok()?, signature.parse().ok()?);
        constant_time_eq(&self.sign(&machine), &signature).then_some(machine)
    }

    /// HMAC with SHA-256 (RFC 2104).
    fn sign(&self, machine: &MachineId) -> Hash {
        let mut key = [0; BLOCK];
        // As many hexadecimal digits as fit: the whole key.
        for (to, from) in key.iter_mut().zip(self.0.reveal().bytes()) {
            *to = from;
        }
        let padded = |pad: u8| key.iter().map(move |byte| byte ^ pad);
        let inner: Vec<u8> = padded(0x36).chain(machine.as_str().bytes()).collect();
        let outer: Vec<u8> = padded(0x5c).chain(*Hash::digest(&inner).as_bytes()).collect();
        Hash::digest(&outer)
    }
}

/// The deployment's join key, once it has one: created when the first fleet is configured. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct SharedJoinKey(Arc<OnceLock<JoinKey>>);

impl SharedJoinKey {
    pub fn current(&self) -> Option<&JoinKey> {
        self.0.get()
    }

    /// Sets the key, which is stored already; the first one stays.
    pub fn set(&self, key: JoinKey) {
        drop(self.0.set(key));
    }
}

/// Whether a text looks like a join token.
pub(crate) fn is_join_token(text: &str) -> bool {
    text.starts_with(PREFIX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(name: &str) -> MachineId {
        name.parse().unwrap()
    }

    /// Faults: M7, X9.
    #[test]
    fn join_token_names_its_machine_and_cannot_be_forged() {
        let key = JoinKey::draw().unwrap();
        let token = key.token(&machine("gpus_a-1"));
        assert_eq!(key.machine(&token), Some(machine("gpus_a-1")));
        let signature = token.reveal().rsplit('_').next().unwrap();
        let mut almost = token.reveal().to_owned();
        almost.replace_range(almost.len() - 1.., if almost.ends_with('0') { "1" } else { "0" });
        for wrong in
            [format!("rmj_gpus_a-2_{signature}"), almost, "rmj_".to_owned(), format!("rmj__{signature}")]
        {
            assert_eq!(key.machine(&Secret::new(&wrong)), None, "{wrong}");
        }
        assert_eq!(JoinKey::draw().unwrap().machine(&token), None, "another deployment's");
    }

    #[test]
    fn restored_key_makes_the_same_tokens_and_is_not_printed() {
        let key = JoinKey::draw().unwrap();
        let restored = JoinKey::restore(&key.document().unwrap()).unwrap();
        assert_eq!(restored.token(&machine("a")), key.token(&machine("a")));
        assert_eq!(format!("{key:?}"), "JoinKey(***)");
    }

    /// Computed with another implementation.
    #[test]
    fn signature_is_standard_hmac() {
        let key = JoinKey(Secret::new("Jefe"));
        let name = machine("what-do-ya-want-for-nothing");
        let signed = key.sign(&name).to_string();
        assert_eq!(signed, "e99e2bd891891741ef0a3b219d4a045738492468970c131002aaddf8bf1cad4b");
    }
}
