//! Where the conversation is printed: at the cursor, or above a line that is being edited.

use std::io;

use super::reader::Printer;
use crate::cli::out;

pub struct Screen {
    printer: Option<Printer>,
    /// An unfinished line that waits for its end, as only whole lines go above an edited one.
    rest: String,
    lost: bool,
}

/// A line longer than this is not waited for.
const LONGEST: usize = 4096;

impl Screen {
    pub fn new(printer: Option<Printer>) -> Screen {
        Screen { printer, rest: String::new(), lost: false }
    }

    /// Prints text; `editing` tells whether a line is being edited now.
    pub fn print(&mut self, text: &str, editing: bool) -> io::Result<()> {
        if text.is_empty() && self.rest.is_empty() {
            return Ok(());
        }
        let Some(printer) = self.printer.as_ref().filter(|_| editing) else {
            let rest = std::mem::take(&mut self.rest);
            return out::print(&format!("{rest}{text}"));
        };
        self.rest.push_str(text);
        let whole = match self.rest.rfind('\n') {
            Some(at) => self.rest.drain(..=at).collect::<String>(),
            None if self.rest.len() > LONGEST => std::mem::take(&mut self.rest),
            None => return Ok(()),
        };
        let whole = if std::mem::take(&mut self.lost) { format!("…\n{whole}") } else { whole };
        // A terminal that takes nothing must not hold up the rest; what it missed is in `kli log`.
        self.lost = printer.try_send(whole).is_err();
        Ok(())
    }
}
