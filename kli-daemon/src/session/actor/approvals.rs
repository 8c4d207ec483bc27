//! Tool calls that wait for a person.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use kli_protocol::api::{Approval, Approvals as OnAsk, Decision, EventBody};
use kli_protocol::{ApiError, ErrorKind};
use tokio::sync::oneshot;

use super::Actor;
use crate::agent::{CallInfo, Permission, decision_name};
use crate::tool::policy::{Call, Rule, Verdict, judge};
use crate::tool::{Arguments, Outline, Tool};

/// Answered approvals that are remembered, to tell a late answer what was decided.
const REMEMBERED: usize = 1000;
/// Calls without a rule that are remembered as allowed.
const SAME: usize = 1000;

#[derive(Default)]
pub(super) struct Approvals {
    open: Vec<Open>,
    /// Rules that a person gave for this session.
    rules: Vec<Rule>,
    /// Calls that a person allowed for this session and that no rule describes, the newest last.
    same: VecDeque<Same>,
    decided: HashMap<String, String>,
    order: VecDeque<String>,
}

/// The very same call: to the same tool, with the same arguments, and asked for on the same ground, which names the
/// file that a path really leads to.
struct Same {
    tool_name: String,
    arguments: Arguments,
    reason: String,
}

struct Open {
    approval: Approval,
    run_id: String,
    tool: Arc<dyn Tool>,
    call: CallInfo,
    answer: oneshot::Sender<Permission>,
}

struct Resolution {
    decision: Decision,
    permission: Permission,
    message: Option<String>,
    by: Option<String>,
}

/// Whether a call may run: known now, or when a person has answered.
pub(super) enum Permit {
    Now(Permission),
    Later(oneshot::Receiver<Permission>),
}

impl Approvals {
    pub fn pending(&self) -> Vec<Approval> {
        self.open.iter().map(|open| open.approval.clone()).collect()
    }

    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    fn allows_same(&self, call: &CallInfo, reason: &str) -> bool {
        self.same
            .iter()
            .any(|same| same.tool_name == call.tool_name && same.arguments == call.arguments && same.reason == reason)
    }

    fn allow_same(&mut self, same: Same) {
        self.same.push_back(same);
        if self.same.len() > SAME {
            self.same.pop_front();
        }
    }

    fn remember(&mut self, approval_id: String, decision: &str) {
        self.order.push_back(approval_id.clone());
        self.decided.insert(approval_id, decision.to_owned());
        while self.order.len() > REMEMBERED {
            if let Some(oldest) = self.order.pop_front() {
                self.decided.remove(&oldest);
            }
        }
    }
}

impl Actor {
    pub(super) fn permit(&mut self, tool: Arc<dyn Tool>, call: CallInfo, outline: &Outline) -> Permit {
        let verdict = self.judge(tool.as_ref(), &call);
        let (reason, rule) = match verdict {
            Verdict::Allow => return Permit::Now(Permission::Granted),
            Verdict::Deny { reason } => return Permit::Now(Permission::Refused(reason)),
            Verdict::Ask { reason, rule } => (reason, rule),
        };
        let Some(run) = &self.run else { return Permit::Now(Permission::Refused("The run is over.".into())) };
        if run.approvals == OnAsk::Deny {
            return Permit::Now(Permission::Refused(denied_unasked(&reason)));
        }
        let run_id = run.id.clone();
        let approval = Approval {
            approval_id: crate::clock::short_id(self.deps.clock.as_ref(), "apr"),
            tool_call_id: call.tool_call_id.clone(),
            tool_name: call.tool_name.clone(),
            title: call.title.clone(),
            arguments: call.arguments.clone(),
            reason,
            rule,
            changes: outline.changes.clone(),
        };
        let (answer, answered) = oneshot::channel();
        self.approvals.open.push(Open { approval: approval.clone(), run_id, tool, call, answer });
        self.publish(EventBody::ApprovalRequested { approval });
        self.refresh_status();
        Permit::Later(answered)
    }

    fn judge(&self, tool: &dyn Tool, call: &CallInfo) -> Verdict {
        let work_dir = self.work_dir();
        let mut rules = self.settings().rules.clone();
        rules.allow.extend(self.approvals.rules.iter().cloned());
        let work_dir = std::path::Path::new(&work_dir);
        match judge(self.mode, &rules, Call { spec: tool.spec(), arguments: &call.arguments, work_dir }) {
            Verdict::Ask { reason, rule: None } if self.approvals.allows_same(call, &reason) => Verdict::Allow,
            verdict => verdict,
        }
    }

