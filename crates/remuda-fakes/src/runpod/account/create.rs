//! Creation of a pod: refusals, the result, and what the client is told, which may differ.

use std::collections::BTreeSet;
use std::time::Duration;

use axum::http::StatusCode;
use remuda_core::time::Timestamp;

use super::{Account, Place};
use crate::runpod::answer::Answer;
use crate::runpod::catalog::{CENTRES, Cloud, Gpu};
use crate::runpod::faults::{Occasion, RunpodFault};
use crate::runpod::order::Order;
use crate::runpod::pod::{Life, Pod};

const NO_INSTANCES: &str = "There are no longer any instances available with the requested specifications. Please refresh and try again.";
pub(super) const NO_GPUS: &str = "There are not enough free GPUs on the host machine to start this pod.";
/// How long a creation hangs.
const HANG: Duration = Duration::from_secs(30);
/// How long capacity is missing.
const DROUGHT: Duration = Duration::from_secs(300);
/// The newest CUDA version of any host.
const CUDA_MAX: (u32, u32) = (13, 0);

/// A capacity limit; offers without a rule are unlimited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Ids; `None` matches all.
    pub gpu: Option<String>,
    pub data_center: Option<String>,
    /// `SECURE` or `COMMUNITY`.
    pub cloud: Option<String>,
    pub gpus: u32,
}

impl Capacity {
    fn is_about(&self, gpu: &str, centre: &str, cloud: Cloud) -> bool {
        let fits = |rule: &Option<String>, is: &str| rule.as_deref().is_none_or(|rule| rule == is);
        fits(&self.gpu, gpu) && fits(&self.data_center, centre) && fits(&self.cloud, cloud.name())
    }

    /// `NVIDIA L4@EU-RO-1/SECURE=2`; `*` matches all, and everything after the GPU is optional.
    pub fn parse(text: &str) -> Option<Capacity> {
        let (what, gpus) = text.rsplit_once('=')?;
        let (what, cloud) = what.split_once('/').map_or((what, "*"), |(what, cloud)| (what, cloud));
        let (gpu, centre) = what.split_once('@').unwrap_or((what, "*"));
        let rule = |text: &str| (text != "*").then(|| text.to_owned());
        let is_known = matches!(cloud, "*" | "SECURE" | "COMMUNITY")
            && (gpu == "*" || Gpu::find(gpu).is_some())
            && (centre == "*" || CENTRES.iter().any(|(id, _)| *id == centre));
        let gpus = gpus.parse().ok().filter(|_| is_known)?;
        Some(Capacity { gpu: rule(gpu), data_center: rule(centre), cloud: rule(cloud), gpus })
    }
}

impl Account {
    pub(in crate::runpod) fn create(&mut self, mut order: Order) -> Answer {
        self.books.ordered(&order.name);
        let drawn = self.luck.draw(Occasion::Create);
        if let Some(answer) = self.refusal(&order, &drawn) {
            return answer;
        }
        let centre = match self.place(&order, &drawn) {
            Ok(centre) => centre,
            Err(answer) => return answer,
        };
        if order.is_ssh_started && !self.ssh_keys.is_empty() {
            let keys = self.ssh_keys.join("\n");
            order.env.entry("PUBLIC_KEY".to_owned()).or_insert(keys);
        }
        let wrong = order.gpu.another(order.cloud).filter(|_| drawn.contains(&RunpodFault::WrongGpu));
        if wrong.is_some() {
            self.luck.count(RunpodFault::WrongGpu);
        }
        let gpu = wrong.unwrap_or(order.gpu);
        if self.luck.strikes(&drawn, RunpodFault::Foreign) {
            self.make_foreign();
        }
        if self.luck.strikes(&drawn, RunpodFault::Double) {
            let place = Place { centre: centre.clone(), is_foreign: false };
            self.make(order.clone(), gpu, place, &BTreeSet::new());
        }
        let number = self.make(order, gpu, Place { centre, is_foreign: false }, &drawn);
        if self.luck.strikes(&drawn, RunpodFault::Create500) {
            return Answer::trouble();
        }
        if self.luck.strikes(&drawn, RunpodFault::CreateReset) {
            return Answer::Cut(Duration::ZERO);
        }
        if self.luck.strikes(&drawn, RunpodFault::CreateHang) {
            return Answer::Cut(HANG);
        }
        Answer::Json(StatusCode::CREATED, self.picture(number))
    }

