//! What an operator allows each tenant: which node classes its workflows may use, and which workers run its jobs. A node
//! can read files or run code, so a workflow of a tenant that is not trusted is checked before it is accepted.
//!
//! | rule | meaning |
//! |---|---|
//! | denied `ExecutePython*`, of every tenant | no tenant may use a class that begins like this |
//! | allowed `KSampler`, of anna | anna may use the classes that her rules and those of every tenant allow, and no others |
//! | label `pool=a`, of anna | anna's jobs run on workers with this label only; a label of every tenant is for the others |
//!
//! A denial wins over a permission. Jobs that were accepted before a rule was made are not judged again.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::id::Tenant;
use crate::need::Requirements;
use crate::refusal::Refusal;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TenantRules {
    /// For all tenants.
    pub every: TenantRule,
    pub own: BTreeMap<Tenant, TenantRule>,
}

/// What one tenant, or every tenant, may use. A class `Name*` stands for all that begin like this.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TenantRule {
    pub denied_classes: Vec<String>,
    pub allowed_classes: Vec<String>,
    /// Labels of the workers that run the tenant's jobs.
    pub worker_labels: BTreeMap<String, String>,
}

impl TenantRules {
    /// What a job of this tenant needs once the rules are applied, or why it is refused.
    pub fn apply(&self, tenant: &Tenant, needs: &mut Requirements) -> Result<(), Refusal> {
        let own = self.own.get(tenant);
        self.check_classes(tenant, own, needs)?;
        let own_labels = own.map(|own| &own.worker_labels);
        let is_replaced = |name: &String| own_labels.is_some_and(|labels| labels.contains_key(name));
        let general = self.every.worker_labels.iter().filter(|(name, _)| !is_replaced(name));
        for (name, value) in own_labels.into_iter().flatten().chain(general) {
            let asked = needs.labels.entry(name.clone()).or_insert_with(|| value.clone());
            if asked != value {
                return Err(Refusal::ForeignPool { tenant: tenant.clone(), label: name.clone() });
            }
        }
        Ok(())
    }

    fn check_classes(
        &self,
        tenant: &Tenant,
        own: Option<&TenantRule>,
        needs: &Requirements,
    ) -> Result<(), Refusal> {
        let rules = || own.into_iter().chain([&self.every]);
        let is_limited = rules().any(|rule| !rule.allowed_classes.is_empty());
        let is_forbidden = |class: &&String| {
            rules().any(|rule| covers(&rule.denied_classes, class))
                || is_limited && !rules().any(|rule| covers(&rule.allowed_classes, class))
        };
        match needs.classes.iter().find(is_forbidden) {
            Some(class) => Err(Refusal::ForbiddenClass { tenant: tenant.clone(), class: class.clone() }),
            None => Ok(()),
        }
    }
}

fn covers(rules: &[String], class: &str) -> bool {
    rules.iter().any(|rule| match rule.strip_suffix('*') {
        Some(start) => class.starts_with(start),
        None => rule == class,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each rule as `TENANT/RULE`, with `*` for every tenant.
    fn rules(denied: &[&str], allowed: &[&str], labels: &[&str]) -> TenantRules {
        let mut rules = TenantRules::default();
        for (index, texts) in [denied, allowed, labels].into_iter().enumerate() {
            for text in texts {
                let (tenant, text) = text.split_once('/').unwrap();
                let rule = match tenant {
                    "*" => &mut rules.every,
                    tenant => rules.own.entry(tenant.parse().unwrap()).or_default(),
                };
                match index {
                    0 => rule.denied_classes.push(text.to_owned()),
                    1 => rule.allowed_classes.push(text.to_owned()),
                    _ => rule.worker_labels.extend(text.split_once('=').map(|(a, b)| (a.into(), b.into()))),
                }
            }
        }
        rules
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
}
