use super::*;
use crate::tool::testing::Place;

#[tokio::test]
async fn a_persons_command_has_its_outcome() {
    let place = Place::new();
    let outcome = run_command("echo a; exit 2", None, &place.context).await.unwrap();
    assert_eq!((outcome.output.as_str(), outcome.exit_code, outcome.truncated), ("a\n", Some(2), false));
    assert!(!outcome.cancelled && !outcome.timed_out && outcome.full_output_path.is_none() && outcome.job_id.is_none());
    let outcome = run_command("sleep 987", Some(Duration::from_millis(50)), &place.context).await.unwrap();
    assert!(outcome.timed_out && !outcome.cancelled && outcome.exit_code.is_none());
    let outcome = run_command("true", Some(Duration::MAX), &place.context).await.unwrap();
    assert_eq!(outcome.exit_code, Some(0));
    place.context.cancel.cancel();
    let outcome = run_command("sleep 987", None, &place.context).await.unwrap();
    assert!(outcome.cancelled && outcome.exit_code.is_none());
}

#[tokio::test]
async fn what_a_dead_daemon_left_is_ended() {
    let place = Place::new();
    let mut child = std::process::Command::new("sleep")
        .arg("987")
        .env(MARKER, format!("{}-anotherdaemo-0.0", std::process::id()))
        .spawn()
        .unwrap();
    let Process { child: own, tree, .. } = spawn("sleep 987", &place.context).unwrap();
    assert!(super::super::process::end_orphans() >= 1);
    assert_eq!(child.wait().unwrap().signal(), Some(9));
    let mut own = Some(own);
    assert!(matches!(own.as_mut().unwrap().try_wait(), Ok(None)), "a living daemon's stays");
    end(&mut own, tree).await;
}
