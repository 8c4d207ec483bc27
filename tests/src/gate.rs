//! Signals between a test and what plays for it in another thread.

use std::sync::{Arc, Condvar, Mutex};

use crate::PATIENCE;

/// A door at which a script stops until the test opens it. Clones are the same door.
#[derive(Clone, Debug, Default)]
pub struct Gate(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    reached: bool,
    open: bool,
}

impl Gate {
    pub fn new() -> Gate {
        Gate::default()
    }

    /// Lets through whoever waits, and all who come later.
    pub fn open(&self) {
        self.0.state.lock().unwrap().open = true;
        self.0.changed.notify_all();
    }

    /// For the test: returns when somebody has come to the door.
    pub fn reached(&self) {
        assert!(self.until(|state| state.reached), "nobody came to the gate within {PATIENCE:?}");
    }

    pub fn is_reached(&self) -> bool {
        self.0.state.lock().unwrap().reached
    }

    /// For the script: stops here until it is opened. A test that has failed never opens it, hence the limit.
    pub(crate) fn pass(&self) {
        self.0.state.lock().unwrap().reached = true;
        self.0.changed.notify_all();
        self.until(|state| state.open);
    }

    fn until(&self, done: impl Fn(&State) -> bool) -> bool {
        let state = self.0.state.lock().unwrap();
        let (state, _) = self.0.changed.wait_timeout_while(state, PATIENCE, |state| !done(state)).unwrap();
        done(&state)
    }
}
