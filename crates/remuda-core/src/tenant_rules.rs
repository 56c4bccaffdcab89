//! What an operator allows each tenant: which node classes its workflows may use, and which workers run its jobs. A node
//! can read files or run code, so a workflow of a tenant that is not trusted is checked before it is accepted.
//!
//! | rule | meaning |
//! |---|---|
//! | denied `*/ExecutePython*` | no tenant may use a class that begins like this |
//! | allowed `anna/KSampler` | anna may use the classes that her rules and those of `*` allow, and no others |
//! | pool `anna/pool=a` | anna's jobs run on workers with the label `pool=a` only; `*/pool=shared` is for the others |
//!
//! A denial wins over a permission. Jobs that were accepted before a rule was made are not judged again.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::id::Tenant;
use crate::need::Requirements;
use crate::refusal::Refusal;

/// Every tenant.
const ANY: &str = "*";

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TenantRules {
    pub denied_classes: Vec<NodeClassRule>,
    pub allowed_classes: Vec<NodeClassRule>,
    pub worker_pools: Vec<WorkerPoolRule>,
}

/// A tenant, or all of them, and a node class; `Name*` stands for every class that begins like this.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeClassRule {
    tenant: String,
    class: String,
}

/// A tenant, or all of them, and the label of the workers that run its jobs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerPoolRule {
    tenant: String,
    label: String,
    value: String,
}

impl TenantRules {
    /// What a job of this tenant needs once the rules are applied, or why it is refused.
    pub fn apply(&self, tenant: &Tenant, needs: &mut Requirements) -> Result<(), Refusal> {
        self.check_classes(tenant, needs)?;
        for rule in self.pools_of(tenant) {
            let asked = needs.labels.entry(rule.label.clone()).or_insert_with(|| rule.value.clone());
            if *asked != rule.value {
                return Err(Refusal::ForeignPool { tenant: tenant.clone(), label: rule.label.clone() });
            }
        }
        Ok(())
    }

    fn check_classes(&self, tenant: &Tenant, needs: &Requirements) -> Result<(), Refusal> {
        let allowed: Vec<_> =
            self.allowed_classes.iter().filter(|rule| is_for(&rule.tenant, tenant)).collect();
        let denied: Vec<_> = self.denied_classes.iter().filter(|rule| is_for(&rule.tenant, tenant)).collect();
        let is_forbidden = |class: &&String| {
            denied.iter().any(|rule| rule.covers(class))
                || !allowed.is_empty() && !allowed.iter().any(|rule| rule.covers(class))
        };
        match needs.classes.iter().find(is_forbidden) {
            Some(class) => Err(Refusal::ForbiddenClass { tenant: tenant.clone(), class: class.clone() }),
            None => Ok(()),
        }
    }

    /// The tenant's own rules, and those of all tenants for labels that it has no rule for.
    fn pools_of(&self, tenant: &Tenant) -> impl Iterator<Item = &WorkerPoolRule> {
        let is_own = |rule: &&WorkerPoolRule| rule.tenant == tenant.as_str();
        let has_own = move |label: &str| {
            self.worker_pools.iter().any(|rule| rule.tenant == tenant.as_str() && rule.label == label)
        };
        let own = self.worker_pools.iter().filter(is_own);
        own.chain(self.worker_pools.iter().filter(move |rule| rule.tenant == ANY && !has_own(&rule.label)))
    }
}

fn is_for(rule: &str, tenant: &Tenant) -> bool {
    rule == ANY || rule == tenant.as_str()
}

impl NodeClassRule {
    fn covers(&self, class: &str) -> bool {
        match self.class.strip_suffix('*') {
            Some(start) => class.starts_with(start),
            None => class == self.class,
        }
    }
}

/// The text is no rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadTenantRule(String);

impl fmt::Display for BadTenantRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadTenantRule {}

/// `anna/rest`, with a tenant or `*` before the first slash.
fn split(text: &str) -> Option<(String, &str)> {
    let (tenant, rest) = text.split_once('/')?;
    let is_tenant = tenant == ANY || tenant.parse::<Tenant>().is_ok();
    (is_tenant && !rest.is_empty()).then(|| (tenant.to_owned(), rest))
}

impl FromStr for NodeClassRule {
    type Err = BadTenantRule;

    fn from_str(text: &str) -> Result<NodeClassRule, BadTenantRule> {
        let bad = || {
            BadTenantRule(format!(
                "{text:?} is no rule: write TENANT/CLASS, as in `anna/LoadImage` or `*/Execute*`"
            ))
        };
        let (tenant, class) = split(text).ok_or_else(bad)?;
        Ok(NodeClassRule { tenant, class: class.to_owned() })
    }
}