    /// `by`: the name of the client that answers.
    pub fn respond_to_approval(
        &mut self,
        approval_id: &str,
        decision: Decision,
        message: Option<String>,
        by: Option<String>,
    ) -> Result<(), ApiError> {
        let Some(open) = self.approvals.open.iter().find(|o| o.approval.approval_id == approval_id) else {
            return Err(self.no_such_approval(approval_id));
        };
        let rule = open.approval.rule.as_deref().and_then(|rule| rule.parse::<Rule>().ok());
        let same = Same {
            tool_name: open.call.tool_name.clone(),
            arguments: open.call.arguments.clone(),
            reason: open.approval.reason.clone(),
        };
        let permission = match decision {
            Decision::Allow | Decision::AllowForSession => Permission::Granted,
            Decision::Deny => Permission::Refused(match &message {
                Some(message) => format!("The user refused this call and says: {message}"),
                None => "The user refused this call.".into(),
            }),
        };
        self.resolve(approval_id, Resolution { decision, permission, message, by });
        if decision == Decision::AllowForSession {
            match rule {
                Some(rule) => self.approvals.rules.push(rule),
                None => self.approvals.allow_same(same),
            }
            self.judge_again();
        }
        self.refresh_status();
        Ok(())
    }

    fn resolve(&mut self, approval_id: &str, resolution: Resolution) {
        let Some(index) = self.approvals.open.iter().position(|o| o.approval.approval_id == approval_id) else {
            return;
        };
        let open = self.approvals.open.remove(index);
        let Resolution { decision, permission, message, by } = resolution;
        let name = decision_name(decision);
        self.approvals.remember(approval_id.to_owned(), name);
        let _ = open.answer.send(permission);
        let approval_id = approval_id.to_owned();
        self.publish(EventBody::ApprovalResolved { approval_id, decision: name.to_owned(), message, by });
    }

    /// A new rule or mode also answers the calls that already wait.
    pub(super) fn judge_again(&mut self) {
        let verdicts: Vec<(String, Verdict)> = self
            .approvals
            .open
            .iter()
            .map(|open| (open.approval.approval_id.clone(), self.judge(open.tool.as_ref(), &open.call)))
            .collect();
        for (id, verdict) in verdicts {
            let (decision, permission, message) = match verdict {
                Verdict::Ask { .. } => continue,
                Verdict::Allow => (Decision::Allow, Permission::Granted, None),
                Verdict::Deny { reason } => (Decision::Deny, Permission::Refused(reason.clone()), Some(reason)),
            };
            self.resolve(&id, Resolution { decision, permission, message, by: None });
        }
        self.refresh_status();
    }

    fn no_such_approval(&self, approval_id: &str) -> ApiError {
        match self.approvals.decided.get(approval_id) {
            Some(decision) => ApiError::new(
                ErrorKind::ApprovalNotFound,
                format!("Approval {approval_id} was answered before ({decision}); the first answer counts."),
            )
            .with("decision", decision.clone()),
            None => ApiError::new(
                ErrorKind::ApprovalNotFound,
                format!("No approval {approval_id} waits in this session; getSession lists those that do."),
            ),
        }
    }

    pub(super) fn resolve_approvals_as_aborted(&mut self, run_id: &str) {
        let (gone, kept) = std::mem::take(&mut self.approvals.open).into_iter().partition(|o| o.run_id == run_id);
        self.approvals.open = kept;
        let gone: Vec<Open> = gone;
        for open in gone {
            let approval_id = open.approval.approval_id.clone();
            self.approvals.remember(approval_id.clone(), "aborted");
            let _ = open.answer.send(Permission::Refused(crate::context::assemble::NOT_BEGUN_RESULT.into()));
            self.publish_for(
                Some(run_id.to_owned()),
                EventBody::ApprovalResolved { approval_id, decision: "aborted".into(), message: None, by: None },
            );
        }
        self.refresh_status();
    }
}

fn denied_unasked(reason: &str) -> String {
    format!(
        "Not run, since nobody is there to allow it. {reason} To allow such calls, run with mode `auto`, or add a rule \
         under [approvals] allow in config.toml."
    )
}
