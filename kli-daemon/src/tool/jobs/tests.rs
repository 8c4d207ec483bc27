use serde_json::json;

use super::*;
use crate::tool::bash::Bash;
use crate::tool::job_tools::{JobKill, JobOutput};
use crate::tool::testing::{Place, text};

async fn start(place: &Place, command: &str) -> String {
    let output = place.call(&Bash::new(), json!({"command": command, "background": true})).await;
    assert!(!output.is_error, "{}", text(&output));
    output.details.unwrap()["jobId"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_job_runs_prints_and_ends() {
    let place = Place::new();
    let jobs = &place.context.jobs;
    assert_eq!(text(&place.call(&JobOutput::new(), json!({})).await), "There are no background jobs.");
    let id = start(&place, "echo begun; read x < pipe; echo got $x; exit 5").await;
    assert_eq!(id, "job_1");
    assert_eq!((jobs.list()[0].status, jobs.list()[0].exit_code), (JobStatus::Running, None));
    let output = place.call(&JobOutput::new(), json!({"jobId": id, "wait": 10})).await;
    // `pipe` does not exist: bash says so and goes on.
    assert!(text(&output).ends_with("got\n\n[job_1 exited with code 5.]"), "{}", text(&output));
    assert_eq!(output.details, Some(json!({"jobId": "job_1", "status": "exited", "exitCode": 5})));
    let listed = &jobs.list()[0];
    assert!(listed.output.starts_with("begun\n") && listed.output.ends_with("got\n"), "{listed:?}");
    assert_eq!(jobs.kill(&id).await, Ok(()));
    assert_eq!(jobs.list()[0].status, JobStatus::Exited, "what has ended stays as it is");
}

#[tokio::test]
async fn a_job_can_be_killed_with_all_its_children() {
    let place = Place::new();
    let id = start(&place, "trap '' TERM; setsid sleep 987 & sleep 988").await;
    let output = place.call(&JobKill::new(), json!({"jobId": id})).await;
    assert!(!output.is_error && text(&output).ends_with("[job_1 was killed.]"), "{}", text(&output));
    assert_eq!(place.context.jobs.list()[0].status, JobStatus::Killed);
    for tool in [&JobKill::new() as &dyn crate::tool::Tool, &JobOutput::new()] {
        let output = place.call(tool, json!({"jobId": "job_9"})).await;
        assert!(output.is_error && text(&output).contains("Jobs: job_1."), "{} {}", tool.spec().name, text(&output));
    }
    assert_eq!(place.context.jobs.kill("job_9").await, Err(JobError::Unknown("job_9".into())));
}

#[tokio::test]
async fn jobs_end_with_the_session() {
    let place = Place::new();
    start(&place, "sleep 987").await;
    let output = place.call(&Bash::new(), json!({"command": "setsid sleep 988 > /dev/null 2>&1 & echo $!"})).await;
    let pid = text(&output).trim().parse().unwrap();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    assert!(rustix::process::test_kill_process(pid).is_ok(), "it may go on as long as the session");
    place.context.jobs.shutdown().await;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    assert!(stat.is_empty() || stat.contains(") Z "), "{stat}");
    assert_eq!(place.context.jobs.list()[0].status, JobStatus::Killed);
    let output = place.call(&Bash::new(), json!({"command": "true"})).await;
    assert!(output.is_error && text(&output).contains("the session is closing"), "{}", text(&output));
    place.context.jobs.shutdown().await;
}

#[tokio::test]
async fn jobs_are_bounded() {
    let place = Place::new();
    for _ in 0..MOST_RUNNING {
        start(&place, "sleep 987").await;
    }
    let output = place.call(&Bash::new(), json!({"command": "sleep 987", "background": true})).await;
    assert!(output.is_error && text(&output).contains("32 background jobs are running already"), "{}", text(&output));
    // What could not be adopted is not ended, and the command still returns.
    let output = place.call(&Bash::new(), json!({"command": "sleep 987 & echo up"})).await;
    assert_eq!((text(&output).as_str(), output.is_error), ("up\n", false));
    place.context.jobs.kill("job_1").await.unwrap();
    start(&place, "sleep 987").await;
    assert!(place.context.jobs.list().len() <= MOST_RUNNING + MOST_ENDED);
    place.context.jobs.shutdown().await;
}

#[tokio::test]
async fn the_output_of_a_job_is_bounded() {
    let place = Place::new();
    let id = start(&place, "yes abcdefgh | head -c 3000000; printf end").await;
    place.context.jobs.ended(&id).await.unwrap();
    assert!(place.context.jobs.list()[0].output.len() <= LISTED.bytes);
    let output = text(&place.call(&JobOutput::new(), json!({"jobId": id})).await);
    assert!(
        output.ends_with("end\n\n[Only the end of the output.]\n[job_1 exited with code 0.]"),
        "{}",
        &output[output.len() - 200..]
    );
    assert!(output.len() < Limits::OUTPUT.bytes + 300);
}