impl FromStr for WorkerPoolRule {
    type Err = BadTenantRule;

    fn from_str(text: &str) -> Result<WorkerPoolRule, BadTenantRule> {
        let bad =
            || BadTenantRule(format!("{text:?} is no rule: write TENANT/LABEL=VALUE, as in `anna/pool=a`"));
        let (tenant, label) = split(text).ok_or_else(bad)?;
        let (label, value) = label.split_once('=').filter(|(label, _)| !label.is_empty()).ok_or_else(bad)?;
        Ok(WorkerPoolRule { tenant, label: label.to_owned(), value: value.to_owned() })
    }
}

impl fmt::Display for NodeClassRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.tenant, self.class)
    }
}

impl fmt::Display for WorkerPoolRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}={}", self.tenant, self.label, self.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(denied: &[&str], allowed: &[&str], pools: &[&str]) -> TenantRules {
        TenantRules {
            denied_classes: denied.iter().map(|rule| rule.parse().unwrap()).collect(),
            allowed_classes: allowed.iter().map(|rule| rule.parse().unwrap()).collect(),
            worker_pools: pools.iter().map(|rule| rule.parse().unwrap()).collect(),
        }
    }

    /// The class that is refused.
    fn refused(rules: &TenantRules, tenant: &str, classes: &[&str]) -> Option<String> {
        let classes = classes.iter().map(|&class| class.to_owned()).collect();
        let mut needs = Requirements { classes, ..Requirements::default() };
        match rules.apply(&tenant.parse().unwrap(), &mut needs) {
            Ok(()) => None,
            Err(Refusal::ForbiddenClass { class, .. }) => Some(class),
            Err(other) => panic!("{other}"),
        }
    }

    /// Faults: X15.
    #[test]
    fn denied_class_is_refused_for_its_tenants_only() {
        let rules = rules(&["*/Execute*", "anna/LoadImage"], &[], &[]);
        assert_eq!(refused(&rules, "anna", &["KSampler", "LoadImage"]).as_deref(), Some("LoadImage"));
        assert_eq!(refused(&rules, "ben", &["KSampler", "LoadImage"]), None);
        assert_eq!(refused(&rules, "ben", &["ExecutePython"]).as_deref(), Some("ExecutePython"));
        assert_eq!(refused(&rules, "ben", &["PreExecute"]), None);
        assert_eq!(refused(&TenantRules::default(), "ben", &["ExecutePython"]), None);
    }

    /// Faults: X15.
    #[test]
    fn tenant_with_a_list_may_use_nothing_else_and_a_denial_wins() {
        let rules = rules(&["anna/SaveAnywhere"], &["*/KSampler", "anna/Save*"], &[]);
        assert_eq!(refused(&rules, "anna", &["KSampler", "SaveImage"]), None);
        assert_eq!(refused(&rules, "anna", &["SaveAnywhere"]).as_deref(), Some("SaveAnywhere"));
        assert_eq!(refused(&rules, "anna", &["LoadImage"]).as_deref(), Some("LoadImage"));
        assert_eq!(refused(&rules, "ben", &["SaveImage"]).as_deref(), Some("SaveImage"));
        assert_eq!(refused(&rules, "ben", &[]), None, "a job without nodes uses none");
    }

    /// Faults: X15.
    #[test]
    fn pool_of_a_tenant_is_needed_by_its_jobs_and_closed_to_others() {
        let rules = rules(&[], &[], &["*/pool=shared", "anna/pool=a"]);
        let needed = |tenant: &str, asked: Option<&str>| {
            let labels = asked.map(|value| ("pool".to_owned(), value.to_owned())).into_iter().collect();
            let mut needs = Requirements { labels, ..Requirements::default() };
            rules.apply(&tenant.parse().unwrap(), &mut needs).map(|()| needs.labels["pool"].clone())
        };
        assert_eq!(needed("anna", None).unwrap(), "a");
        assert_eq!(needed("anna", Some("a")).unwrap(), "a");
        assert_eq!(needed("ben", None).unwrap(), "shared");
        let message = needed("ben", Some("a")).unwrap_err().to_string();
        assert!(message.contains("ben") && message.contains("pool"), "{message}");
    }

    #[test]
    fn text_that_is_no_rule_is_refused() {
        for text in ["", "LoadImage", "/LoadImage", "anna/", "a b/LoadImage"] {
            assert!(text.parse::<NodeClassRule>().is_err(), "{text}");
        }
        for text in ["anna/pool", "pool=a", "anna/=a"] {
            assert!(text.parse::<WorkerPoolRule>().is_err(), "{text}");
        }
        assert_eq!("*/A (rgthree)/x".parse::<NodeClassRule>().unwrap().to_string(), "*/A (rgthree)/x");
    }
}