    /// Refuses a creation before it is examined.
    fn refusal(&mut self, order: &Order, drawn: &BTreeSet<RunpodFault>) -> Option<Answer> {
        if self.is_closed || self.luck.strikes(drawn, RunpodFault::Refuse500) {
            return Some(Answer::trouble());
        }
        if self.luck.strikes(drawn, RunpodFault::RefuseReset) {
            return Some(Answer::Cut(Duration::ZERO));
        }
        if self.luck.strikes(drawn, RunpodFault::RefuseHang) {
            return Some(Answer::Cut(HANG));
        }
        if self.luck.strikes(drawn, RunpodFault::NoCredit) {
            let detail = "Insufficient balance: add credit to create a pod.";
            return Some(Answer::problem(StatusCode::PAYMENT_REQUIRED, detail));
        }
        let pool = (order.gpu.id, order.cloud);
        if drawn.contains(&RunpodFault::Denied) {
            self.denied.insert(pool);
        }
        if self.denied.contains(&pool) {
            self.luck.count(RunpodFault::Denied);
            let detail = format!("This account has no access to {} in {}.", pool.0, pool.1.name());
            return Some(Answer::problem(StatusCode::FORBIDDEN, detail));
        }
        None
    }

    /// The data centre that takes it.
    fn place(&mut self, order: &Order, drawn: &BTreeSet<RunpodFault>) -> Result<String, Answer> {
        let now = self.now();
        let mut centres = match order.centres.as_slice() {
            [] => CENTRES.iter().map(|(id, _)| (*id).to_owned()).collect(),
            asked => asked.to_vec(),
        };
        if let Some((id, _)) = &order.volume {
            let volume = self.options.volumes.iter().find(|volume| volume.id == *id);
            let centre = volume.map(|volume| volume.data_center.clone()).ok_or_else(Answer::not_found)?;
            if !centres.contains(&centre) {
                return Err(Answer::bad_request(format!(
                    "Network volume {id} is in data center {centre}, which is not in the requested set [{}]",
                    centres.join(", ")
                )));
            }
            centres = vec![centre];
        }
        if self.luck.strikes(drawn, RunpodFault::NoCapacity) {
            let until = now.plus(self.clock.scaled(DROUGHT));
            for centre in &centres {
                self.exhausted.insert((order.gpu.id, centre.clone(), order.cloud), until);
            }
        }
        let price = order.gpu.price(order.cloud);
        let is_had = price.is_some() && order.min_cuda.is_none_or(|min| min <= CUDA_MAX);
        let Some((count, price)) = order.count.zip(price).filter(|_| is_had) else {
            return Err(Answer::bad_request(NO_INSTANCES));
        };
        let wanted = remuda_core::money::Money::from_micros(price.as_micros() * u64::from(count));
        if self.options.spend_max.is_some_and(|max| self.books.rate().plus(wanted) > max) {
            return Err(Answer::bad_request(NO_INSTANCES));
        }
        let free = centres.into_iter().find(|centre| self.has_room(order, count, centre, now));
        free.ok_or_else(|| Answer::bad_request(NO_INSTANCES))
    }

    pub(super) fn has_room(&self, order: &Order, count: u32, centre: &str, now: Timestamp) -> bool {
        let key = (order.gpu.id, centre.to_owned(), order.cloud);
        let is_exhausted = self.exhausted.get(&key).is_some_and(|until| now < *until);
        let is_enough = |rule: &Capacity| {
            let is_counted = |pod: &&Pod| {
                pod.life == Life::Up && rule.is_about(pod.order.gpu.id, &pod.centre, pod.order.cloud)
            };
            let taken: u32 = self.pods.iter().filter(is_counted).map(|pod| pod.count).sum();
            taken + count <= rule.gpus
        };
        let mut rules = self.capacity.iter().filter(|rule| rule.is_about(order.gpu.id, centre, order.cloud));
        !is_exhausted && rules.all(is_enough)
    }
}
